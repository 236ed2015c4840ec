"""SIGTERM, as Slurm and clouds send it before they take the machine: save, then end.

While a model is trained the signal waits for the end of the step, so that a checkpoint can be
written; at any other time the run ends at once, for what is scored is kept as it comes.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed
from transformers import TrainerCallback


class Stopped(KeyboardInterrupt):
    """The run was asked to end, as by an interrupt; says what was saved."""


class _Asked:
    """What the handler and the callback tell each other; a process has one handler."""

    stop = False  # the signal came
    training = False  # and a step is under way, which has to end first
    ending = False  # the run is ending: a launcher's second signal must not disturb that


_asked = _Asked()


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Turn SIGTERM into `Stopped` within; the handler that was there before comes back.

    Raises:
        Stopped: in the main thread, when the signal comes outside of training.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return
    before = signal.signal(signal.SIGTERM, _on_signal)
    _asked.stop = _asked.training = _asked.ending = False
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _asked.stop = _asked.training = _asked.ending = False


def _on_signal(number: int, frame: FrameType | None) -> None:
    _asked.stop = True
    if not _asked.training and not _asked.ending:
        _asked.ending = True
        raise Stopped("stopped by SIGTERM")


class SaveAndStop(TrainerCallback):
    """Save a checkpoint at the end of the step in which SIGTERM came, and end the run there.

    Every process stops after the same step, whichever was told first. Add it before callbacks
    that do long work after a checkpoint.

    Raises:
        Stopped: from `on_save`, when the checkpoint is whole.
    """

    def __init__(self) -> None:
        self._stopping = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        _asked.training = True

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if _on_any_process(_asked.stop, args.device):
            self._stopping = control.should_save = control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self._stopping:
            _asked.training, _asked.ending = False, True
            raise Stopped(f"stopped by SIGTERM, step {state.global_step} is saved")

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        _asked.training = False
        if _asked.stop:
            _asked.ending = True
            raise Stopped("stopped by SIGTERM at the end of training")


def _on_any_process(stop: bool, device: torch.device) -> bool:
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return stop
    told = torch.tensor(float(stop), device=device)
    torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
    return bool(told.item())
