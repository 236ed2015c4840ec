"""The Delta tables in LaTeX: bias, the other measures, and bias/soft as the papers print them."""

from collections.abc import Mapping

from eval.inference import Comparison
from eval.report.tables.cells import DASH
from eval.report.tables.papers import german_table, paper_rows
from eval.report.tables.rows import bias_rows, caption, other_caption, other_rows
from eval.report.tables.tex import NAME, NEEDS, Tabular, escape, floats, name_cell

#: Heads that are too wide for the page, and what stands there instead.
_SHORTER = {"stereotypes": "ster.", "measure": ""}


def as_latex(comparisons: Mapping[str, Comparison], degraded: str = "") -> str:
    """Three tables a benchmark with units in the captions; they compile with booktabs alone.

    Bias with its tests; the other measures; and `bias/soft` with the papers' tests (independent
    pairs), in the German paper's layout, under that name. What is to be noted of a comparison
    stands below the first. `degraded`: the sentence of a run that failed the gate of retention; it
    ends the first table's caption, since tables travel.
    """
    parts = [NEEDS]
    marked = f" {degraded}" if degraded else ""
    for number, (name, comparison) in enumerate(comparisons.items(), start=1):
        title = escape(name)
        head, rows = bias_rows(comparison)
        del head[-4:-1]  # the other measures have a table of their own
        rows = [[*row[:-4], row[-1]] for row in rows]
        rows, foot = _footnotes(rows)
        notes = escape(" ".join(comparison.notes))
        parts.append(
            _table(
                f"{title}: bias before and after. "
                + escape(caption(comparison, short=True) + marked),
                f"tab:deltas-{number}",
                head,
                rows,
                rules={2 if len(rows) > 2 else len(rows)},
                foot=r"\par\smallskip ".join(filter(None, (foot, notes))),
            )
        )
        head, rows = other_rows(comparison)
        starts = {at for at in range(1, len(rows)) if rows[at][0] != rows[at - 1][0]}
        rows = [
            [row[0] if at in starts | {0} else "", *[_bare(cell) for cell in row[1:]]]
            for at, row in enumerate(rows)
        ]
        parts.append(
            _table(
                f"{title}: other measures. {escape(other_caption(comparison))}",
                f"tab:measures-{number}",
                head,
                rows,
                rules=starts,
            )
        )
        published = paper_rows({"bias/soft": comparison}, published=True)
        table = german_table(published, label=f"tab:published-{number}")
        parts.append(table.removeprefix(NEEDS).strip())
    return "\n\n".join(parts) + "\n"


def _table(
    caption_: str,
    label: str,
    head: list[str],
    rows: list[list[str]],
    rules: set[int],
    foot: str = "",
) -> str:
    kinds = "".join("l" if name in ("verdict", "measure") else "r" for name in head[1:])
    heads = " & ".join(escape(_SHORTER.get(name, name)) for name in head)
    tabular = Tabular(
        columns=f"p{{{NAME:g}pt}}{kinds}",
        heads=[rf"{heads} \\"],
        rows=[[name_cell(row[0]), *[_cell(cell) for cell in row[1:]]] for row in rows],
        rules=frozenset(rules),
    )
    return floats(caption_, label, [tabular], foot)


def _cell(cell: str) -> str:
    """A cell's LaTeX; a mark that `_footnotes` put behind it is raised."""
    text, mark, letter = cell.partition("\x00")
    return escape(text) + (rf"$^{{{letter}}}$" if mark else "")


def _bare(cell: str) -> str:
    """A dash without its reason, which is too long for a cell."""
    return DASH if cell.startswith(DASH) else cell


def _footnotes(rows: list[list[str]]) -> tuple[list[list[str]], str]:
    """Take warnings out of the verdicts, into notes below the table."""
    letters: dict[str, str] = {}
    found = []
    for row in rows:
        verdict, _, warning = row[-1].partition(" (")
        if warning:
            warning = warning.removesuffix(")")
            letter = letters.setdefault(warning, chr(ord("a") + len(letters) % 26))
            verdict = f"{verdict}\x00{letter}"
        found.append([*[_bare(cell) for cell in row[:-1]], verdict])
    notes = [rf"$^{{{letter}}}$ {escape(warning)}" for warning, letter in letters.items()]
    return found, "; ".join(notes) + ("." if notes else "")
