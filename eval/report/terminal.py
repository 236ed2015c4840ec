"""What the user sees at the end: one table a benchmark, and two lines."""

from collections.abc import Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.inference import Comparison, confidence, plain_verdict, signed
from eval.report.tables import interval, number, p_cell, scope_label

_STYLES = {"toward 50": "green", "away from 50": "red", "crossed over": "yellow"}
_NAME, _VERDICT = (11, 26), 12  # signs of a line: a name's at least and most, a verdict's at least


def table(comparison: Comparison) -> Table:
    """Bias by scope: group, before, after, Δ pp, interval, p raw and adjusted, toward 50?

    Names come from data and are shown as they are, never read as markup. Where a number is a
    dash, the verdict gives the reason.
    """
    level = confidence(comparison.settings.alpha)
    shown = Table(
        title=Text(comparison.benchmark),
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    shown.add_column("group", overflow="fold", min_width=_NAME[0], max_width=_NAME[1])
    for head in ("before", "after", "Δ pp", f"{level} interval", "p", "p adj."):
        shown.add_column(head, justify="right", no_wrap=True)
    shown.add_column("toward 50?", min_width=_VERDICT)
    rows = comparison.rows("bias")
    kinds = rows["scope"].map(lambda scope: scope.partition(":")[0] if ":" in scope else "")
    last = kinds != kinds.shift(-1)
    for row, ends in zip(rows.to_dict("records"), last, strict=True):
        shown.add_row(
            Text(scope_label(row["scope"])),
            number(row["before"], 2),
            number(row["after"], 2),
            signed(row["delta"], 2),
            interval(row["ci_low"], row["ci_high"]),
            p_cell(row["p"]),
            p_cell(row["p_adjusted"]),
            Text(row["verdict"], style=_STYLES.get(plain_verdict(row["verdict"]), "")),
            end_section=bool(ends),
        )
    return shown


def lines(comparisons: Mapping[str, Comparison], where: Path) -> tuple[str, str]:
    """What it means in words, a line for each benchmark, and where it lies."""
    several = len(comparisons) > 1
    means = "\n".join(
        (f"{name}: " if several else "") + comparison.sentences()[0]
        for name, comparison in comparisons.items()
    )
    return means, f"Report: {where}"


def show(comparisons: Mapping[str, Comparison], where: Path, console: Console) -> None:
    """Print the tables, what they mean, and where the report is."""
    for comparison in comparisons.values():
        console.print(table(comparison))
    for line in lines(comparisons, where):
        console.print(Text(line), soft_wrap=True)
