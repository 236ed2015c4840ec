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
        inside = (prompts["category"] == category).to_numpy() & ~np.isnan(values)
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
        inside = prompts["category"].isin(pair).to_numpy() & ~np.isnan(values)
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
    kinds = [_codes(rows[column].to_numpy()) for column in ("subject", "template")]
    sizes = [len(np.unique(code)) for code in kinds]
    category = _codes(rows["category"].to_numpy())
    marker = rows["marker"].to_numpy()
    marked = marker != ""
    nested = bool(marked.any())  # the first kind, markers, belongs to categories
    if nested:
        named = pd.Series(marker[marked]).groupby(category[marked]).nunique()
        # the unmarked prompts of a gap are a cluster of their own
        kinds.insert(0, _codes(marker) * (category.max() + 1) + category)
        sizes.insert(0, int(named.min()))
        if sizes[0] < 2:
            return Estimate(value, np.nan, np.nan, np.nan)  # one marker says nothing of others
    usable = [number for number, size in enumerate(sizes) if size > 1]
    if not usable:
        return Estimate(value, np.nan, np.nan, np.nan)
    variance = _variance(influence, kinds, usable, category if nested else None)
    se = float(np.sqrt(variance))
    df = float(min(sizes[number] for number in usable) - 1)
    p = float(t_test(np.asarray([value]), np.asarray([se]), np.asarray([df]))[0])
    return Estimate(value, se, df, p)


def _codes(values: np.ndarray) -> np.ndarray:
    return np.asarray(pd.factorize(values)[0])


def _variance(
    influence: np.ndarray, kinds: list[np.ndarray], usable: list[int], category: np.ndarray | None
) -> float:
    """Cameron, Gelbach and Miller's, at least the largest one-way variance.

    `kinds`: each row's cluster of each kind, (rows,); `category`: of each row, which the first
    kind is counted within.
    """
    total, floor = 0.0, 0.0
    for count in range(1, len(usable) + 1):
        for chosen in combinations(usable, count):
            code = np.zeros(len(influence), dtype=np.intp)
            for number in chosen:
                code = code * (kinds[number].max() + 1) + kinds[number]
            part = _one_way(influence, code, category if 0 in chosen else None)
            total += part if count % 2 else -part
            if count == 1:
                floor = max(floor, part)
    return max(total, floor)


def _one_way(influence: np.ndarray, code: np.ndarray, category: np.ndarray | None) -> float:
    """Squares of the clusters' sums, times C/(C - 1); C within a category where one is given."""
    squares = np.bincount(code, influence) ** 2
    stratum = np.zeros(len(squares), dtype=np.intp)
    if category is not None:
        stratum[code] = category
    size = np.bincount(stratum, np.bincount(code) > 0)
    factor = np.where(size > 1, size / np.maximum(size - 1, 1), 1.0)
    return float((factor[stratum] * squares).sum())


_NOTHING = Estimate(np.nan, np.nan, np.nan, np.nan)
