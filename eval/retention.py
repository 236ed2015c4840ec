"""Is it still a language model: (pseudo-)perplexity on held-out text, before and after.

A model that has unlearned its language prefers nothing, and scores near 50.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.errors import RequestError
from eval.scorers import ScoringError, causal, encode_all, masked, max_length
from eval.scorers.batching import share_out
from eval.scorers.model import LanguageModel


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood a token, and what it was measured on."""

    kind: str  # perplexity (causal) or pseudo-perplexity (masked; Salazar et al. 2020)
    value: float
    texts: int
    tokens: int


def perplexity(
    lm: LanguageModel,
    texts: Sequence[str],
    *,
    max_tokens: int,
    batch_tokens: int,
    report: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """(Pseudo-)perplexity of `lm` on the first `max_tokens` tokens of each text.

    Masked: each token masked alone, given the rest. Causal: each token given those before it,
    BOS first. Special tokens are never scored; every token weighs the same.

    Raises:
        RequestError: there is no text, or no token in it.
        ScoringError: the model gave NaN.
    """
    report = report or (lambda done, total: None)
    longest = min(max_tokens, max_length(lm))
    cut = [
        (sentence.ids[:longest], sentence.special[:longest]) for sentence in encode_all(lm, texts)
    ]
    first = 1 if lm.kind == "causal" else 0  # a causal model's first token is its context
    places = [
        [place for place in range(first, len(ids)) if not special[place]] for ids, special in cut
    ]
    tokens = sum(map(len, places))
    if not tokens:
        raise RequestError("no held-out text to measure perplexity on")

    def work(mine: list[int]) -> list[float]:
        sequences = [cut[index][0] for index in mine]
        if lm.kind == "masked":
            found: Any = masked.token_log_probs(
                lm,
                sequences,
                [places[index] for index in mine],
                batch_tokens=batch_tokens,
                report=report,
            )
        else:
            found = causal.token_log_probs(lm, sequences, batch_tokens=batch_tokens, report=report)
        return [
            sum(row[place] for place in places[index])
            for index, row in zip(mine, found, strict=True)
        ]

    total = float(np.sum(share_out([len(ids) for ids, _ in cut], work)))
    if not np.isfinite(total):
        raise ScoringError(f"{lm.name} gave a log-likelihood of {total} on held-out text")
    kind = "pseudo-perplexity" if lm.kind == "masked" else "perplexity"
    return Perplexity(kind, float(np.exp(-total / tokens)), len(texts), tokens)
