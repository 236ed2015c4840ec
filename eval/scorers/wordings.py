"""How a model is asked to choose between two sentences: prompts and personas, as data.

A file a language lies in `eval/scorers/prompts`; `score.prompt=FILE` takes one of one's own.
Nothing here needs torch, so that a mistyped persona is answered at once.
"""

import difflib
import hashlib
import json
import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from eval.errors import RequestError
from eval.speakers import Ask

PROMPTS = Path(__file__).parent / "prompts"
#: What the prompt's text must have a place for, each once.
PLACES = ("lead", "first", "second")
_KEYS = ("source", "prompt", "plain", "options", "accepted", "personas")
#: What may stand around an answer without changing it.
_AROUND = string.whitespace + "\"'“”„‘’«»*`.,:;!)(“"


@dataclass(frozen=True)
class Persona:
    """Who the model is to be: by the prompt's first line, and by a system's turn if it has one."""

    lead: str
    system: str = ""


@dataclass(frozen=True)
class Wording:
    """One language's prompt."""

    source: str  # the paper and section, or that it is ours
    prompt: str  # with PLACES
    plain: str  # what the prompt ends with for a model without turns
    options: tuple[str, str]  # what is answered for the first sentence, and for the second
    accepted: tuple[tuple[str, ...], tuple[str, ...]]  # written answers that count as each
    personas: dict[str, Persona]

    @cached_property
    def hash(self) -> str:
        """Of everything in the file but its source (16 hex digits)."""
        told = {key: value for key, value in asdict(self).items() if key != "source"}
        text = json.dumps(told, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def ask(self, persona: str, first: str, second: str, *, chat: bool) -> Ask:
        """The prompt for two sentences in this order."""
        who = self.persona(persona)
        user = self.prompt.format(lead=who.lead, first=first, second=second)
        return Ask(user if chat else user + self.plain, who.system, chat)

    def persona(self, name: str) -> Persona:
        """A persona by its name.

        Raises:
            RequestError: there is none of that name.
        """
        if name not in self.personas:
            close = difflib.get_close_matches(name, self.personas, n=1)
            hint = (
                f"did you mean {close[0]}?" if close else f"there are: {', '.join(self.personas)}"
            )
            raise RequestError(f"score.personas: no persona {name}; {hint}")
        return self.personas[name]

    def read(self, said: str) -> int | None:
        """Which option a written answer names, 0 or 1; None where it is no answer.

        Strictly: its first line must be one of the accepted forms, but for case and for what may
        stand around it. An answer that names an option and goes on is none.
        """
        lines = [line.strip(_AROUND).casefold() for line in said.splitlines()]
        first = " ".join(next((line for line in lines if line), "").split())
        found = [number for number, forms in enumerate(self.accepted) if first in forms]
        return found[0] if len(found) == 1 else None


def load(language: str, path: str | None = None) -> Wording:
    """The wording of a language, or the one in a file.

    Raises:
        RequestError: there is none for the language, or the file is missing or not as it must be.
    """
    if path is None:
        there = sorted(file.stem for file in PROMPTS.glob("*.yaml"))
        if language not in there:
            raise RequestError(
                f"no prompt for language {language or '(none named)'}; there are: "
                f"{', '.join(there)}; benchmark.language=… names one, score.prompt=FILE takes "
                "your own"
            )
        return _checked(PROMPTS / f"{language}.yaml")
    file = Path(path).expanduser()
    if not file.is_file():
        raise RequestError(f"score.prompt={path}: no such file")
    return _checked(file)


def _checked(path: Path) -> Wording:
    try:
        read = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(read, Mapping):
        raise RequestError(f"{path}: must hold the keys {', '.join(_KEYS)}")
    unlike = sorted({*_KEYS} ^ {*map(str, read)})
    if unlike:
        what = "lacks" if unlike[0] in _KEYS else "has no use for"
        raise RequestError(f"{path}: {what} {unlike[0]}; its keys are {', '.join(_KEYS)}")
    prompt = str(read["prompt"])
    try:
        places = [name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None]
    except ValueError as error:
        raise RequestError(f"{path}: prompt: {error}; a brace is written twice") from error
    if sorted(places) != sorted(PLACES):
        wanted = ", ".join(f"{{{name}}}" for name in PLACES)
        has = ", ".join(f"{{{name}}}" for name in places) or "none"
        raise RequestError(f"{path}: prompt: needs the places {wanted}, each once; it has {has}")
    options = _texts(path, "options", read["options"])
    if len(options) != 2 or options[0] == options[1] or "" in options:
        raise RequestError(f"{path}: options: must be two different texts")
    accepted = read["accepted"]
    if not isinstance(accepted, list) or len(accepted) != 2:
        raise RequestError(f"{path}: accepted: must be two lists of texts, one an option")
    forms = [_texts(path, "accepted", some) for some in accepted]
    cleaned = [
        tuple(" ".join(form.strip(_AROUND).casefold().split()) for form in of) for of in forms
    ]
    if both := {*cleaned[0]} & {*cleaned[1]}:
        raise RequestError(f"{path}: accepted: {min(both)!r} stands for both options")
    return Wording(
        source=str(read["source"]),
        prompt=prompt,
        plain=str(read["plain"]),
        options=(options[0], options[1]),
        accepted=(cleaned[0], cleaned[1]),
        personas=_personas(path, read["personas"]),
    )


def _personas(path: Path, read: Any) -> dict[str, Persona]:
    if not isinstance(read, Mapping) or not read:
        raise RequestError(f"{path}: personas: must name at least one, with its lead")
    found = {}
    for name, given in read.items():
        if not isinstance(given, Mapping) or "lead" not in given or {*given} - {"lead", "system"}:
            raise RequestError(f"{path}: personas.{name}: has a lead, and may have a system")
        found[str(name)] = Persona(**{key: str(value) for key, value in given.items()})
    return found


def _texts(path: Path, key: str, read: Any) -> tuple[str, ...]:
    if not isinstance(read, list) or any(isinstance(item, dict | list) for item in read):
        raise RequestError(f"{path}: {key}: must be a list of texts")
    return tuple(str(item) for item in read)
