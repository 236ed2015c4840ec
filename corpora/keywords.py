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
#: Letters that an entry with any ending has at least, and is looked up by.
STEM = 4

# No word to look an entry up by.
_EVERYDAY = frozenset(
    {"am", "ben", "bin", "is", "ist", "non", "nicht", "people", "mensch", "menschen", "mensen"}
    | {"person", "personen", "persoon"}
)
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
        self._entries = _Entries()
        self._others = _Entries()
        for language in languages:
            said = yaml.safe_load((IDENTITIES / f"{language}.yaml").read_text(encoding="utf-8"))
            for group, entries in said["identities"].items():
                if group not in self.groups:
                    self.groups.append(group)
                for entry in entries:
                    self._entries.add(entry, group)
            for entry in said["others"]:
                self._others.add(entry, "")

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
        for at in self._entries.places(folded):
            for entry, anchor, group in self._entries.near(folded[at]):
                start = at - anchor
                if (
                    group not in found
                    and _fits(entry, folded, tokens, start)
                    and not self._otherwise(folded, tokens, at)
                ):
                    found.add(group)
        return tuple(sorted(found))

    def _may_name(self, words: Sequence[str]) -> bool:
        if self._entries.any_near(words):
            return True
        # Words joined by a sign: cis-trans, lesbisch/schwul.
        joined = [word for word in words if not word.isalnum()]
        return bool(joined) and self._entries.any_near(_TOKEN.findall(" ".join(joined)))

    def _otherwise(self, folded: list[str], tokens: list[str], at: int) -> bool:
        """Whether a word belongs to something else: Homo sapiens."""
        for place in range(max(0, at - 3), min(len(folded), at + 4)):
            for entry, anchor, _ in self._others.near(folded[place]):
                start = place - anchor
                if start <= at < start + len(entry) and _fits(entry, folded, tokens, start):
                    return True
        return False


class _Entries:
    """Entries of one or more words, looked up by the longest telling one."""

    def __init__(self) -> None:
        self._exact: dict[str, list[tuple[tuple[Word, ...], int, str]]] = {}
        self._stems: dict[str, list[tuple[tuple[Word, ...], int, str]]] = {}

    def add(self, entry: str, group: str) -> None:
        words = tuple((word.removesuffix("*"), word.endswith("*")) for word in entry.split())
        telling = [at for at, (word, _) in enumerate(words) if word not in _EVERYDAY]
        anchor = max(telling, key=lambda at: len(words[at][0]))
        letters, any_ending = words[anchor]
        letters = letters.casefold()
        if any_ending and len(letters) < STEM:
            raise ValueError(f"{entry}: {STEM} letters at least before a *")
        index, key = (self._stems, letters[:STEM]) if any_ending else (self._exact, letters)
        index.setdefault(key, []).append((words, anchor, group))

    def any_near(self, words: Sequence[str]) -> bool:
        """Whether `near` finds anything for one of many words."""
        return not (
            self._exact.keys().isdisjoint(words)
            and self._stems.keys().isdisjoint(word[:STEM] for word in words)
        )

    def places(self, words: Sequence[str]) -> list[int]:
        """The words for which `near` finds anything."""
        exact, stems = self._exact, self._stems
        return [at for at, word in enumerate(words) if word in exact or word[:STEM] in stems]

    def near(self, word: str) -> list[tuple[tuple[Word, ...], int, str]]:
        """Entries that a word may be the longest word of, and where that stands in them."""
        exact, stems = self._exact.get(word), self._stems.get(word[:STEM])
        if exact and stems:
            return exact + stems
        return exact or stems or []


def _fits(entry: tuple[Word, ...], folded: list[str], tokens: list[str], start: int) -> bool:
    if start < 0 or start + len(entry) > len(folded):
        return False
    for at, (letters, any_ending) in enumerate(entry, start):
        token = folded[at]
        if not letters.islower():  # capitals are meant
            token = tokens[at]
        elif len(entry) == 1 and len(token) <= SHORT and tokens[at].isupper():
            return False
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
