"""The front: how near 50 against how much of the language is left, by setting."""

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eval.report.figures import style

#: The columns of a front's points and what they mean; the order is the table's.
FRONT_COLUMNS = {
    "benchmark": "the benchmark",
    "setting": "recipe, and the settings in which runs differ; their seeds are one point",
    "runs": "runs (seeds) that the point is the mean of",
    "worse": "change of (pseudo-)perplexity on held-out text, percent",
    "distance": "distance from 50 after: mean over groups of |bias - 50|, points",
    "distance_before": "and before",
    "grammar": "change of grammatical minimal pairs right, points",
    "degraded": "whether a run of it failed the gate",
    "on_front": "whether it isn't degraded, and no other that isn't is as good in both and "
    "better in one",
}
_PANEL = 3.1  # inches: a benchmark's height
_NAMED = 12  # points on the front that are named at most


def on_front(worse: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Which points no other is at least as good as in both, and better than in one.

    Less is better in both. Points that are equal stay together. (points,) bool
    """
    no_worse = (worse[:, None] <= worse) & (distance[:, None] <= distance)
    better = (worse[:, None] < worse) | (distance[:, None] < distance)
    beaten: np.ndarray = np.any(no_worse & better, axis=0)
    return ~beaten


def draw_front(points: pd.DataFrame) -> Figure:
    """Draw a panel a benchmark: perplexity's change across, distance from 50 upwards.

    `points`: FRONT_COLUMNS, a row a setting and benchmark. Those on the front are full, joined
    and named; the others hollow, degraded ones crosses: a setting that has lost its language is
    no choice. The dashed line is the level before.
    """
    names = list(dict.fromkeys(points["benchmark"]))
    with matplotlib.rc_context(style.STYLE):
        figure = style.new(_PANEL * len(names))
        grid = figure.add_gridspec(len(names), 1)
        for row, name in enumerate(names):
            _panel(figure.add_subplot(grid[row]), name, points[points["benchmark"] == name])
    return figure


def _panel(axes: Any, name: str, points: pd.DataFrame) -> None:
    left, right = style.ends([0.0, *points["worse"]], 0.12)
    best = points[points["on_front"]].sort_values(["worse", "distance"])
    rest = points[~points["on_front"]]
    before = float(points["distance_before"].mean())
    axes.axhline(before, color=style.INK, linewidth=1, linestyle=style.DASHED, zorder=1)
    axes.annotate(
        "before", (1, before), xycoords=("axes fraction", "data"), xytext=(3, 0),
        textcoords="offset points", fontsize=7.5, va="center",
    )  # fmt: skip
    axes.plot(best["worse"], best["distance"], color=style.AFTER, linewidth=1.2, zorder=2)
    for some, look in (
        (rest[~rest["degraded"]], {"marker": "o", "facecolors": "white"}),
        (best[~best["degraded"]], {"marker": "o", "facecolors": style.AFTER}),
    ):
        axes.scatter(
            some["worse"], some["distance"], s=26, edgecolors=style.AFTER, zorder=3, **look
        )
    marked = points[points["degraded"]]
    axes.scatter(marked["worse"], marked["distance"], s=30, marker="x", color=style.AWAY, zorder=3)
    for point in best.head(_NAMED).to_dict("records"):
        to_left = point["worse"] > (left + right) / 2  # so that no name leaves the figure
        text = axes.annotate(
            style.wrapped(point["setting"]), (point["worse"], point["distance"]),
            xytext=(-5 if to_left else 5, -6), textcoords="offset points", fontsize=7,
            ha="right" if to_left else "left", va="top",
        )  # fmt: skip
        style.plain([text])
    axes.set_xlim(left, right)
    axes.set_ylim(0, style.ends([0.0, before, *points["distance"]], 0.1)[1])
    axes.set_xlabel("change of (pseudo-)perplexity, %")
    axes.set_ylabel("|bias − 50|, points")
    style.title(axes, f"{name}: near 50 against language left")
    style.bare(axes)
