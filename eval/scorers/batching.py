"""How work becomes batches: equal lengths only, within a budget of tokens that memory decides."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from eval.scorers.model import LanguageModel

#: Logits of one forward pass at most (float32: 256 MiB); large vocabularies mean smaller batches.
LOGITS = 2**26


@dataclass(frozen=True)
class Tokens:
    """Many token sequences in one flat array: row i is `flat[starts[i]:starts[i + 1]]`."""

    flat: np.ndarray  # (all tokens,) int64
    starts: np.ndarray  # (rows + 1,) int64

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "Tokens":
        lengths = np.fromiter((len(row) for row in sequences), np.int64, len(sequences))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        flat = np.fromiter((token for row in sequences for token in row), np.int64, starts[-1])
        return cls(flat, starts)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each row. (rows,)"""
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.flat[self.starts[row] : self.starts[row + 1]]

    def block(self, rows: np.ndarray) -> np.ndarray:
        """Rows of one and the same length as a matrix. (len(rows), tokens)"""
        length = int(self.starts[rows[0] + 1] - self.starts[rows[0]])
        return self.flat[self.starts[rows][:, None] + np.arange(length)]


@dataclass
class TokenBudget:
    """Tokens of a forward pass at most: halved when memory runs out, and kept so from then on."""

    tokens: int
    halved: int = 0

    def halve(self, error: BaseException) -> None:
        """Make the budget half as large.

        Raises:
            The error itself, where the budget can't shrink any more.
        """
        if self.tokens <= 1:
            raise error
        self.tokens //= 2
        self.halved += 1
        # The frames that the error came through hold the failed pass's tensors.
        traceback.clear_frames(error.__traceback__)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@dataclass
class Effort:
    """What scoring took, counted as it goes: for the result's metadata and the benchmarks."""

    passes: int = 0  # forward passes
    tokens: int = 0  # positions computed, padding included
    head_rows: int = 0  # positions that went through the output head
    found: int = 0  # requests that earlier, unfinished work had done
    arrangement: str = ""  # how the work was arranged, in words; with the reason of a fallback
    notes: list[str] = field(default_factory=list)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on an accelerator or on a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The CPU's allocator has no exception of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def logit_rows(lm: LanguageModel) -> int:
    """How many positions may have their logits in memory at once."""
    return max(1, LOGITS // int(lm.model.get_output_embeddings().weight.shape[0]))


def equal_lengths(
    order: np.ndarray,
    lengths: np.ndarray,
    budget: TokenBudget,
    most: int,
    forward: Callable[[np.ndarray], np.ndarray],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Run `forward` on batches of equal length, in `order`; yield (items, values) as they come.

    `order`: item numbers, those of one length together. `lengths`: tokens of each item, by item
    number. A batch has at most `budget.tokens` tokens and `most` items; where memory runs out
    the budget is halved and the batch is done again in smaller ones.
    """
    at = 0
    while at < len(order):
        length = int(lengths[order[at]])
        size = max(1, min(budget.tokens // max(1, length), most))
        items = order[at : at + size]
        items = items[: int(np.argmax(lengths[items] != length)) or len(items)]
        try:
            values = forward(items)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(items) == 1:
                raise
            budget.halve(error)
            continue
        yield items, values
        at += len(items)


def default_budget(lm: LanguageModel) -> int:
    """Tokens of a forward pass at most, where nobody says."""
    if lm.device.type == "cpu":
        # BERT-base on one thread, whole scoring as a share of this torch's own sgemm: 0.61 at 256
        # tokens, 0.71 at 512, 0.74 at 768, 0.79 at 1024, 0.77 at 2048, 0.68 at 4096. Small
        # products run slower; buffers over 32 MiB (2730 tokens here) get fresh pages each time.
        # Threads share a product between them.
        return 1024 * torch.get_num_threads()
    # Not measured here: products this tall fill an accelerator, and activations stay below 2 GiB
    # for 4096-wide layers. A device with less memory halves it and goes on.
    return 16384
