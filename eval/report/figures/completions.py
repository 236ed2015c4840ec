"""The tripartite panel of completions: a panel a measure, a row a category, before and after."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.inference import confidence
from eval.inference.completions import Change
from eval.report.figures import style
from eval.report.tripartite import WHEN, Panel, panels

_COLUMNS = 2
_PANEL, _MARGIN = 1.75, 0.75  # inches: a panel with its title and axis; title and legend


def draw_completions(name: str, change: Change) -> Figure:
    """Draw one benchmark's panels, two a line, each on its own axis.

    The way from before to after is firm where the change is shown. No word is in it.
    """
    found = panels(change)
    lines = -(-len(found) // _COLUMNS)
    with matplotlib.rc_context(style.STYLE):
        figure = style.new(_MARGIN + _PANEL * lines)
        style.plain([figure.suptitle(name, x=0.01, ha="left", fontsize=10, fontweight="bold")])
        grid = figure.subplots(lines, _COLUMNS, squeeze=False)
        for axes, panel in zip(grid.flat, found, strict=False):
            _draw(axes, panel)
        for axes in grid.flat[len(found) :]:
            axes.set_visible(False)
        style.legend(figure, _legend(confidence(change.alpha)))
    return figure


def _draw(axes: Any, panel: Panel) -> None:
    rows = panel.rows.to_dict("records")[::-1]  # the first on top
    if panel.neutral is not None:
        axes.axvline(panel.neutral, color=style.INK, linewidth=1, linestyle=style.DASHED, zorder=1)
    for y, row in enumerate(rows):
        firm = row["verdict"] in ("higher", "lower")
        axes.plot(
            [row["before"], row["after"]],
            [y + 0.17, y - 0.17],
            color=style.INK if firm else style.FAINT,
            linestyle="-" if firm else (0, (1, 2)),
            linewidth=1.1,
            zorder=2,
        )
        for when, lift, colour, inside in (
            (WHEN[0], 0.17, style.BEFORE, "white"),
            (WHEN[1], -0.17, style.AFTER, style.AFTER),
        ):
            ends = [row[f"{when}_low"], row[f"{when}_high"]]
            if not np.isnan(ends).any():
                axes.plot(ends, [y + lift] * 2, color=colour, linewidth=1.4, zorder=3)
            axes.plot(
                row[when],
                y + lift,
                marker="o",
                markersize=5,
                markerfacecolor=inside,
                markeredgecolor=colour,
                linestyle="none",
                zorder=4,
            )
    axes.set_yticks(range(len(rows)), [str(row["category"]) for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0)
    marks = panel.rows.drop(columns=["category", "delta", "verdict"]).to_numpy(float).ravel()
    neutral = [] if panel.neutral is None else [panel.neutral]
    axes.set_xlim(*style.ends([*marks, *neutral]))
    axes.locator_params(axis="x", nbins=5)
    style.bare(axes, ("top", "right", "left"), "x")
    what, _, of = panel.title.partition(": ")
    axes.set_title(what, loc="left", fontsize=9)
    axes.set_xlabel(style.wrapped(of or panel.of, 40), fontsize=8)


def _legend(level: str) -> list[Line2D]:
    return [
        *style.before_after(level),
        Line2D([], [], color=style.INK, linewidth=1.1, label="change shown"),
        Line2D([], [], color=style.FAINT, linestyle=(0, (1, 2)), label="change not shown"),
    ]
