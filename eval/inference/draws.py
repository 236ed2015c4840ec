"""Seeded draws over clusters: weights of a bootstrap, signs of a sign-flip test.

Both come block by block, so that ten thousand draws over thousands of clusters fit into memory.
"""

import zlib
from collections.abc import Iterator

import numpy as np

#: A test enumerates every flip or permutation up to so many, and draws beyond.
EXACT = 100_000
_BLOCK = 4_000_000  # numbers of a block: 32 MB


def stream(seed: int, purpose: str, scope: str) -> np.random.Generator:
    """A purpose's and scope's own stream: adding a scope changes no other scope's numbers."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), zlib.crc32(scope.encode())])


def blocks(total: int, width: int) -> Iterator[int]:
    """Cut `total` rows of `width` numbers into blocks that fit into memory; their sizes."""
    rows = max(1, _BLOCK // max(1, width))
    for start in range(0, total, rows):
        yield min(rows, total - start)


def weights(clusters: int, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each cluster is drawn in each resample, (block, clusters), float64.

    As many clusters as there are are drawn with replacement. (Davison and Hinkley 1997, §3.8)
    """
    for rows in blocks(resamples, clusters):
        drawn = rng.integers(clusters, size=(rows, clusters), dtype=np.int32)
        drawn += np.arange(rows, dtype=np.int32)[:, None] * clusters
        counts = np.bincount(drawn.ravel(), minlength=rows * clusters)
        yield counts.reshape(rows, clusters).astype(float)


def sign_flip(
    influence: np.ndarray, resamples: int, rng: np.random.Generator
) -> tuple[np.ndarray, bool]:
    """Two-sided p of the hypothesis that each cluster's sign is arbitrary, and whether exact.

    The statistic is |sum over clusters|. Exact while 2^clusters <= 100,000, else seeded draws
    with p = (1 + hits) / (1 + draws). (Fisher 1935; Canay, Romano and Shaikh 2017; Phipson and
    Smyth 2010)

    Args:
        influence: what each cluster adds to each statistic, (clusters, statistics)

    Returns: p of each statistic, (statistics,), NaN for a single cluster; True where exact
    """
    size = len(influence)
    if size < 2:
        return np.full(influence.shape[1], np.nan), False
    exact = 2**size <= EXACT
    flips = 2**size if exact else resamples
    # below which two sums are the same number but for rounding
    bar = np.abs(influence.sum(axis=0)) - 1e-12 * np.abs(influence).sum(axis=0)
    hits = np.zeros(influence.shape[1])
    start = 0
    for rows in blocks(flips, size):
        if exact:
            numbers = np.arange(start, start + rows)[:, None]
            bits = (numbers >> np.arange(size)) & 1
        else:
            packed = np.frombuffer(rng.bytes(rows * ((size + 7) // 8)), np.uint8)
            bits = np.unpackbits(packed.reshape(rows, -1), axis=1, count=size)
        start += rows
        hits += (np.abs((1.0 - 2.0 * bits) @ influence) >= bar).sum(axis=0)
    return (hits / flips if exact else (1 + hits) / (1 + flips)), exact
