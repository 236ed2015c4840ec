"""Mitigations: one file each, with `check` and `train` (see `Method`), one recipe each."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from eval.errors import RequestError
from eval.pairs import Pairs
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
    #: Told where training stands: step, epoch, validation loss if known. With step 0 before the
    #: first update, after each checkpoint, and at a resume with the step it goes on from. It
    #: scores `lm.model` on every process; the same step may be told twice.
    checkpoint: Callable[[int, float | None, float | None], None] | None = None
    #: Sentence pairs to train on and to validate on; of stereotypes that no benchmark of the run
    #: evaluates (mitigate/methods/splits.py). None for methods that read the corpus.
    pairs: tuple[Pairs, Pairs] | None = None
    language: str = ""  # of the corpus: de, nl, en


@dataclass(frozen=True)
class Trained:
    """What a method made of the model."""

    model: Any  # a PreTrainedModel, or a PeftModel around one
    adapter: bool
    facts: dict[str, Any]  # for the manifest: steps, losses, trained share, …


class Method(Protocol):
    """What a file in mitigate/methods offers."""

    def check(
        self, lm: LanguageModel, settings: MethodSettings, model_targets: list[str], processes: int
    ) -> None:
        """Raise RequestError for what can't be trained, before anything is scored."""

    def train(self, context: Context) -> Trained:
        """Train the model of the context."""


def method(settings: MethodSettings) -> Method:
    """The file in mitigate/methods that `settings.module` names.

    Raises:
        RequestError: there is no such file.
    """
    name = f"mitigate.methods.{settings.module}"
    if importlib.util.find_spec(name) is None:
        raise RequestError(
            f"method.module={settings.module}: no file mitigate/methods/{settings.module}.py"
        )
    return cast(Method, importlib.import_module(name))
