"""Pseudo-log-likelihood of masked models: each token masked alone, given all the rest.

Salazar et al. 2020; over shared tokens only as in Nangia et al. 2020 and WinoQueer. The same
(sentence, position) is asked for once, however many pairs want it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from eval.scorers.batching import batches, logit_rows
from eval.scorers.model import LanguageModel


def token_log_probs(
    lm: LanguageModel,
    sequences: Sequence[Sequence[int]],
    positions: Sequence[Sequence[int]],
    *,
    batch_tokens: int,
    report: Callable[[int, int], None],
) -> list[dict[int, float]]:
    """log P(token | all other tokens) in nats, at the given positions of each sequence.

    `sequences`: token ids with their special tokens. Returns, for each of them, a dict from
    position to log-probability. Batches hold one length only, so that nothing is padded.
    """
    requests = [(row, place) for row, places in enumerate(positions) for place in places]
    lengths = [len(sequences[row]) for row, _ in requests]
    found: list[dict[int, float]] = [{} for _ in sequences]
    mask_id = lm.tokenizer.mask_token_id
    limit = logit_rows(lm)
    done = 0
    for chosen in batches(lengths, batch_tokens, limit):
        rows = np.array([requests[index][0] for index in chosen])
        places = torch.tensor([requests[index][1] for index in chosen], device=lm.device)
        ids = torch.tensor([list(sequences[row]) for row in rows], device=lm.device)
        line = torch.arange(len(chosen), device=lm.device)
        targets = ids[line, places].clone()
        ids[line, places] = mask_id
        with torch.inference_mode():
            logits = lm.model(**lm.inputs(ids)).logits[line, places]  # (batch, vocab)
            picked = torch.log_softmax(logits.double(), -1)[line, targets]
        for row, place, value in zip(rows, places.tolist(), picked.tolist(), strict=True):
            found[row][place] = value
        done += len(chosen)
        report(done, len(requests))
    return found
