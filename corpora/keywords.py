"""Choosing documents by keywords, and finding the identities that they name."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import yaml

IDENTITIES = Path(__file__).parent / "identities"
#: The languages whose words for identities are kept here.
LANGUAGES = ("de", "en", "nl")
#: In capitals, shorter words are something else: BI a Bürgerinitiative, ACE a medicine.
SHORT = 3

_TOKEN = re.compile(r"[^\W_]+(?:['’]\w+)?")
#: One word of an entry: its letters, and whether any ending may follow.
Word = tuple[str, bool]


def matcher(keywords: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds any of the keywords as whole words, whatever their case.

    A space in a keyword stands for spaces or hyphens (`Trans Frau` finds Trans-Frau); a `*` at
    its end for any ending (`schwul*` finds schwule and schwulenfeindlich). Without it
    `Schwul` finds no *Schwule*: German inflects, and the published list has bare stems
    (2608.30884), made for keyword metadata rather than running text.
    """
    forms = []
    for keyword in keywords:
        stem = keyword.strip().removesuffix("*")
        words = r"[\s\-]+".join(map(re.escape, stem.split()))
        if words:
            forms.append(words + (r"\w*" if keyword.strip().endswith("*") else ""))
    # Longest first, so that what is found is the keyword that fits best.
    alternatives = "|".join(sorted(forms, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)", re.IGNORECASE)


class Identities:
    """The words of some languages for identities, from `corpora/identities/`.

    An entry there is one word or several: `*` at a word's end is any ending, several words may
    be joined by blanks, hyphens or gender signs (`trans frau*` finds trans* Frauen and
    Trans-Frau). Capitals in an entry are found as capitals only.
    """

    def __init__(self, languages: Sequence[str]) -> None:
        self.groups: list[str] = []
        self._entries: dict[str, list[tuple[tuple[Word, ...], str]]] = {}  # by first letters
        self._others: dict[str, list[tuple[tuple[Word, ...], str]]] = {}
        for language in languages:
            said = yaml.safe_load((IDENTITIES / f"{language}.yaml").read_text(encoding="utf-8"))
            for group, entries in said["identities"].items():
                if group not in self.groups:
                    self.groups.append(group)
                self._add(self._entries, entries, group)
            self._add(self._others, said["others"], "")

    def find(self, text: str, words: Sequence[str] | None = None) -> tuple[str, ...]:
        """The identities that a text names, sorted.

        Args:
            words: the text's words, as `corpora.normal.words` gives them, where they are known
                already: texts that name nobody are then passed over quickly.
        """
        if words is not None and not self._may_name(words):
            return ()
        tokens = _TOKEN.findall(text)
        folded = [token.casefold() for token in tokens]
        found: set[str] = set()
        meant_otherwise: set[int] | None = None
        for at, token in enumerate(folded):
            for entry, group in self._entries.get(token[:SHORT], ()):
                if group not in found and _fits(entry, folded, tokens, at):
                    if meant_otherwise is None:
                        meant_otherwise = self._otherwise(folded, tokens)
                    if at not in meant_otherwise:
                        found.add(group)
        return tuple(sorted(found))

    def _may_name(self, words: Sequence[str]) -> bool:
        starts = {word[:SHORT] for word in words}
        if not starts.isdisjoint(self._entries):
            return True
        # Words joined by a sign: cis-trans, lesbisch/schwul.
        return any(
            not self._entries.keys().isdisjoint(part[:SHORT] for part in _TOKEN.findall(word))
            for word in words
            if not word.isalnum()
        )

    def _otherwise(self, folded: list[str], tokens: list[str]) -> set[int]:
        """The places of words that belong to something else: Homo sapiens."""
        places: set[int] = set()
        for at, token in enumerate(folded):
            for entry, _ in self._others.get(token[:SHORT], ()):
                if _fits(entry, folded, tokens, at):
                    places.update(range(at, at + len(entry)))
        return places

    @staticmethod
    def _add(
        index: dict[str, list[tuple[tuple[Word, ...], str]]], entries: list[str], group: str
    ) -> None:
        for entry in entries:
            words = tuple((word.removesuffix("*"), word.endswith("*")) for word in entry.split())
            index.setdefault(words[0][0].casefold()[:SHORT], []).append((words, group))


def _fits(entry: tuple[Word, ...], folded: list[str], tokens: list[str], at: int) -> bool:
    if at + len(entry) > len(folded):
        return False
    for step, (letters, any_ending) in enumerate(entry):
        token = folded[at + step]
        if letters.islower():
            if len(entry) == 1 and len(token) <= SHORT and tokens[at].isupper():
                return False
        else:  # capitals are meant
            token = tokens[at + step]
        if not (token.startswith(letters) if any_ending else token == letters):
            return False
    return True


@lru_cache(maxsize=8)
def identities(languages: tuple[str, ...]) -> Identities:
    """The words for identities of these languages; of all that are kept, where none is."""
    return Identities([code for code in languages if code in LANGUAGES] or LANGUAGES)


def name_identity(words: Sequence[str]) -> bool:
    """Whether words name an identity, in any of the languages."""
    return bool(identities(()).find(" ".join(words), words))
