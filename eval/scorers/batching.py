"""How requests become batches: equal lengths, a token budget, never too many logits."""

from collections.abc import Iterator, Sequence

from eval.scorers.model import LanguageModel

#: Logits of one batch at most (float32: 256 MiB); large vocabularies mean smaller batches.
LOGITS = 2**26


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
