"""Pseudo-log-likelihood of masked models: each token masked alone, given all the rest.

Salazar et al. 2020; over shared tokens only as in Nangia et al. 2020 and WinoQueer. Of "alle
trans personen zijn gek" and "… zijn dapper" the last words are asked for with one and the same
input, so that inputs, not requests, are what goes through the model: each distinct one once.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from eval.scorers.batching import (
    Effort,
    TokenBudget,
    Tokens,
    equal_lengths,
    logit_rows,
    out_of_memory,
)
from eval.scorers.head import Head, log_probs_at
from eval.scorers.model import LanguageModel

#: Tokens that planning looks at together (int64: 8 MiB).
CHUNK = 2**20

#: Requests of the batch on which the output head is checked.
CHECKED = 4

#: Blocks of sentences dealt to each process; more balance better, fewer share more inputs.
BLOCKS = 8

#: How many of a sentence's tokens decide where it stands among the others when work is dealt.
DEPTH = 16


def log_probs(
    lm: LanguageModel,
    tokens: Tokens,
    rows: np.ndarray,
    places: np.ndarray,
    *,
    until: np.ndarray | None = None,
    budget: TokenBudget,
    effort: Effort,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """log P(token at place | all other tokens) for the requests zip(rows, places).

    The positions place … until - 1 are masked, by default the place alone (with the rest of its
    word: Kauf and Ivanova 2023); only the token at the place is predicted. Yields (request
    numbers, (k,); nats, (k,) float64) as batches are done, every number once, long rows first.

    Raises:
        torch.OutOfMemoryError, RuntimeError: one row alone is too large for the memory.
    """
    if not len(rows):
        return
    hidden_to = places + 1 if until is None else until
    plan = _plan(tokens, rows, places, hidden_to, lm.tokenizer.mask_token_id)
    head = _checked_head(lm, plan)
    effort.arrangement = f"equal lengths, {head.arrangement}"

    def forward(items: np.ndarray) -> np.ndarray:
        ids = _there(plan.inputs(plan.first[items]), lm)
        asked, line = plan.requests(items)
        targets = tokens.flat[tokens.starts[rows[asked]] + places[asked]]
        # A position that several requests ask for goes through the head once.
        positions, of = np.unique(line * ids.shape[1] + places[asked], return_inverse=True)
        order = np.argsort(of, kind="stable")
        lines, at = (_there(array, lm) for array in np.divmod(positions, ids.shape[1]))
        with torch.inference_mode():
            blocks = head.logits(lm.inputs(ids), lines, at, effort)
            found = log_probs_at(blocks, _there(of[order], lm), _there(targets[order], lm))
        values = np.empty(len(asked))
        values[order] = found.cpu().numpy()
        return values

    items = np.arange(len(plan.first))
    lengths = tokens.lengths[rows[plan.first]]
    for done, values in equal_lengths(items, lengths, budget, len(items), forward):
        yield plan.requests(done)[0], values


def unmasked_log_probs(
    lm: LanguageModel,
    tokens: Tokens,
    rows: np.ndarray,
    places: np.ndarray,
    *,
    budget: TokenBudget,
    effort: Effort,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """log P(token at place | the whole sentence, that token too), nothing masked.

    All unmasked likelihood, AUL (Kaneko and Bollegala 2022): one forward pass of a sentence
    serves all its places. Yields as `log_probs` does.
    """
    return log_probs(lm, tokens, rows, places, until=places, budget=budget, effort=effort)


def share(
    tokens: Tokens, rows: np.ndarray, places: np.ndarray, rank: int, world: int
) -> np.ndarray:
    """The numbers of the requests zip(rows, places) that process `rank` of `world` computes.

    A sentence's requests stay together, and sentences that begin alike mostly do, so that few
    inputs are computed twice; their blocks are equal in tokens. (its requests,), ascending.
    """
    if world == 1:
        return np.arange(len(rows))
    cost = np.bincount(rows, weights=tokens.lengths[rows], minlength=len(tokens))
    begins = np.full((len(tokens), DEPTH), -1)
    places_of = np.arange(DEPTH)
    inside = places_of < tokens.lengths[:, None]
    begins[inside] = tokens.flat[(tokens.starts[:-1, None] + places_of)[inside]]
    order = np.lexsort(begins.T[::-1])
    done = np.cumsum(cost[order])
    block = np.empty(len(tokens), np.int64)
    # A sentence belongs to the block that its middle falls in.
    block[order] = (done - cost[order] / 2) * (BLOCKS * world) / max(1, done[-1])
    return np.flatnonzero(block[rows] % world == rank)


@dataclass(frozen=True)
class _Plan:
    """Requests, those with the same input side by side, long inputs first."""

    tokens: Tokens
    rows: np.ndarray  # (requests,)
    masked: np.ndarray  # (requests, 2) from, to
    mask_id: int
    order: np.ndarray  # (requests,) their numbers, sorted
    begins: np.ndarray  # (inputs + 1,) where each input's requests begin in `order`

    @property
    def first(self) -> np.ndarray:
        """A request for each input. (inputs,)"""
        return self.order[self.begins[:-1]]

    def inputs(self, requests: np.ndarray) -> np.ndarray:
        """What requests of one length give to the model. (len(requests), tokens)"""
        block = self.tokens.block(self.rows[requests])
        at = np.arange(block.shape[1])
        begin, end = self.masked[requests].T[:, :, None]
        block[(at >= begin) & (at < end)] = self.mask_id
        return block

    def requests(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The requests of consecutive inputs, and for each the place of its input in `items`."""
        begins = self.begins[items[0] : items[-1] + 2]
        return self.order[begins[0] : begins[-1]], np.repeat(np.arange(len(items)), np.diff(begins))


def _plan(
    tokens: Tokens, rows: np.ndarray, begin: np.ndarray, end: np.ndarray, mask_id: int
) -> _Plan:
    """Bring requests with the same input together.

    Inputs are sorted by a hash, and equal are those neighbours that are the same token by token:
    a collision costs a forward pass, no digit.
    """
    lengths = tokens.lengths
    places = np.arange(len(tokens.flat)) - np.repeat(tokens.starts[:-1], lengths)
    factors = np.random.default_rng(0).integers(
        2**64, size=int(lengths.max(initial=0)), dtype=np.uint64
    )[places]
    sums = _sums(factors * tokens.flat.astype(np.uint64))
    starts = tokens.starts[rows]
    from_, to = starts + begin, starts + end
    whole = sums[starts + lengths[rows]] - sums[starts]
    hashes = whole - (sums[to] - sums[from_])  # of what is left to see
    length = lengths[rows]
    order = np.lexsort((hashes, -length))
    plan = _Plan(tokens, rows, np.stack([begin, end], 1), mask_id, order, np.zeros(1, np.int64))
    begins = np.append(_changes(plan, length[order]), len(rows))
    return _Plan(tokens, rows, plan.masked, mask_id, order, begins)


def _sums(values: np.ndarray) -> np.ndarray:
    """Cumulative sums, modulo 2⁶⁴, with a zero in front."""
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(values)])


def _changes(plan: _Plan, lengths: np.ndarray) -> np.ndarray:
    """Where in `plan.order` an input differs from the one before. `lengths`: in that order."""
    changes = np.ones(len(lengths), bool)
    edges = np.append(np.flatnonzero(np.diff(lengths, prepend=-1)), len(lengths))
    for start, stop in itertools.pairwise(edges.tolist()):
        step = max(2, CHUNK // max(1, int(lengths[start])))
        for low in range(start, stop, step - 1):  # chunks meet in one request
            block = plan.inputs(plan.order[low : min(low + step, stop)])
            changes[low + 1 : low + len(block)] = (block[1:] != block[:-1]).any(1)
    return np.flatnonzero(changes)


def _checked_head(lm: LanguageModel, plan: _Plan) -> Head:
    """Check the head on a few requests of the middle length."""
    requests = plan.first
    lengths = plan.tokens.lengths[plan.rows[requests]]
    middle = len(requests) // 2
    count = max(1, min(CHECKED, logit_rows(lm) // int(max(1, lengths[middle]))))
    chosen = requests[middle : middle + count]
    chosen = chosen[plan.tokens.lengths[plan.rows[chosen]] == lengths[middle]]
    while True:
        ids, at = _there(plan.inputs(chosen), lm), _there(plan.masked[chosen, 0], lm)
        line = torch.arange(len(chosen), device=lm.device)
        try:
            return Head.checked(lm, lm.inputs(ids), line, at)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(chosen) == 1:
                raise
        chosen = chosen[: len(chosen) // 2]


def _there(array: np.ndarray, lm: LanguageModel) -> torch.Tensor:
    """An array on the model's device."""
    return torch.from_numpy(array).to(lm.device)
