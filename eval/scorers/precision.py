"""Half precision: how much noise it adds, and how many pairs it could decide the other way.

The same weights score a sample of the pairs once more in float32. What differs is rounding,
nothing else, and a margin below that noise has no sign to speak of.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

#: Pairs that are scored twice.
SAMPLE = 64


def measurable(model: torch.nn.Module) -> bool:
    """Whether all weights are here; those that are fetched for each pass stay as they are."""
    return not any(weight.is_meta for weight in model.parameters())


@contextlib.contextmanager
def in_float32(model: torch.nn.Module) -> Iterator[None]:
    """The model with its weights in float32 for a while; the very same tensors come back."""
    halves = [
        (tensor, tensor.data)
        for tensor in [*model.parameters(), *model.buffers()]
        if tensor.dtype in (torch.float16, torch.bfloat16)
    ]
    try:
        for tensor, half in halves:
            tensor.data = half.float()
        yield
    finally:
        for tensor, half in halves:
            tensor.data = half


def noise(
    margins: np.ndarray, exact_margins: Callable[[np.ndarray], np.ndarray], seed: int = 0
) -> dict[str, Any]:
    """Compare margins with those of float32 on a sample of pairs. margins: (pairs,), nats

    `exact_margins` gives the margins in float32 of some pairs, by their numbers.

    Returns: `pairs` compared, the `largest` difference and the `rms` one in nats, and
    `sign_could_flip`: how many of all pairs have a margin within the largest difference.
    """
    count = min(SAMPLE, len(margins))
    some = np.sort(np.random.default_rng(seed).choice(len(margins), count, replace=False))
    off = margins[some] - exact_margins(some)
    largest = float(np.abs(off).max())
    return {
        "pairs": count,
        "largest": largest,
        "rms": float(np.sqrt(np.mean(off**2))),
        "sign_could_flip": int((np.abs(margins) <= largest).sum()),
    }
