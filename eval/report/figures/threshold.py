"""How far the finding hangs on "any difference counts": bias by the margin that must be passed."""

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eval.inference import Comparison, confidence
from eval.report.figures import style


def draw_threshold(comparison: Comparison) -> Figure:
    """Draw overall bias where only margins beyond a threshold count and all others count half.

    The band is pointwise, from the cluster bootstrap. Beneath: how many pairs are decided.

    Raises:
        ValueError: the comparison has no threshold table.
    """
    if comparison.threshold is None:
        raise ValueError(f"{comparison.benchmark}: the comparison has no threshold table")
    table = comparison.threshold
    table = table[table["scope"] == "overall"].sort_values("threshold")
    level = confidence(comparison.settings.alpha)
    with matplotlib.rc_context(style.STYLE):
        figure = style.new(4.2)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        neutral = {"color": style.INK, "linestyle": style.DASHED, "label": "50: no preference"}
        upper.axhline(50, linewidth=1, zorder=1, **neutral)
        for when, colour, dash, hatch in (
            ("before", style.BEFORE, (0, (5, 1.5)), "////"),
            ("after", style.AFTER, "-", None),
        ):
            _band(upper, table, when, colour, hatch)
            upper.plot(
                table["threshold"],
                table[when],
                color=colour,
                linestyle=dash,
                linewidth=1.8,
                zorder=4,
                label=f"{when}, {level} band",
            )
            lower.plot(
                table["threshold"],
                table[f"decided_{when}"],
                color=colour,
                linestyle=dash,
                linewidth=1.4,
            )
        keys = [f"{when}{end}" for when in ("before", "after") for end in ("", "_low", "_high")]
        held = table[keys].to_numpy(float).ravel()
        upper.set_ylim(*style.ends([*held.tolist(), 45.0, 55.0]))
        upper.set_ylabel("bias, % of pairs")
        lower.set_ylim(0, 105)
        lower.set_ylabel("decided, %")
        lower.set_xlabel("threshold: a margin up to it counts for neither side, nats")
        lower.margins(x=0.02)
        for axes in (upper, lower):
            style.bare(axes)
        style.title(upper, comparison.benchmark)
        figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=8)
    return figure


def _band(axes: Any, table: pd.DataFrame, when: str, colour: str, hatch: str | None) -> None:
    low, high = (table[f"{when}_{end}"].to_numpy(float) for end in ("low", "high"))
    if np.isnan(low).all():
        return
    axes.fill_between(
        table["threshold"],
        low,
        high,
        facecolor="none" if hatch else colour,
        edgecolor=colour,
        alpha=0.45 if hatch else 0.22,
        hatch=hatch,
        linewidth=0.4,
        zorder=2,
    )
