"""The Delta tables as files: CSV, JSON, Markdown, LaTeX, and LaTeX in the papers' layouts.

`deltas.json` has the schema `mitigate.deltas/2`: see `eval.report.tables.schema`.
"""

from collections.abc import Mapping

from eval.inference import Comparison
from eval.report.tables.cells import DASH, because, interval, number, p_cell, reason, scope_label
from eval.report.tables.latex import as_latex
from eval.report.tables.markdown import as_markdown
from eval.report.tables.papers import LAYOUTS, PAPER_COLUMNS, dutch_table, german_table, paper_rows
from eval.report.tables.rows import (
    bias_rows,
    caption,
    deltas,
    other_caption,
    other_rows,
    sure_caption,
    sure_rows,
)
from eval.report.tables.schema import SCHEMA, Deltas, as_json

__all__ = [
    "DASH",
    "LAYOUTS",
    "PAPER_COLUMNS",
    "SCHEMA",
    "Deltas",
    "as_csv",
    "as_json",
    "as_latex",
    "as_markdown",
    "because",
    "bias_rows",
    "caption",
    "deltas",
    "dutch_table",
    "german_table",
    "interval",
    "number",
    "other_caption",
    "other_rows",
    "p_cell",
    "paper_rows",
    "reason",
    "scope_label",
    "sure_caption",
    "sure_rows",
]


def as_csv(comparisons: Mapping[str, Comparison]) -> str:
    """The Delta tables as CSV, every digit kept."""
    return deltas(comparisons).to_csv(index=False, lineterminator="\n")
