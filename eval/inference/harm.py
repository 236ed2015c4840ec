"""Do margins go with how harmful a stereotype is? Correlations with the survey's ratings.

The Dutch paper correlates each pair's margin with its stereotype's mean rating and prints
Pearson's r with a p over 42,906 pairs (2609.02651 §5.2, Table 7). A rating belongs to a
stereotype, though, and all pairs of one share it: there are 167 ratings, not 42,906. So its p
stands here as `p_naive`, beside tests that take the stereotype for the unit.

The rating is a mean over 6 to 9 raters, on a scale of -1, 1, 2, 3, 4 that skips 0: its steps
are not equal, and its noise pulls r toward 0. Spearman's rho on the stereotypes' mean margins
needs only the order of the ratings.
"""

import math
from collections.abc import Iterator
from itertools import permutations

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from scipy.stats import t as student

from eval.inference.clusters import blocks, ratio
from eval.inference.draws import EXACT_FLIPS, weights
from eval.inference.resampling import percentile, stream
from eval.inference.settings import InferenceSettings
from eval.scores import Scores

COLUMN = "harm_mean"
HARM_COLUMNS = {
    "when": "before, after, or change: of the margin, after minus before",
    "n_pairs": "pairs whose stereotype has a rating",
    "n_clusters": "stereotypes among them",
    "r": "Pearson's r of margin and rating, over pairs",
    "p_naive": "as published: two-sided p of r, pairs taken as independent",
    "p_cluster": "two-sided p of r with ratings permuted over stereotypes",
    "r_low": "lower end of the cluster bootstrap interval of r",
    "r_high": "upper end of it",
    "rho": "Spearman's rho of the stereotypes' mean margins and their ratings",
    "p_rho": "two-sided p of rho by the same permutations",
}
_BOOTSTRAP, _PERMUTATION = 20, 21  # purposes of the seeded streams


def correlations(before: Scores, after: Scores, settings: InferenceSettings) -> pd.DataFrame | None:
    """Correlate margins before, after, and their change with `harm_mean`; HARM_COLUMNS.

    `p_cluster` and `p_rho` permute the ratings over whole stereotypes, which are exchangeable
    where rating and margins (and the number of pairs) have nothing to do with each other:
    p = share of permutations with |r| at least as large. All permutations while there are at
    most 100,000 (8 stereotypes), else seeded draws with p = (1 + hits) / (1 + draws). (Pitman
    1937; Phipson and Smyth 2010) The interval draws stereotypes with replacement, percentile.

    Pairs without a rating are left out. Where pairs of one stereotype carry several ratings
    (forms that a translation made one), their mean is the stereotype's. A correlation is NaN
    where one side doesn't vary; over two stereotypes every p is 1.

    Returns: three rows; None where no pair has a rating

    Args:
        before: scores before
        after: scores after, in the order of `before`
        settings: seed, resamples and alpha
    """
    if COLUMN not in before.table:
        return None
    rating = before.table[COLUMN].to_numpy(float)
    rated = np.isfinite(rating)
    if not rated.any():
        return None
    names, codes = np.unique(
        before.table["stereotype_id"].to_numpy(str)[rated], return_inverse=True
    )
    size = np.bincount(codes).astype(float)  # (clusters,)
    harm = np.bincount(codes, rating[rated]) / size
    harm = np.round(harm, 12)  # a mean of equal ratings is that rating
    first, second = before.margin[rated], after.margin[rated]
    margins = {"before": first, "after": second, "change": second - first}
    values = np.stack(list(margins.values()))  # (whens, pairs)
    # centred first: the sums of squares below then lose no digits
    values = values - values.mean(axis=1, keepdims=True)
    sums = np.stack([np.bincount(codes, value) for value in values], axis=1)
    squares = np.stack([np.bincount(codes, value**2) for value in values], axis=1)
    cut = _Cut(size, harm - harm @ size / size.sum(), sums, squares)

    r = cut.pearson(np.ones((1, len(names))))[0]  # (whens,)
    ends = percentile(
        np.concatenate(
            [
                cut.pearson(drawn)
                for drawn in weights(
                    len(names), settings.resamples, stream(settings.seed, COLUMN, _BOOTSTRAP)
                )
            ]
        ),
        settings.alpha,
    )
    rho, p_cluster, p_rho = _permuted(cut, r, settings)
    return pd.DataFrame(
        {
            "when": list(margins),
            "n_pairs": int(rated.sum()),
            "n_clusters": len(names),
            "r": r,
            "p_naive": _p_of_r(r, int(rated.sum())),
            "p_cluster": p_cluster,
            "r_low": ends[0],
            "r_high": ends[1],
            "rho": rho,
            "p_rho": p_rho,
        }
    )[list(HARM_COLUMNS)]


class _Cut:
    """Sums over stereotypes, which r is computed from under any weights or permutation."""

    def __init__(
        self, size: np.ndarray, harm: np.ndarray, sums: np.ndarray, squares: np.ndarray
    ) -> None:
        self.size = size  # pairs, (clusters,)
        self.harm = harm  # rating, (clusters,)
        self.sums = sums  # of margins, (clusters, whens)
        self.squares = squares  # of squared margins, (clusters, whens)

    def pearson(self, weight: np.ndarray, harm: np.ndarray | None = None) -> np.ndarray:
        """r over pairs for clusters that count `weight` times, (rows, whens).

        `harm`: each row's own ratings, (rows, clusters)
        """
        rating = np.broadcast_to(self.harm, weight.shape) if harm is None else harm
        pairs = weight * self.size  # (rows, clusters)
        n = pairs.sum(axis=1)[:, None]
        mean_harm = (pairs * rating).sum(axis=1)[:, None] / n
        mean_margin = weight @ self.sums / n
        covariance = (weight * rating) @ self.sums / n - mean_harm * mean_margin
        of_harm = (pairs * rating**2).sum(axis=1)[:, None] / n - mean_harm**2
        of_margin = weight @ self.squares / n - mean_margin**2
        # what is left of a variance that is nought but for rounding
        none = (of_harm <= 1e-12 * (self.harm**2).max()) | (
            of_margin <= 1e-12 * (self.squares / self.size[:, None]).max(axis=0)
        )
        root = np.sqrt(np.where(none, 1.0, of_harm * of_margin))
        return np.where(none, np.nan, covariance / root)


def _permuted(
    cut: _Cut, r: np.ndarray, settings: InferenceSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spearman's rho, and p of r and of rho by permutation, each (whens,)."""
    harm_ranks = _standardised(rankdata(cut.harm)[:, None])[:, 0]
    means = cut.sums / cut.size[:, None]
    # means that are equal but for rounding share a rank
    ranks = _standardised(rankdata(np.round(means, 12), axis=0))
    rho = harm_ranks @ ranks
    hits = np.zeros((2, len(r)))
    draws = 0
    for order in _orders(len(cut.harm), settings):
        weight = np.ones(order.shape)
        drawn = cut.pearson(weight, cut.harm[order])
        hits[0] += (np.abs(drawn) >= np.abs(r) - 1e-12).sum(axis=0)
        hits[1] += (np.abs(harm_ranks[order] @ ranks) >= np.abs(rho) - 1e-12).sum(axis=0)
        draws += len(order)
    exact = _exact(len(cut.harm))
    p = hits / draws if exact else (1 + hits) / (1 + draws)
    p = np.where(np.isnan(np.stack([r, rho])), np.nan, p)
    return rho, p[0], p[1]


def _exact(clusters: int) -> bool:
    return clusters < 20 and math.factorial(clusters) <= EXACT_FLIPS


def _orders(clusters: int, settings: InferenceSettings) -> Iterator[np.ndarray]:
    """Permutations of the clusters, all or drawn, block by block, (block, clusters)."""
    if _exact(clusters):
        yield np.asarray(list(permutations(range(clusters))))
        return
    rng = stream(settings.seed, COLUMN, _PERMUTATION)
    for rows in blocks(settings.resamples, clusters):
        yield rng.permuted(np.tile(np.arange(clusters), (rows, 1)), axis=1)


def _standardised(ranks: np.ndarray) -> np.ndarray:
    """Ranks whose products are correlations, (clusters, columns); NaN where all are tied."""
    centred = ranks - ranks.mean(axis=0)
    return ratio(centred, np.broadcast_to(np.sqrt((centred**2).sum(axis=0)), centred.shape))


def _p_of_r(r: np.ndarray, n: int) -> np.ndarray:
    """Two-sided p of r over n independent pairs: t = r·sqrt((n - 2)/(1 - r²)), n - 2 df."""
    if n < 3:
        return np.full(r.shape, np.nan)
    with np.errstate(divide="ignore"):  # |r| = 1: t is infinite, and p 0
        size = np.abs(r) * np.sqrt((n - 2) / np.maximum(0.0, 1 - r**2))
    return 2 * student.sf(size, n - 2)
