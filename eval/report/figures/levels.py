"""Bias before and after by group, with intervals and the line at 50."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.inference import Comparison, confidence
from eval.report.figures import style
from eval.report.tables import reason, scope_label

_MARGIN = 1.55  # inches: title, axis and legend


def draw(comparison: Comparison) -> Figure:
    """Draw one benchmark's figure: a row a scope, groups by their bias before.

    The arrow is drawn firm where the change is shown (adjusted p below alpha), else faint.
    A scope without a level (all its pairs left out as ties) says so in its row.
    """
    rows, n_groups = style.scopes(comparison.rows("bias"), "before")
    labels = [scope_label(str(row["scope"])) for row in rows]
    with matplotlib.rc_context(style.STYLE):
        figure = style.new(_MARGIN + style.row_height(labels) * len(rows))
        axes = figure.add_subplot()
        axes.axvline(50, color=style.INK, linewidth=1, linestyle=style.DASHED, zorder=1)
        for y, row in enumerate(rows):
            _row(axes, y, row)
        style.scope_axis(axes, labels, n_groups)
        axes.set_xlim(*_limits(rows))
        axes.set_xlabel("bias: stereotyped sentence the likelier one, % of pairs")
        style.bare(axes, ("top", "right", "left"), "x")
        style.title(axes, comparison.benchmark)
        level = confidence(comparison.settings.alpha)
        style.legend(figure, _legend(level))
    return figure


def _row(axes: Any, y: int, row: dict[Any, Any]) -> None:
    """Before above, after below the row's middle, and the way from one to the other."""
    firm = style.shown(row["verdict"])
    if np.isnan(row["before"]) or np.isnan(row["after"]):
        axes.text(50, y, f" {reason(row)}", va="center", color=style.BEFORE, fontsize=8)
    for when, lift, colour, filled in (
        ("before", 0.17, style.BEFORE, False),
        ("after", -0.17, style.AFTER, True),
    ):
        low, high = row[f"{when}_low"], row[f"{when}_high"]
        if not np.isnan(low):
            axes.plot(
                [low, high],
                [y + lift] * 2,
                color=colour,
                linewidth=1.6 if filled else 1.2,
                solid_capstyle="butt",
                zorder=3,
            )
        axes.plot(
            row[when],
            y + lift,
            marker="o",
            markersize=5.5,
            markerfacecolor=colour if filled else "white",
            markeredgecolor=colour,
            markeredgewidth=1.2,
            linestyle="none",
            zorder=4,
            clip_on=False,
        )
    if not np.isnan(row["delta"]) and row["delta"] != 0:
        axes.annotate(
            "",
            xy=(row["after"], y - 0.17),
            xytext=(row["before"], y + 0.17),
            arrowprops={
                "arrowstyle": "-|>,head_length=0.35,head_width=0.18" if firm else "-",
                "color": style.INK if firm else style.FAINT,
                "linewidth": 1.1,
                "linestyle": "-" if firm else (0, (1, 2)),
                "shrinkA": 3,
                "shrinkB": 4,
            },
            zorder=2,
        )


def _limits(rows: list[dict[Any, Any]]) -> tuple[float, float]:
    """Room for every interval and the line at 50, at least 20 points to each side of it."""
    keys = ("before", "after", "before_low", "before_high", "after_low", "after_high")
    values = [row[key] for row in rows for key in keys if not np.isnan(row[key])] or [50.0]
    return max(-1.5, min(30, min(values) - 3)), min(101.5, max(70, max(values) + 3))


def _legend(level: str) -> list[Line2D]:
    return [
        *style.before_after(level),
        Line2D(
            [], [], color=style.INK, linestyle=style.DASHED, linewidth=1, label="50: no preference"
        ),
        Line2D(
            [], [], color=style.INK, linewidth=1.1, marker=">", markersize=4, label="change shown"
        ),
        Line2D([], [], color=style.FAINT, linestyle=(0, (1, 2)), label="change not shown"),
    ]
