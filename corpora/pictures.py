"""A page of figures of a corpus: counts only, in files that need no network."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

PAGE = "corpus.html"
FOLDER = "figures"
BLUE, GREY = "#35608d", "#b8bec6"
#: So many labels fit under a row of months.
TICKS = 12

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1b1f24; background: #fff; }
img { max-width: 100%; height: auto; } figure { margin: 2rem 0; } figcaption { color: #444c56; }
"""


def write(facts: dict[str, Any], folder: Path) -> None:
    """Write `corpus.html` and `figures/*.png` of what a corpus's facts count.

    What the source doesn't give (dates), or what isn't there (an identity), has no figure, and
    the page says so.
    """
    (folder / FOLDER).mkdir()
    shown = []
    for name, title, draw, missing in (
        ("months", "Documents by month", _months, "the source gives no dates"),
        ("lengths", "Documents by length", _lengths, ""),
        ("identities", "Documents that name an identity", _identities, "none is named"),
        ("steps", "Documents left after each step", _steps, ""),
    ):
        if not facts[name]:
            shown.append(f"<p>{title}: {missing}.</p>")
            continue
        figure = Figure(figsize=(8, _height(name, facts)), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.subplots()
        said = draw(axes, facts)
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        canvas.print_png(folder / FOLDER / f"{name}.png", metadata={"Software": None})
        shown.append(
            f'<figure><img src="{FOLDER}/{name}.png" alt="{html.escape(f"{title}: {said}")}">'
            f"<figcaption>{html.escape(said)}</figcaption></figure>"
        )
    name = html.escape(facts["name"])
    page = (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Corpus {name}</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>Corpus {name}</h1>\n<p>{facts['documents_kept']:,} documents, "
        f"{facts['words']:,} words; what was done and who agreed is in "
        f'<a href="DATASHEET.md">DATASHEET.md</a>.</p>\n{chr(10).join(shown)}\n</body>\n</html>\n'
    )
    (folder / PAGE).write_text(page, encoding="utf-8")


def _height(name: str, facts: dict[str, Any]) -> float:
    bars = {"identities": len(facts["identities"]), "steps": len(_left(facts))}.get(name, 0)
    return max(3.2, 1.2 + 0.34 * bars)  # inches


def _months(axes: Axes, facts: dict[str, Any]) -> str:
    """Bars of every month from the first to the last, those without documents too."""
    counts = {month: count for month, count in facts["months"].items() if len(month) == 7}
    if not counts:  # years are all that is known
        years = facts["months"]
        axes.bar(list(years), list(years.values()), color=BLUE)
        axes.set_ylabel("documents")
        return "by year: " + ", ".join(f"{year} {count:,}" for year, count in years.items())
    first, last = min(counts), max(counts)
    start, end = (int(month[:4]) * 12 + int(month[5:]) - 1 for month in (first, last))
    months = [f"{at // 12}-{at % 12 + 1:02}" for at in range(start, end + 1)]
    axes.bar(range(len(months)), [counts.get(month, 0) for month in months], color=BLUE, width=0.9)
    step = -(-len(months) // TICKS)
    axes.set_xticks(range(0, len(months), step), months[::step], rotation=45, ha="right")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("documents")
    most = max(counts, key=counts.__getitem__)
    return f"{first} to {last}; most in {most}: {counts[most]:,}"


def _lengths(axes: Axes, facts: dict[str, Any]) -> str:
    bins = {int(at): count for at, count in facts["lengths"].items()}
    labels = [str(at) if at < 2 else f"{at}–{2 * at - 1}" for at in bins]
    axes.bar(labels, list(bins.values()), color=BLUE)
    axes.tick_params(axis="x", rotation=45)
    axes.set(xlabel="words", ylabel="documents")
    mean = facts["words"] / max(facts["documents_kept"], 1)
    return f"{mean:,.1f} words on average"


def _identities(axes: Axes, facts: dict[str, Any]) -> str:
    counts = facts["identities"]
    _bars(axes, list(counts), list(counts.values()), [f"{n:,}" for n in counts.values()])
    total = max(facts["documents_kept"], 1)
    return "; ".join(f"{name} {100 * count / total:.1f} %" for name, count in counts.items())


def _steps(axes: Axes, facts: dict[str, Any]) -> str:
    left = _left(facts)
    names = [name for name, _, _ in left]
    labels = [f"{count:,}" + (f"  (−{took:,})" if took else "") for _, count, took in left]
    _bars(axes, names, [count for _, count, _ in left], labels, grey=0)
    taken = [f"{name} took {took:,}" for name, _, took in left[1:] if took]
    return "; ".join(taken) or "no step took a document"


def _left(facts: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(step, documents after it, documents that it took), what was read first."""
    steps = facts["steps"]
    rows = [("in the source", steps[0]["before"], 0)] if steps else []
    return rows + [
        (step["name"], step["after"], step["before"] - step["after"])
        for step in steps
        if step["name"] != "split"  # it takes nothing
    ]


def _bars(
    axes: Axes,
    names: Sequence[str],
    counts: Sequence[int],
    labels: Sequence[str],
    grey: int | None = None,
) -> None:
    """Lying bars, each with its label at its end; the one at `grey` is what there was before."""
    places = range(len(names))
    colours = [GREY if at == grey else BLUE for at in places]
    bars = axes.barh(list(places), list(counts), color=colours)
    axes.bar_label(bars, labels, padding=3)
    axes.set_yticks(list(places), list(names))
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("documents")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
