"""What has to be computed for a benchmark: each distinct log-probability once, for all pairs.

Everything is held in flat arrays, so that 45,000 pairs plan in seconds and in little memory.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    share a request. `terms` are uses too, of the tokens in which the two sentences differ: the
    identity and its counterpart. They are no part of the score.
    """

    requests: Requests
    kept: np.ndarray  # (scored pairs,) row numbers of the Pair table
    unusable: dict[int, str]  # row number of a pair that can't be scored: why
    scored: "Uses"
    terms: "Uses | None"  # None: not asked for
    lengths: np.ndarray  # (scored pairs, 2) tokens, special ones apart

    @property
    def counts(self) -> np.ndarray:
        """How many tokens of each sentence are scored. (scored pairs, 2)"""
        return self._summed(self.scored).astype(np.int64)

    def scores(self, values: np.ndarray, combined: str) -> np.ndarray:
        """The pairs' scores from the requests' log-probabilities. (scored pairs, 2), nats"""
        total = self._summed(self.scored, values)
        return total / self.counts if combined == "mean" else total

    def term_scores(self, values: np.ndarray) -> np.ndarray | None:
        """Log-likelihood of each sentence's own words. (scored pairs, 2), nats; NaN: it has none"""
        if self.terms is None:
            return None
        there = self._summed(self.terms) > 0
        return np.where(there, self._summed(self.terms, values), np.nan)

    def _summed(self, uses: "Uses", values: np.ndarray | None = None) -> np.ndarray:
        cells = uses.pair * 2 + uses.side
        weights = None if values is None else values[uses.what]
        return np.bincount(cells, weights, 2 * len(self.kept)).reshape(-1, 2)

    def pair_of(self, request: int) -> int:
        """A row number of the Pair table that needs this request."""
        for uses in (self.scored, self.terms):
            if uses is not None and (uses.what == request).any():
                return int(self.kept[uses.pair[np.argmax(uses.what == request)]])
        raise KeyError(request)

    def of_pairs(self, some: np.ndarray) -> np.ndarray:
        """The requests of these pairs' scores, by their places among the kept ones, each once."""
        return np.unique(self.scored.what[np.isin(self.scored.pair, some)])


@dataclass(frozen=True)
class Uses:
    """Tokens of sentences of pairs, an entry each."""

    pair: np.ndarray  # (uses,) its row in the Pair table, in a plan its place among the kept ones
    side: np.ndarray  # (uses,) 0: sent_more, 1: sent_less
    what: np.ndarray  # (uses,) the token's place in its sentence, in a plan the request's number

    def of(self, place_of: np.ndarray) -> "Uses":
        """With the pairs numbered as `place_of` says; those of pairs that it gives -1 fall out."""
        kept = place_of[self.pair] >= 0
        return Uses(place_of[self.pair[kept]], self.side[kept], self.what[kept])


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
    scored = np.bincount(uses.pair * 2 + uses.side, minlength=2 * len(table)).reshape(-1, 2)
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
    uses = uses.of(place_of)
    starts = encoded.tokens.starts
    sentence, end = sentence[kept], np.minimum(end, encoded.tokens.lengths)
    flat = starts[sentence[uses.pair, uses.side]] + uses.what
    until = _word_ends(encoded)[flat] if rule.hidden == "word" else flat + 1
    terms = None
    if settings.terms and rule.tokens == "shared":
        terms, term_ends = _terms(encoded, sentence, end, first, uses)
        flat = np.append(flat, starts[sentence[terms.pair, terms.side]] + terms.what)
        # A causal model hides nothing: there a request is its place alone.
        until = np.append(until, term_ends) if rule.kind == "masked" else flat + 1
    distinct, request = np.unique(np.stack([flat, until]), axis=1, return_inverse=True)
    places, until = distinct
    rows = np.searchsorted(starts, places, "right") - 1
    hidden_alone = rule.hidden == "nothing" or bool((until == places + 1).all())
    return Plan(
        requests=Requests(
            tokens=encoded.tokens,
            rows=rows,
            places=places - starts[rows],
            until=None if hidden_alone else until - starts[rows],
            hidden=rule.hidden != "nothing",
        ),
        kept=kept,
        unusable=unusable,
        scored=replace(uses, what=request[: len(uses.what)]),
        terms=None if terms is None else replace(terms, what=request[len(uses.what) :]),
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
    """Tokens of a sentence, special ones included, that the model reads at most."""
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
    return int(min(limits)) - lm.reserved


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
    return Uses(np.tile(pair, 2), side, np.asarray([*places[0], *places[1]], np.int64))


def _terms(
    encoded: Sentences, sentence: np.ndarray, end: np.ndarray, first: int, shared_: Uses
) -> tuple[Uses, np.ndarray]:
    """The tokens that are not shared, and for each the flat place where its run of them ends.

    A masked model is asked for such a run from left to right, each token with the rest of the
    run masked (Kauf and Ivanova 2023): its own later pieces would give an identity away.
    """
    starts, lengths = encoded.tokens.starts, encoded.tokens.lengths
    row = sentence.ravel()  # (cells,) a cell is one sentence of one pair
    begin = np.concatenate([[0], np.cumsum(lengths[row])])
    cell = np.repeat(np.arange(len(row)), lengths[row])
    place = np.arange(begin[-1]) - begin[cell]
    flat = starts[row[cell]] + place
    own = ~encoded.special[flat] & (place >= first) & (place < end[row[cell]])
    own[begin[shared_.pair * 2 + shared_.side] + shared_.what] = False
    # a run ends before the next token that is not of it
    last = ~np.append(own[1:], False) | np.append(cell[1:] != cell[:-1], True)
    ends = np.flatnonzero(last)
    after = ends[np.searchsorted(ends, np.flatnonzero(own))] - np.flatnonzero(own) + 1
    return Uses(cell[own] // 2, cell[own] % 2, place[own]), flat[own] + after


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
    return Uses(owner // 2, owner % 2, np.concatenate(found) if found else np.zeros(0, np.int64))


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
