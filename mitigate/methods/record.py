"""What training has worked on: which rows each update saw, its losses, tokens and time."""

import hashlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D


class TrainingError(RuntimeError):
    """Training can't go on: the loss is not a number, or no weight moved."""


class Record:
    """Rows and losses of each forward pass, kept until they are told.

    Losses stay on their device until then, so that a GPU isn't waited for at each step. The
    clock runs in training alone, from the end of the first update of this start, which warms
    up; evaluation, checkpoints and logging stop it.
    """

    def __init__(self, lengths: Sequence[int]):
        self.lengths = lengths  # tokens of each training row
        self.tokens = 0  # real ones, of all processes, while the clock ran
        self.seconds = 0.0
        self._since: float | None = None
        self._passes: list[tuple[list[int], torch.Tensor]] = []
        self._steps: list[tuple[int, list[tuple[list[int], torch.Tensor]]]] = []
        self._rows: list[int] = []
        self._first: int | None = None

    def saw(self, rows: list[int]) -> None:
        """The next forward pass is over these rows."""
        self._rows = rows

    def lost(self, loss: torch.Tensor) -> None:
        """It gave this loss."""
        self._passes.append((self._rows, loss))

    def step(self, number: int) -> None:
        """The passes since the last step made this one."""
        self._first = number if self._first is None else self._first
        self._steps.append((number, self._passes))
        self._passes = []

    def run_clock(self) -> None:
        self._since = time.perf_counter()

    def stop_clock(self) -> None:
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
        self._since = None

    def told(self) -> list[tuple[int, str, int]]:
        """Each step since this was last called: number, hash of its row ids, real tokens.

        The order of the rows is that of one process: pass by pass, and in each the processes'
        parts in their order. Every process must call this together.

        Raises:
            TrainingError: a loss is not a number; on every process.
        """
        mine = [
            (step, [(rows, loss.item()) for rows, loss in passes]) for step, passes in self._steps
        ]
        self._steps = []
        everyone: list[Any] = [mine]
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            everyone = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(everyone, mine)
        steps = []
        for same_step in zip(*everyone, strict=True):
            number = same_step[0][0]
            together = zip(*(passes for _, passes in same_step), strict=True)
            parts = [part for same_pass in together for part in same_pass]
            for rows, loss in parts:
                if not math.isfinite(loss):
                    raise TrainingError(
                        f"the loss is {loss} at step {number}, in training rows "
                        f"{', '.join(map(str, rows))}"
                    )
            seen = [row for rows, _ in parts for row in rows]
            digest = hashlib.blake2b(",".join(map(str, seen)).encode(), digest_size=6).hexdigest()
            tokens = sum(self.lengths[row] for row in seen)
            self.tokens += tokens if number != self._first else 0
            steps.append((number, digest, tokens))
        return steps


class Recorded:
    """In front of a Trainer: tells its `record` what it does.

    Its batches carry the ids of their rows as `rows`, (batch,), which the model never sees;
    those of evaluation carry none.
    """

    record: Record

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        rows = inputs.pop("rows", None)
        if rows is not None:
            self.record.saw(rows.tolist())
        prepared: dict[str, Any] = super()._prepare_inputs(inputs)  # type: ignore[misc]
        return prepared

    def training_step(self, *given: Any, **more: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*given, **more)  # type: ignore[misc]
        self.record.lost(loss.detach())
        return loss

    def _maybe_log_save_evaluate(self, *given: Any, **more: Any) -> None:
        self.record.stop_clock()
        super()._maybe_log_save_evaluate(*given, **more)  # type: ignore[misc]
        self.record.run_clock()


def step_flops(model: Any, head: Iterable[torch.nn.Module] = (), share: float = 1.0) -> float:
    """Operations a token of a training step, matrix products alone.

    Two a weight forward, two backward for what came in, and two more for the weights that are
    trained (Kaplan et al. 2020, §2.1). Attention itself is left out, and so is what gradient
    checkpointing computes twice. `share`: of the tokens, those that go through `head`.
    """
    in_head = set(map(id, head))
    total = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            weight = module.weight
            count = weight.numel() * (2 if type(weight).__name__ == "Params4bit" else 1)
            operations = (6 if weight.requires_grad else 4) * count
            total += operations * (share if id(module) in in_head else 1.0)
    return total


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """A device's own rate of matrix products, in operations a second; the best of five tries."""
    on_cpu = device.type == "cpu"
    size, rounds = (768, 1) if on_cpu else (8192, 10)
    draw = torch.Generator(device).manual_seed(0)  # the run's own random numbers stay as they are
    left, right = (
        torch.randn(size, size, device=device, generator=draw).to(dtype) for _ in range(2)
    )
    torch.mm(left, right)
    best = 0.0
    for _ in range(5):
        if not on_cpu:
            torch.accelerator.synchronize()
        begun = time.perf_counter()
        for _ in range(rounds):
            torch.mm(left, right)
        if not on_cpu:
            torch.accelerator.synchronize()
        best = max(best, rounds * 2 * size**3 / (time.perf_counter() - begun))
    return best
