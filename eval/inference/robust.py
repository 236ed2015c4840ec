"""Cluster-robust standard errors with their degrees of freedom, and the t tests made from them.

A change is a contrast of regression coefficients. Each pair gives one row for every cell it
counts in, a cell being a model (before, after) within a column (one; for the macro scope one a
group, so that a pair of several groups gives a row to each); the regression is on one dummy a
cell, its coefficients are the cells' means, and the change is their contrast: +1/K for the K
cells after, -1/K for those before. For one column whose pairs all count in both models that is
the intercept-only regression of the pairs' differences. Rows of one cluster may depend on each
other in any way, across groups too: a cluster's scores are summed over its cells before they
are squared, which is how the macro's standard error carries the covariance of its groups.

CR2 (Bell and McCaffrey 2002) divides a cluster's residuals by the root of 1 - H, its block of
the hat matrix. With dummies that block is constant within a cell, n_ck/N_k in sum, and only a
cell's residual sum enters the score: the adjustment is (1 - n_ck/N_k)^(-1/2), closed form. A
cell that lies in one cluster has no residual sum to adjust, and adds no variance (the inverse
is Moore and Penrose's: Pustejovsky and Tipton 2018, section 2.3).

The degrees of freedom are Satterthwaite's under the working model of independent rows of equal
variance: the estimator is a quadratic form in the residuals, sum of (p_c'e)², so that
df = (tr G)² / tr(G²) with G_cd = p_c'p_d (Bell and McCaffrey 2002; Pustejovsky and Tipton 2018,
equation 11). Here G = D - UU', D diagonal with the sums over cells of n_ck·w_ck² and U holding
n_ck·w_ck/sqrt(N_k), w_ck being the contrast over N_k times the adjustment.
"""

import numpy as np
from scipy.stats import t as student

from eval.inference.clusters import BIAS, ClusterSums, ratio
from eval.metrics import METRICS, NEUTRAL, PAIR_METRICS


def standard_errors(cut: ClusterSums) -> np.ndarray:
    """CR2 standard errors of the changes of PAIR_METRICS, (pair metrics,); NaN for one cluster."""
    return robust(cut)[0]


def robust(cut: ClusterSums) -> tuple[np.ndarray, np.ndarray]:
    """CR2 standard errors of the changes and their degrees of freedom, each (pair metrics,).

    Both NaN for one cluster, and where a metric has no value.
    """
    values, counts = _cells(cut)
    return cr2(values, counts, _contrast(counts))


def distance_df(cut: ClusterSums) -> float:
    """Degrees of freedom for the change of |bias - 50|.

    That of the linear contrast which it is away from its kink: each cell's coefficient takes
    the side on which the cell's mean lies. The standard error is the bootstrap's, since at the
    kink there is no linear contrast.
    """
    values, counts = _cells(cut)
    values, counts = values[..., BIAS : BIAS + 1], counts[..., BIAS : BIAS + 1]
    side = ratio(values.sum(axis=0), counts.sum(axis=0)) >= NEUTRAL
    return float(cr2(values, counts, _contrast(counts) * np.where(side, 1.0, -1.0))[1][0])


def cr2(
    values: np.ndarray, counts: np.ndarray, contrast: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """CR2 standard errors and Satterthwaite degrees of freedom of contrasts of cell means.

    Args:
        values: each cluster's sum in each cell, (clusters, cells, metrics)
        counts: its number of rows there, likewise
        contrast: the cells' coefficients, 0 or NaN where a cell counts for nothing
            (cells, metrics)

    Returns: standard errors and degrees of freedom, each (metrics,); NaN for one cluster
    """
    if len(values) < 2:
        return np.full(contrast.shape[1:], np.nan), np.full(contrast.shape[1:], np.nan)
    undefined = (np.nan_to_num(contrast) == 0).all(axis=0)
    totals = counts.sum(axis=0)
    used = np.where(totals > 0, np.nan_to_num(contrast), 0.0)
    residual = values - np.nan_to_num(ratio(values.sum(axis=0), totals)) * counts
    size = np.maximum(totals, 1.0)
    share = counts / size
    inner = share < 1
    adjustment = np.where(inner, 1.0 / np.sqrt(np.where(inner, 1.0 - share, 1.0)), 0.0)
    weight = used / size * adjustment  # (clusters, cells, metrics)
    variance = ((weight * residual).sum(axis=1) ** 2).sum(axis=0)

    own = (counts * weight**2).sum(axis=1)  # D, (clusters, metrics)
    crossed = counts * weight / np.sqrt(size)  # U
    length = (crossed**2).sum(axis=1)
    products = np.einsum("ckm,clm->klm", crossed, crossed)
    trace = (own - length).sum(axis=0)
    squared = (own**2 - 2 * own * length).sum(axis=0) + (products**2).sum(axis=(0, 1))
    known = (squared > 0) & (trace > 0)
    df = np.where(known, trace**2 / np.where(known, squared, 1.0), np.nan)
    return np.where(undefined, np.nan, np.sqrt(variance)), np.where(undefined, np.nan, df)


def influences(cut: ClusterSums) -> np.ndarray:
    """Each cluster's influence on the changes of PAIR_METRICS, (clusters, pair metrics).

    (n_c - N/D · d_c)/D for a mean N/D, after minus before, averaged over the columns: the sum
    of squares, times C/(C - 1), is the variance of Liang and Zeger (1986, CR1).
    """
    values, counts = _cells(cut)
    totals = counts.sum(axis=0)
    residual = ratio(values - np.nan_to_num(ratio(values.sum(axis=0), totals)) * counts, totals)
    influence = _contrast(counts) * residual
    undefined = np.isnan(influence).all(axis=(0, 1))
    return np.where(undefined, np.nan, np.nan_to_num(influence).sum(axis=1))


def t_test(delta: np.ndarray, se: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Two-sided p of changes by Student's t.

    Without any variance there is nothing to hold a change against: NaN, but 1 where there is
    no change either.
    """
    varies = se > 0
    p = 2 * student.sf(np.abs(delta) / np.where(varies, se, 1.0), df)
    return np.where(varies, p, np.where((delta == 0) & (se == 0), 1.0, np.nan))


def equivalence_test(
    delta: np.ndarray, se: np.ndarray, df: np.ndarray, margin: np.ndarray
) -> np.ndarray:
    """p of the two one-sided tests that the change lies within ±margin (Schuirmann 1987, TOST).

    The larger of the two. NaN where the change has no variance: clusters that did not move at
    all say little of those that were not drawn.
    """
    varies = se > 0
    scale = np.where(varies, se, 1.0)
    p = np.maximum(
        student.sf((delta + margin) / scale, df), student.cdf((delta - margin) / scale, df)
    )
    return np.where(varies, p, np.nan)


def smallest_shown(
    se: np.ndarray, df: np.ndarray, alpha: float | np.ndarray, power: float
) -> np.ndarray:
    """The change that a two-sided t test at `alpha` would show with that power.

    (t_{1-alpha/2,df} + t_{power,df}) · se: a property of the design and of this variance, not
    of the change that was seen (Bloom 1995). NaN where there is no variance.
    """
    size = (student.ppf(1 - alpha / 2, df) + student.ppf(power, df)) * se
    return np.where(se > 0, size, np.nan)


def over_metrics(of_pairs: np.ndarray, distance: float) -> np.ndarray:
    """Put what is known of PAIR_METRICS and of distance into the order of METRICS."""
    by_name = {**dict(zip(PAIR_METRICS, of_pairs, strict=True)), "distance": distance}
    return np.asarray([by_name[metric] for metric in METRICS], dtype=float)


def _cells(cut: ClusterSums) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts with columns and models as one axis, each (clusters, cells, metrics)."""
    shape = (cut.clusters, -1, len(PAIR_METRICS))
    return cut.sums[:, :, :, 0].reshape(shape), cut.sums[:, :, :, 1].reshape(shape)


def _contrast(counts: np.ndarray) -> np.ndarray:
    """After minus before over the columns that have a value in both models, (cells, metrics)."""
    there = counts.sum(axis=0) > 0  # (cells, metrics)
    both = there.reshape(-1, 2, there.shape[1]).all(axis=1)  # (columns, metrics)
    share = ratio(both.astype(float), np.broadcast_to(both.sum(axis=0), both.shape))
    signed = np.stack([-share, share], axis=1)  # (columns, models, metrics)
    return signed.reshape(there.shape)
