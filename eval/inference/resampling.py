"""Resampling of clusters: bootstrap levels and intervals, and the test by swapped labels."""

import warnings
import zlib

import numpy as np
from scipy.stats import norm

from eval.inference.clusters import ClusterSums, levels_of, tolerance, weighted
from eval.inference.draws import flips, p_of, signs, weights
from eval.metrics import METRICS


def stream(seed: int, scope: str, purpose: int) -> np.random.Generator:
    """A scope's own stream: adding a scope changes no other scope's numbers."""
    return np.random.default_rng([seed, purpose, zlib.crc32(scope.encode())])


def bootstrap(cut: ClusterSums, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Levels of the cluster bootstrap, (resamples, models, metrics).

    Clusters are drawn with replacement, as many as the scope has, the same for both models.
    (Davison and Hinkley 1997, section 3.8)
    """
    return np.concatenate(
        [levels_of(weighted(drawn, cut.sums)) for drawn in weights(cut.clusters, resamples, rng)]
    )


def jackknife(cut: ClusterSums) -> np.ndarray:
    """Levels with each cluster left out in turn, (clusters, models, metrics)."""
    return levels_of(cut.sums.sum(axis=0) - cut.sums)


def percentile(drawn: np.ndarray, alpha: float) -> np.ndarray:
    """Ends of the percentile interval of each column, (2, …); NaN where no draw has a value."""
    with warnings.catch_warnings():  # of a metric that no draw defines: NaN is the answer
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        return np.nanquantile(drawn, [alpha / 2, 1 - alpha / 2], axis=0)


def bca(
    drawn: np.ndarray,
    observed: np.ndarray,
    left_out: np.ndarray,
    alpha: float,
    same: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Ends of the bias-corrected and accelerated interval, (2, metrics).

    z0 is the normal quantile of the share of draws below what was observed, draws that equal it
    counting half; the acceleration is the jackknife's, sum d³ / (6 (sum d²)^1.5) with d the
    jackknife's mean minus its values. (Efron 1987; Efron and Tibshirani 1993, section 14.3)

    NaN where z0 is infinite (every draw on one side), where a value is undefined, and where the
    jackknife does not vary.

    Args:
        drawn: bootstrap values, (resamples, metrics)
        observed: the value seen, (metrics,)
        left_out: jackknife values, (clusters, metrics)
        alpha: 1 minus the interval's level
        same: below which two values are the same but for rounding, (metrics,)
    """
    ends = np.full((2, len(observed)), np.nan)
    below = (drawn < observed - same).mean(axis=0) + (drawn <= observed + same).mean(axis=0)
    deviation = left_out.mean(axis=0) - left_out  # (clusters, metrics)
    squares = (deviation**2).sum(axis=0)
    usable = (below > 0) & (below < 2) & (squares > (len(left_out) * np.asarray(same) ** 2))
    usable &= ~np.isnan(drawn).any(axis=0)
    for metric in np.flatnonzero(usable):
        z0 = norm.ppf(below[metric] / 2)
        acceleration = (deviation[:, metric] ** 3).sum() / (6 * squares[metric] ** 1.5)
        z = z0 + norm.ppf([alpha / 2, 1 - alpha / 2])
        shares = norm.cdf(z0 + z / (1 - acceleration * z))
        ends[:, metric] = np.quantile(drawn[:, metric], shares)
    return ends


def swap_test(cut: ClusterSums, resamples: int, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Two-sided p of each metric's change under swapped labels, (metrics,), and the test's name.

    Before and after are exchangeable within a cluster if nothing changed. Where no pair is left
    out it is the sign-flip test on the clusters' summed differences (Fisher 1935; Canay, Romano
    and Shaikh 2017), exact while 2^clusters <= EXACT_FLIPS, else seeded draws with
    p = (1 + hits) / (1 + draws) (Phipson and Smyth 2010). A draw in which a level is undefined
    (all its pairs left out) counts as a hit, which is the cautious side.
    """
    size = cut.clusters
    if size < 2:
        return np.full(len(METRICS), np.nan), "none: one cluster"
    total = cut.sums.sum(axis=(0, 2))  # (columns, parts, metrics), over both models
    change = cut.sums[:, :, 1] - cut.sums[:, :, 0]  # (clusters, columns, parts, metrics)
    observed = np.abs(np.subtract(*cut.levels[::-1]))
    near = tolerance(cut)
    hits = np.zeros(len(METRICS))
    for block in signs(size, resamples, rng):
        swapped = weighted(block, change)  # (rows, columns, parts, metrics)
        levels = levels_of(np.stack([total - swapped, total + swapped], axis=2) / 2)
        size_of_change = np.abs(levels[:, 1] - levels[:, 0])  # (rows, metrics)
        hits += (~(size_of_change < observed - near)).sum(axis=0)
    p = p_of(hits, size, resamples)
    p = np.where(np.isnan(observed), np.nan, p)
    exact, count = flips(size, resamples)
    return p, f"exact, 2^{size} flips" if exact else f"{count:,} seeded draws"


def smallest_p(clusters: int, resamples: int) -> float:
    """The smallest p that the test can give for so many clusters; NaN where there is none.

    2^(1 - clusters), since a flip and its mirror image give the same change; beyond the exact
    test 1 / (1 + draws).
    """
    if clusters < 2:
        return float("nan")
    exact, count = flips(clusters, resamples)
    return 2.0 ** (1 - clusters) if exact else 1 / (1 + count)
