"""The figure: bias before and after by group, with intervals and the line at 50. Beside it,
where a run was scored during training, the curve: bias and margin at each checkpoint.

Drawn without pyplot, so that no global state is left behind. What is told apart by colour
(Okabe and Ito's) is told apart by filling, dashes and labels too, so grey print reads as well.
"""

import io
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

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
CURVE = "curve"  # what the curve's files are called
#: A group's line: Okabe and Ito's colours without the pale yellow, with dashes and marks for
#: grey print; no two of 36 are drawn alike.
_COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#444444")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
_MARKERS = ("s", "^", "D", "v", "P", "<", "X", ">", "*")
_PANEL, _LABEL = 1.9, 0.165  # inches: a panel's height at least, and a name's in its legend
_MARKED = 12  # marks on a line at most


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
    return plain if plain == name != CURVE else f"{plain}-{zlib.crc32(name.encode()):08x}"


def write(comparisons: Mapping[str, Comparison], folder: Path) -> list[Path]:
    """Write each benchmark's figure as <benchmark>.png (200 dpi), .svg and .pdf; the files.

    See `stem` for a name that no file should carry.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, comparison in comparisons.items():
        files += _save(draw(comparison), folder, stem(name))
    return files


def _save(figure: Figure, folder: Path, name: str) -> list[Path]:
    files = []
    for ending in FORMATS:
        dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[ending]
        path = folder / f"{name}.{ending}"
        with matplotlib.rc_context(_STYLE):
            figure.savefig(path, dpi=200, metadata=dated)
        files.append(path)
    return files


def as_svg(comparison: Comparison) -> bytes:
    """The figure as SVG for a page; text as outlines, so that no font need be there."""
    return _svg(draw(comparison))


def draw_curve(curve: pd.DataFrame) -> Figure:
    """Draw the scores during training: a row a benchmark, bias on the left, margin on the right.

    `curve`: see `eval.report.ReportInput`. Overall is the thick line, each group a thin one;
    the names stand in the order in which the lines end.
    """
    names = list(dict.fromkeys(curve["benchmark"]))
    tables = [curve[curve["benchmark"] == name] for name in names]
    most = max(table["scope"].nunique() for table in tables)
    height = max(_PANEL, most * _LABEL)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, len(names) * (height + 0.75)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(names), 2, squeeze=False)
        for (left, right), name, table in zip(grid, names, tables, strict=True):
            _panel(left, table, "bias", "bias, % of pairs", 50.0)
            _panel(right, table, "margin", "margin, nats", 0.0)
            _curve_legend(right, table)
            pairs = table.loc[table["scope"] == "overall", "n_pairs"].iloc[-1]
            title = left.set_title(
                f"{name}, {pairs:,} pairs", loc="left", fontsize=10, fontweight="bold"
            )
            title.set_parse_math(False)
    return figure


def write_curve(curve: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the curve as curve.png (200 dpi), .svg and .pdf; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return _save(draw_curve(curve), folder, CURVE)


def curve_as_svg(curve: pd.DataFrame) -> bytes:
    """The curve as SVG for a page; text as outlines."""
    return _svg(draw_curve(curve))


def _svg(figure: Figure) -> bytes:
    out = io.BytesIO()
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


def _panel(axes: Any, table: pd.DataFrame, metric: str, label: str, neutral: float) -> None:
    """One measure of one benchmark against the updates done."""
    axes.axhline(neutral, color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for scope, look in _looks(table).items():
        rows = table[table["scope"] == scope].sort_values("step")
        # A mark at some of many steps tells lines apart as well as one at each.
        often = max(1, math.ceil(len(rows) / _MARKED))
        axes.plot(rows["step"], rows[metric], markevery=often, clip_on=False, **look)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xlabel("updates")
    axes.set_ylabel(label)
    axes.grid(color="#ececec", linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


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
    overall = {"color": AFTER, "linewidth": 2.4, "marker": "o", "markersize": 4.5, "zorder": 4}
    order = last[names].sort_values(ascending=False, kind="stable", na_position="last").index
    return {"overall": overall, **{scope: looks[scope] for scope in order}}


def _curve_legend(axes: Any, table: pd.DataFrame) -> None:
    """Beside the panels, in the order in which the lines end."""
    handles = [
        Line2D([], [], label=scope_label(scope).removesuffix(" (W)"), **look)
        for scope, look in _looks(table).items()
    ]
    handles.append(
        Line2D([], [], color=LINE, linestyle=(0, (4, 3)), linewidth=1, label="no preference")
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
    for text in legend.get_texts():
        text.set_parse_math(False)


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
