"""Figures as files: what each is called, and who writes which."""

import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from eval.inference import Comparison
from eval.inference.completions import Change
from eval.report.figures import style
from eval.report.figures.completions import draw_completions
from eval.report.figures.curve import draw_curve
from eval.report.figures.forest import draw_forest
from eval.report.figures.front import draw_front
from eval.report.figures.heat import draw_heat
from eval.report.figures.levels import draw
from eval.report.figures.margins import draw_margins
from eval.report.figures.threshold import draw_threshold
from eval.scores import Scores

CURVE, HEAT, FRONT = "curve", "heat", "front"  # what their files are called
DETAILS = ("forest", "margins", "threshold", "completions")
_TAKEN = re.compile(rf"({CURVE}|{HEAT}|{FRONT}|.*-({'|'.join(DETAILS)}))")


def stem(name: str) -> str:
    """What a benchmark's figures are called: its name, or one like it that a file can carry.

    A name that had to change, or that another figure has, gets a hash of it, so that two
    figures never share a file.
    """
    plain = re.sub(r"[^\w-]+", "_", name).strip("_")
    if plain == name and not _TAKEN.fullmatch(name):
        return plain
    return f"{plain}-{zlib.crc32(name.encode()):08x}"


def write(comparisons: Mapping[str, Comparison], folder: Path) -> list[Path]:
    """Write each benchmark's figure as <benchmark>.png (200 dpi), .svg and .pdf; the files.

    See `stem` for a name that no file should carry.
    """
    files: list[Path] = []
    for name, comparison in comparisons.items():
        files += style.save(draw(comparison), folder, stem(name))
    return files


def write_details(
    comparisons: Mapping[str, Comparison],
    scores: Mapping[str, tuple[Scores, Scores]],
    folder: Path,
) -> list[Path]:
    """Write each benchmark's further figures, in the formats of `write`; the files.

    <benchmark>-forest: the changes; -margins: before against after by cluster, where the
    scores are at hand; -threshold: bias by threshold, where the comparison has it.
    """
    files: list[Path] = []
    for name, comparison in comparisons.items():
        files += style.save(draw_forest(comparison), folder, f"{stem(name)}-forest")
        if name in scores:
            figure = draw_margins(*scores[name], comparison)
            files += style.save(figure, folder, f"{stem(name)}-margins")
        if comparison.threshold is not None:
            files += style.save(draw_threshold(comparison), folder, f"{stem(name)}-threshold")
    return files


def write_completions(completions: Mapping[str, Change], folder: Path) -> list[Path]:
    """Write each benchmark's tripartite panel as <benchmark>-completions, as `write`; the files."""
    files: list[Path] = []
    for name, change in completions.items():
        figure = draw_completions(name, change)
        files += style.save(figure, folder, f"{stem(name)}-completions")
    return files


def write_curve(curve: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the curve as curve.png (200 dpi), .svg and .pdf; the files."""
    return style.save(draw_curve(curve), folder, CURVE)


def write_heat(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the map of models and groups as heat.png (200 dpi), .svg and .pdf; the files."""
    return style.save(draw_heat(table), folder, HEAT)


def write_front(points: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the front of settings as front.png (200 dpi), .svg and .pdf; the files."""
    return style.save(draw_front(points), folder, FRONT)


def as_svg(comparison: Comparison) -> bytes:
    """The figure of levels as SVG for a page; text as outlines."""
    return style.to_svg(draw(comparison))


def curve_as_svg(curve: pd.DataFrame) -> bytes:
    """The curve as SVG for a page; text as outlines."""
    return style.to_svg(draw_curve(curve))
