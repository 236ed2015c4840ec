"""Log-likelihood of causal models: each token given all tokens before it, BOS first.

(WinoQueer-NL, 2609.02651, eq. 2, natural logarithm and no factor 100.)

Sentences of a benchmark begin alike, so they are computed as trees of their prefixes: a row of
nodes, with positions by depth and a mask that lets a node see itself and its ancestors only.
Not every model takes such a mask, and some take it and give other numbers; so each is checked
before anything is scored with it, and where that fails its sentences go in plain batches.
"""

import inspect
from collections.abc import Iterator
from math import inf, sqrt

import numpy as np
import torch

from eval.scorers import head as heads
from eval.scorers import trees
from eval.scorers.batching import Effort, TokenBudget, Tokens, equal_lengths, out_of_memory
from eval.scorers.head import Head, Inputs, log_probs_at
from eval.scorers.model import LanguageModel
from eval.scorers.trees import Trees

#: Nodes of a pack at least, so that matrix products run at full rate. Measured on GPT-2 small and
#: one thread: packs of 128 take 15 to 20 % longer a node, packs of 256 to 768 the same within 7 %.
PACK = 256

#: Processes are dealt blocks of about this many nodes, so that few prefixes are computed twice.
BLOCK = 8 * PACK

#: Sentences that the output head is checked on.
CHECKED = 4

#: How far trees may be from plain sentences, in nats a token: rounding, but no wrong mask.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.4}

#: What a forward pass raises that can't do with a 4-D mask or with positions.
REFUSALS = (*heads.REFUSALS, AssertionError)


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


def share(
    tokens: Tokens, rows: np.ndarray, places: np.ndarray, rank: int, world: int
) -> np.ndarray:
    """The numbers of the requests zip(rows, places) that process `rank` of `world` computes.

    Blocks of neighbouring sentences, equal in nodes, are dealt round; a request that is asked
    for twice goes to one process. (its requests,), ascending.
    """
    if world == 1:
        return np.arange(len(rows))
    made = trees.plan(tokens, rows, places)
    grown = made.grown
    blocks = world * max(1, round(int(grown[-1]) / (BLOCK * world)))
    # A path belongs to the block that its middle new node falls in.
    middle = (grown[1:] + grown[:-1]) / 2
    block = (middle * blocks / max(1, grown[-1])).astype(np.int64)
    return np.sort(made.requests[block[made.path] % world == rank])


def log_probs(
    lm: LanguageModel,
    tokens: Tokens,
    rows: np.ndarray,
    places: np.ndarray,
    *,
    budget: TokenBudget,
    effort: Effort,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """log P(token at place | tokens before it) for the requests zip(rows, places), places ≥ 1.

    Yields (request numbers, (k,); nats, (k,) float64) as batches are done, every number once.
    `effort.arrangement` says whether the sentences were computed as trees, or why not.

    Raises:
        ValueError: a place is below 1.
        torch.OutOfMemoryError, RuntimeError: one sentence alone is too large for the memory.
    """
    if not len(places):
        return
    made = trees.plan(tokens, rows, places)
    for asked, values in _Work(lm, made, budget, effort).run():
        yield made.requests[asked], values


class _Work:
    """The requests of some trees, on their way through a model."""

    def __init__(self, lm: LanguageModel, made: Trees, budget: TokenBudget, effort: Effort):
        self.lm, self.made, self.budget, self.effort = lm, made, budget, effort
        self.window = _window(lm)
        self.pack = max(PACK, _best_pack(lm, made))
        forward = inspect.signature(unwrapped(lm).forward).parameters
        # Keys and values kept for a next token would be the largest thing in memory.
        self.fixed: Inputs = {"use_cache": False} if "use_cache" in forward else {}
        self.head = self._checked_head()

    def run(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (numbers of the trees' requests, nats) as batches are done."""
        checked = (0, 0)
        reason = self._no_use()
        if not reason:
            checked, found, reason = self._check()
            yield from found
        how = f"equal lengths: {reason}" if reason else f"trees of up to {self.size} nodes"
        self.effort.arrangement = f"{how}; {self.head.arrangement}"
        run = self._plain if reason else self._trees
        yield from run(0, checked[0])
        yield from run(checked[1], len(self.made))

    @property
    def size(self) -> int:
        """Nodes of a pack, at most."""
        return max(1, int(min(self.pack, self.window, self.budget.tokens)))

    def _checked_head(self) -> Head:
        """The output head, checked on the last tokens of a few short sentences."""
        lengths = self.made.lengths
        paths = np.flatnonzero(lengths == lengths.min())[:CHECKED]
        ids = self._sentences(paths)
        rows = torch.arange(len(ids), device=self.lm.device)
        last = torch.full_like(rows, ids.shape[1] - 1)
        with torch.inference_mode():
            return Head.checked(self.lm, self._inputs(ids), rows, last)

    def _no_use(self) -> str:
        """Why trees are not even tried; empty where they are."""
        longest = int(self.made.lengths.max())
        if longest > self.window:
            return f"{longest} tokens are more than the model's attention window of {self.window}"
        nodes = [pack[2] for pack in trees.packs(self.made, self.size, 0, len(self.made))]
        # The check computes a pack twice.
        if sum(nodes) + max(nodes) >= self.made.lengths.sum():
            return "the sentences have too little in common for trees"
        return ""

    def _check(self) -> tuple[tuple[int, int], list[tuple[np.ndarray, np.ndarray]], str]:
        """Compute the fullest pack as a tree and as plain sentences, and compare.

        Returns its paths (from, to), what the plain sentences gave, and what is wrong with trees.
        """
        while True:
            packs = trees.packs(self.made, self.size, 0, len(self.made))
            first, end, nodes = max(packs, key=lambda pack: pack[2])
            plain = list(self._plain(first, end))
            try:
                asked, values = self._tree_pass([first], end)
            except (MemoryError, *REFUSALS) as error:
                if out_of_memory(error):
                    self._shrink(error, end - first, nodes)
                    continue
                said = (str(error).splitlines() or ["no message"])[0]
                return (first, end), plain, f"trees raise {type(error).__name__} ({said})"
            expected = np.empty(len(values))
            for numbers, found in plain:
                expected[numbers - asked[0]] = found
            return (first, end), plain, _fault(values, expected, TOLERANCE[self.lm.dtype])

    def _trees(self, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Compute paths first … last - 1 as trees."""
        while first < last:
            begins, end, nodes = self._batch(first, last)
            try:
                found = self._tree_pass(begins, end)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                self._shrink(error, end - first, nodes)
                continue
            yield found
            first = end

    def _batch(self, first: int, last: int) -> tuple[list[int], int, int]:
        """As many packs as the budget allows: where they begin and end, and their nodes."""
        most = self.budget.tokens if self.lm.device.type != "cpu" else 1
        begins: list[int] = []
        end, width = first, 0
        for begin, stop, nodes in trees.packs(self.made, self.size, first, last):
            wider = max(width, nodes)
            if begins and (len(begins) + 1) * wider > most:
                break
            begins.append(begin)
            end, width = stop, wider
        return begins, end, len(begins) * width

    def _shrink(self, error: BaseException, paths: int, nodes: int) -> None:
        """Make the next batch smaller than one of `paths` and `nodes` that memory had no room for.

        Raises:
            The error itself, where the batch was one sentence.
        """
        if paths == 1:
            raise error
        while self.budget.tokens >= nodes:
            self.budget.halve(error)

    def _tree_pass(self, begins: list[int], end: int) -> tuple[np.ndarray, np.ndarray]:
        packs = trees.lay_out(self.made, begins, end)
        depths = torch.from_numpy(packs.depths).to(self.lm.device)
        hidden = ~trees.visible(depths)[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.lm.dtype, device=self.lm.device)
        mask.masked_fill_(hidden, torch.finfo(self.lm.dtype).min)
        given = {"attention_mask": mask, "position_ids": depths.clamp(min=0)}
        return packs.asked, self._values(packs.ids, given, packs.nodes, packs.asked)

    def _plain(self, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Compute paths first … last - 1 as sentences, those of one length together."""
        made = self.made

        def forward(paths: np.ndarray) -> np.ndarray:
            asked, of = made.asked(paths)
            ids = self._sentences(paths)
            return self._values(ids, {}, of * ids.shape[1] + made.depth[asked], asked)

        order = first + np.argsort(-made.lengths[first:last], kind="stable")
        batches = equal_lengths(order, made.lengths, self.budget, len(order), forward)
        for paths, values in batches:
            yield made.asked(paths)[0], values

    def _sentences(self, paths: np.ndarray) -> np.ndarray:
        """Paths of one length as they are. (paths, tokens)"""
        begins = self.made.tokens.starts[self.made.rows[paths]]
        return self.made.tokens.flat[begins[:, None] + np.arange(self.made.lengths[paths[0]])]

    def _values(
        self, ids: np.ndarray, given: Inputs, nodes: np.ndarray, asked: np.ndarray
    ) -> np.ndarray:
        """One batch. `nodes`: the node of each request, in the flattened batch, ascending."""
        inner, of = np.unique(nodes, return_inverse=True)  # the normaliser once a node
        numbers = (*np.divmod(inner, ids.shape[1]), of, self.made.target[asked])
        row, place, read, target = (torch.from_numpy(each).to(self.lm.device) for each in numbers)
        with torch.inference_mode():
            blocks = self.head.logits({**self._inputs(ids), **given}, row, place, self.effort)
            return log_probs_at(blocks, read, target).cpu().numpy()

    def _inputs(self, ids: np.ndarray) -> Inputs:
        return {**self.lm.inputs(torch.from_numpy(ids).to(self.lm.device)), **self.fixed}


def _fault(found: np.ndarray, expected: np.ndarray, tolerance: float) -> str:
    """What is wrong with trees; empty where they are right. NaN in both is for others to see."""
    alike = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):  # of infinities
        apart = np.where(alike, 0.0, np.nan_to_num(np.abs(found - expected), nan=np.inf))
    # Rounding seldom adds up, a wrong mask does everywhere.
    if apart.max() <= tolerance and np.sqrt((apart**2).mean()) <= tolerance / 4:
        return ""
    return f"trees differ by {apart.max():.2g} nats on this model"


def unwrapped(lm: LanguageModel) -> torch.nn.Module:
    """The model itself where an adapter is wrapped around it."""
    unwrapped = getattr(lm.model, "get_base_model", None)
    return unwrapped() if unwrapped else lm.model


def _best_pack(lm: LanguageModel, made: Trees) -> int:
    """The size of packs that costs least, by operations.

    A pack of n nodes computes about one path's length L anew at its beginning: L / n of the work.
    Attention's share is n / (6 · width), as it takes 4 · n · width operations a node and layer
    and the matrices 24 · width². The sum is least at √(6 · width · L).
    """
    width = getattr(lm.model.config.get_text_config(), "hidden_size", 0)
    return int(sqrt(6 * width * made.lengths.mean()))


def _window(lm: LanguageModel) -> float:
    """How many tokens the narrowest attention layer looks back; infinite where all are full."""
    config = lm.model.config.get_text_config()
    names = ("sliding_window", "attention_chunk_size", "window_size")
    widths = [getattr(config, name, None) for name in names]
    return min((width for width in widths if isinstance(width, int) and width > 0), default=inf)
