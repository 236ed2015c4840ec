"""Log-likelihood of causal models: each token given all tokens before it, BOS first.

(WinoQueer-NL, 2609.02651, eq. 2, natural logarithm and no factor 100.)
"""

from collections.abc import Callable, Sequence

import torch

from eval.scorers.batching import batches, logit_rows
from eval.scorers.model import LanguageModel


def bos_policy(lm: LanguageModel) -> tuple[str, int | None]:
    """What stands before the first token, named, and its id.

    Exactly one BOS where the tokenizer defines one; else the model's own from its config, and
    else nothing: then the first token has no context and is not scored.
    """
    if lm.tokenizer.bos_token_id is not None:
        return f"tokenizer BOS {lm.tokenizer.bos_token}", int(lm.tokenizer.bos_token_id)
    own = getattr(lm.model.config, "bos_token_id", None)
    if own is not None:
        return f"config BOS id {own}", int(own)
    return "no BOS: the first token is not scored", None


def token_log_probs(
    lm: LanguageModel,
    sequences: Sequence[Sequence[int]],
    *,
    batch_tokens: int,
    report: Callable[[int, int], None],
) -> list[list[float]]:
    """log P(token | tokens before it) in nats, for every token of each sequence.

    A sequence's first token is its context (BOS) and gets NaN. Batches hold one length only:
    nothing is padded, so positions need no correction.
    """
    lengths = [len(sequence) for sequence in sequences]
    found: list[list[float]] = [[] for _ in sequences]
    done = 0
    for chosen in batches(lengths, batch_tokens, logit_rows(lm)):
        ids = torch.tensor([list(sequences[index]) for index in chosen], device=lm.device)
        with torch.inference_mode():
            logits = lm.model(**lm.inputs(ids)).logits[:, :-1]  # (batch, tokens - 1, vocab)
            normaliser = torch.logsumexp(logits.double(), -1)
            picked = logits.double().gather(-1, ids[:, 1:, None]).squeeze(-1) - normaliser
        for index, values in zip(chosen, picked.tolist(), strict=True):
            found[index] = [float("nan"), *values]
        done += len(chosen)
        report(done, len(sequences))
    return found
