"""Sums over clusters: what every estimator is computed from, cut once for all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from eval.metrics import METRICS, NEUTRAL, PAIR_METRICS, Scope, mean

BIAS = PAIR_METRICS.index("bias")
_CHUNK = 4_000_000  # numbers of a resampling block: 32 MB


@dataclass(frozen=True)
class ClusterSums:
    """A scope's sums over clusters, which every estimator is computed from.

    `sums`: (clusters, columns, models, parts, pair metrics); models are before and after,
    parts the sum of values and the number of pairs that have one.
    """

    sums: np.ndarray
    n_pairs: int

    @property
    def clusters(self) -> int:
        return self.sums.shape[0]

    @property
    def levels(self) -> np.ndarray:
        """Levels before and after, (models, metrics)."""
        return levels_of(self.sums.sum(axis=0))

    @property
    def moved(self) -> int:
        """How many clusters' bias changed at all; the others weigh nothing in its test."""
        bias = self.sums[..., BIAS]  # (clusters, columns, models, parts)
        return int((bias[:, :, 0] != bias[:, :, 1]).any(axis=(1, 2)).sum())


def cluster_sums(scope: Scope, clusters: np.ndarray, pairs: np.ndarray) -> ClusterSums:
    """Sum a scope's pairs over clusters.

    Args:
        scope: whose pairs.
        clusters: the cluster's number of each pair, (pairs,)
        pairs: what each pair contributes, NaN where left out, (models, pair metrics, pairs)
    """
    inside = scope.rows
    present, _ = pd.factorize(clusters[inside])
    number = np.zeros(len(clusters), dtype=int)  # of the cluster within the scope
    number[inside] = present
    there = ~np.isnan(pairs)
    parts = np.stack([np.where(there, pairs, 0.0), there])  # (parts, models, metrics, pairs)
    size = int(present.max()) + 1
    sums = np.zeros((size, len(scope.columns), 2, 2, len(PAIR_METRICS)))
    for column, rows in enumerate(scope.columns):
        for part in range(2):
            for model in range(2):
                for metric in range(len(PAIR_METRICS)):
                    weights = parts[part, model, metric, rows]
                    sums[:, column, model, part, metric] = np.bincount(
                        number[rows], weights, minlength=size
                    )
    return ClusterSums(sums, len(inside))


def levels_of(totals: np.ndarray) -> np.ndarray:
    """Turn sums into levels: (…, columns, models, parts, pair metrics) → (…, models, metrics).

    A column without a value in either model is no part of the mean over columns.
    """
    share = ratio(totals[..., 0, :], totals[..., 1, :])  # (…, columns, models, pair metrics)
    both = ~np.isnan(share).any(axis=-2, keepdims=True)
    share = np.where(both, share, np.nan)
    means = mean(share, axis=-3)
    distance = mean(np.abs(share[..., BIAS] - NEUTRAL), axis=-2)
    by_name = {name: means[..., number] for number, name in enumerate(PAIR_METRICS)}
    by_name["distance"] = distance
    return np.stack([by_name[name] for name in METRICS], axis=-1)


def weighted(weights: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Sum over clusters with weights: (rows, clusters), (clusters, columns, …) → (rows, columns, …)

    Column by column over the clusters it holds: where each group has its own clusters that
    saves a factor of as many groups.
    """
    flat = sums.reshape(*sums.shape[:2], -1)
    out = np.empty((len(weights), *flat.shape[1:]))
    for column in range(flat.shape[1]):
        held = flat[:, column].any(axis=1)
        used = weights if held.all() else weights[:, held]
        out[:, column] = used.astype(float) @ flat[held, column]
    return out.reshape(len(weights), *sums.shape[1:])


def tolerance(cut: ClusterSums) -> np.ndarray:
    """Below which two changes are the same number but for rounding, (metrics,)."""
    values = np.abs(cut.sums[:, :, :, 0]).sum(axis=(0, 2))  # (columns, pair metrics)
    counts = cut.sums[:, :, :, 1].sum(axis=(0, 2))
    scale = 1e-12 * np.nan_to_num(mean(ratio(values, counts), axis=0))
    by_name = dict(zip(PAIR_METRICS, scale, strict=True))
    by_name["distance"] = 1e-12 * NEUTRAL
    return np.asarray([by_name[name] for name in METRICS])


def ratio(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """values / counts, NaN where there is nothing to divide by."""
    return np.where(counts > 0, values / np.where(counts > 0, counts, 1.0), np.nan)


def blocks(total: int, width: int) -> Iterator[int]:
    """Cut `total` rows of `width` numbers into blocks that fit into memory."""
    rows = max(1, _CHUNK // width)
    for start in range(0, total, rows):
        yield min(rows, total - start)
