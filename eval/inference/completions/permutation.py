"""Tests by permutation, each with what it takes for exchangeable.

Three hypotheses, from the weakest claim to the strongest:

- *marking does nothing at all* (`blocked`): within a block all prompts, whatever their marker,
  could have had each other's completions. Labels are permuted within each block on its own.
  Rejecting says that some identity matters somewhere, not which.
- *queer and non-queer markers are of one kind* (`between_markers`): markers may differ, but their
  category is arbitrary. The marker carries the category, so the labels of whole markers are
  permuted, the same way in all blocks. This is the test of the queer − non-queer gap: permuting
  within blocks would take any odd marker for a difference of categories.
- *nothing changed for a marker* (`flipped`): before and after could be swapped within any marker,
  all its prompts at once.

The unmarked subject has no marker that could be exchanged for others: among 21 conditions a
label's permutation gives no p below 1/21. Gaps to it are tested by `multiway` alone.
"""

from itertools import combinations
from math import comb

import numpy as np
import pandas as pd

from eval.inference.clusters import blocks as portions
from eval.inference.completions.multiway import centred
from eval.inference.draws import EXACT_FLIPS, sign_flip

MARKED = ("queer", "non-queer")


def between_markers(
    values: np.ndarray, prompts: pd.DataFrame, draws: int, rng: np.random.Generator
) -> tuple[float, str]:
    """Two-sided p of the queer − non-queer gap, labels permuted over markers; and how it was had.

    Exact where there are at most EXACT_FLIPS divisions, else seeded with p = (1 + hits) /
    (1 + draws). Each division's gap is estimated within blocks, as the observed one. NaN where
    a category has no marker, or no block has both.
    """
    inside = (prompts["category"].isin(MARKED) & ~np.isnan(values)).to_numpy()
    rows = prompts[inside]
    marker, names = pd.factorize(rows["marker"])
    queer = np.zeros(len(names), dtype=bool)
    queer[marker[(rows["category"] == "queer").to_numpy()]] = True
    if not 0 < queer.sum() < len(names):
        return np.nan, "none: one category"
    block = rows["block"].to_numpy()
    score = np.bincount(marker, centred(values[inside], block), minlength=len(names))
    spread = _spread(marker, block, len(names))
    exact, count, divided = divisions(queer, draws, rng)
    size = np.einsum("dm,mn,dn->d", divided, spread, divided)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.abs(divided @ score) / size
    own = queer.astype(float)
    own_size = own @ spread @ own
    if not own_size > 1e-12:
        return np.nan, "none: no block has both"
    observed = abs(float(own @ score)) / own_size
    # A division whose gap is not defined counts as a hit: the cautious side.
    hits = int((~(found < observed - 1e-12 * max(1.0, observed))).sum())
    p = hits / count if exact else (1 + hits) / (1 + count)
    return p, f"markers permuted, {'exact, ' if exact else ''}{count:,}" + (
        " divisions" if exact else " seeded draws"
    )


def divisions(
    queer: np.ndarray, draws: int, rng: np.random.Generator
) -> tuple[bool, int, np.ndarray]:
    """Ways to call so many of the markers queer: whether all, how many, (divisions, markers)."""
    size, chosen = len(queer), int(queer.sum())
    if comb(size, chosen) <= EXACT_FLIPS:
        return True, comb(size, chosen), _all_divisions(size, chosen)
    order = rng.random((draws, size)).argsort(axis=1)
    return False, draws, (order < chosen).astype(float)


def blocked(
    values: np.ndarray, prompts: pd.DataFrame, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """p of any difference between the categories, were prompts exchangeable within blocks.

    The statistic is the sum of squares between categories of values less their block's mean,
    which orders permutations as the F of a two-way analysis of variance does. A prompt without
    a value keeps having none, whatever its label. NaN where a measure has no value at all.

    Args:
        values: each measure's, NaN where there is none, (prompts, measures)
        prompts: the grid's, with block and category
        draws: how many permutations, the same for all measures
        rng: their generator
    """
    block = pd.factorize(prompts["block"])[0]
    known = ~np.isnan(values)
    y = np.zeros_like(values)
    for measure in range(values.shape[1]):
        own = known[:, measure]
        y[own, measure] = centred(values[own, measure], block[own])
    both = np.hstack([y, known.astype(float)])  # (prompts, 2 measures)
    category, names = pd.factorize(prompts["category"])
    observed = _between(category[None], len(names), both)[0]
    bar = observed - 1e-12 * np.maximum(1.0, observed)
    in_blocks = np.argsort(block, kind="stable")
    hits = np.zeros(values.shape[1])
    for rows in portions(draws, 4 * len(category)):
        labels = np.empty((rows, len(category)), dtype=category.dtype)
        labels[:, in_blocks] = category[shuffled(block, rows, rng)]
        hits += (_between(labels, len(names), both) >= bar).sum(axis=0)
    return np.where(known.any(axis=0), (1 + hits) / (1 + draws), np.nan)


def shuffled(block: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Prompts in the order of their blocks, in random order within each. (rows, prompts)

    Labels taken in this order and given to the prompts in the order of their blocks are
    permuted within blocks.
    """
    return (block + rng.random((rows, len(block)))).argsort(axis=1)


def flipped(
    values: np.ndarray, clusters: np.ndarray, draws: int, rng: np.random.Generator
) -> float:
    """Two-sided p of a mean change, before and after swapped within whole clusters."""
    known = ~np.isnan(values)
    if not known.any():
        return np.nan
    codes = pd.factorize(clusters[known])[0]
    sums = np.bincount(codes, values[known])
    return float(sign_flip(sums[:, None], draws, rng)[0])


def _spread(marker: np.ndarray, block: np.ndarray, markers: int) -> np.ndarray:
    """Sums of squares and products of the markers' dummies within blocks. (markers, markers)"""
    counts = np.zeros((block.max() + 1, markers))
    np.add.at(counts, (block, marker), 1)
    size = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    inside: np.ndarray = np.diag(counts.sum(axis=0)) - counts.T @ (counts / size)
    return inside


def _all_divisions(size: int, chosen: int) -> np.ndarray:
    found = np.zeros((comb(size, chosen), size))
    for row, which in enumerate(combinations(range(size), chosen)):
        found[row, list(which)] = 1
    return found


def _between(labels: np.ndarray, categories: int, both: np.ndarray) -> np.ndarray:
    """Sums of squares between categories, by draws of labels. (draws, measures)

    `labels`: (draws, prompts); `both`: values and whether there is one, (prompts, 2 measures)
    """
    total = np.zeros((len(labels), both.shape[1] // 2))
    for number in range(categories):
        sums, counts = np.split((labels == number).astype(float) @ both, 2, axis=1)
        total += sums**2 / np.maximum(counts, 1)
    return total
