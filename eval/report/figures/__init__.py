"""The figures: bias before and after by group, the forest of changes, margins, thresholds, the
curve over training, the map of many models, and what they write; as PNG, SVG and PDF, or as SVG
for a page.
"""

from eval.report.figures.completions import draw_completions
from eval.report.figures.curve import draw_curve
from eval.report.figures.files import (
    CURVE,
    FRONT,
    HEAT,
    as_svg,
    curve_as_svg,
    stem,
    write,
    write_completions,
    write_curve,
    write_details,
    write_front,
    write_heat,
)
from eval.report.figures.forest import draw_forest
from eval.report.figures.front import FRONT_COLUMNS, draw_front, on_front
from eval.report.figures.heat import draw_heat
from eval.report.figures.levels import draw
from eval.report.figures.margins import draw_margins
from eval.report.figures.style import FORMATS, to_svg
from eval.report.figures.threshold import draw_threshold

__all__ = [
    "CURVE",
    "FORMATS",
    "FRONT",
    "FRONT_COLUMNS",
    "HEAT",
    "as_svg",
    "curve_as_svg",
    "draw",
    "draw_completions",
    "draw_curve",
    "draw_forest",
    "draw_front",
    "draw_heat",
    "draw_margins",
    "draw_threshold",
    "on_front",
    "stem",
    "to_svg",
    "write",
    "write_completions",
    "write_curve",
    "write_details",
    "write_front",
    "write_heat",
]
