"""What has to be computed for a benchmark: each distinct log-probability once, for all pairs.

Everything is held in flat arrays, so that 45,000 pairs plan in seconds and in little memory.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from eval.errors import RequestError
from eval.pairs import Pairs
from eval.rules import Rule, ScoreSettings
from eval.scorers import causal
from eval.scorers.model import LanguageModel
from eval.scorers.spans import Sentences, encode, lower, shared
from eval.scorers.work import Requests

#: How many overlong pairs an error names.
NAMED = 5


@dataclass(frozen=True)
class Plan:
    """Which log-probabilities a benchmark needs of a model, and how they make its scores.

    A *use* is one token of one sentence of one pair; uses of one and the same (sentence, place)
    share a request.
    """

    requests: Requests
    kept: np.ndarray  # (scored pairs,) row numbers of the Pair table
    unusable: dict[int, str]  # row number of a pair that can't be scored: why
    request: np.ndarray  # (uses,) which request
    pair: np.ndarray  # (uses,) which of the kept pairs, by its place among them
    side: np.ndarray  # (uses,) 0: sent_more, 1: sent_less
    lengths: np.ndarray  # (scored pairs, 2) tokens, special ones apart

    @property
    def counts(self) -> np.ndarray:
        """How many tokens of each sentence are scored. (scored pairs, 2)"""
        return self._summed(np.ones(len(self.request))).astype(np.int64)

    def scores(self, values: np.ndarray, combined: str) -> np.ndarray:
        """The pairs' scores from the requests' log-probabilities. (scored pairs, 2), nats"""
        total = self._summed(values[self.request])
        return total / self.counts if combined == "mean" else total

    def _summed(self, of_uses: np.ndarray) -> np.ndarray:
        cells = self.pair * 2 + self.side
        return np.bincount(cells, of_uses, 2 * len(self.kept)).reshape(-1, 2)

    def pair_of(self, request: int) -> int:
        """A row number of the Pair table that needs this request."""
        return int(self.kept[self.pair[np.argmax(self.request == request)]])

    def of_pairs(self, some: np.ndarray) -> np.ndarray:
        """The requests that these pairs need, by their places among the kept ones, each once."""
        return np.unique(self.request[np.isin(self.pair, some)])


def plan(lm: LanguageModel, pairs: Pairs, rule: Rule, settings: ScoreSettings) -> Plan:
    """Tokenize a benchmark's distinct sentences and find out what has to be computed.

    Raises:
        RequestError: a sentence is over the model's length and `overlong` says error, no pair
            has a token to score, or the tokenizer can't tell the words apart that a rule needs.
    """
    table = pairs.table
    texts = [
        lower(table[column].tolist(), settings.lowercase) for column in ("sent_more", "sent_less")
    ]
    codes, sentences = pd.factorize(np.asarray([*texts[0], *texts[1]], dtype=object))
    sentence = codes.reshape(2, -1).T  # (pairs, 2)
    encoded = encode_all(
        lm,
        list(sentences),
        words=settings.alignment == "words",
        pieces=rule.hidden == "word",
    )
    limit = max_length(lm)
    overlong = np.flatnonzero(encoded.tokens.lengths > limit)
    if len(overlong) and settings.overlong == "error":
        raise _too_long(lm, pairs, encoded, sentence, overlong, limit)
    end = encoded.tokens.lengths.copy()  # the first place that truncation takes away
    for row in overlong:
        end[row] = _first_lost(encoded[int(row)].special, limit)

    first = 1 if lm.kind == "causal" else 0  # without context, nothing can be scored
    uses = (_shared if rule.tokens == "shared" else _all)(encoded, sentence, end, first)
    unusable: dict[int, str] = {}
    if settings.overlong == "skip":
        over = np.isin(sentence, overlong).any(axis=1)
        unusable |= dict.fromkeys(np.flatnonzero(over).tolist(), "over the model's length")
    scored = np.bincount(uses[0] * 2 + uses[1], minlength=2 * len(table)).reshape(-1, 2)
    nothing = "no shared token" if rule.tokens == "shared" else "no token to score"
    for bare in np.flatnonzero((scored == 0).any(axis=1)).tolist():
        unusable.setdefault(bare, nothing)
    kept = np.setdiff1d(np.arange(len(table)), np.fromiter(unusable, np.int64, len(unusable)))
    if not len(kept):
        raise RequestError(f"benchmark {pairs.name}: no pair has a shared token to score")
    lengths = encoded.lengths[sentence[kept]]

    if len(overlong):
        encoded = _truncated(encoded, end, limit)
    place_of = np.full(len(table), -1)
    place_of[kept] = np.arange(len(kept))
    pair, side, place = (part[place_of[uses[0]] >= 0] for part in uses)
    starts = encoded.tokens.starts
    flat = starts[sentence[pair, side]] + place
    distinct, request = np.unique(flat, return_inverse=True)
    rows = np.searchsorted(starts, distinct, "right") - 1
    return Plan(
        requests=Requests(
            tokens=encoded.tokens,
            rows=rows,
            places=distinct - starts[rows],
            until=_word_ends(encoded)[distinct] - starts[rows] if rule.hidden == "word" else None,
            hidden=rule.hidden != "nothing",
        ),
        kept=kept,
        unusable=unusable,
        request=request,
        pair=place_of[pair],
        side=side,
        lengths=lengths,
    )


def encode_all(
    lm: LanguageModel, sentences: Sequence[str], *, words: bool = False, pieces: bool = False
) -> Sentences:
    """Tokenize; for a causal model on ids alone, with exactly one BOS in front.

    Raises:
        RequestError: words are asked for and the tokenizer can't tell them apart.
    """
    try:
        encoded = encode(lm.tokenizer, sentences, words=words, pieces=pieces)
    except ValueError as error:
        raise RequestError(f"{lm.name}: {error}") from error
    if lm.kind == "causal":
        _, bos = causal.bos_policy(lm)
        encoded = encoded.with_one_bos(bos)
    return encoded


def max_length(lm: LanguageModel) -> int:
    """Tokens, special ones included, that the model reads at most."""
    limits = [lm.tokenizer.model_max_length]
    config = lm.model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or getattr(
        config, "n_positions", None
    )
    if positions:
        # RoBERTa's positions, and CamemBERT's, begin after the padding id.
        offset = (config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
        offset = offset or (
            (config.pad_token_id or 0) + 1 if config.model_type == "camembert" else 0
        )
        limits.append(positions - offset)
    return int(min(limits))


Uses = tuple[np.ndarray, np.ndarray, np.ndarray]  # pair, side, place: a use each


def _shared(encoded: Sentences, sentence: np.ndarray, end: np.ndarray, first: int) -> Uses:
    """The shared tokens of every pair; one that a side would lose is dropped on both."""
    places: list[list[int]] = [[], []]
    counts = []
    for left, right in sentence.tolist():
        both = [
            (a, b)
            for a, b in zip(*shared(encoded[left], encoded[right]), strict=True)
            if first <= a < end[left] and first <= b < end[right]
        ]
        counts.append(len(both))
        places[0] += [a for a, _ in both]
        places[1] += [b for _, b in both]
    pair = np.repeat(np.arange(len(sentence)), counts)
    side = np.repeat([0, 1], len(pair))
    return np.tile(pair, 2), side, np.asarray([*places[0], *places[1]], np.int64)


def _all(encoded: Sentences, sentence: np.ndarray, end: np.ndarray, first: int) -> Uses:
    """Every token of both sentences of every pair, special ones and lost ones apart."""
    starts, lengths = encoded.tokens.starts, encoded.tokens.lengths
    row = np.repeat(np.arange(len(encoded)), lengths)
    place = np.arange(len(row)) - starts[row]
    wanted = ~encoded.special & (place < end[row]) & (place >= first)
    places = [place[starts[one] : starts[one + 1]] for one in range(len(encoded))]
    chosen = [
        of[wanted[starts[one] : starts[one + 1]]] for one, of in enumerate(places)
    ]  # by sentence
    flat = sentence.ravel()
    counts = np.asarray([len(chosen[one]) for one in flat])
    owner = np.repeat(np.arange(len(flat)), counts)
    found = [chosen[one] for one in flat]
    return owner // 2, owner % 2, np.concatenate(found) if found else np.zeros(0, np.int64)


def _first_lost(special: Sequence[bool], longest: int) -> int:
    """The first position that truncation takes away; the closing special tokens stay."""
    closing = itertools.takewhile(bool, reversed(special))
    return longest - len(list(closing))


def _truncated(encoded: Sentences, end: np.ndarray, longest: int) -> Sentences:
    """Cut sentences to `longest` tokens, their closing special tokens ([SEP]) among them."""
    lengths = encoded.tokens.lengths
    row = np.repeat(np.arange(len(encoded)), lengths)
    place = np.arange(len(row)) - encoded.tokens.starts[row]
    closing = np.where(lengths > longest, longest - end, 0)
    return encoded.select((place < end[row]) | (place >= (lengths - closing)[row]))


def _word_ends(encoded: Sentences) -> np.ndarray:
    """For each token, the flat place after the last piece of its word. (all tokens,)"""
    assert encoded.pieces is not None
    row = np.repeat(np.arange(len(encoded)), encoded.tokens.lengths)
    last = np.ones(len(row), bool)
    last[:-1] = (encoded.pieces[1:] != encoded.pieces[:-1]) | (row[1:] != row[:-1])
    ends = np.flatnonzero(last) + 1
    return ends[np.searchsorted(ends, np.arange(len(row)), "right")]


def _too_long(
    lm: LanguageModel,
    pairs: Pairs,
    encoded: Sentences,
    sentence: np.ndarray,
    overlong: np.ndarray,
    limit: int,
) -> RequestError:
    over = pairs.table["pair_id"].to_numpy()[np.isin(sentence, overlong).any(axis=1)]
    more = f" and {len(over) - NAMED} more" if len(over) > NAMED else ""
    return RequestError(
        f"{len(overlong)} sentences are longer than the {limit} tokens {lm.name} reads, the "
        f"longest {encoded.tokens.lengths.max()} (pairs {', '.join(over[:NAMED])}{more}); "
        "score.overlong=skip or score.overlong=truncate"
    )
