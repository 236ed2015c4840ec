"""What a model said to each prompt, kept while it is on its way and found again when it is done.

As `eval.scorers.store` does for scores: both are named by a hash of everything that decides what
is said, so that a killed job goes on, and a finished one isn't done again.
"""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from eval import completions
from eval.completions import COMPLETION_COLUMNS, Completions
from eval.errors import RequestError
from eval.files import remove_empty, replacing
from eval.prompts import Prompts
from eval.scorers.store import key_of
from eval.scorers.work import SAVE_EVERY


class Answer(NamedTuple):
    """One thing a model said to a prompt."""

    said: str
    word: str  # the usable word in it, or nothing
    log_prob: float  # nats; NaN where the model gives none


class AnswerStore:
    """Finished and half-finished answers in a folder, under one key."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], prompts: Prompts):
        key = key_of(identity, prompts.table["prompt_id"])
        self._finished = Path(folder) / f"completions-{key}.parquet"
        self._parts = self._finished.with_suffix(".parts")
        self._waiting: dict[int, list[Answer]] = {}
        self._saved = time.monotonic()

    def find(self) -> Completions | None:
        """The finished answers; damaged ones are removed and count as none."""
        if not self._finished.is_file():
            return None
        try:
            return completions.read(self._finished)
        except RequestError:
            self._finished.unlink(missing_ok=True)
            return None

    def keep(self, found: Completions) -> None:
        """Write the finished answers, without what the benchmark brings, and remove the parts."""
        columns = ["prompt_id", *COMPLETION_COLUMNS]
        completions.write(Completions(found.table[columns], found.meta), self._finished)
        for path in self._parts.glob("*.json"):
            path.unlink(missing_ok=True)
        remove_empty(self._parts)

    def read(self) -> dict[int, list[Answer]]:
        """The answers that earlier work has, by the prompt's number; damaged parts are removed."""
        found: dict[int, list[Answer]] = {}
        for path in sorted(self._parts.glob("*.json")):
            if path.name.startswith("."):  # being written when its process was killed
                path.unlink(missing_ok=True)
                continue
            try:
                stored = json.loads(path.read_text("utf-8"))
                found |= {
                    int(number): [
                        Answer(said, word, math.nan if value is None else float(value))
                        for said, word, value in answers
                    ]
                    for number, answers in stored.items()
                }
            except (ValueError, TypeError, AttributeError):
                path.unlink(missing_ok=True)
        return found

    def add(self, answers: Mapping[int, list[Answer]]) -> None:
        """Take finished answers, and write what has come together in the last seconds."""
        self._waiting.update(answers)
        if time.monotonic() - self._saved < SAVE_EVERY:
            return
        plain = {
            number: [
                [one.said, one.word, None if math.isnan(one.log_prob) else one.log_prob]
                for one in some
            ]
            for number, some in self._waiting.items()
        }
        self._parts.mkdir(parents=True, exist_ok=True)
        with replacing(self._parts / f"{time.time_ns()}.json") as temporary:
            temporary.write_text(json.dumps(plain, ensure_ascii=False), encoding="utf-8")
        self._waiting.clear()
        self._saved = time.monotonic()
