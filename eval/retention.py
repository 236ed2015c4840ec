"""Is it still a language model? Asked of the model before and after, on what names no identity.

A model that has unlearned its language prefers nothing, and scores near 50. Three answers:

- (pseudo-)perplexity on held-out texts, its change with an interval over texts;
- grammatical minimal pairs (`eval.grammar`): how often the right sentence is the likelier one;
- how far its predictions have moved: the mean Kullback-Leibler divergence from the model before,
  over places of neutral text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eval import grammar
from eval.errors import RequestError
from eval.rules import ScoreSettings
from eval.scorers import ScoringError, encode_all, max_length, score
from eval.scorers.batching import Effort, TokenBudget, default_budget
from eval.scorers.model import LanguageModel
from eval.scorers.work import NotFiniteError, Requests, log_probs
from eval.scores import Scores


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood a token, and what it was measured on."""

    kind: str  # perplexity (causal) or pseudo-perplexity (masked; Salazar et al. 2020)
    value: float
    texts: int
    tokens: int
    losses: np.ndarray  # (texts,) negative log-likelihood of each, summed over its tokens, nats
    counts: np.ndarray  # (texts,) tokens that count in each


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
    losses = np.bincount(rows[scored], -values, minlength=len(texts))
    counts = np.bincount(rows[scored], minlength=len(texts))
    kind = "pseudo-perplexity" if lm.kind == "masked" else "perplexity"
    value = float(np.exp(losses.sum() / tokens))
    return Perplexity(kind, value, len(texts), tokens, losses, counts)


def change(
    before: np.ndarray,
    after: np.ndarray,
    counts: np.ndarray,
    *,
    alpha: float = 0.05,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, float]:
    """The change of perplexity in percent, with a paired bootstrap interval over texts.

    `before`, `after`: negative log-likelihoods of the same texts, `counts` their tokens,
    (texts,). Texts are drawn with replacement, the same for both, and
    100 (exp((after - before) / tokens) - 1) is taken of the sums: the percentile interval
    (Davison and Hinkley 1997, ch. 5). With one text there is no interval: NaN.

    Raises:
        ValueError: the three differ in length.
    """
    if not len(before) == len(after) == len(counts):
        raise ValueError(f"{len(before)}, {len(after)} and {len(counts)} texts")

    def percent(difference: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return 100 * np.expm1(difference / tokens)

    difference = after - before
    found = {"change_percent": float(percent(difference.sum(), counts.sum()))}
    if len(before) < 2:
        return {**found, "ci_low": float("nan"), "ci_high": float("nan")}
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(before), np.full(len(before), 1 / len(before)), size=resamples)
    tokens = drawn @ counts
    there = tokens > 0  # texts without a token may be all that was drawn
    low, high = np.quantile(
        percent((drawn @ difference)[there], tokens[there]), [alpha / 2, 1 - alpha / 2]
    )
    return {**found, "ci_low": float(low), "ci_high": float(high)}


def grammar_scores(
    lm: LanguageModel,
    language: str,
    *,
    batch_tokens: int | None = None,
    store: Path | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Scores:
    """The grammatical minimal pairs of a language, scored by all tokens of either sentence.

    Masked: each token masked alone (pll_all); causal: each given those before it (full). Of the
    result, `bias` is the accuracy: `sent_more` is the grammatical sentence.

    Raises:
        RequestError: there are no pairs in this language.
        ScoringError: the model gave NaN.
    """
    rule = "pll_all" if lm.kind == "masked" else "full"
    settings = ScoreSettings(scorer=rule, overlong="skip", batch_tokens=batch_tokens)
    return score(lm, grammar.load(language), settings, store=store, noise=False, report=report)


def predictions(
    lm: LanguageModel, texts: Sequence[str], *, places: int, seed: int = 0
) -> np.ndarray:
    """Log-probabilities of the whole vocabulary at `places` places of the texts, drawn by seed.

    Masked: the place is masked; causal: given the tokens before it. The same texts, seed and
    tokenizer give the same places. (places, vocabulary) float32, nats

    Raises:
        RequestError: there is no token in the texts.
    """
    encoded = encode_all(lm, texts)
    lengths = encoded.tokens.lengths
    row = np.repeat(np.arange(len(encoded)), lengths)
    place = np.arange(len(row)) - encoded.tokens.starts[row]
    first = 1 if lm.kind == "causal" else 0
    usable = np.flatnonzero(~encoded.special & (place >= first) & (place < max_length(lm)))
    if not len(usable):
        raise RequestError("no text to compare predictions on")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(usable, size=min(places, len(usable)), replace=False))
    found = []
    for at in chosen:
        ids = encoded.tokens[row[at]][: max_length(lm)].copy()
        where = int(place[at])
        if lm.kind == "masked":
            ids[where] = lm.tokenizer.mask_token_id
        given = torch.as_tensor(ids, device=lm.device)[None]
        with torch.inference_mode():
            logits = lm.model(**lm.inputs(given)).logits[0, where - first]
        found.append(logits.float().log_softmax(-1).cpu().numpy())
    return np.stack(found)


def divergence(before: np.ndarray, after: np.ndarray) -> float:
    """Mean KL(before || after) over places, in nats. Both (places, vocabulary) log-probabilities.

    Raises:
        ValueError: they are not of the same places and vocabulary.
    """
    if before.shape != after.shape:
        raise ValueError(f"predictions of shapes {before.shape} and {after.shape}")
    p = np.exp(before.astype(np.float64))
    gap = before.astype(np.float64) - after.astype(np.float64)
    return float(np.where(p > 0, p * gap, 0.0).sum(axis=1).mean())
