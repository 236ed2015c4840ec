"""Verdicts: what may be said of a change, by rule."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from eval.inference.corrections import SAID, adjust
from eval.inference.settings import InferenceSettings
from eval.metrics import NEUTRAL, Scope

#: With fewer clusters the verdict itself carries a warning.
FEW_CLUSTERS = 10


def finish(
    table: pd.DataFrame, cut: list[Scope], settings: InferenceSettings, unit: str
) -> pd.DataFrame:
    """Add families, adjusted p, direction and verdict to the rows of a Delta table.

    A family is one metric's tests over the scopes of one kind: overall and macro, the groups,
    the values of one column. The tests of equivalence are adjusted in the same families.
    """
    kinds = {scope.name: scope.kind for scope in cut}
    kind = table["scope"].map(kinds)
    whole = kind.isin(["overall", "macro"])
    table["p_adjusted"] = table["p_equivalence_adjusted"] = np.nan
    table["family"] = ""
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
    target = table["metric"].map({"margin": 0.0, "distance": 0.0}).fillna(NEUTRAL)
    nearer = (table["after"] - target).abs() < (table["before"] - target).abs()
    nearer = nearer.astype("boolean").mask(table["delta"].isna() | (table["metric"] == "ties"))
    table["moved_toward_50"] = nearer
    bias = table[table["metric"] == "bias"].set_index("scope")
    table["verdict"] = [
        verdict(row, bias.loc[row["scope"]], kinds[row["scope"]], settings, unit)
        for row in table.to_dict("records")
    ]
    return table


def verdict(
    row: Mapping[Hashable, Any], bias: pd.Series, kind: str, settings: InferenceSettings, unit: str
) -> str:
    """The verdict on one change, with a warning in it where few clusters carry it.

    "not shown" is no finding either way; "unchanged" needs a test of its own, that the change
    lies within the margin stated beforehand, and that no change is shown.

    Args:
        row: the change, of the Delta table
        bias: the same scope's row of bias, which tells whether a distance crossed 50
        kind: the scope's kind
        settings: for alpha
        unit: what a cluster is
    """
    one = unit.removesuffix("s")
    if np.isnan(row["delta"]):
        return f"not shown ({_undefined(str(row['metric']))})"
    if row["n_clusters"] == 1:
        return f"not shown (one {one}: no interval, no p)"
    metric = row["metric"]
    if row["p_adjusted"] < settings.alpha:
        said = _direction(row, bias, kind)
    elif metric != "ties" and row["p_equivalence_adjusted"] < settings.alpha:
        said = "unchanged"
    else:
        said = "not shown"
    n = row["n_clusters"]
    if n >= FEW_CLUSTERS:
        return said
    floor = 2.0 ** (1 - n)
    if floor >= settings.alpha:
        return f"{said} (only {n} {unit}: p cannot go below {floor:.4g})"
    return f"{said} (only {n} {unit})"


def plain_verdict(verdict: str) -> str:
    """A verdict without its warning."""
    return verdict.partition(" (")[0]


def _direction(row: Mapping[Hashable, Any], bias: pd.Series, kind: str) -> str:
    metric = row["metric"]
    if metric == "ties":
        return "more ties" if row["delta"] > 0 else "fewer ties"
    # |bias - 50| itself cannot cross; whether the bias beneath it did is known for one
    # average, not for a mean over groups that went different ways
    point = 0 if metric == "margin" else 50
    level = bias if metric == "distance" else row
    crossed = (level["before"] - point) * (level["after"] - point) < 0
    if crossed and not (metric == "distance" and kind == "macro"):
        return "crossed over"
    return f"toward {point}" if row["moved_toward_50"] else f"away from {point}"


def _undefined(metric: str) -> str:
    """Why a change is undefined."""
    return "lengths unknown" if metric == "sigmoid" else "all pairs tied"
