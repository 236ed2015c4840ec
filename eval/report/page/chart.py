"""Charts as inline SVG, drawn from the numbers.

Places across are percentages, so that a chart is as wide as the page while its letters keep
their size; colours are the style sheet's, by class, so that they follow dark and light. Every
mark that carries numbers has a `title`, which a screen reader reads, a browser shows on hover,
and the page's script shows on focus too. Nothing is told by colour alone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

#: How many lines can be told apart: six colours, each with four dashes.
COLOURS, DASHES = 6, 4
_EDGE = 2.5  # per cent of the width left free at each end, for the marks


@dataclass(frozen=True)
class Axis:
    """From where to where a chart goes, and which numbers stand along it."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def over(
        cls, values: Iterable[float], *, around: float | None = None, least: float = 0.0
    ) -> "Axis":
        """Room for all finite values, and for `around` with `least` to each side of it."""
        found = [value for value in values if math.isfinite(value)]
        if around is not None:
            found += [around - least, around + least]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        if high - low < 1e-9:
            low, high = low - 0.5, high + 0.5
        step = _step(high - low)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = tuple(round(number * step, 10) for number in range(first, last + 1))
        return cls(ticks[0], ticks[-1], ticks)

    def share(self, value: float) -> float:
        """Where a value stands, 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def at(self, value: float) -> str:
        """Where a value stands across, as SVG has it."""
        return f"{_EDGE + (100 - 2 * _EDGE) * self.share(value):.2f}%"

    def label(self, tick: float) -> str:
        """A tick's number, the minus as print has it."""
        return f"{tick:g}".replace("-", "−")


def _step(width: float, parts: int = 5) -> float:
    """A round step that cuts a width into about so many parts."""
    rough = width / parts
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(power * part for part in (1, 2, 2.5, 5, 10) if power * part >= rough - 1e-12)


def track(
    axis: Axis,
    before: float,
    after: float,
    *,
    before_ends: tuple[float, float],
    after_ends: tuple[float, float],
    shown: bool,
    said: str,
    missing: str = "",
    neutral: float = 50.0,
) -> Markup:
    """One row's picture: before hollow above, after full below, intervals, the way between.

    The way is firm where the change is `shown`, else dotted. `said` is the row in words;
    `missing` stands where there is no level. NaN ends draw no interval.
    """
    parts = [_grid(axis, neutral)]
    if math.isnan(before) or math.isnan(after):
        parts.append(
            Markup(
                '<svg class="mid" y="50%"><text x="{}" y="4" class="said">{}</text></svg>'
            ).format(axis.at(neutral), f" {missing}")
        )
    else:
        inside = []
        for name, (low, high), y in (("before", before_ends, -5), ("after", after_ends, 5)):
            if not math.isnan(low):
                inside.append(
                    Markup('<line class="ends {}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
                        name, axis.at(low), axis.at(high), y, y
                    )
                )
        inside.append(
            Markup('<line class="way {}" x1="{}" x2="{}" y1="-5" y2="5"/>').format(
                "shown" if shown else "unshown", axis.at(before), axis.at(after)
            )
        )
        for name, value, y in (("before", before, -5), ("after", after, 5)):
            inside.append(
                Markup('<circle class="{}" cx="{}" cy="{}" r="5"/>').format(name, axis.at(value), y)
            )
        parts.append(Markup('<svg class="mid" y="50%">{}</svg>').format(Markup("").join(inside)))
    return Markup('<svg class="track" role="img" tabindex="0"><title>{}</title>{}</svg>').format(
        said, Markup("").join(parts)
    )


def ruler(axis: Axis) -> Markup:
    """The numbers under a row of tracks; a screen reader has them from the rows."""
    ticks = [
        Markup('<text x="{}" y="14">{}</text>').format(axis.at(tick), axis.label(tick))
        for tick in axis.ticks
    ]
    return Markup('<svg class="ruler" aria-hidden="true">{}</svg>').format(Markup("").join(ticks))


def _grid(axis: Axis, neutral: float) -> Markup:
    lines = [
        Markup('<line class="grid" x1="{0}" x2="{0}" y1="0" y2="100%"/>').format(axis.at(tick))
        for tick in axis.ticks
        if tick != neutral
    ]
    if axis.low <= neutral <= axis.high:
        lines.append(
            Markup('<line class="neutral" x1="{0}" x2="{0}" y1="0" y2="100%"/>').format(
                axis.at(neutral)
            )
        )
    return Markup("").join(lines)


@dataclass(frozen=True)
class Line:
    """A line of a plot: its name, its values (NaN leaves a gap), and a band about it, if any."""

    name: str
    values: Sequence[float]
    look: str  # classes of the style sheet
    low: Sequence[float] = field(default_factory=tuple)
    high: Sequence[float] = field(default_factory=tuple)


def look(number: int) -> str:
    """The classes of the so-manieth of many lines; 24 are told apart, by colour and dashes."""
    return f"c{number % COLOURS} d{number // COLOURS % DASHES}"


def key(classes: str, mark: bool = False) -> Markup:
    """A line's sample, for the legend."""
    dot = Markup('<circle class="dot {}" cx="14" cy="6" r="3.5"/>').format(classes) if mark else ""
    return Markup(
        '<svg class="key" width="28" height="12" aria-hidden="true">'
        '<line class="line {}" x1="0" x2="28" y1="6" y2="6"/>{}</svg>'
    ).format(classes, dot)


def plot(
    label: str,
    x: Sequence[float],
    lines: Sequence[Line],
    said: Sequence[str],
    *,
    neutral: float | None = None,
    least: float = 0.0,
    height: int = 200,
) -> Markup:
    """Lines over x, with `neutral` drawn dashed.

    Args:
        label: what the plot shows, for a screen reader.
        x: where the values stand, ascending. (points,)
        lines: each with as many values as x.
        said: what is read and shown at each x. (points,)
        neutral: a level to compare with; the plot goes at least `least` to both sides of it.
    """
    across = Axis.over(x)
    across = Axis(min(x), max(x) if max(x) > min(x) else min(x) + 1, across.ticks)
    values = [v for line in lines for part in (line.values, line.low, line.high) for v in part]
    up = Axis.over(values, around=neutral, least=least)

    def y_at(value: float) -> float:
        return 100 * (1 - up.share(value))

    def x_at(value: float) -> float:
        return 100 * across.share(value)

    left = [
        Markup('<text class="y" x="-6" y="{:.2f}%" dy="4">{}</text>').format(
            y_at(tick), up.label(tick)
        )
        for tick in up.ticks
    ]
    grid = [
        Markup('<line class="{}" x1="0" x2="100%" y1="{y:.2f}%" y2="{y:.2f}%"/>').format(
            "neutral" if tick == neutral else "grid", y=y_at(tick)
        )
        for tick in up.ticks
    ]
    if neutral is not None and neutral not in up.ticks:
        grid.append(
            Markup('<line class="neutral" x1="0" x2="100%" y1="{y:.2f}%" y2="{y:.2f}%"/>').format(
                y=y_at(neutral)
            )
        )
    ticks = [tick for tick in across.ticks if across.low <= tick <= across.high]
    bottom = [
        Markup('<text class="x" x="{:.2f}%" y="100%" dy="17">{}</text>').format(
            x_at(tick), across.label(tick)
        )
        for tick in ticks
    ]
    shapes = []
    for line in lines:
        if line.low:
            ends = list(zip(x, line.low, line.high, strict=True))
            ends = [end for end in ends if not math.isnan(end[1])]
            points = [(p, q) for p, q, _ in ends] + [(p, q) for p, _, q in reversed(ends)]
            shapes.append(
                Markup('<polygon class="band {}" points="{}"/>').format(
                    line.look, _points((x_at(p), y_at(q)) for p, q in points)
                )
            )
    for line in lines:
        for part in _unbroken(x, line.values):
            shapes.append(
                Markup('<polyline class="line {}" points="{}"/>').format(
                    line.look, _points((x_at(p), y_at(q)) for p, q in part)
                )
            )
    dots = [
        Markup('<circle class="dot {}" cx="{:.2f}%" cy="{:.2f}%" r="{}"/>').format(
            line.look, x_at(p), y_at(q), 3.5 if "strong" in line.look else 2.2
        )
        for line in lines
        for p, q in zip(x, line.values, strict=True)
        if not math.isnan(q)
    ]
    stops = []
    places = [x_at(p) for p in x]
    for number, (place, words) in enumerate(zip(places, said, strict=True)):
        start = (places[number - 1] + place) / 2 if number else 0.0
        end = (place + places[number + 1]) / 2 if number + 1 < len(places) else 100.0
        stops.append(
            Markup(
                '<g class="stop" role="img" tabindex="0"><title>{}</title>'
                '<rect x="{:.2f}%" width="{:.2f}%" y="0" height="100%"/>'
                '<line x1="{p:.2f}%" x2="{p:.2f}%" y1="0" y2="100%"/></g>'
            ).format(words, start, max(end - start, 0.5), p=place)
        )
    joined = {
        name: Markup("").join(found)
        for name, found in {
            "left": left,
            "grid": grid,
            "bottom": bottom,
            "shapes": shapes,
            "dots": dots,
            "stops": stops,
        }.items()
    }
    return Markup(
        '<svg class="plot" role="group" aria-label="{label}" height="{full}">'
        '<svg x="13%" y="10" width="84%" height="{height}" class="inner">'
        "{grid}{left}{bottom}"
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" class="shapes">{shapes}</svg>'
        "{dots}{stops}</svg></svg>"
    ).format(label=label, full=height + 36, height=height, **joined)


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in places)


def _unbroken(x: Sequence[float], values: Sequence[float]) -> list[list[tuple[float, float]]]:
    """The stretches of a line between its gaps."""
    parts: list[list[tuple[float, float]]] = [[]]
    for p, q in zip(x, values, strict=True):
        if math.isnan(q):
            parts.append([])
        else:
            parts[-1].append((p, q))
    return [part for part in parts if part]


def shade(value: float, neutral: float = 50.0, reach: float = 50.0) -> str:
    """The class of a heat map's cell: how far from `neutral`, to which side, in nine steps."""
    if math.isnan(value):
        return "none"
    step = round(4 * max(-1.0, min(1.0, (value - neutral) / reach)))
    return f"over{step}" if step > 0 else f"under{-step}" if step < 0 else "even"
