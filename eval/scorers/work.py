"""Computing what a plan asks for: shared out over processes, saved as it comes, gathered."""

import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed

from eval.files import remove_empty, replacing
from eval.scorers import causal, masked
from eval.scorers.batching import Effort, TokenBudget, Tokens
from eval.scorers.model import LanguageModel

#: A killed run loses this much work at most, in seconds.
SAVE_EVERY = 5.0


class ScoringError(RuntimeError):
    """A model gave no number where there must be one."""


class NotFiniteError(RuntimeError):
    """A model gave NaN or infinity for a request."""

    def __init__(self, request: int, value: float):
        super().__init__(f"request {request}: {value}")
        self.request = request
        self.value = value


@dataclass(frozen=True)
class Requests:
    """Log-probabilities that are wanted of a model, each once: tokens.row(rows)[places]."""

    tokens: Tokens
    rows: np.ndarray  # (requests,) which sequence
    places: np.ndarray  # (requests,) which token of it
    until: np.ndarray | None = None  # (requests,) masked models: the places hidden end here
    hidden: bool = True  # masked models: whether anything is masked at all

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, numbers: np.ndarray) -> "Requests":
        """Some of the requests."""
        until = None if self.until is None else self.until[numbers]
        return replace(self, rows=self.rows[numbers], places=self.places[numbers], until=until)


class Parts:
    """Finished requests in a folder, one file every few seconds and process.

    A file that can't be read, torn by a full disk perhaps, is removed and its work done again.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.damaged = 0
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._saved = time.monotonic()

    def read(self, requests: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers and values of finished requests, each once."""
        numbers, values = [np.zeros(0, np.int64)], [np.zeros(0)]
        for path in sorted(self.folder.glob("*.npz")):
            if path.name.startswith("."):  # being written when its process was killed
                path.unlink(missing_ok=True)
                continue
            try:
                with np.load(path, allow_pickle=False) as part:
                    number, value = part["numbers"], part["values"]
                whole = number.shape == value.shape and bool((number < requests).all())
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
                whole = False
            if not whole:
                self.damaged += 1
                path.unlink(missing_ok=True)
                continue
            numbers.append(number)
            values.append(value)
        distinct, first = np.unique(np.concatenate(numbers), return_index=True)
        return distinct, np.concatenate(values)[first]

    def add(self, numbers: np.ndarray, values: np.ndarray) -> None:
        """Take finished requests, and write what has come together in the last seconds."""
        self._waiting.append((numbers, values))
        if time.monotonic() - self._saved >= SAVE_EVERY:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            numbers, values = (
                np.concatenate(column) for column in zip(*self._waiting, strict=True)
            )
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"{int(numbers[0])}-{len(numbers)}-{time.time_ns()}.npz"
            with replacing(self.folder / name) as temporary:
                np.savez(temporary, numbers=numbers, values=values)
            self._waiting.clear()
        self._saved = time.monotonic()

    def clear(self) -> None:
        """Remove all of it."""
        for path in self.folder.glob("*.npz"):
            path.unlink(missing_ok=True)
        remove_empty(self.folder)


def log_probs(
    lm: LanguageModel,
    requests: Requests,
    *,
    budget: TokenBudget,
    effort: Effort,
    parts: Parts | None = None,
    report: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Compute every request, in nats. (requests,) float64

    Under torch.distributed the requests are shared out and every process returns all values.
    With `parts`, what they hold isn't computed again. `report(done, total)` counts this
    process's requests.

    Raises:
        NotFiniteError: the model gave NaN or infinity.
    """
    values = np.full(len(requests), np.nan)
    if parts is not None:
        numbers, known = told(lambda: parts.read(len(requests)))
        values[numbers] = known
        effort.found = len(numbers)
    missing = np.flatnonzero(np.isnan(values))
    rank, world = ranks()
    share = (masked if lm.kind == "masked" else causal).share
    open_ = requests.only(missing)
    mine = missing[share(open_.tokens, open_.rows, open_.places, rank, world)]
    done = 0
    for found, value in _computed(lm, requests.only(mine), budget, effort):
        bad = ~np.isfinite(value)
        if bad.any():
            at = int(bad.argmax())
            raise NotFiniteError(int(mine[found[at]]), float(value[at]))
        values[mine[found]] = value
        done += len(found)
        if parts is not None:
            parts.add(mine[found], value)
        if report is not None:
            report(done, len(mine))
    if parts is not None:
        parts.flush()
    if world > 1:
        everyone: list[Any] = [None] * world
        torch.distributed.all_gather_object(everyone, (mine, values[mine], effort))
        for numbers, value, _ in everyone:
            values[numbers] = value
        effort.passes, effort.tokens, effort.head_rows = (
            sum(getattr(of, name) for _, _, of in everyone)
            for name in ("passes", "tokens", "head_rows")
        )
    return values


def _computed(
    lm: LanguageModel, requests: Requests, budget: TokenBudget, effort: Effort
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    tokens, rows, places = requests.tokens, requests.rows, requests.places
    if not len(requests):
        return iter(())
    if lm.kind == "causal":
        return causal.log_probs(lm, tokens, rows, places, budget=budget, effort=effort)
    if not requests.hidden:
        return masked.unmasked_log_probs(lm, tokens, rows, places, budget=budget, effort=effort)
    return masked.log_probs(
        lm, tokens, rows, places, until=requests.until, budget=budget, effort=effort
    )


def ranks() -> tuple[int, int]:
    """This process's number and how many there are, as torch.distributed has it."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def told(find: Callable[[], Any]) -> Any:
    """What the main process finds, on every process: they must not disagree."""
    rank, world = ranks()
    found = [find() if rank == 0 else None]
    if world > 1:
        torch.distributed.broadcast_object_list(found)
    return found[0]
