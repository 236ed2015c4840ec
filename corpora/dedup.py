"""Duplicates: equal texts, and near ones, before anything is split.

Two texts are near-duplicates where the Jaccard similarity of their word trigrams reaches a
threshold. MinHash signatures (Broder 1997; rensa's R-MinHash) in bands find the candidates, and
each candidate is compared by its real trigrams before a text goes: the sketch decides nothing.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from rensa import RMinHash

WIDTH = 3  # words of a shingle
PERMUTATIONS = 64
SEED = 2608
#: Texts that stay and that one text is compared with, in each band: keeps a flood of posts made
#: from one template, each too different from the others to go, from taking quadratic time.
COMPARED = 16


def shingles(words: Sequence[str]) -> list[str]:
    """The word trigrams of a text; a text of fewer words is one shingle."""
    if len(words) <= WIDTH:
        return [" ".join(words)]
    return list(map(" ".join, zip(words, words[1:], words[2:], strict=False)))


def rows(threshold: float) -> int:
    """Signature rows of a band: as many as still find 99.5 of 100 pairs at the threshold."""
    for count in range(10, 1, -1):
        bands = PERMUTATIONS // count
        if 1 - (1 - threshold**count) ** bands >= 0.995:
            return count
    return 1


def bands(shingled: Sequence[Sequence[str]], threshold: float) -> np.ndarray:
    """Hash the bands of each text's signature; texts that share one are candidates.

    Returns an array (texts, bands) of uint64.
    """
    per_band = rows(threshold)
    count = PERMUTATIONS // per_band
    if not shingled:
        return np.empty((0, count), np.uint64)
    matrix = RMinHash.digest_matrix_from_token_sets(shingled, PERMUTATIONS, SEED)
    values = chain.from_iterable(matrix.to_rows())
    signature = np.fromiter(values, np.uint64, len(shingled) * PERMUTATIONS)
    signature = signature.reshape(len(shingled), PERMUTATIONS)[:, : count * per_band]
    signature = signature.reshape(len(shingled), count, per_band)
    hashed = np.full((len(shingled), count), 0x9E3779B97F4A7C15, np.uint64)
    with np.errstate(over="ignore"):
        for row in range(per_band):  # FNV-like, then a mix: equal bands, equal numbers
            hashed = (hashed ^ signature[:, :, row]) * np.uint64(0x100000001B3)
            hashed ^= hashed >> np.uint64(29)
    return hashed


def repeated(
    bands: np.ndarray,
    order: Sequence[int],
    shingled: Callable[[int], list[str]],
    threshold: float,
) -> list[int]:
    """Find the texts that go: those that are near-duplicates of one that stays.

    Args:
        bands: (texts, bands), as `bands` gives them.
        order: all texts, the one that is to stay of two first.
        shingled: the trigrams of a text.
        threshold: the Jaccard similarity from which the later of two goes.

    Returns the positions, sorted. Takes time in proportion to the number of texts.
    """
    together = np.zeros(len(bands), bool)  # with another text, in some band
    for band in bands.T:
        _, inverse, counts = np.unique(band, return_inverse=True, return_counts=True)
        together |= counts[inverse] > 1
    stay: dict[tuple[int, int], list[int]] = {}  # band and its hash: texts that stay
    known: dict[int, frozenset[str]] = {}
    gone = []
    for text in order:
        if not together[text]:
            continue
        mine = frozenset(shingled(text))
        buckets = [stay.setdefault(key, []) for key in enumerate(bands[text].tolist())]
        candidates = {other for bucket in buckets for other in bucket}
        if any(similar(mine, known[other], threshold) for other in candidates):
            gone.append(text)
            continue
        known[text] = mine
        for bucket in buckets:
            if len(bucket) < COMPARED:
                bucket.append(text)
    return sorted(gone)


def similar(one: frozenset[str], other: frozenset[str], threshold: float) -> bool:
    """Whether the Jaccard similarity of two sets reaches the threshold."""
    few, many = sorted((len(one), len(other)))
    if few < threshold * many:  # it can't
        return False
    shared = len(one & other)
    return shared >= threshold * (few + many - shared)
