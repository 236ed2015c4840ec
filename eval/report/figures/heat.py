"""Models against groups: a map of bias for many runs, with 50 in its middle."""

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure

from eval.report.figures import style
from eval.report.tables import scope_label

#: Blue under 50, white at 50, vermillion over it (Okabe and Ito's).
_MAP = LinearSegmentedColormap.from_list("around 50", ["#0072B2", "#ffffff", "#D55E00"])
_CELL = (0.56, 0.34)  # inches: width and height
_TITLE = 4.2  # inches that the title needs
_ACROSS = 14  # groups stand side by side up to so many, else beneath each other
_TURNED = 7  # names longer than so many signs are turned, for they would touch


def draw_heat(table: pd.DataFrame, title: str = "bias by model and group, % of pairs") -> Figure:
    """Draw a map of bias, in percent: a row a model, a column a group, the number in each cell.

    A corner tells in grey print which side of 50 a cell lies on: the upper one above, the
    lower one below. More than 14 groups stand beneath each other, with the models across.

    Args:
        table: bias in percent, models in the index, groups or scopes in the columns; NaN where
            a model has no such group
        title: what stands above
    """
    table = table.rename(columns=lambda name: scope_label(str(name)))
    if len(table.columns) > _ACROSS:
        table = table.T
    values = table.to_numpy(float)
    n_rows, n_columns = values.shape
    rows = [style.wrapped(str(name)) for name in table.index]
    columns = [style.wrapped(str(name)) for name in table.columns]
    turned = max(len(line) for name in columns for line in name.split("\n")) > _TURNED
    height = _CELL[1] * max(1.0, max(1 + name.count("\n") for name in rows) * 0.85)
    longest = max(len(line) for name in rows for line in name.split("\n"))
    width = _CELL[0] * n_columns + 0.075 * longest + 0.9
    with matplotlib.rc_context(style.STYLE):
        figure = style.new(
            height * n_rows + (2.2 if turned else 1.0), max(width, 0.075 * longest + _TITLE)
        )
        axes = figure.add_subplot()
        norm = Normalize(0, 100)
        drawn = axes.imshow(values, cmap=_MAP, norm=norm, aspect="auto", interpolation="none")
        for y, x in np.ndindex(values.shape):
            _cell(axes, x, y, float(values[y, x]), norm)
        axes.set_xticks(range(n_columns), columns)
        if turned:
            axes.tick_params(axis="x", rotation=40)
            for label in axes.get_xticklabels():
                label.set_horizontalalignment("right")
                label.set_rotation_mode("anchor")
        axes.set_yticks(range(n_rows), rows)
        style.plain([*axes.get_xticklabels(), *axes.get_yticklabels()])
        axes.tick_params(length=0)
        axes.set_xticks(np.arange(n_columns + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(n_rows + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="minor", length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("corner: ◥ above 50, ◢ below", loc="left", fontsize=8)
        style.title(axes, title)
        bar = figure.colorbar(drawn, ax=axes, ticks=[0, 50, 100], pad=0.02, fraction=0.05)
        bar.outline.set_visible(False)
    return figure


def _cell(axes: Any, x: int, y: int, value: float, norm: Normalize) -> None:
    """The number, dark on light and light on dark, and the corner."""
    if np.isnan(value):
        axes.text(x, y, "–", ha="center", va="center", fontsize=8, color=style.BEFORE)
        return
    ink = ink_on(_MAP(norm(value))[:3])
    axes.text(x, y, f"{value:.1f}", ha="center", va="center", fontsize=8, color=ink)
    if round(value, 1) == 50:
        return
    up = -1 if value > 50 else 1  # rows count downward
    corner = [(x + 0.47, y + up * 0.46), (x + 0.29, y + up * 0.46), (x + 0.47, y + up * 0.18)]
    axes.fill(*zip(*corner, strict=True), color=ink, linewidth=0, alpha=0.55)


def ink_on(colour: Any) -> str:
    """Black or white, whichever has the better contrast on a colour (WCAG 2, relative luminance)"""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


def contrast(one: Any, other: Any) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Any) -> float:
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in to_rgb(colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
