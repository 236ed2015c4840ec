"""Sentences with their identities exchanged: schwul for hetero, and hetero for schwul.

The words are tables, a file a language. What stands in a sentence is read as a concept and a
form of it (*schwulen*: gay, an adjective with -en) and exchanged for the same form of a concept
that it is set against (*heterosexuellen*), so that what agrees with it still does: that is what
inflecting languages need (Zmigrod et al. 2019), and where no such form exists the sentence stays
as it is, counted. All of a sentence's identities are exchanged at once, each concept for another
(*weder schwul noch hetero*: *weder hetero noch schwul*); a sentence that would say one thing
twice (*schwul oder lesbisch*: both *hetero*) stays too.
"""

import functools
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from corpora import normal
from corpora.keywords import matcher
from eval.errors import RequestError

FOLDER = Path(__file__).parent
#: The languages that there is a table for.
LANGUAGES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
#: Why a sentence, or a word, stays as it is.
COMPOUND = "in a compound"
GENDER_FORM = "in a gender form"
TWICE = "would say one thing twice"
NO_FORM = "no form that agrees"
#: Kinds of words that are more than a list of forms; `counterfactuals/de.yaml` says what they are.
ADJECTIVE, FLAT, NOUN = "adjective", "flat", "noun"

_LETTER = r"[^\W\d_]"
_TOKEN = re.compile(rf"{_LETTER}+(?:[-‐:*_·’']{_LETTER}+)*")
_GENDER = re.compile(r"[*:_·]|[a-zäöüß]In(?:nen)?\b")
_JOINED = re.compile(r"[-‐:*_·’']")
#: Shorter ones are no telling beginning of a compound.
_STEM = 4


@dataclass(frozen=True)
class Form:
    """One form of a word for a concept."""

    concept: str
    kind: str
    slot: int  # which of the kind's forms
    word: str  # as the table writes it


@dataclass
class _Place:
    """An identity in a sentence."""

    start: int
    end: int
    form: Form
    token: str
    before: list[str]  # up to two words before it in its sentence, case folded
    attributive: bool  # what it says is said of a noun that follows
    nominal: bool  # German: an adjective that is a noun itself
    first: bool  # of its sentence
    noun: Form | None = None  # what it is if it is a noun, where that can't be told


@dataclass
class Counts:
    """What was exchanged, and what was left alone and why."""

    sentences: int = 0  # that name an identity
    swapped_sentences: int = 0
    swapped: Counter[str] = field(default_factory=Counter)  # gay → hetero: how often
    left: Counter[str] = field(default_factory=Counter)  # sentences, or words, by reason


class Table:
    """The words of one language.

    Raises:
        RequestError: there is no table for this language.
    """

    def __init__(self, language: str) -> None:
        if language not in LANGUAGES:
            raise RequestError(
                f"counterfactuals: none for language '{language}'; there are: "
                f"{', '.join(LANGUAGES)}"
            )
        raw: dict[str, Any] = yaml.safe_load((FOLDER / f"{language}.yaml").read_text("utf-8"))
        self.language = language
        #: What each concept may be exchanged for, both ways.
        self.against: dict[str, list[str]] = {name: [] for name in raw["concepts"]}
        self.gender: dict[str, str] = {}
        #: The words of a concept and kind, each with all its forms.
        self.words: dict[tuple[str, str], list[list[str]]] = {}
        #: What a word may be, by its case-folded letters.
        self.forms: dict[str, list[Form]] = {}
        #: Exchanged only where they say something of a person, not of a thing's name.
        self._bare_only: set[tuple[str, str]] = set()
        endings = raw.get("endings")
        for name, concept in raw["concepts"].items():
            for other in concept.pop("against", []):
                self.against[name].append(other)
                self.against[other].append(name)
            self.gender[name] = concept.pop("gender", "")
            for other in concept.pop("bare_only", []):
                self._bare_only |= {(name, other), (other, name)}
            for kind, words in concept.items():
                self._add(name, kind, words, endings)
        self._starred = frozenset(raw["starred"])
        self._guarded: dict[str, frozenset[str]] = {
            word: frozenset(before) for word, before in raw["guarded"].items()
        }
        self._no_capitals = frozenset(raw["never_in_capitals"])
        self._others = matcher(raw["others"])
        self._people = frozenset(raw.get("people", ()))
        self._determiners = frozenset(raw["determiners"])
        self._function_words = frozenset(raw.get("function_words", ()))
        self._conjunctions = frozenset(raw["conjunctions"])
        self._capitalised = bool(raw.get("nouns_are_capitalised"))
        self._needs_cue = bool(raw.get("needs_cue"))
        self._articles: dict[str, str] = raw.get("articles", {})
        self._cues = {
            word.casefold(): gender for gender, words in raw["cues"].items() for word in words
        }
        self._cue_endings = {
            (before, ending): gender
            for gender, pairs in raw.get("cue_endings", {}).items()
            for before, ending in pairs
        }
        #: By slot (0 singular, 1 plural): the ending after a word.
        self._endings_after: list[dict[str, str]] = [
            {word: ending for ending, words in by.items() for word in words}
            for by in raw.get("endings_after", {}).values()
        ]
        self._endings: list[str] = endings or []
        keys = [key for key in self.forms if len(key) >= _STEM]
        self._stems: dict[str, list[str]] = {}
        for key in keys:
            self._stems.setdefault(key[:_STEM], []).append(key)

    def _add(self, concept: str, kind: str, words: list[Any], endings: list[str] | None) -> None:
        for word in words:
            if kind == ADJECTIVE and endings:
                shapes = [word + ending for ending in endings]
            else:
                shapes = [word] if isinstance(word, str) else list(word)
            self.words.setdefault((concept, kind), []).append(shapes)
            for slot, shape in enumerate(shapes):
                if shape and " " not in shape:
                    found = self.forms.setdefault(shape.casefold(), [])
                    found.append(Form(concept, kind, slot, shape))

    def swap(self, text: str, seed: str, counts: Counts | None = None) -> str:
        """The text with the identities of its sentences exchanged; all else stays byte for byte.

        Args:
            seed: decides among counterparts; one text is given the same one throughout, as far
                as its sentences allow.
            counts: is added to.
        """
        counts = counts if counts is not None else Counts()
        draw = random.Random(f"{self.language} {seed}")
        order = {name: draw.random() for name in self.against}
        parts, done = [], 0
        for start, end in normal.sentences(text):
            sentence = text[start:end]
            parts += [text[done:start], self._swapped(sentence, order, draw, counts)]
            done = end
        return "".join([*parts, text[done:]])

    def _swapped(
        self, sentence: str, order: dict[str, float], draw: random.Random, counts: Counts
    ) -> str:
        places = list(self._places(sentence, counts))
        if not places:
            return sentence
        counts.sentences += 1
        cues = self._genders(sentence, places)
        options: dict[str, dict[str, list[list[str]]]] = {}
        for name in dict.fromkeys(place.form.concept for place in places):
            here = [place for place in places if place.form.concept == name]
            options[name] = {}
            for other in sorted(self.against[name], key=order.__getitem__):
                fitting = [self._words(place, other, cues) for place in here]
                if all(fitting):
                    options[name][other] = fitting
        if not all(options.values()):
            counts.left[NO_FORM] += 1
            return sentence
        chosen = _assigned(options)
        if chosen is None:
            counts.left[TWICE] += 1
            return sentence
        replaced: list[tuple[_Place, str]] = []
        for name, other in chosen.items():
            here = [place for place in places if place.form.concept == name]
            for place, words in zip(here, options[name][other], strict=True):
                replaced.append((place, draw.choice(words)))
            counts.swapped[f"{name} → {other}"] += len(here)
        counts.swapped_sentences += 1
        return self._put(sentence, sorted(replaced, key=lambda pair: pair[0].start))

    def _put(self, sentence: str, replaced: list[tuple[_Place, str]]) -> str:
        parts: list[str] = []
        done = 0
        for place, word in replaced:
            between = sentence[done : place.start]
            if self._articles:
                between = self._with_article(between, word)
            parts += [between, _cased(place, word)]
            done = place.end
        return "".join([*parts, sentence[done:]])

    def _with_article(self, before: str, word: str) -> str:
        """Make an English article at the end of `before` agree with the word's first sound."""
        match = re.search(r"(?<![\w'’])(an?)([ \u00a0]+)$", before, re.IGNORECASE)
        if not match:
            return before
        # Letters are spelled out: an LGBTQ person.
        vowel = word[0] in "AEFHILMNORSX" if word.isupper() else word[0] in "aeio"
        article = self._articles["vowel" if vowel else "consonant"]
        if match[1][0].isupper():
            article = article.upper() if match[1].isupper() and match[1] != "A" else article.title()
        return before[: match.start()] + article + match[2]

    # Reading.

    def _places(self, sentence: str, counts: Counts) -> Iterator[_Place]:
        """The identities that a sentence names, in order; compounds are counted."""
        tokens = list(_TOKEN.finditer(sentence))
        others = None
        words = [token[0].casefold().replace("’", "'") for token in tokens]
        for at, (token, word) in enumerate(zip(tokens, words, strict=True)):
            if word not in self.forms and "'" in word:  # a genitive: the lesbian's
                word = word.rpartition("'")[0]
            if word not in self.forms:
                if reason := self._left(words[at], token[0]):
                    if others is None:
                        others = [match.span() for match in self._others.finditer(sentence)]
                    if not _within(token.span(), others):
                        counts.left[reason] += 1
                continue
            if others is None:
                others = [match.span() for match in self._others.finditer(sentence)]
            if _within(token.span(), others):
                continue
            said = token[0][: len(word)]
            if word in self._no_capitals and said.isupper():
                continue
            place = self._place(sentence, tokens, words, at, word, said)
            if place is not None:
                yield place

    def _place(
        self,
        sentence: str,
        tokens: list[re.Match[str]],
        words: list[str],
        at: int,
        word: str,
        said: str,
    ) -> _Place | None:
        start = tokens[at].start()
        end = start + len(said)
        if word in self._starred and sentence[end : end + 1] == "*":
            end += 1
        # A word that belongs to this one stands after a blank and nothing else.
        near = [token[0] for token in tokens[at + 1 : at + 4]]
        joined = [
            not sentence[left.end() if number else end : right.start()].strip(" *\u00a0")
            for number, (left, right) in enumerate(
                zip(tokens[at : at + 3], tokens[at + 1 : at + 4], strict=False)
            )
        ]
        attributive = bool(near) and joined[0] and self._is_noun_after(near, joined)
        before = words[max(0, at - 2) : at] if at else []
        if word in self._guarded:
            of_people = attributive and near[0].casefold() in self._people
            after = bool(before) and before[-1] in self._guarded[word] and not attributive
            if not (of_people or after):
                return None
        first = at == 0
        form, noun = self._read(
            self.forms[word], said, before, first=first, attributive=attributive
        )
        if attributive and near[0].casefold() in self._people:
            noun = None
        nominal = (
            self._capitalised
            and form.kind == ADJECTIVE
            and form.slot > 0
            and said[0].isupper()
            and not attributive
        )
        return _Place(start, end, form, said, before, attributive, nominal, first, noun)

    def _is_noun_after(self, near: list[str], joined: list[bool]) -> bool:
        """Whether the words after an adjective are, or lead to, the noun that it belongs to."""
        word = near[0].casefold()
        if not self._capitalised:
            return word not in self._function_words
        if near[0][0].isupper():
            return True
        # bi und queere Menschen; not: hetero und im Urlaub
        leads = word in self._conjunctions and len(near) == 3 and all(joined[:3])
        return leads and near[2][0].isupper() and near[1].casefold().endswith(("e", "en", "er"))

    def _read(
        self, forms: list[Form], said: str, before: list[str], *, first: bool, attributive: bool
    ) -> tuple[Form, Form | None]:
        """Which of its readings a word has here, and the noun that it may be instead."""
        nouns = [form for form in forms if form.kind not in (ADJECTIVE, FLAT)]
        rest = [form for form in forms if form.kind in (ADJECTIVE, FLAT)]
        if not nouns or not rest:
            return forms[0], None
        after_determiner = bool(before) and before[-1] in self._determiners
        if self._capitalised:
            noun = said[0].isupper() and (after_determiner or not first)
        else:
            noun = after_determiner and not attributive
        if noun:
            return nouns[0], None
        # A bisexual said, a bisexual writer: what follows isn't known for a noun.
        unsure = after_determiner and not self._capitalised and nouns[0].kind == NOUN
        return rest[0], nouns[0] if unsure else None

    def _left(self, word: str, said: str) -> str:
        """Why a word that names an identity in some way is none of the table's; '' if it isn't."""
        parts = _JOINED.split(word)
        telling = any(
            part in self.forms or any(map(part.startswith, self._stems.get(part[:_STEM], ())))
            for part in parts
        )
        if not telling:
            return ""
        return GENDER_FORM if _GENDER.search(said) else COMPOUND

    def _genders(self, sentence: str, places: Sequence[_Place]) -> set[str]:
        """Of which genders the people of a sentence are, as far as its words say it."""
        found = {
            self._cues[word]
            for token in _TOKEN.finditer(sentence)
            if (word := token[0].casefold()) in self._cues
        }
        for place in places:
            if place.nominal and place.before:
                key = place.before[-1], self._endings[place.form.slot]
                found.update(filter(None, [self._cue_endings.get(key)]))
            found.update({self.gender[place.form.concept]} & {"m", "f"})
        return found

    # Writing.

    def _words(self, place: _Place, other: str, cues: set[str]) -> list[str]:
        """What of another concept agrees with what stands around a place."""
        form = place.form
        if not self._may(place, other, cues):
            return []
        of = functools.partial(self._shapes, other)
        if place.noun is not None:  # what serves as both
            nouns = of(place.noun.kind, place.noun.slot)
            return [word for word in of(ADJECTIVE, 0) + of(FLAT, 0) if word in nouns]
        if form.kind == ADJECTIVE:
            found = of(ADJECTIVE, form.slot)
            if form.slot == 0 and not place.attributive:
                found = found + of(FLAT, 0)
            if not found and not place.nominal:  # what never inflects agrees with everything
                found = of(FLAT, 0)
            return found
        if form.kind == FLAT:
            return of(FLAT, 0) + ([] if place.attributive else of(ADJECTIVE, 0))
        found = of(form.kind, form.slot)
        if not found and form.kind == NOUN and self._endings_after:
            ending = self._declined(place)
            if ending:
                return [word.capitalize() for word in of(ADJECTIVE, self._endings.index(ending))]
        return found

    def _shapes(self, concept: str, kind: str, slot: int) -> list[str]:
        """The words of a concept in one form; '' in a table stands for a form that there isn't."""
        words = self.words.get((concept, kind), ())
        return [shapes[slot] for shapes in words if slot < len(shapes) and shapes[slot]]

    def _may(self, place: _Place, other: str, cues: set[str]) -> bool:
        """Whether a concept can be said of whom, or what, the sentence speaks of."""
        bare = place.form.slot == 0 and place.form.kind != NOUN and not place.attributive
        if not bare and (place.form.concept, other) in self._bare_only:
            return False
        gender = self.gender[other]
        if not gender or place.form.kind not in (ADJECTIVE, FLAT, NOUN):
            return True  # nouns of one kind have one gender
        if cues - {gender}:
            return False
        return gender == "none" or bare or not self._needs_cue or gender in cues

    def _declined(self, place: _Place) -> str:
        """The ending of a nominalised adjective in the place of a noun; '' if it can't be told."""
        after = self._endings_after[place.form.slot]
        word = place.before[-1] if place.before else ""
        if word in after:
            return after[word]
        # An adjective before it has the same: ein junger Schwuler, den jungen Schwulen.
        between = word if len(place.before) == 2 else ""
        if between and place.before[0] in {**self._endings_after[0], **self._endings_after[1]}:
            return next((e for e in ("en", "em", "er", "es", "e") if between.endswith(e)), "")
        return ""


def _assigned(options: dict[str, dict[str, list[list[str]]]]) -> dict[str, str] | None:
    """Another concept for each one, no two the same; two that are set against each other swap."""
    for name in options:
        for other in options[name]:
            if name in options.get(other, {}):
                rest = {one: found for one, found in options.items() if one not in (name, other)}
                left = _different(rest, {name, other})
                return None if left is None else {name: other, other: name, **left}
    return _different(options, set())


def _different(
    options: dict[str, dict[str, list[list[str]]]], taken: set[str]
) -> dict[str, str] | None:
    if not options:
        return {}
    name, *others = options
    for other in options[name]:
        if other not in taken:
            rest = _different({one: options[one] for one in others}, taken | {other})
            if rest is not None:
                return {name: other, **rest}
    return None


def _cased(place: _Place, word: str) -> str:
    """A word in the case of what it stands for."""
    said, listed = place.token, place.form.word
    if "’" in said:
        word = word.replace("'", "’")
    if listed.isupper() and said.isupper():  # LGBTQ
        return _capitalised(word) if place.first else word
    if word.isupper():
        return word
    if len(said) > 1 and said.isupper():
        return word.upper()
    if said[0].isupper():
        return _capitalised(word)
    return word.lower() if listed[0].isupper() else word


def _capitalised(word: str) -> str:
    return word[0].upper() + word[1:]


def _within(span: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    return any(start < span[1] and span[0] < end for start, end in others)


@functools.cache
def table(language: str) -> Table:
    """The table of a language, read once.

    Raises:
        RequestError: there is none.
    """
    return Table(language)
