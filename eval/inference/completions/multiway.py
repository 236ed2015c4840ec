"""Means and gaps of categories, with standard errors that know markers, subjects and templates.

Prompts are no independent observations: those of one marker share it, and so do those of one
subject and of one template. A gap is estimated within blocks (a regression with a dummy for each
subject × template and each category), so that a category whose prompts are missing in hard
sentences gains nothing by it; where nothing is missing it is the plain difference of means.

The variance is that of Cameron, Gelbach and Miller (2011) over the three kinds of clusters: the
sum over their combinations, those of an even number taken off, each with its factor C/(C - 1);
markers, which belong to a category, are counted within it. It can't fall below any one-way
variance here, which guards against the sum coming out too small where clusters are few. The t
distribution has one degree of freedom less than the fewest clusters.

Clustering by markers alone would not do for a gap to the unmarked subject: there is one unmarked
prompt a block, and what is odd about it is shared by the differences of all markers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import t as student

from eval.inference.completions.grid import GAPS
from eval.inference.robust import t_test


@dataclass(frozen=True)
class Estimate:
    """A mean or a gap with its multiway cluster-robust error; NaN where there is none."""

    value: float
    se: float
    df: float
    p: float

    def interval(self, alpha: float) -> tuple[float, float]:
        """Ends of the t interval."""
        reach = student.ppf(1 - alpha / 2, self.df) * self.se
        return self.value - reach, self.value + reach


def means(values: np.ndarray, prompts: pd.DataFrame) -> dict[str, Estimate]:
    """Each category's mean. `values`: (prompts,), NaN where there is none."""
    found = {}
    for category in prompts["category"].unique():
        inside = ((prompts["category"] == category) & ~np.isnan(values)).to_numpy()
        y = values[inside]
        if not len(y):
            found[category] = _NOTHING
            continue
        influence = (y - y.mean()) / len(y)
        found[category] = _estimate(float(y.mean()), influence, prompts[inside])
    return found


def gaps(values: np.ndarray, prompts: pd.DataFrame) -> dict[tuple[str, str], Estimate]:
    """Each of GAPS, within blocks. `values`: (prompts,), NaN where there is none."""
    found = {}
    for pair in GAPS:
        inside = (prompts["category"].isin(pair) & ~np.isnan(values)).to_numpy()
        rows = prompts[inside]
        y = centred(values[inside], rows["block"].to_numpy())
        x = (rows["category"] == pair[0]).to_numpy(float)
        x = centred(x, rows["block"].to_numpy())
        size = float(x @ x)
        if not size > 1e-12:  # no block has both
            found[pair] = _NOTHING
            continue
        value = float(x @ y) / size
        found[pair] = _estimate(value, x * (y - value * x) / size, rows)
    return found


def centred(values: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Values less their block's mean. (rows,)"""
    if not len(values):
        return values
    sums = np.bincount(block, values)
    counts = np.bincount(block)
    return values - (sums / np.maximum(counts, 1))[block]


def _estimate(value: float, influence: np.ndarray, rows: pd.DataFrame) -> Estimate:
    marked = rows[rows["marker"] != ""]
    per_category = marked.groupby("category")["marker"].nunique()
    kinds: list[list[str]] = []
    sizes: list[int] = []
    if len(per_category):
        kinds.append(["category", "marker"])
        sizes.append(int(per_category.min()))
    for column in ("subject", "template"):
        kinds.append([column])
        sizes.append(rows[column].nunique())
    usable = [(kind, size) for kind, size in zip(kinds, sizes, strict=True) if size > 1]
    if len(usable) < len(kinds) and kinds[0] == ["category", "marker"] and sizes[0] < 2:
        return Estimate(value, np.nan, np.nan, np.nan)  # one marker says nothing of others
    if not usable:
        return Estimate(value, np.nan, np.nan, np.nan)
    se = float(np.sqrt(_variance(influence, rows, [kind for kind, _ in usable])))
    df = float(min(size for _, size in usable) - 1)
    p = float(t_test(np.asarray([value]), np.asarray([se]), np.asarray([df]))[0])
    return Estimate(value, se, df, p)


def _variance(influence: np.ndarray, rows: pd.DataFrame, kinds: Sequence[list[str]]) -> float:
    """Cameron, Gelbach and Miller's, at least the largest one-way variance."""
    total, floor = 0.0, 0.0
    for count in range(1, len(kinds) + 1):
        for chosen in combinations(kinds, count):
            columns = list(dict.fromkeys(column for kind in chosen for column in kind))
            part = _one_way(influence, rows, columns)
            total += part if count % 2 else -part
            if count == 1:
                floor = max(floor, part)
    return max(total, floor)


def _one_way(influence: np.ndarray, rows: pd.DataFrame, columns: list[str]) -> float:
    groups = rows.groupby(columns, sort=False).ngroup().to_numpy()
    squares = np.bincount(groups, influence) ** 2
    # within a category where the clusters belong to one, else over all of them
    if "category" in columns:
        first = np.unique(groups, return_index=True)[1]
        stratum = pd.factorize(rows["category"].to_numpy()[first])[0]
    else:
        stratum = np.zeros(len(squares), dtype=int)
    size = np.bincount(stratum)
    factor = np.where(size > 1, size / np.maximum(size - 1, 1), 1.0)
    return float((factor[stratum] * squares).sum())


_NOTHING = Estimate(np.nan, np.nan, np.nan, np.nan)
