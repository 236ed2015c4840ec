"""Draws over clusters, which every resampling is made of: weights and signs.

`weights` are those of the cluster bootstrap, `signs` those of tests by swapped labels;
`sign_flip` tests any sums that clusters add to.
"""

from collections.abc import Iterator

import numpy as np

from eval.inference.clusters import blocks

#: The sign-flip test enumerates every flip up to so many, and draws beyond.
EXACT_FLIPS = 100_000


def weights(clusters: int, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each cluster is drawn in each resample, block by block, (block, clusters).

    As many clusters as there are are drawn with replacement. (Davison and Hinkley 1997, §3.8)
    """
    for rows in blocks(resamples, clusters):
        drawn = rng.integers(clusters, size=(rows, clusters), dtype=np.int32)
        drawn += np.arange(rows, dtype=np.int32)[:, None] * clusters
        counts = np.bincount(drawn.ravel(), minlength=rows * clusters)
        yield counts.reshape(rows, clusters).astype(float)


def flips(clusters: int, resamples: int) -> tuple[bool, int]:
    """Whether a test over so many clusters enumerates every flip, and how many it makes."""
    exact = 2**clusters <= EXACT_FLIPS
    return exact, 2**clusters if exact else resamples


def signs(clusters: int, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The sign of each cluster in each flip, 1 or -1, block by block, (block, clusters).

    Every flip once while 2^clusters <= EXACT_FLIPS, the identity first; else seeded draws.
    """
    exact, count = flips(clusters, resamples)
    start = 0
    for rows in blocks(count, clusters):
        if exact:
            numbers = np.arange(start, start + rows)[:, None]
            bits: np.ndarray = (numbers >> np.arange(clusters)) & 1
        else:
            packed = np.frombuffer(rng.bytes(rows * ((clusters + 7) // 8)), np.uint8)
            bits = np.unpackbits(packed.reshape(rows, -1), axis=1, count=clusters)
        start += rows
        yield 1.0 - 2.0 * bits


def p_of(hits: np.ndarray, clusters: int, resamples: int) -> np.ndarray:
    """p of so many hits among the flips of `signs`; of draws, (1 + hits) / (1 + draws)."""
    exact, count = flips(clusters, resamples)
    return hits / count if exact else (1 + hits) / (1 + count)


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
    # a sum that is the same number but for rounding is a hit
    bar = np.abs(influence.sum(axis=0)) - 1e-12 * np.abs(influence).sum(axis=0)
    hits = np.zeros(influence.shape[1])
    for block in signs(size, resamples, rng):
        hits += (np.abs(block @ influence) >= bar).sum(axis=0)
    return p_of(hits, size, resamples)
