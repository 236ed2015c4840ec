"""How work becomes batches (equal lengths, a token budget) and is shared out over processes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch.distributed

from eval.scorers.model import LanguageModel

#: Logits of one batch at most (float32: 256 MiB); large vocabularies mean smaller batches.
LOGITS = 2**26

Result = TypeVar("Result")


def share_out(
    lengths: Sequence[int], work: Callable[[list[int]], Sequence[Result]]
) -> list[Result]:
    """Do `work` on every index, each process of torch.distributed on its share.

    `work` gets indices and returns a result for each; every process returns all of them, in
    order. Long and short items are dealt out evenly.
    """
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        parts: list[Any] = [dict(zip(order, work(order), strict=True))]
    else:
        processes = torch.distributed.get_world_size()
        mine = order[torch.distributed.get_rank() :: processes]
        parts = [None] * processes
        torch.distributed.all_gather_object(parts, dict(zip(mine, work(mine), strict=True)))
    found = {index: result for part in parts for index, result in part.items()}
    return [found[index] for index in range(len(lengths))]


def logit_rows(lm: LanguageModel) -> int:
    """How many tokens of a batch may have their logits in memory at once."""
    return max(1, LOGITS // int(lm.model.get_output_embeddings().weight.shape[0]))


def batches(lengths: Sequence[int], budget: int, limit: int) -> Iterator[list[int]]:
    """Indices in batches of one length each, of at most min(budget, limit) tokens.

    A single item longer than that is a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    start = 0
    while start < len(order):
        length = lengths[order[start]]
        size = max(1, min(budget, limit) // max(1, length))
        stop = start
        while stop < len(order) and stop - start < size and lengths[order[stop]] == length:
            stop += 1
        yield order[start:stop]
        start = stop
