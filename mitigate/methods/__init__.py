"""Mitigations: one file each, with `train(context) -> Trained`, one recipe each."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.errors import RequestError
from eval.scorers.model import LanguageModel
from mitigate.settings import MethodSettings


@dataclass(frozen=True)
class Context:
    """What a method works with."""

    lm: LanguageModel  # the model as it was scored before; changed in place
    train: list[str]
    valid: list[str]
    settings: MethodSettings
    lora_targets: list[str]  # the model's own, where the method names none
    seed: int
    processes: int
    checkpoints: Path  # where a killed run is resumed from
    log: Callable[[dict[str, Any]], None]  # takes losses as they come
    say: Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """What a method made of the model."""

    model: Any  # a PreTrainedModel, or a PeftModel around one
    adapter: bool
    facts: dict[str, Any]  # for the manifest: steps, losses, trained share, …


def method(settings: MethodSettings) -> Callable[[Context], Trained]:
    """The `train` of the file in mitigate/methods that `settings.module` names.

    Raises:
        RequestError: there is no such file.
    """
    name = f"mitigate.methods.{settings.module}"
    if importlib.util.find_spec(name) is None:
        raise RequestError(
            f"method.module={settings.module}: no file mitigate/methods/{settings.module}.py"
        )
    train: Callable[[Context], Trained] = importlib.import_module(name).train
    return train
