"""Verdicts: what may be said of a change, by rule."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from eval.inference.corrections import SAID, adjust
from eval.inference.robust import smallest_shown
from eval.inference.settings import InferenceSettings
from eval.metrics import NEUTRAL, Scope

#: With fewer clusters the verdict itself carries a warning.
FEW_CLUSTERS = 10


def finish(
    table: pd.DataFrame, cut: list[Scope], settings: InferenceSettings, unit: str
) -> pd.DataFrame:
    """Add families, adjusted p, direction and verdict to the rows of a Delta table.

    A family is one metric's tests over the scopes of one kind: overall and macro, the groups,
    the values of one column. The tests of equivalence are adjusted in the same families, and the
    smallest change that could be shown is that of the family's first step, at alpha / tests: none
    where even the smallest p is too large for it.
    """
    table = _with_equivalence_of_distance(table, cut)
    kinds = {scope.name: scope.kind for scope in cut}
    kind = table["scope"].map(kinds)
    whole = kind.isin(["overall", "macro"])
    table["p_adjusted"] = table["p_equivalence_adjusted"] = np.nan
    table["family"] = ""
    table["smallest_shown"] = np.nan
    tests = pd.Series(1, index=table.index)
    for _, rows in table.groupby([table["metric"], kind.mask(whole, "")], sort=False):
        metric, first = rows["metric"].iloc[0], kind[rows.index[0]]
        for p in ("p", "p_equivalence"):
            tested = rows.index[rows[p].notna()]
            if len(tested):
                table.loc[tested, f"{p}_adjusted"] = adjust(
                    table.loc[tested, p].to_numpy(float), settings.correction
                )
        tested = rows.index[rows["p"].notna()]
        if len(tested) == 0:
            continue
        over = {"overall": "overall and macro" if len(tested) > 1 else "overall"}
        name = over.get(
            first, f"over the {len(tested)} {first}s" if len(tested) > 1 else f"of one {first}"
        )
        table.loc[tested, "family"] = f"{metric} {name}{SAID[settings.correction]}"
        tests[tested] = len(tested) if settings.correction == "holm" else 1
    alpha = settings.alpha / tests.to_numpy(float)
    smallest = smallest_shown(
        table["se"].to_numpy(float), table["df"].to_numpy(float), alpha, settings.power
    )
    floor = table["p_floor"].to_numpy(float)
    table["smallest_shown"] = np.where(floor < alpha, smallest, np.nan)
    target = table["metric"].map({"margin": 0.0, "distance": 0.0}).fillna(NEUTRAL)
    nearer = (table["after"] - target).abs() < (table["before"] - target).abs()
    nearer = nearer.astype("boolean").mask(table["delta"].isna() | (table["metric"] == "ties"))
    # Of a mean over groups, what counts is whether its groups came nearer: 97 beside 6 is not 51.
    for row in table.index[(table["scope"] == "macro") & (table["metric"] == "bias")]:
        (distance,) = table.index[(table["scope"] == "macro") & (table["metric"] == "distance")]
        nearer[row] = nearer[distance]
    table["moved_toward_50"] = nearer
    bias = table[table["metric"] == "bias"].set_index("scope")
    averages = {scope.name: len(scope.columns) for scope in cut}
    table["verdict"] = [
        verdict(row, bias.loc[row["scope"]], averages[row["scope"]], settings, unit, tests=count)
        for row, count in zip(table.to_dict("records"), tests, strict=True)
    ]
    return table


def _with_equivalence_of_distance(table: pd.DataFrame, cut: list[Scope]) -> pd.DataFrame:
    """Take for a distance the largest p of the equivalence tests of the biases beneath it.

    An estimate of |bias - 50| cannot fall below 0, so near 50 noise hides a change of it, and a
    test of its own would call moves of several points nothing. But |bias - 50| changes by no more
    than bias does: if every bias is shown unchanged, so is the distance.
    """
    table = table.copy()
    p = table[table["metric"] == "bias"].set_index("scope")["p_equivalence"]
    beneath = {scope.name: [scope.name] for scope in cut}
    groups = [scope.name for scope in cut if scope.kind == "group"]
    if "macro" in beneath:
        beneath["macro"] = groups
    for row in table.index[table["metric"] == "distance"]:
        of = p[beneath[str(table.at[row, "scope"])]]
        table.at[row, "p_equivalence"] = np.nan if of.isna().any() else of.max()
    return table


def verdict(
    row: Mapping[Hashable, Any],
    bias: pd.Series,
    averages: int,
    settings: InferenceSettings,
    unit: str,
    *,
    tests: int = 1,
) -> str:
    """The verdict on one change, with a warning in it where few clusters carry it, or where no
    adjusted p could be small enough.

    "not shown" is no finding either way; "unchanged" needs a test of its own, that the change
    lies within the margin of the settings, and that no change is shown.

    Args:
        row: the change, of the Delta table
        bias: the same scope's row of bias, which tells whether a distance crossed 50
        averages: over how many groups the scope's level is a mean
        settings: for alpha
        unit: what a cluster is
        tests: by which p is adjusted at the most
    """
    one = unit.removesuffix("s")
    if np.isnan(row["delta"]):
        return f"not shown ({_undefined(str(row['metric']))})"
    if row["n_clusters"] == 1:
        return f"not shown (one {one}: no interval, no p)"
    metric = row["metric"]
    if row["p_adjusted"] < settings.alpha:
        said = _direction(row, bias, averages)
    elif metric != "ties" and row["p_equivalence_adjusted"] < settings.alpha:
        said = "unchanged"
    else:
        said = "not shown"
    n = row["n_clusters"]
    floor = 2.0 ** (1 - n)
    if floor >= settings.alpha:
        return f"{said} (only {n} {unit}: p cannot go below {floor:.4g})"
    if floor * tests >= settings.alpha:
        return f"{said} (only {n} {unit}: adjusted p cannot go below {floor * tests:.4g})"
    return f"{said} (only {n} {unit})" if n < FEW_CLUSTERS else said


def plain_verdict(verdict: str) -> str:
    """A verdict without its warning."""
    return verdict.partition(" (")[0]


def _direction(row: Mapping[Hashable, Any], bias: pd.Series, averages: int) -> str:
    metric = row["metric"]
    if metric == "ties":
        return "more ties" if row["delta"] > 0 else "fewer ties"
    # |bias - 50| itself cannot cross; whether the bias beneath it did is known for one
    # average, not for a mean over groups that went different ways
    point = 0 if metric == "margin" else 50
    level = bias if metric == "distance" else row
    mean_of_many = averages > 1 and metric in ("bias", "distance")
    if not mean_of_many and _side(level, "before", point) * _side(level, "after", point) < 0:
        return "crossed over"
    return f"toward {point}" if row["moved_toward_50"] else f"away from {point}"


def _side(level: Mapping[Hashable, Any] | pd.Series, when: str, point: float) -> int:
    """On which side of the point a level's interval lies: 1, -1, or 0 where it holds the point."""
    if level[f"{when}_low"] > point:
        return 1
    return -1 if level[f"{when}_high"] < point else 0


def _undefined(metric: str) -> str:
    """Why a change is undefined."""
    return "lengths unknown" if metric == "sigmoid" else "all pairs tied"
