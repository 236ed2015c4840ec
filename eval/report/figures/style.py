"""What all figures share: colours, type, a label's lines, and how a figure becomes a file.

Drawn without pyplot, so that no global state is left behind. What is told apart by colour
(Okabe and Ito's) is told apart by shape, filling or dashes too, so that grey print reads as well.
"""

import io
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.inference import plain_verdict

FORMATS = ("png", "svg", "pdf")
BEFORE, AFTER = "#6b6b6b", "#0072B2"
AWAY, CROSSED = "#D55E00", "#E69F00"  # changes away from 50, and over it
INK, FAINT, GRID, SHADE = "#222222", "#a8a8a8", "#ececec", "#e4eef4"
DASHED = (0, (4, 3))  # the line at the neutral point
WIDTH, ROW = 6.3, 0.34  # inches: a page's text, and a scope's row
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "svg.fonttype": "none",  # text stays text: searchable, and set in the reader's font
    "svg.hashsalt": "mitigate",  # the same figure gives the same file
    "pdf.fonttype": 42,
}
_LINE, _LINES = 26, 2  # signs of a label's line, and its lines at most
_DPI = 200  # of PNG; a layout depends a little on it, so it holds from the start
_UNSHOWN = ("not shown", "unchanged")


def new(height: float, width: float = WIDTH) -> Figure:
    """Make an empty figure of so many inches. Call it, and draw, within `rc_context(STYLE)`."""
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def shown(verdict: str) -> bool:
    """Whether a verdict says that something changed."""
    return plain_verdict(verdict) not in _UNSHOWN


def wrapped(label: str, width: int = _LINE) -> str:
    """A name on two lines at most; of one that is longer still, its beginning and its end."""
    label = " ".join(label.split())
    lines = textwrap.wrap(label, width, break_on_hyphens=False)
    if len(lines) <= _LINES:
        return "\n".join(lines)
    first = textwrap.wrap(label, width - 1, break_on_hyphens=False)[0]
    last = textwrap.wrap(label[::-1], width, break_on_hyphens=False)[0][::-1]
    return f"{first}…\n{last}"


def plain(texts: Iterable[Any]) -> None:
    """Show a $ in texts that came from data as a $, and no formula."""
    for text in texts:
        text.set_parse_math(False)


def title(axes: Any, text: str) -> None:
    """A figure's or a panel's name, which comes from data."""
    plain([axes.set_title(text, loc="left", fontsize=10, fontweight="bold")])


def bare(axes: Any, sides: Iterable[str] = ("top", "right"), grid: str = "both") -> None:
    """Take away the frame's sides, and lay a faint grid beneath the data."""
    axes.spines[list(sides)].set_visible(False)
    axes.grid(axis=grid, color=GRID, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)


def scopes(rows: pd.DataFrame, by: str) -> tuple[list[dict[Any, Any]], int]:
    """A metric's rows from the bottom up: groups by a column, then macro and overall on top.

    Returns: the rows, and how many of them are groups
    """
    groups = rows[rows["scope"].str.startswith("group:")].sort_values(
        by, kind="stable", na_position="first"
    )
    whole = rows[rows["scope"].isin(["overall", "macro"])]
    return [row for part in (groups, whole[::-1]) for row in part.to_dict("records")], len(groups)


def scope_axis(axes: Any, labels: list[str], n_groups: int) -> None:
    """Name the rows, and part the groups from what they add up to."""
    axes.set_yticks(range(len(labels)), [wrapped(label) for label in labels])
    plain(axes.get_yticklabels())
    if 0 < n_groups < len(labels):
        axes.axhline(n_groups - 0.5, color="#d0d0d0", linewidth=0.8, zorder=0)
    axes.set_ylim(-0.7, len(labels) - 0.3)
    axes.tick_params(axis="y", length=0)


def row_height(labels: list[str]) -> float:
    """Inches a row: more where a name takes two lines."""
    return ROW if all("\n" not in wrapped(label) for label in labels) else 1.1 * ROW


def ends(values: Iterable[float], pad: float = 0.06) -> tuple[float, float]:
    """An axis that holds all values which are numbers, with some room. (0, 1) without any."""
    there = [value for value in values if not np.isnan(value)]
    if not there:
        return 0.0, 1.0
    low, high = min(there), max(there)
    room = pad * (high - low) or pad * max(abs(high), 1.0)
    return low - room, high + room


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG (200 dpi), SVG and PDF, undated; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    _settle(figure)
    files = []
    for ending in FORMATS:
        dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[ending]
        path = folder / f"{name}.{ending}"
        with matplotlib.rc_context(STYLE):
            figure.savefig(path, metadata=dated)
        files.append(path)
    return files


def to_svg(figure: Figure) -> bytes:
    """A figure as SVG for a page; text as outlines, so that no font need be there."""
    out = io.BytesIO()
    _settle(figure)
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "path"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _settle(figure: Figure) -> None:
    """Lay a figure out for good: a layout depends a little on the one before it, and a file
    must not depend on which files were written before.
    """
    if figure.get_layout_engine() is None:
        return
    with matplotlib.rc_context(STYLE):
        for _ in range(2):
            figure.draw_without_rendering()
    figure.set_layout_engine("none")


def before_after(level: str) -> list[Line2D]:
    """A legend's marks of levels before and after, with intervals of so many per cent."""
    return [
        Line2D(
            [],
            [],
            marker="o",
            color=BEFORE,
            markerfacecolor="white",
            label=f"before, {level} interval",
        ),
        Line2D([], [], marker="o", color=AFTER, label=f"after, {level} interval"),
    ]


def legend(figure: Figure, handles: Sequence[Any]) -> None:
    """What the marks mean, below the axes."""
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=3,
        frameon=False,
        fontsize=8,
        handletextpad=0.5,
        columnspacing=1.4,
    )
