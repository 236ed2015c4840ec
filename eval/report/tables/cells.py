"""What stands in a cell: a level, an interval, a p, or a dash and the reason for it."""

import math
from collections.abc import Mapping
from typing import Any

from eval.inference import signed

DASH = "–"  # what is not defined


def scope_label(scope: str) -> str:
    """A scope's name as readers see it: overall (W), macro (M), the group, the slice."""
    named = {"overall": "overall (W)", "macro": "macro (M)"}
    return named.get(scope, scope.removeprefix("group:"))


def number(value: float, digits: int = 1) -> str:
    """A level; a dash where there is none."""
    return DASH if math.isnan(value) else f"{value:.{digits}f}"


def interval(low: float, high: float, digits: int = 1) -> str:
    """An interval of a change; a dash where there is none."""
    return DASH if math.isnan(low) else f"{signed(low, digits)} to {signed(high, digits)}"


def p_cell(p: float) -> str:
    """p as it stands in a table; a dash where there is none."""
    if math.isnan(p):
        return DASH
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def reason(row: Mapping[Any, Any]) -> str:
    """Why a row of the Delta table lacks numbers; meant for its undefined cells only."""
    if math.isnan(row["delta"]):
        return "lengths unknown" if row["metric"] == "sigmoid" else "only ties"
    return "one cluster" if row["n_clusters"] == 1 else "not defined"


def because(cell: str, why: str) -> str:
    """A cell as it is; a dash with the reason for it."""
    return f"{DASH} ({why})" if cell == DASH else cell
