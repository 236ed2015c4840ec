"""Is it still a language model: (pseudo-)perplexity on held-out text, before and after.

A model that has unlearned its language prefers nothing, and scores near 50.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eval.errors import RequestError
from eval.scorers import ScoringError, encode_all, max_length
from eval.scorers.batching import Effort, TokenBudget, default_budget
from eval.scorers.model import LanguageModel
from eval.scorers.work import NotFiniteError, Requests, log_probs


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
    batch_tokens: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """(Pseudo-)perplexity of `lm` on the first `max_tokens` tokens of each text.

    Masked: each token masked alone, given the rest. Causal: each token given those before it,
    BOS first. Special tokens are never scored; every token weighs the same.

    Raises:
        RequestError: there is no text, or no token in it.
        ScoringError: the model gave NaN.
    """
    longest = min(max_tokens, max_length(lm))
    encoded = encode_all(lm, texts)
    lengths = encoded.tokens.lengths
    rows = np.repeat(np.arange(len(encoded)), lengths)
    places = np.arange(len(rows)) - encoded.tokens.starts[rows]
    encoded = encoded.select(places < longest)
    first = 1 if lm.kind == "causal" else 0  # a causal model's first token is its context
    rows = np.repeat(np.arange(len(encoded)), encoded.tokens.lengths)
    places = np.arange(len(rows)) - encoded.tokens.starts[rows]
    scored = ~encoded.special & (places >= first)
    tokens = int(scored.sum())
    if not tokens:
        raise RequestError("no held-out text to measure perplexity on")
    try:
        values = log_probs(
            lm,
            Requests(encoded.tokens, rows[scored], places[scored]),
            budget=TokenBudget(batch_tokens or default_budget(lm)),
            effort=Effort(),
            report=report,
        )
    except NotFiniteError as error:
        raise ScoringError(f"{lm.name} gave {error.value} on held-out text") from error
    total = float(values.sum())
    kind = "pseudo-perplexity" if lm.kind == "masked" else "perplexity"
    return Perplexity(kind, float(np.exp(-total / tokens)), len(texts), tokens)
