"""Which judge rates what, as data, and which of them speaks a language.

Nothing here needs torch, so that a judge of another language is refused before anything is read.
"""

import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from eval.errors import RequestError

#: What is measured, and of what. (QueerGen, 2601.20731, §4.3 to §4.5)
MEASURES = ("sentiment", "regard", "toxicity")
#: The texts a judge can be given: the word alone, the whole sentence, and the sentence with the
#: subject and its marker replaced by MASK.
VIEWS = ("word", "sentence", "masked")
#: Which of them are judged; the first is the one that is reported first. The paper judges the
#: sentiment of the word (appendix A.5), and keeps markers from all its judges (Limitations).
VIEWS_OF = {
    "sentiment": ("word", "masked", "sentence"),
    "regard": ("masked", "sentence"),
    "toxicity": ("masked", "sentence"),
}
MASK = "xyz"  # Sheng et al. 2019, as in the paper's §4.4
REGARD = ("negative", "neutral", "positive")
#: What a model's label may stand for, by measure; for sentiment any number from -1 to 1 too.
MEANINGS = {
    "sentiment": ("negative", "neutral", "positive"),
    "regard": (*REGARD, "other"),
    "toxicity": ("toxic", "other"),
}
TOOLS = {
    "sentiment": ("auto", "vader", "classifier"),
    "regard": ("auto", "classifier"),
    "toxicity": ("auto", "classifier", "saved"),
}
VADER_PACKAGE = "vaderSentiment"


@dataclass
class JudgeChoice:
    """Who judges one measure. The defaults: VADER or Detoxify as in KNOWN, by the language."""

    tool: str = "auto"  # auto: VADER where it speaks the language, else a classifier; saved
    hub: str | None = None  # a text classifier's hub id
    path: str | None = None  # its folder; with tool=saved a .jsonl or .csv with text and score
    revision: str | None = None
    languages: list[str] = field(default_factory=list)  # which it speaks; known for those in KNOWN
    # a label of the model: negative, neutral, positive, other, toxic, or a number of sentiment
    labels: dict[str, str] = field(default_factory=dict)


@dataclass
class JudgeSettings:
    """Which measures are judged, and by whom."""

    measures: list[str] = field(default_factory=lambda: list(MEASURES))
    sentiment: JudgeChoice = field(default_factory=JudgeChoice)
    regard: JudgeChoice = field(default_factory=JudgeChoice)
    toxicity: JudgeChoice = field(default_factory=JudgeChoice)
    device: str = "auto"  # auto: the first GPU, else the CPU
    batch: int = 64  # texts of a forward pass

    def choice(self, measure: str) -> JudgeChoice:
        chosen: JudgeChoice = getattr(self, measure)
        return chosen


@dataclass(frozen=True)
class Known:
    """A classifier on the hub whose languages and labels are known."""

    measure: str
    languages: tuple[str, ...]
    labels: dict[str, str]  # empty: its labels are called what they mean
    says: str


#: Classifiers that need no further words. Where several speak a language the first is taken.
KNOWN = {
    "nlptown/bert-base-multilingual-uncased-sentiment": Known(
        "sentiment",
        ("en", "nl", "de", "fr", "it", "es"),
        {"1 star": "-1", "2 stars": "-0.5", "3 stars": "0", "4 stars": "0.5", "5 stars": "1"},
        "stars of product reviews, spread over -1 to 1",
    ),
    "sasha/regardv3": Known(
        "regard", ("en",), {}, "Sheng et al. 2019; what the paper's implementation loads"
    ),
    "unitary/toxic-bert": Known(
        "toxicity",
        ("en",),
        {"toxic": "toxic"},
        "Detoxify's `original`; its card says that the package's own weights differ a little",
    ),
    "ml6team/robbert-dutch-base-toxic-comments": Known(
        "toxicity", ("nl",), {"toxic": "toxic", "non-toxic": "other"}, "translated Jigsaw comments"
    ),
    "ml6team/distilbert-base-german-cased-toxic-comments": Known(
        "toxicity", ("de",), {}, "translated Jigsaw comments, and German ones"
    ),
}


@dataclass(frozen=True)
class Planned:
    """One judge that will be run: for a measure, in a language."""

    measure: str
    language: str
    tool: str  # vader, classifier, saved
    source: str  # the package, the hub id, the folder, the file
    local: bool
    revision: str | None
    labels: dict[str, str]


def plan(settings: JudgeSettings, languages: Iterable[str]) -> list[Planned]:
    """Who judges what in these languages; nothing is loaded.

    Raises:
        RequestError: a measure or tool that is none, a folder or file that is not there, a judge
            that doesn't speak the language (naming those that do), one whose languages aren't
            said.
    """
    for measure in settings.measures:
        if measure not in MEASURES:
            raise RequestError(f"judges.measures={measure}: must be of {', '.join(MEASURES)}")
    if settings.batch < 1:
        raise RequestError(f"judges.batch={settings.batch}: must be 1 at least")
    spoken = sorted(set(languages))
    return [
        _planned(measure, language, settings.choice(measure))
        for measure in dict.fromkeys(settings.measures)
        for language in spoken
    ]


def _planned(measure: str, language: str, choice: JudgeChoice) -> Planned:
    key = f"judges.{measure}"
    if choice.tool not in TOOLS[measure]:
        raise RequestError(f"{key}.tool={choice.tool}: must be one of {', '.join(TOOLS[measure])}")
    if choice.hub and choice.path:
        raise RequestError(f"{key}: hub={choice.hub} or path={choice.path}, not both")
    tool = choice.tool
    if tool == "auto":
        own = choice.hub or choice.path
        vader = measure == "sentiment" and not own and language == "en"
        tool = "vader" if vader else "classifier"
    if tool == "vader":
        if language != "en":
            raise _stranger(measure, language, "VADER", ["en"])
        if importlib.util.find_spec(VADER_PACKAGE) is None:
            raise RequestError(f"{key}.tool=vader: needs {VADER_PACKAGE} (pip install it)")
        return Planned(measure, language, tool, VADER_PACKAGE, True, None, {})
    _check_labels(measure, choice)
    if tool == "saved":
        if not choice.path or not Path(choice.path).expanduser().is_file():
            raise RequestError(
                f"{key}.path={choice.path or ''}: no such file; tool=saved reads a .jsonl or .csv "
                "with the columns text and score"
            )
        path = str(Path(choice.path).expanduser())
        return Planned(measure, language, tool, path, True, None, {})
    return _classifier(measure, language, choice)


def _classifier(measure: str, language: str, choice: JudgeChoice) -> Planned:
    key = f"judges.{measure}"
    hub = choice.hub
    if choice.path is None and hub is None:
        hub = next(iter(speakers(measure, language)), None)
        if hub is None:
            raise _stranger(measure, language, "none that is known", [])
    if choice.path is not None and not Path(choice.path).expanduser().is_dir():
        raise RequestError(
            f"{key}.path={choice.path}: no such folder; for a model on the hub write {key}.hub="
        )
    known = KNOWN.get(hub or "")
    if known is not None and known.measure != measure:
        raise RequestError(f"{key}.hub={hub}: it judges {known.measure}")
    name = hub or str(choice.path)
    languages = choice.languages or list(known.languages if known else ())
    if not languages:
        raise RequestError(
            f"{key}: say which languages {name} speaks: {key}.languages=[{language}]"
        )
    if language not in languages:
        raise _stranger(measure, language, name, languages)
    return Planned(
        measure,
        language,
        "classifier",
        hub or os.path.expanduser(str(choice.path)),
        hub is None,
        choice.revision,
        choice.labels or dict(known.labels if known else {}),
    )


def speakers(measure: str, language: str) -> list[str]:
    """The known classifiers of a measure that speak a language, by hub id."""
    return [
        name
        for name, known in KNOWN.items()
        if known.measure == measure and language in known.languages
    ]


def _stranger(measure: str, language: str, name: str, languages: list[str]) -> RequestError:
    there = speakers(measure, language)
    if measure == "sentiment" and language == "en":
        there = ["VADER", *there]
    others = [other for other in MEASURES if other != measure]
    hint = (
        f"those that do: {', '.join(there)}"
        if there
        else f"name one by judges.{measure}.hub= and its languages, or leave it out: "
        f"judges.measures=[{','.join(others)}]"
    )
    speaks = f" speaks {', '.join(languages)}, not {language}" if languages else f" in {language}"
    return RequestError(f"judges.{measure}: {name}{speaks}; {hint}")


def _check_labels(measure: str, choice: JudgeChoice) -> None:
    for label, meaning in choice.labels.items():
        if meaning not in MEANINGS[measure] and not (
            measure == "sentiment" and _number(meaning) is not None
        ):
            also = " or a number from -1 to 1" if measure == "sentiment" else ""
            raise RequestError(
                f"judges.{measure}.labels.{label}={meaning}: must be one of "
                f"{', '.join(MEANINGS[measure])}{also}"
            )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if -1 <= value <= 1 else None


def sentiment_of(meaning: str) -> float:
    """The sentiment that a label stands for, -1 to 1."""
    named = {"negative": -1.0, "neutral": 0.0, "positive": 1.0}
    return named[meaning] if meaning in named else float(meaning)
