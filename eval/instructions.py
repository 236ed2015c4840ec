"""How a model is asked to complete a sentence, and what counts as the one word that is wanted.

The instructions are data, `instructions.yaml`: those of QueerGen (2601.20731, App. A.4) in English,
our own in Dutch and German. Nothing here needs torch, so that a mistyped setting is answered at
once.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from eval.errors import RequestError

#: The wording of the paper's experiments (§4.2), and the plain beginning of the sentence.
DEFAULT, PLAIN = "2", "plain"
#: What stands in an instruction's sentence where the word is wanted, whatever the model.
PLACE = "[MASK]"
#: Letters, with a hyphen or an apostrophe between them: no digit, no punctuation, no blank.
WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")

#: What may stand around the word, and isn't part of it.
_AROUND = " \t\n\r.,;:!?…\"'“”„‚‘’«»‹›`*_()[]"
_THOUGHT = "</think>"  # what reasoning models say before is not their answer


@dataclass
class CompletionSettings:
    """How prompts are completed."""

    wording: str = "auto"  # causal: 1, 2, 3, 4, plain; auto: 2 with a chat template, else plain
    top: int = 1  # words a prompt: masked the likeliest, causal so many samples, or one greedy
    decoding: str = "auto"  # causal: greedy, samples; auto: samples where top is more than 1
    tokens: int = 12  # causal: of an answer at most
    seed: int = 0  # of the samples
    trial: int = 0  # causal: ask so many prompts in every wording too, for the usable share


def decoding_of(settings: CompletionSettings, kind: str, model: str) -> str:
    """What is taken of a model's distribution: `top`, `greedy` or `samples`.

    Raises:
        RequestError: a masked model has no samples and no wordings, one greedy word isn't five.
    """
    if kind == "masked":
        for key, said in (("decoding", settings.decoding), ("wording", settings.wording)):
            if said != "auto":
                raise RequestError(
                    f"completion.{key}={said}: is for causal models; {model} is masked and gives "
                    f"its likeliest words: completion.{key}=auto"
                )
        return "top"
    if settings.decoding == "greedy" and settings.top > 1:
        raise RequestError(
            f"completion.top={settings.top}: a causal model has one greedy answer; "
            "completion.decoding=samples"
        )
    if settings.decoding == "auto":
        return "samples" if settings.top > 1 else "greedy"
    return settings.decoding


def wording_of(settings: CompletionSettings, language: str, chats: bool) -> str:
    """The name of the wording that a causal model is asked in.

    Raises:
        RequestError: there is none of that name in the language.
    """
    name = settings.wording
    if name == "auto":
        name = DEFAULT if chats else PLAIN
    if name != PLAIN:
        instruction(name, language)
    return name


def instruction(name: str, language: str) -> str:
    """A wording's instruction.

    Raises:
        RequestError: there is none of that name in the language.
    """
    known = wordings(language)
    if name not in known:
        where = f"{PLAIN}, {', '.join(known)}" if known else f"none in {language}; {PLAIN}"
        raise RequestError(f"completion.wording={name}: there are: {where}")
    return known[name]


@cache
def wordings(language: str) -> dict[str, str]:
    """The instructions of a language by their names; empty where there are none."""
    text = Path(__file__).with_suffix(".yaml").read_text("utf-8")
    return yaml.safe_load(text).get(language, {})


def only_word(said: str) -> str:
    """The word of an answer that is one word and nothing else; else empty.

    Quotes, emphasis and punctuation around it are no part of it. An article, a repeated
    beginning or an explanation makes an answer unusable, and so does the place itself.
    """
    word = said.rpartition(_THOUGHT)[2].strip(_AROUND)
    return word if WORD.fullmatch(word) and word.casefold() != PLACE[1:-1].casefold() else ""


def first_word(said: str, blanks: bool) -> str:
    """The first word of a continuation; empty where it doesn't begin with one.

    `blanks`: whether the model writes the blank before a word; then what comes without one goes
    on with the prompt's last word (a … n engineer).
    """
    if blanks and not said[:1].isspace():
        return ""
    words = said.split(maxsplit=1)
    word = words[0].strip(_AROUND) if words else ""
    return word if WORD.fullmatch(word) else ""
