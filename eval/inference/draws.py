"""Draws over clusters for estimators that aren't a ratio per metric: weights and signs.

`weights` are those of the cluster bootstrap, `sign_flip` tests any sums that clusters add to.
"""

from collections.abc import Iterator

import numpy as np

from eval.inference.clusters import blocks
from eval.inference.resampling import EXACT_FLIPS


def weights(clusters: int, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each cluster is drawn in each resample, block by block, (block, clusters).

    As many clusters as there are are drawn with replacement. (Davison and Hinkley 1997, §3.8)
    """
    for rows in blocks(resamples, clusters):
        drawn = rng.integers(clusters, size=(rows, clusters), dtype=np.int32)
        drawn += np.arange(rows, dtype=np.int32)[:, None] * clusters
        counts = np.bincount(drawn.ravel(), minlength=rows * clusters)
        yield counts.reshape(rows, clusters).astype(float)


def sign_flip(influence: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Two-sided p of each statistic, were each cluster's sign arbitrary, (statistics,).

    The statistic is |sum over clusters|. Exact while 2^clusters <= EXACT_FLIPS, else seeded
    draws with p = (1 + hits) / (1 + draws); NaN for a single cluster. (Fisher 1935; Canay,
    Romano and Shaikh 2017; Phipson and Smyth 2010)

    Args:
        influence: what each cluster adds to each statistic, (clusters, statistics)
        resamples: draws, where the test isn't exact
        rng: their generator
    """
    size = len(influence)
    if size < 2:
        return np.full(influence.shape[1], np.nan)
    exact = 2**size <= EXACT_FLIPS
    flips = 2**size if exact else resamples
    # a sum that is the same number but for rounding is a hit
    bar = np.abs(influence.sum(axis=0)) - 1e-12 * np.abs(influence).sum(axis=0)
    hits = np.zeros(influence.shape[1])
    start = 0
    for rows in blocks(flips, size):
        if exact:
            numbers = np.arange(start, start + rows)[:, None]
            signs = 1.0 - 2.0 * ((numbers >> np.arange(size)) & 1)
        else:
            packed = np.frombuffer(rng.bytes(rows * ((size + 7) // 8)), np.uint8)
            bits = np.unpackbits(packed.reshape(rows, -1), axis=1, count=size)
            signs = 1.0 - 2.0 * bits
        start += rows
        hits += (np.abs(signs @ influence) >= bar).sum(axis=0)
    return hits / flips if exact else (1 + hits) / (1 + flips)
