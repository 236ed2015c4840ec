"""Bias, margin and validation loss at each checkpoint of training."""

import math
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from eval.report.figures import style
from eval.report.tables import scope_label

#: A group's line: Okabe and Ito's colours without the pale yellow, with dashes and marks for
#: grey print; no two of 36 are drawn alike.
_COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#444444")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
_MARKERS = ("s", "^", "D", "v", "P", "<", "X", ">", "*")
_PANEL, _LABEL = 1.9, 0.165  # inches: a panel's height at least, and a name's in its legend
_LOSS = 1.35  # inches: the panel of the loss
_MARKED = 12  # marks on a line at most


def draw_curve(curve: pd.DataFrame) -> Figure:
    """Draw the scores during training: a row a benchmark, bias on the left, margin on the right.

    Beneath, where checkpoints were evaluated, the validation loss, and on its right side what
    it is as a perplexity: a bias that falls while the loss rises is a broken model's.

    `curve`: see `eval.report.ReportInput`. Overall is the thick line, each group a thin one;
    the names stand in the order in which the lines end.
    """
    names = list(dict.fromkeys(curve["benchmark"]))
    tables = [curve[curve["benchmark"] == name] for name in names]
    most = max(table["scope"].nunique() for table in tables)
    height = max(_PANEL, most * _LABEL) + 0.75
    loss = _losses(curve)
    rows = [height] * len(names) + ([] if loss.empty else [_LOSS])
    with matplotlib.rc_context(style.STYLE):
        figure = style.new(sum(rows))
        grid = figure.add_gridspec(len(rows), 2, height_ratios=rows)
        for place, (name, table) in enumerate(zip(names, tables, strict=True)):
            left, right = (figure.add_subplot(grid[place, side]) for side in range(2))
            _panel(left, table, "bias", "bias, % of pairs", 50.0)
            _panel(right, table, "margin", "margin, nats", 0.0)
            _legend(right, table)
            pairs = table.loc[table["scope"] == "overall", "n_pairs"].iloc[-1]
            style.title(left, f"{name}, {pairs:,} pairs")
        if not loss.empty:
            _loss_panel(figure.add_subplot(grid[len(names), :]), loss, curve["step"])
    return figure


def _losses(curve: pd.DataFrame) -> pd.Series:
    """Validation loss by step, of the checkpoints that were evaluated."""
    if "valid_loss" not in curve:
        return pd.Series(dtype=float)
    held = curve.dropna(subset=["valid_loss"]).drop_duplicates("step")
    return held.set_index("step")["valid_loss"].sort_index()


def _loss_panel(axes: Any, loss: pd.Series, steps: pd.Series) -> None:
    axes.plot(loss.index, loss, color=style.INK, marker="o", markersize=3.2, linewidth=1.4)
    axes.set_xlim(*style.ends([float(steps.min()), float(steps.max())], 0.045))
    axes.set_ylim(*style.ends(loss.tolist(), 0.12))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.set_xlabel("updates")
    axes.set_ylabel("valid. loss, nats")
    style.bare(axes)
    beside = axes.secondary_yaxis("right", functions=(np.exp, _log))
    beside.yaxis.set_major_locator(MaxNLocator(nbins=4))
    beside.set_ylabel("perplexity")
    beside.spines["right"].set_visible(False)


def _log(perplexity: Any) -> Any:
    """The way back from perplexity; matplotlib also asks it of numbers that are none."""
    return np.log(np.maximum(perplexity, np.finfo(float).tiny))


def _panel(axes: Any, table: pd.DataFrame, metric: str, label: str, neutral: float) -> None:
    """One measure of one benchmark against the updates done."""
    axes.axhline(neutral, color=style.INK, linewidth=1, linestyle=style.DASHED, zorder=1)
    for scope, look in _looks(table).items():
        rows = table[table["scope"] == scope].sort_values("step")
        # A mark at some of many steps tells lines apart as well as one at each.
        often = max(1, math.ceil(len(rows) / _MARKED))
        axes.plot(rows["step"], rows[metric], markevery=often, clip_on=False, **look)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xlabel("updates")
    axes.set_ylabel(label)
    style.bare(axes)


def _looks(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """How each scope's line is drawn: overall first, then the groups by their last bias."""
    last = table[table["step"] == table["step"].max()].set_index("scope")["bias"]
    names = sorted(scope for scope in last.index if scope.startswith("group:"))
    looks = {
        scope: {
            "color": _COLOURS[at % len(_COLOURS)],
            "linestyle": _DASHES[at % len(_DASHES)],
            "marker": _MARKERS[at % len(_MARKERS)],
            "linewidth": 1.0,
            "markersize": 3.2,
            "zorder": 3,
        }
        for at, scope in enumerate(names)
    }
    overall = {
        "color": style.AFTER,
        "linewidth": 2.4,
        "marker": "o",
        "markersize": 4.5,
        "zorder": 4,
    }
    order = last[names].sort_values(ascending=False, kind="stable", na_position="last").index
    return {"overall": overall, **{scope: looks[scope] for scope in order}}


def _legend(axes: Any, table: pd.DataFrame) -> None:
    """Beside the panels, in the order in which the lines end."""
    handles = [
        Line2D([], [], label=style.wrapped(scope_label(scope).removesuffix(" (W)")), **look)
        for scope, look in _looks(table).items()
    ]
    handles.append(
        Line2D([], [], color=style.INK, linestyle=style.DASHED, linewidth=1, label="no preference")
    )
    legend = axes.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.02, 0.5),
        frameon=False,
        fontsize=7.5,
        handlelength=3,
        borderpad=0,
    )
    style.plain(legend.get_texts())
