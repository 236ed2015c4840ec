"""The tables in Markdown."""

from collections.abc import Iterable, Mapping

from eval.inference import Comparison
from eval.report.tables.rows import (
    bias_rows,
    caption,
    further,
    other_caption,
    other_rows,
    sure_caption,
    sure_rows,
)

_SIGNS = {"\\": "\\\\", "|": "\\|", "<": "&lt;", ">": "&gt;", "*": "\\*", "_": "\\_", "`": "\\`"}
_SIGNS |= {"[": "\\[", "]": "\\]", "&": "&amp;", "\n": " ", "\r": " "}


def as_markdown(comparisons: Mapping[str, Comparison], degraded: str = "") -> str:
    """The finding, tables of bias, of the other measures and of how sure it is, and the notes.

    `degraded`: the sentence of a run that failed the gate of retention; it stands first.
    """
    parts = [f"**{escape(degraded)}**"] if degraded else []
    for name, comparison in comparisons.items():
        lines = [
            f"## {escape(name)}",
            "",
            escape(" ".join(comparison.sentences())),
            "",
            *_table(*bias_rows(comparison)),
            "",
            escape(caption(comparison)),
            "",
            *_table(*other_rows(comparison)),
            "",
            escape(other_caption(comparison)),
            "",
            *_table(*sure_rows(comparison)),
            "",
            escape(sure_caption(comparison)),
        ]
        for title, head, rows in further(comparison):
            lines += ["", f"{escape(title)}:", "", *_table(head, rows)]
        lines += ["", *[f"- {escape(note)}" for note in comparison.notes]]
        parts.append("\n".join(lines).rstrip())
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Show a text's signs, and have none of them mean anything."""
    return "".join(_SIGNS.get(sign, sign) for sign in text)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table's lines; what is numbers stands to the right."""
    left = {"scope", "verdict", "measure", "when", "term"}
    rule = ["---" if name in left else "---:" for name in head]
    return [_row(head), f"| {' | '.join(rule)} |", *[_row(row) for row in rows]]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"
