"""Benchmark sentences in training text: a score after training on them means nothing."""

import re
import unicodedata
from collections.abc import Iterable, Iterator

_END = re.compile(r"(?<=[.!?…])[\"'»«“”’)\]]*\s+|\n+")
_EDGES = " \t\n.,;:!?…\"'»«„“”‚‘’()[]–-"

#: Benchmark sentences, each as its parts, by first part: some "sentences" are two or three.
Index = dict[str, set[tuple[str, ...]]]


def overlap(texts: Iterable[str], benchmark_sentences: Iterable[str]) -> list[int]:
    """Which texts hold a benchmark sentence, by position.

    Whole sentences are compared, whatever their case, spacing and closing punctuation; a
    sentence within a longer one, or another filling of its template, is not found.
    """
    index = _index(benchmark_sentences)
    return [at for at, text in enumerate(texts) if any(_matches(text, index))]


def remove(texts: Iterable[str], benchmark_sentences: Iterable[str]) -> tuple[list[str], int]:
    """Cut the benchmark's sentences out of the texts, and leave the rest of each.

    Returns the texts, those with nothing left missing, and how many sentences were cut.
    """
    index = _index(benchmark_sentences)
    kept, cut = [], 0
    for text in texts:
        spans = list(_matches(text, index))
        cut += len(spans)
        for start, end in reversed(spans):
            before, after = text[:start].rstrip(" "), text[end:].lstrip(" ")
            glue = " " if before and after and "\n" not in (before[-1], after[0]) else ""
            text = before + glue + after
        if text := text.strip():
            kept.append(text)
    return kept, cut


def _index(benchmark_sentences: Iterable[str]) -> Index:
    index: Index = {}
    for sentence in set(benchmark_sentences):
        parts = tuple(part for _, _, part in _parts(" ".join(sentence.split())))
        if parts:
            index.setdefault(parts[0], set()).add(parts)
    return index


def _matches(text: str, index: Index) -> Iterator[tuple[int, int]]:
    """The (start, end) of each benchmark sentence in a text, the longest at each place."""
    parts = list(_parts(text))
    at = 0
    while at < len(parts):
        candidates = index.get(parts[at][2], ())
        for length in sorted({len(candidate) for candidate in candidates}, reverse=True):
            window = parts[at : at + length]
            if tuple(part for _, _, part in window) in candidates:
                yield window[0][0], window[-1][1]
                at += length
                break
        else:
            at += 1


def _parts(text: str) -> Iterator[tuple[int, int, str]]:
    """The sentences of a text: start, end, normalised; empty ones left out."""
    start = 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        raw = text[start:end]
        normalised = " ".join(unicodedata.normalize("NFC", raw).casefold().split()).strip(_EDGES)
        if normalised:
            lead = len(raw) - len(raw.lstrip())
            yield start + lead, start + len(raw.rstrip()), normalised
        start = end


class Benchmark:
    """Placeholder while it is being written."""


class Removed:
    """Placeholder while it is being written."""
