"""What a text must not say: for the placebo, any identity; else a stereotype of one.

`control` leaves the texts that name no identity at all: trained on as many words of them, of
the same years, a model shows what further training does whatever the text (the matched placebo
of `eval.inference.runs`). `stereotypes` cuts out the sentences that hold a predicate of a list
together with an identity. The list must not be the evaluated benchmark's, or the score after
says how well it was copied.
"""

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpora import decontaminate, keywords, normal, prepared, steps
from corpora.errors import RequestError

if TYPE_CHECKING:
    from corpora import CorpusSettings

#: A path that begins so is one of this project's own lists.
OWN = "pkg:"
#: Columns of a benchmark's predicates.csv that are no form of the predicate.
NO_FORMS = frozenset(
    ("stereotype", "groups", "group", "origin", "tier", "yes", "no", "unsure", "harm", "source")
)


class Predicates:
    """Predicates, each in all its forms, to be found in sentences.

    Args:
        forms: as they stand in sentences; a word in braces stands for any word.
    """

    def __init__(self, forms: Iterable[str]) -> None:
        self._by_first: dict[str, list[tuple[str | None, ...]]] = {}
        self.count = 0
        for form in dict.fromkeys(forms):
            raw = [None if "{" in word else normal.words(word) for word in form.split()]
            said = tuple(word for some in raw for word in ([None] if some is None else some))
            while said and said[0] is None:
                said = said[1:]
            if said and said[0] is not None:
                self._by_first.setdefault(said[0], []).append(said)
                self.count += 1

    def found(self, words: Sequence[str]) -> bool:
        """Whether one stands in a sentence, given as `corpora.normal.words` has it."""
        for at, word in enumerate(words):
            for form in self._by_first.get(word, ()):
                here = words[at : at + len(form)]
                if len(here) == len(form) and all(
                    wanted is None or wanted == one for wanted, one in zip(form, here, strict=True)
                ):
                    return True
        return False


def matched(settings: "CorpusSettings") -> "CorpusSettings":
    """The settings with the budget of `corpus.match`, the corpus that this is a placebo of.

    Raises:
        RequestError: it is no corpus that was built, is of other years or another language, or
            `tokens` says another budget.
    """
    if settings.match is None:
        return settings
    folder = Path(settings.match).expanduser()
    theirs = prepared.load_manifest(folder)
    for key in ("years", "language"):
        ours = getattr(settings, key)
        if theirs.get(key) != ours:
            raise RequestError(
                f"corpus.match={folder}: its {key} are {theirs.get(key) or 'not said'}, here "
                f"{ours or 'not said'}; a placebo has the same: corpus.{key}={theirs.get(key)}"
            )
    if settings.tokens not in (None, theirs["words"]):
        raise RequestError(
            f"corpus.tokens={settings.tokens}: corpus.match has {theirs['words']} words; one of "
            "the two"
        )
    return replace(settings, tokens=theirs["words"])


def apply(ready: steps.Prepared, settings: "CorpusSettings") -> steps.Prepared:
    """Leave out what must not be said; each filter that is asked for is a step, counted.

    Raises:
        RequestError: the list of predicates is missing, empty or in no form that is known; there
            are no words for identities in the corpus's language.
    """
    if settings.control:
        ready = _without_identities(ready)
    if settings.stereotypes:
        ready = _without_stereotypes(ready, settings)
    return ready


def evaluated(settings: "CorpusSettings", pairs: Iterable[tuple[str, Any]]) -> tuple[int, int]:
    """How many of a benchmark's stereotypes the list of `settings` holds, and of how many.

    Args:
        pairs: of each pair its stereotyped sentence and its stereotype's id

    Raises:
        RequestError: it holds all of them: it is the benchmark's own list.
    """
    predicates = load(settings.stereotypes or "")
    found: dict[Any, bool] = {}
    for sentence, stereotype in pairs:
        if not found.get(stereotype):
            found[stereotype] = predicates.found(normal.words(sentence))
    listed = sum(found.values())
    if found and listed == len(found):
        raise RequestError(
            f"corpus.{settings.name}.stereotypes={settings.stereotypes}: holds every stereotype "
            "that is evaluated, so the score after would say how well it was copied; give a list "
            "from elsewhere, or evaluate another benchmark"
        )
    return listed, len(found)


def facts(settings: "CorpusSettings") -> dict[str, Any]:
    """What the manifest says of the filters."""
    found: dict[str, Any] = {"control": settings.control, "match": settings.match}
    found["stereotypes"] = None
    if settings.stereotypes:
        path = _path(settings.stereotypes)
        found["stereotypes"] = {
            "file": settings.stereotypes,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "forms": load(settings.stereotypes).count,
        }
    return found


@lru_cache(maxsize=4)
def load(said: str) -> Predicates:
    """Read a list of predicates: a .txt with one a line, or a benchmark's predicates.csv.

    Args:
        said: the file, or the folder of a benchmark's components; `pkg:…` is one of ours.

    Raises:
        RequestError: it is missing, empty or of another kind.
    """
    path = _path(said)
    if path.suffix == ".txt":
        lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
        forms = [line for line in lines if line]
    elif path.suffix in (".csv", ".tsv"):
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
        forms = [
            cell
            for row in rows
            for name, cell in row.items()
            if isinstance(cell, str) and cell.strip(" -–") and name not in NO_FORMS
        ]
    else:
        raise RequestError(
            f"corpus.stereotypes={said}: a .txt with a predicate a line, or a predicates.csv"
        )
    found = Predicates(forms)
    if not found.count:
        raise RequestError(f"corpus.stereotypes={said}: holds no predicate")
    return found


def _path(said: str) -> Path:
    if said.startswith(OWN):
        path = Path(__file__).resolve().parents[1] / said.removeprefix(OWN)
    else:
        path = Path(said).expanduser()
    if path.is_dir():
        path = path / "predicates.csv"
    if not path.is_file():
        own = sorted(one.name for one in (Path(__file__).parent / "stereotypes").glob("*.txt"))
        raise RequestError(
            f"corpus.stereotypes={said}: there is no such file; ours are "
            f"{', '.join(f'{OWN}corpora/stereotypes/{name}' for name in own)}"
        )
    return path


def _without_identities(ready: steps.Prepared) -> steps.Prepared:
    stay = [at for at, kept in enumerate(ready.kept) if not kept.groups]
    gone = len(ready.kept) - len(stay)
    dropped = {"names an identity": gone} if gone else {}
    step = steps.Step("control", len(ready.kept), len(stay), dropped)
    return replace(
        ready,
        kept=[ready.kept[at] for at in stay],
        bands=ready.bands[stay],
        counts=[*ready.counts, step],
    )


def _without_stereotypes(ready: steps.Prepared, settings: "CorpusSettings") -> steps.Prepared:
    predicates = load(settings.stereotypes or "")
    known = set(keywords.LANGUAGES)
    if settings.language and settings.language not in known:
        raise RequestError(
            f"corpus.stereotypes: there are words for identities in {', '.join(sorted(known))}, "
            f"none in {settings.language}"
        )
    wanted = frozenset(settings.groups)
    languages = tuple(settings.languages or ([settings.language] if settings.language else []))
    names = keywords.identities(languages)
    kept: list[steps.Kept] = []
    stay: list[int] = []
    dropped: Counter[str] = Counter()
    sentences = 0
    for at, one in enumerate(ready.kept):
        if one.groups:
            text, times = _cut(one.text, predicates, names)
            sentences += times
            if times:
                if len(text.split(None, settings.min_words)) < max(settings.min_words, 1):
                    dropped["little else than stereotypes"] += 1
                    continue
                groups = names.find(text)
                if wanted and wanted.isdisjoint(groups):
                    dropped["names none of the identities any more"] += 1
                    continue
                one = replace(one, text=text, groups=groups)
        kept.append(one)
        stay.append(at)
    changed = {"sentences cut": sentences} if sentences else {}
    step = steps.Step("stereotypes", len(ready.kept), len(kept), dict(dropped), changed)
    return replace(ready, kept=kept, bands=ready.bands[stay], counts=[*ready.counts, step])


def _cut(text: str, predicates: Predicates, names: keywords.Identities) -> tuple[str, int]:
    """The text without its sentences that say a predicate of an identity, and how many."""
    gone = [
        (start, end)
        for start, end, words in decontaminate.parse(text)
        if predicates.found(words) and names.find(text[start:end], words)
    ]
    if not gone:
        return text, 0
    parts, done = [], 0
    for start, end in gone:
        parts.append(text[done:start])
        done = end
    left = "".join([*parts, text[done:]])
    lines = (" ".join(line.split()) for line in left.split("\n"))
    return "\n".join(line for line in lines if line), len(gone)
