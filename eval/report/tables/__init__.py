"""The Delta tables as files: CSV, JSON, Markdown, LaTeX.

`deltas.json` has the schema `mitigate.deltas/1`:

    {"schema": "mitigate.deltas/1",
     "columns": {name: meaning},                of `deltas`, see eval.inference.DELTA_COLUMNS
     "published_columns": {name: meaning},      of `published`
     "benchmarks": {name: {"headline": {…}, "sentences": [two], "notes": [str],
                           "settings": {…}, "unit": "stereotypes" | "pairs",
                           "deltas": [one object a row], "published": [one object a row]}}}

What is not defined (no interval, no p) is null there, and empty in the CSV.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from eval.inference import DELTA_COLUMNS, PUBLISHED_COLUMNS, Comparison, signed

SCHEMA = "mitigate.deltas/1"
DASH = "–"  # what is not defined
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "−": r"$-$",
    "–": r"--",
    "Δ": r"$\Delta$",  # no letter of the usual text fonts
}
_MARKDOWN = {"\\": "\\\\", "|": "\\|", "<": "&lt;", ">": "&gt;", "*": "\\*", "_": "\\_", "`": "\\`"}


def deltas(comparisons: Mapping[str, Comparison]) -> pd.DataFrame:
    """All Delta tables in one, a `benchmark` column first."""
    tables = []
    for name, comparison in comparisons.items():
        table = comparison.table.copy()
        table.insert(0, "benchmark", name)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def as_csv(comparisons: Mapping[str, Comparison]) -> str:
    """The Delta tables as CSV, every digit kept."""
    return deltas(comparisons).to_csv(index=False, lineterminator="\n")


def as_json(comparisons: Mapping[str, Comparison]) -> str:
    """The Delta tables, headlines, notes and published tests as JSON; see this file's head."""
    found = {
        "schema": SCHEMA,
        "columns": DELTA_COLUMNS,
        "published_columns": PUBLISHED_COLUMNS,
        "benchmarks": {
            name: {
                "headline": _plain(comparison.headline),
                "sentences": list(comparison.sentences()),
                "notes": comparison.notes,
                "settings": dataclasses.asdict(comparison.settings),
                "unit": comparison.unit,
                "deltas": _plain(comparison.table.to_dict("records")),
                "published": _plain(comparison.published.to_dict("records")),
            }
            for name, comparison in comparisons.items()
        },
    }
    return json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def as_markdown(comparisons: Mapping[str, Comparison]) -> str:
    """A table of bias a benchmark, with the finding above and the notes below."""
    parts = []
    for name, comparison in comparisons.items():
        head, rows = bias_rows(comparison)
        lines = [
            f"## {_escape(name, _MARKDOWN)}",
            "",
            _escape(" ".join(comparison.sentences()), _MARKDOWN),
            "",
            _markdown_row(head),
            _markdown_row(["---"] + ["---:"] * (len(head) - 2) + ["---"], raw=True),
            *[_markdown_row(row) for row in rows],
            "",
            _escape(caption(comparison), _MARKDOWN),
        ]
        lines += ["", *[f"- {_escape(note, _MARKDOWN)}" for note in comparison.notes]]
        parts.append("\n".join(lines).rstrip())
    return "\n\n".join(parts) + "\n"


def as_latex(comparisons: Mapping[str, Comparison]) -> str:
    """A booktabs table of bias a benchmark, units in the caption; as wide as the page."""
    parts = ["% needs \\usepackage{booktabs}"]
    for number, (name, comparison) in enumerate(comparisons.items(), start=1):
        head, rows = bias_rows(comparison)
        title = f"{name}: bias before and after. {caption(comparison)}"
        parts.append(
            "\n".join(
                [
                    r"\begin{table*}[t]",
                    r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
                    rf"\caption{{{_escape(title, _LATEX)}}}",
                    rf"\label{{tab:deltas-{number}}}",
                    rf"\begin{{tabular}}{{l{'r' * (len(head) - 2)}l}}",
                    r"\toprule",
                    _latex_row(head),
                    r"\midrule",
                    *[_latex_row(row) for row in rows],
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table*}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def bias_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The table a reader sees: bias by scope, with the change of soft score and margin beside."""
    level = f"{100 * (1 - comparison.settings.alpha):g} %"
    head = ["scope", "pairs", comparison.unit, "before", "after", "Δ", f"{level} interval"]
    if comparison.unit == "pairs":
        del head[2]
    head += ["p", "p adj.", "Δ |b−50|", "Δ soft", "Δ margin", "verdict"]
    other = {
        metric: comparison.rows(metric).set_index("scope")["delta"]
        for metric in ("distance", "soft", "margin")
    }
    rows = []
    for row in comparison.rows("bias").to_dict("records"):
        scope = row["scope"]
        cells = [scope_label(scope), f"{row['n_pairs']:,}"]
        if comparison.unit != "pairs":
            cells.append(f"{row['n_clusters']:,}")
        why = reason(row)
        cells += [
            because(number(row["before"]), why),
            because(number(row["after"]), why),
            because(signed(row["delta"]), why),
            because(interval(row["ci_low"], row["ci_high"]), why),
            because(p_cell(row["p"]), why),
            because(p_cell(row["p_adjusted"]), why),
            because(signed(other["distance"][scope]), why),
            signed(other["soft"][scope], 2),
            signed(other["margin"][scope], 3),
            row["verdict"],
        ]
        rows.append(cells)
    return head, rows


def caption(comparison: Comparison) -> str:
    """What the bias table's numbers are, and in which units."""
    settings = comparison.settings
    one = comparison.unit.removesuffix("s")
    return (
        "Before and after: share of pairs whose stereotyped sentence is the likelier one, in "
        "percent; 50 means that neither side is preferred. Overall is bias (W), macro is bias "
        "(M), the mean over groups. Δ: percentage points, interval from a bootstrap over "
        f"{comparison.unit}. Δ |b−50|: change of the distance from 50, negative is nearer. "
        "Δ soft: points of the soft score. Δ margin: nats. p: sign-flip test by "
        f"{one}; p adj.: adjusted by {settings.correction.capitalize()} within the groups, and "
        f"within overall and macro; level {settings.alpha:g}. Intervals are not adjusted."
    )


def scope_label(scope: str) -> str:
    """A scope's name as readers see it: overall (W), macro (M), the group, the slice."""
    named = {"overall": "overall (W)", "macro": "macro (M)"}
    return named.get(scope, scope.removeprefix("group:"))


def number(value: float, digits: int = 1) -> str:
    """A level; a dash where there is none."""
    return DASH if math.isnan(value) else f"{value:.{digits}f}"


def interval(low: float, high: float, digits: int = 1) -> str:
    """An interval of a change; a dash where there is none."""
    return DASH if math.isnan(low) else f"{signed(low, digits)} to {signed(high, digits)}"


def p_cell(p: float) -> str:
    """p as it stands in a table; a dash where there is none."""
    if math.isnan(p):
        return DASH
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def reason(row: Mapping[Any, Any]) -> str:
    """Why a row of the Delta table lacks numbers; meant for its undefined cells only."""
    if math.isnan(row["delta"]):
        return "only ties"
    return "one cluster" if row["n_clusters"] == 1 else "not defined"


def because(cell: str, why: str) -> str:
    """A cell as it is; a dash with the reason for it."""
    return f"{DASH} ({why})" if cell == DASH else cell


def _plain(value: Any) -> Any:
    """numpy and pandas values as JSON has them; NaN and NA become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or value is pd.NA or value != value:
        return None
    return value.item() if hasattr(value, "item") else value


def _escape(text: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(sign, sign) for sign in text)


def _markdown_row(cells: Iterable[str], raw: bool = False) -> str:
    return "| " + " | ".join(cell if raw else _escape(cell, _MARKDOWN) for cell in cells) + " |"


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(_escape(cell, _LATEX) for cell in cells) + r" \\"
