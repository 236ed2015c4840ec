"""A page's tables: cells that are their text, and know the value a reader sorts by."""

import math
from collections.abc import Sequence
from typing import Any, TypedDict

import pandas as pd

from eval.inference import plain_verdict, signed
from eval.report.tables import because, interval, number, p_cell

#: How a verdict is marked; the word itself always stands there too.
VERDICTS = {
    "toward 50": "toward",
    "toward 0": "toward",
    "fewer ties": "toward",
    "away from 50": "away",
    "away from 0": "away",
    "more ties": "away",
    "crossed over": "crossed",
    "unchanged": "same",
    "narrowed": "toward",
    "widened": "away",
    "turned": "crossed",
    "higher": "same",
    "lower": "same",
}


class Cell(str):
    """A cell's text. `value` is what it sorts by: None sorts by the text, NaN goes last."""

    value: float | None
    kind: str  # number, text, wrap (long text), or mark and a verdict's class

    def __new__(cls, text: str, value: float | None = None, kind: str = "number") -> "Cell":
        cell = super().__new__(cls, text)
        cell.value, cell.kind = value, kind
        return cell

    @property
    def order(self) -> str | None:
        """The value as the page carries it: empty where there is none, None to sort by text."""
        if self.value is None:
            return None
        return "" if math.isnan(self.value) else f"{self.value:.10g}"


class Table(TypedDict):
    """A table of the page. The first `whole` rows stay on top, however the rest is sorted."""

    label: str  # what a screen reader calls it; no two of a page are the same
    caption: str
    head: list[str]
    rows: list[list[Cell]]
    whole: int


def table(
    label: str, caption: str, head: Sequence[str], rows: list[list[Cell]], whole: int = 0
) -> Table:
    """A table; its cells' kinds say how columns stand."""
    return {"label": label, "caption": caption, "head": list(head), "rows": rows, "whole": whole}


def text(words: Any, kind: str = "text") -> Cell:
    """Words, which sort as words."""
    return Cell(str(words), None, kind)


def count(value: Any) -> Cell:
    """How many."""
    return Cell(f"{int(value):,}", float(value))


def level(value: float, digits: int = 1, why: str = "not defined") -> Cell:
    """A level, or a dash and why there is none."""
    return Cell(because(number(value, digits).replace("-", "−"), why), float(value))


def change(value: float, digits: int = 1, why: str = "not defined") -> Cell:
    """A change with its sign, or a dash and why there is none."""
    return Cell(because(signed(value, digits), why), float(value))


def span(low: float, high: float, digits: int = 1, why: str = "not defined") -> Cell:
    """An interval of a change; sorts by its lower end."""
    return Cell(because(interval(low, high, digits), why), float(low))


def levels(low: float, high: float, digits: int = 1, why: str = "not defined") -> Cell:
    """An interval of a level; sorts by its lower end."""
    shown = number(low, digits)
    found = shown if pd.isna(low) else f"{shown} to {number(high, digits)}"
    return Cell(because(found, why), float(low))


def p_value(value: float, why: str = "not defined") -> Cell:
    """p, or a dash and why there is none."""
    return Cell(because(p_cell(value), why), float(value))


def verdict(words: str) -> Cell:
    """A verdict, marked by its kind."""
    return Cell(words, None, f"text mark {VERDICTS.get(plain_verdict(words), 'unshown')}")
