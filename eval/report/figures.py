"""The one figure: bias before and after by group, with intervals and the line at 50.

Drawn without pyplot, so that no global state is left behind. The two models differ in the
mark's filling and height as well as in colour (Okabe and Ito's), so grey print reads too.
"""

import io
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.inference import Comparison, plain_verdict
from eval.report.tables import reason, scope_label

FORMATS = ("png", "svg", "pdf")
BEFORE, AFTER = "#6b6b6b", "#0072B2"
SHOWN, UNSHOWN, LINE = "#222222", "#a8a8a8", "#222222"
_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "svg.fonttype": "none",  # text stays text: searchable, and set in the reader's font
    "svg.hashsalt": "mitigate",  # the same figure gives the same file
    "pdf.fonttype": 42,
}
_WIDTH, _ROW, _MARGIN = 6.3, 0.34, 1.55  # inches


def draw(comparison: Comparison) -> Figure:
    """Draw one benchmark's figure: a row a scope, groups by their bias before.

    The arrow is drawn firm where the change is shown (adjusted p below alpha), else faint.
    A scope without a level (all its pairs left out as ties) says so in its row.
    """
    rows = comparison.rows("bias")
    groups = rows[rows["scope"].str.startswith("group:")].sort_values(
        "before", kind="stable", na_position="first"
    )
    whole = rows[rows["scope"].isin(["overall", "macro"])]
    # from the bottom up: groups, then macro and overall on top
    parts = [groups, whole[::-1]]
    ordered: list[dict[Any, Any]] = [row for part in parts for row in part.to_dict("records")]
    breaks = np.cumsum([len(part) for part in parts])[:-1]

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, _MARGIN + _ROW * len(ordered)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.axvline(50, color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        for place in set(breaks.tolist()) - {0, len(ordered)}:
            axes.axhline(place - 0.5, color="#d0d0d0", linewidth=0.8, zorder=0)
        for y, row in enumerate(ordered):
            _row(axes, y, row)
        labels = [scope_label(str(row["scope"])) for row in ordered]
        axes.set_yticks(range(len(ordered)), labels)
        for label in axes.get_yticklabels():
            label.set_parse_math(False)  # a $ in a group's name is a $
        axes.set_ylim(-0.7, len(ordered) - 0.3)
        axes.set_xlim(*_limits(ordered))
        axes.set_xlabel("bias: stereotyped sentence the likelier one, % of pairs")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="x", color="#ececec", linewidth=0.8, zorder=0)
        axes.set_axisbelow(True)
        title = axes.set_title(comparison.benchmark, loc="left", fontsize=10, fontweight="bold")
        title.set_parse_math(False)
        level = f"{100 * (1 - comparison.settings.alpha):g} %"
        figure.legend(
            handles=_legend(level),
            loc="outside lower left",
            ncols=3,
            frameon=False,
            fontsize=8,
            handletextpad=0.5,
            columnspacing=1.4,
        )
    return figure


def stem(name: str) -> str:
    """What a benchmark's figures are called: its name, or one like it that a file can carry.

    A name that had to change gets a hash of it, so that two benchmarks never share a file.
    """
    plain = re.sub(r"[^\w-]+", "_", name).strip("_")
    return plain if plain == name else f"{plain}-{zlib.crc32(name.encode()):08x}"


def write(comparisons: Mapping[str, Comparison], folder: Path) -> list[Path]:
    """Write each benchmark's figure as <benchmark>.png (200 dpi), .svg and .pdf; the files.

    See `stem` for a name that no file should carry.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, comparison in comparisons.items():
        figure = draw(comparison)
        for ending in FORMATS:
            dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[ending]
            path = folder / f"{stem(name)}.{ending}"
            with matplotlib.rc_context(_STYLE):
                figure.savefig(path, dpi=200, metadata=dated)
            files.append(path)
    return files


def as_svg(comparison: Comparison) -> bytes:
    """The figure as SVG for a page; text as outlines, so that no font need be there."""
    out = io.BytesIO()
    figure = draw(comparison)
    with matplotlib.rc_context({**_STYLE, "svg.fonttype": "path"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _row(axes: Any, y: int, row: dict[Any, Any]) -> None:
    """Before above, after below the row's middle, and the way from one to the other."""
    shown = plain_verdict(row["verdict"]) != "not shown"
    if np.isnan(row["before"]) or np.isnan(row["after"]):
        axes.text(50, y, f" {reason(row)}", va="center", color=BEFORE, fontsize=8)
    for when, lift, colour, filled in (
        ("before", 0.17, BEFORE, False),
        ("after", -0.17, AFTER, True),
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
                "arrowstyle": "-|>,head_length=0.35,head_width=0.18" if shown else "-",
                "color": SHOWN if shown else UNSHOWN,
                "linewidth": 1.1,
                "linestyle": "-" if shown else (0, (1, 2)),
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
        Line2D(
            [],
            [],
            marker="o",
            color=BEFORE,
            markerfacecolor="white",
            label=f"before, {level} interval",
        ),
        Line2D([], [], marker="o", color=AFTER, label=f"after, {level} interval"),
        Line2D([], [], color=LINE, linestyle=(0, (4, 3)), linewidth=1, label="50: no preference"),
        Line2D([], [], color=SHOWN, linewidth=1.1, marker=">", markersize=4, label="change shown"),
        Line2D([], [], color=UNSHOWN, linestyle=(0, (1, 2)), label="change not shown"),
    ]
