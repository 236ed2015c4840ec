"""Benchmark sentences in training text: a score after training on them means nothing.

What counts as one of a benchmark's: a sentence of it, whatever its case, spacing and
punctuation, alone or within a longer sentence (from WITHIN words on); and a frame of it, that
is one of its templates with one of its predicates, with any identity in the place of the
benchmark's. The frames are found from the pairs alone: the words that two sentences of a pair
do not share are where the identity stands. A sentence that merely names an identity is none of
these, and stays: it is what the corpus is for.

Everything here is looked up by hash; 45,000 sentences cost a text no more than 45.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from corpora import keywords, normal

#: A benchmark sentence of so many words is found within a longer one, too.
WITHIN = 4
#: Words that an identity may have: "alle bisexuellen und queeren Menschen".
SLOT = 4
#: A frame of fewer fixed words is everyday language ("… sind krank"): what stands in its place
#: must then name an identity.
TELLING = 4
#: More combinations of templates and predicates than this are not made up, only those seen.
COMBINED = 500_000

Words = tuple[str, ...]
#: The fixed words between several places of identities in one sentence; () for one place.
Middle = tuple[Words, ...]


@dataclass(frozen=True)
class Removed:
    """A benchmark's sentence that was cut out of texts; named by its hash, not repeated."""

    benchmark: str
    kind: str  # sentence, or template
    sha256: str  # of its words, joined by spaces
    times: int


class Benchmark:
    """What must not be in a training text, of one benchmark or several.

    Args:
        sentences: as they stand in the benchmark.
        name: what is said of it in reports.
    """

    def __init__(self, sentences: Iterable[str] = (), name: str = "benchmark") -> None:
        self.sentences: dict[str, str] = {}  # words, joined by spaces: the benchmark's name
        self.frames: dict[str, dict[str, dict[Middle, str]]] = {}  # before, after, between: name
        self.identities: set[str] = set()  # what stood in the frames' places
        self._starts: dict[str, list[str]] = {}  # the first words of those found within others
        self._firsts: set[str] = set()
        self._parts: dict[str, set[int]] = {}  # first of several sentences: how many they are
        self._lasts: dict[str, set[str]] = {}  # before: the last words of what comes after
        self._prefixes: list[int] = []  # how many words stand before the identity
        self.add(sentences, name)

    @classmethod
    def from_pairs(cls, rows: Iterable[Mapping[str, Any]], name: str | None = None) -> "Benchmark":
        """Take a benchmark from the rows of a Pair table, or of several.

        Of each row `sent_more` and `sent_less` are read, and `template`, `stereotype_id` and
        `benchmark` where they are there. Each pair is a frame; and where rows with one
        `template` show what of it is the predicate, each predicate goes with each template.
        """
        made = cls()
        frames: dict[str, list[_Frame]] = defaultdict(list)  # by benchmark
        for row in rows:
            of = name or str(row.get("benchmark") or "benchmark")
            more, less = str(row["sent_more"]), str(row["sent_less"])
            made.add((more, less), of)
            shared, identities = _frame(normal.words(more), normal.words(less))
            made.identities.update(identities)
            if shared is not None:
                template, stereotype = row.get("template"), row.get("stereotype_id")
                frames[of].append(_Frame(*shared, str(template or ""), str(stereotype)))
        for of, found in frames.items():
            for frame in found:
                made._add_frame(frame.before, frame.middle, frame.after, of)
            for before, middle, after in _combined(found):
                made._add_frame(before, middle, after, of)
        return made

    def add(self, sentences: Iterable[str], name: str = "benchmark") -> None:
        """Add sentences of a benchmark."""
        for sentence in sentences:
            words = normal.words(sentence)
            joined = " ".join(words)
            if not words or joined in self.sentences:
                continue
            self.sentences[joined] = name
            parts = [normal.words(sentence[start:end]) for start, end in normal.sentences(sentence)]
            if len(parts) > 1:
                self._parts.setdefault(" ".join(parts[0]), set()).add(len(parts))
            if len(words) >= WITHIN:
                self._firsts.add(words[0])
                self._starts.setdefault(" ".join(words[:WITHIN]), []).append(joined)

    def __len__(self) -> int:
        return len(self.sentences)

    def find(self, words: list[str]) -> tuple[str, str] | None:
        """What of the benchmark a sentence is or holds: its name, and `sentence` or `template`.

        Args:
            words: the sentence, as `corpora.normal.words` gives it.
        """
        joined = " ".join(words)
        if joined in self.sentences:
            return self.sentences[joined], "sentence"
        if not self._firsts.isdisjoint(words):
            for at, word in enumerate(words):
                if word in self._firsts:
                    for whole in self._starts.get(" ".join(words[at : at + WITHIN]), ()):
                        if f" {whole} " in f" {joined} ":
                            return self.sentences[whole], "sentence"
        if words and self.frames and (name := self._framed(words)):
            return name, "template"
        return None

    def whole(self, words: list[str]) -> tuple[str, str] | None:
        """As `find`, for an item of the benchmark as it stands there."""
        name = self.sentences.get(" ".join(words))
        return (name, "sentence") if name else None

    @property
    def in_parts(self) -> bool:
        """Whether some items are several sentences."""
        return bool(self._parts)

    def parts(self, words: list[str]) -> list[int]:
        """Of how many sentences those items are that begin with this one, the longest first."""
        return sorted(self._parts.get(" ".join(words), ()), reverse=True)

    def _add_frame(self, before: Words, middle: Middle, after: Words, name: str) -> None:
        if len(before) + len(after) + sum(map(len, middle)) < 2:
            return  # "[…] leben": everything
        start = " ".join(before)
        self._lasts.setdefault(start, set()).add(after[-1] if after else "")
        ends = self.frames.setdefault(start, {})
        ends.setdefault(" ".join(after), {}).setdefault(middle, name)
        if len(before) not in self._prefixes:
            self._prefixes = sorted([*self._prefixes, len(before)])

    def _framed(self, words: list[str]) -> str:
        """The name of a benchmark that has a frame which the words fill; '' if none has."""
        for length in self._prefixes:
            if length >= len(words):
                break
            before = " ".join(words[:length])
            if before not in self.frames or not {words[-1], ""} & self._lasts[before]:
                continue
            ends = self.frames[before]
            # One place: one to SLOT words. Several, with words between: any that fit.
            for start in range(length + 1, len(words) + 1):
                middles = ends.get(" ".join(words[start:]))
                if middles is None:
                    continue
                inside = words[length:start]
                for middle, name in middles.items():
                    filled = _fill(inside, middle)
                    fixed = length + len(words) - start + sum(map(len, middle))
                    if filled and (fixed >= TELLING or any(map(self._names, filled))):
                        return name
        return ""

    def _names(self, slot: list[str]) -> bool:
        """Whether what stands in a frame's place is an identity."""
        return " ".join(slot) in self.identities or keywords.name_identity(slot)


@dataclass(frozen=True)
class _Frame:
    before: Words
    middle: Middle
    after: Words
    template: str
    stereotype: str


#: A sentence of a text: where it starts and ends, and its words.
Sentence = tuple[int, int, list[str]]


def parse(text: str) -> list[Sentence]:
    """The sentences of a text that have words."""
    found = ((start, end, normal.words(text[start:end])) for start, end in normal.sentences(text))
    return [sentence for sentence in found if sentence[2]]


def overlap(texts: Iterable[str], benchmark: Benchmark | Iterable[str]) -> list[int]:
    """Which texts hold something of a benchmark, by position.

    `benchmark` may be its sentences alone; then no frames are known.
    """
    known = _benchmark(benchmark)
    return [at for at, text in enumerate(texts) if next(_found(text, parse(text), known), None)]


def remove(texts: Iterable[str], benchmark: Benchmark | Iterable[str]) -> tuple[list[str], int]:
    """Cut a benchmark's sentences out of the texts, and leave the rest of each.

    Returns the texts, those with nothing left missing, and how many sentences were cut.
    """
    known = _benchmark(benchmark)
    counts: Counter[tuple[str, str, str]] = Counter()
    kept = [rest for text in texts if (rest := cut(text, known, counts))]
    return kept, counts.total()


def cut(
    text: str,
    benchmark: Benchmark,
    counts: Counter[tuple[str, str, str]],
    sentences: list[Sentence] | None = None,
) -> str:
    """Cut a benchmark's sentences out of one text; counts what by benchmark, kind and words.

    `sentences` are those of the text, where the caller has them.
    """
    sentences = parse(text) if sentences is None else sentences
    # What stood around a sentence may make one when it is gone.
    while spans := list(_found(text, sentences, benchmark)):
        for start, end, name, kind in reversed(spans):
            counts[name, kind, " ".join(normal.words(text[start:end]))] += 1
            before, after = text[:start].rstrip(" "), text[end:].lstrip(" ")
            glue = " " if before and after and "\n" not in (before[-1], after[0]) else ""
            text = before + glue + after
        text = text.strip()
        sentences = parse(text)
    return text


def listed(counts: Counter[tuple[str, str, str]]) -> list[Removed]:
    """What was cut, without the sentences, the most frequent first."""
    found = [
        Removed(name, kind, hashlib.sha256(words.encode()).hexdigest(), times)
        for (name, kind, words), times in counts.items()
    ]
    return sorted(found, key=lambda one: (-one.times, one.benchmark, one.sha256))


def _benchmark(benchmark: Benchmark | Iterable[str]) -> Benchmark:
    return benchmark if isinstance(benchmark, Benchmark) else Benchmark(benchmark)


#: Within a sentence, where another may begin: Er sagte: „…“
_INSIDE = re.compile(r"[:;„“”«»\"]+|\s[–—-]\s")


def _found(
    text: str, sentences: list[Sentence], benchmark: Benchmark
) -> Iterator[tuple[int, int, str, str]]:
    """Start, end, benchmark and kind of what a text holds of a benchmark, in order."""
    at = 0
    inside = _INSIDE.search(text)
    while at < len(sentences):
        start, end, words = sentences[at]
        taken = 1
        found = None
        if benchmark.in_parts:
            for length in benchmark.parts(words):
                window = sentences[at : at + length]
                found = benchmark.whole([word for _, _, some in window for word in some])
                if found:
                    end, taken = window[-1][1], length
                    break
        found = found or benchmark.find(words)
        if not found and inside and len(pieces := _INSIDE.split(text[start:end])) > 1:
            found = next(filter(None, (benchmark.find(normal.words(one)) for one in pieces)), None)
        if found:
            yield start, end, *found
        at += taken


def _frame(
    more: list[str], less: list[str]
) -> tuple[tuple[Words, Middle, Words] | None, list[str]]:
    """The words that two sentences share, and what stands where they differ."""
    short = min(len(more), len(less))
    head = next((at for at in range(short) if more[at] != less[at]), short)
    tail = next((at for at in range(short - head) if more[-1 - at] != less[-1 - at]), short - head)
    one, other = more[head : len(more) - tail], less[head : len(less) - tail]
    before, after = tuple(more[:head]), tuple(more[len(more) - tail :])
    slots, middle = [one, other], []
    if set(one) & set(other):  # identities in several places
        slots = []
        for kind, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
            if kind == "equal":
                middle.append(tuple(one[a:b]))
            else:
                slots += [one[a:b], other[c:d]]
    identities = [" ".join(slot) for slot in slots if 0 < len(slot) <= SLOT]
    if not identities or any(len(slot) > SLOT for slot in slots):
        return None, []  # two sentences that differ in more than an identity: no frame
    return (before, tuple(middle), after), identities


def _combined(frames: list[_Frame]) -> Iterator[tuple[Words, Middle, Words]]:
    """Each template with each predicate, and with any name where templates take names."""
    templates: dict[str, list[_Frame]] = defaultdict(list)
    for frame in frames:
        if frame.template and not frame.middle:
            templates[frame.template].append(frame)
    heads: set[tuple[Words, Middle, Words, Words]] = set()  # fixed: before, between, after
    predicates: set[Words] = set()
    for some in templates.values():
        if len({frame.stereotype for frame in some}) < 2:
            continue  # nothing shows what of it is the predicate
        tail = _ending({frame.after for frame in some})
        rests = {frame.after[: len(frame.after) - len(tail)] for frame in some}
        link = _ending({words[::-1] for words in rests})[::-1]  # … omdat ze …
        befores = {frame.before for frame in some}
        by_after: dict[Words, set[Words]] = defaultdict(set)
        for frame in some:
            by_after[frame.after].add(frame.before)
        shared = _ending(befores)
        if len(befores) == 1:
            heads.add((next(iter(befores)), (), link, tail))
        elif shared and max(map(len, by_after.values())) > 1:  # names before: "Kim is …"
            if max(map(len, befores)) - len(shared) > SLOT:
                continue
            heads.add(((), (shared,), link, tail))
        else:
            continue  # the predicate itself stands before the identity
        predicates |= {words[len(link) :] for words in rests}
    if len(heads) * len(predicates) > COMBINED:
        return
    for before, middle, link, tail in heads:
        for predicate in predicates:
            yield before, middle, link + predicate + tail


def _ending(sequences: set[Words]) -> Words:
    """The words that all sequences end with."""
    first = min(sequences, key=len)
    for length in range(len(first), 0, -1):
        ending = first[-length:]
        if all(words[-length:] == ending for words in sequences):
            return ending
    return ()


def _fill(words: list[str], middle: Middle) -> list[list[str]]:
    """Cut words into places of one to SLOT words with the fixed words between; [] if they can't."""
    if not middle:
        return [words] if 0 < len(words) <= SLOT else []
    fixed, *others = middle
    for length in range(1, min(SLOT, len(words) - len(fixed)) + 1):
        if tuple(words[length : length + len(fixed)]) == fixed:
            rest = _fill(words[length + len(fixed) :], tuple(others))
            if rest:
                return [words[:length], *rest]
    return []
