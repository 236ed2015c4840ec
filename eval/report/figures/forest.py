"""The forest of changes: bias after minus before by scope, with interval and adjusted p."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from eval.inference import Comparison, confidence, plain_verdict, signed
from eval.report.figures import style
from eval.report.tables import interval, p_cell, reason, scope_label

_MARGIN = 1.6  # inches: title, axis and legend
_COLUMNS = (36, 114, 154)  # points: where the numbers' columns end, right of the plot
#: Colour, mark and whether it is filled, by verdict: no two alike in grey.
_LOOKS = {
    "toward 50": (style.AFTER, "o", True),
    "away from 50": (style.AWAY, "D", True),
    "crossed over": (style.CROSSED, "s", True),
    "unchanged": (style.INK, "|", True),
    "not shown": (style.BEFORE, "o", False),
}


def draw_forest(comparison: Comparison) -> Figure:
    """Draw the change of bias with its percentile interval, a row a scope, groups by change.

    The mark tells the verdict (adjusted p below alpha, or shown to be unchanged); the numbers
    stand to the right. The band is the zone of equivalence: a change within it was held for
    none before the models were compared.
    """
    rows, n_groups = style.scopes(comparison.rows("bias"), "delta")
    labels = [scope_label(str(row["scope"])) for row in rows]
    level = confidence(comparison.settings.alpha)
    with matplotlib.rc_context(style.STYLE):
        figure = style.new(_MARGIN + 0.78 * style.row_height(labels) * len(rows))
        axes = figure.add_subplot()
        axes.axvline(0, color=style.INK, linewidth=1, linestyle=style.DASHED, zorder=1)
        zone = _zone(rows)
        if zone:
            axes.axvspan(-zone, zone, color=style.SHADE, linewidth=0, zorder=0)
        for y, row in enumerate(rows):
            _row(axes, y, row)
        style.scope_axis(axes, labels, n_groups)
        keys = ("delta", "ci_low", "ci_high")
        values = [row[key] for row in rows for key in keys] + [0.0, zone, -zone]
        axes.set_xlim(*style.ends(values))
        axes.set_xlabel("change of bias, percentage points (after minus before)")
        style.bare(axes, ("top", "right", "left"), "x")
        style.title(axes, comparison.benchmark)
        _numbers(axes, rows, level)
        style.legend(figure, _legend(rows, level, zone))
    return figure


def _row(axes: Any, y: int, row: dict[Any, Any]) -> None:
    if np.isnan(row["delta"]):
        return
    colour, mark, filled = _LOOKS[plain_verdict(row["verdict"])]
    if not np.isnan(row["ci_low"]):
        axes.plot(
            [row["ci_low"], row["ci_high"]],
            [y, y],
            color=colour,
            linewidth=1.5 if filled else 1.1,
            solid_capstyle="butt",
            zorder=3,
        )
    axes.plot(
        row["delta"],
        y,
        marker=mark,
        markersize=9 if mark == "|" else 5.5,
        markerfacecolor=colour if filled else "white",
        markeredgecolor=colour,
        markeredgewidth=2.0 if mark == "|" else 1.2,
        linestyle="none",
        zorder=4,
        clip_on=False,
    )


def _numbers(axes: Any, rows: list[dict[Any, Any]], level: str) -> None:
    """Change, interval and adjusted p, in columns to the right of the plot."""
    columns = dict(zip(_COLUMNS, ("Δ", f"{level} interval", "p adj."), strict=True))
    for right, head in columns.items():
        _beside(axes, len(rows) - 0.25, right, head)
    for y, row in enumerate(rows):
        if np.isnan(row["delta"]) or np.isnan(row["ci_low"]):
            if not np.isnan(row["delta"]):
                _beside(axes, y, _COLUMNS[0], signed(row["delta"]))
            _beside(axes, y, _COLUMNS[1], reason(row))
            continue
        cells = (
            signed(row["delta"]),
            interval(row["ci_low"], row["ci_high"]),
            p_cell(row["p_adjusted"]),
        )
        for right, cell in zip(_COLUMNS, cells, strict=True):
            _beside(axes, y, right, cell)


def _beside(axes: Any, y: float, right: float, text: str) -> None:
    """A text that ends so many points right of the plot."""
    axes.annotate(
        text,
        xy=(1, y),
        xycoords=("axes fraction", "data"),
        xytext=(right, 0),
        textcoords="offset points",
        ha="right",
        va="center_baseline",
        fontsize=8,
        annotation_clip=False,
    )


def _zone(rows: list[dict[Any, Any]]) -> float:
    """Half the zone of equivalence of bias, in points; 0 where none was stated."""
    stated = [row.get("equivalence_margin", np.nan) for row in rows]
    stated = [value for value in stated if not np.isnan(value)]
    return float(stated[0]) if stated else 0.0


def _legend(rows: list[dict[Any, Any]], level: str, zone: float) -> list[Any]:
    """The verdicts that occur, and the zone."""
    there = {plain_verdict(row["verdict"]) for row in rows if not np.isnan(row["delta"])}
    said = {"not shown": "change not shown"}
    handles: list[Any] = [
        Line2D(
            [],
            [],
            color=colour,
            marker=mark,
            markersize=9 if mark == "|" else 5.5,
            markeredgewidth=2.0 if mark == "|" else 1.2,
            markerfacecolor=colour if filled else "white",
            label=said.get(verdict, verdict),
        )
        for verdict, (colour, mark, filled) in _LOOKS.items()
        if verdict in there
    ]
    if zone:
        handles.append(
            Patch(color=style.SHADE, label=f"within ±{zone:g}: held for no change beforehand")
        )
    return handles
