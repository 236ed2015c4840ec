"""Margins before against after: a point a cluster, never a sentence."""

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eval.inference import Comparison
from eval.report.figures import style
from eval.scores import Scores, align

_POINTS = 1_500  # more are drawn as hexagons
_SIDE = 4.6  # inches
_LEAST = (-0.25, 0.25)  # nats: what the axes show at least


def draw_margins(before: Scores, after: Scores, comparison: Comparison) -> Figure:
    """Draw each cluster's mean margin before (across) against after (up), in nats.

    Right of the vertical line the model preferred the stereotyped sentences of a cluster on
    average before, above the horizontal one it does after; below the diagonal the margin fell.
    Clusters that changed sides are drawn filled, and each quarter says how many it holds.
    """
    x, y = cluster_margins(before, after)
    low, high = style.ends([*x.tolist(), *y.tolist(), *_LEAST], 0.08)
    with matplotlib.rc_context(style.STYLE):
        figure = style.new(_SIDE + 0.45, _SIDE)
        axes = figure.add_subplot()
        axes.plot(
            [low, high], [low, high], color=style.BEFORE, linewidth=1, zorder=2, label="no change"
        )
        for line in (axes.axvline, axes.axhline):
            line(0, color=style.INK, linewidth=1, linestyle=style.DASHED, zorder=2)
        if len(x) > _POINTS:
            _hexagons(figure, axes, x, y, (low, high), comparison.unit)
        else:
            _points(axes, x, y)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_aspect("equal")
        one = comparison.unit.removesuffix("s")
        axes.set_xlabel(f"margin before, nats, mean by {one}")
        axes.set_ylabel("margin after, nats")
        style.bare(axes)
        style.title(axes, comparison.benchmark)
        _counts(axes, x, y)
        figure.legend(
            loc="outside lower left",
            ncols=3,
            frameon=False,
            fontsize=8,
            handlelength=1.4,
            handletextpad=0.5,
            title=f"in each quarter: its number of {comparison.unit}",
            title_fontsize=8,
            alignment="left",
        )
    return figure


def cluster_margins(before: Scores, after: Scores) -> tuple[np.ndarray, np.ndarray]:
    """Mean margin of each cluster before and after, in nats, (clusters,) each.

    Raises:
        RequestError: the two Score tables aren't comparable.
    """
    before, after = align(before, after)
    table = pd.DataFrame(
        {
            "cluster": before.table["stereotype_id"].to_numpy(),
            "before": before.margin,
            "after": after.margin,
        }
    )
    means = table.groupby("cluster", sort=True)[["before", "after"]].mean()
    return means["before"].to_numpy(), means["after"].to_numpy()


def _points(axes: Any, x: np.ndarray, y: np.ndarray) -> None:
    crossed = np.sign(x) * np.sign(y) < 0
    size = float(np.clip(2400 / max(len(x), 1), 8, 34))
    for these, mark, face, name in (
        (~crossed, "o", "none", "on the side it was on"),
        (crossed, "D", style.AFTER, "changed sides"),
    ):
        if these.any():
            axes.scatter(
                x[these],
                y[these],
                s=size,
                marker=mark,
                facecolors=face,
                edgecolors=style.BEFORE if face == "none" else style.AFTER,
                linewidths=0.9,
                zorder=3,
                label=name,
            )


def _hexagons(
    figure: Figure, axes: Any, x: np.ndarray, y: np.ndarray, ends: tuple[float, float], unit: str
) -> None:
    drawn = axes.hexbin(
        x,
        y,
        gridsize=40,
        extent=(*ends, *ends),
        mincnt=1,
        bins="log",
        cmap="Blues",
        linewidths=0.1,
        zorder=1,
    )
    figure.colorbar(drawn, ax=axes, label=unit, shrink=0.7, pad=0.02)


def _counts(axes: Any, x: np.ndarray, y: np.ndarray) -> None:
    """How many lie in each quarter, near its corner and off the diagonal."""
    for right, up, place, across, upward in (
        (False, True, (0.02, 0.98), "left", "top"),
        (True, True, (0.98, 0.9), "right", "top"),
        (False, False, (0.02, 0.1), "left", "bottom"),
        (True, False, (0.98, 0.02), "right", "bottom"),
    ):
        held = int(((x > 0 if right else x < 0) & (y > 0 if up else y < 0)).sum())
        axes.text(
            *place,
            f"{held:,}",
            transform=axes.transAxes,
            ha=across,
            va=upward,
            fontsize=9,
            color=style.INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
            zorder=5,
        )
