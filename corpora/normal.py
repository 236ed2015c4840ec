"""Texts as words, for comparing them: no case, no punctuation, no blanks."""

import re
import unicodedata
from collections.abc import Iterator

#: The end of a sentence: its sign and closing marks before a blank, or a line break.
_END = re.compile(r"(?<=[.!?…])[\"'»«“”’)\]]*\s+|\n+")
#: What may stand around a word without being part of it.
_EDGES = "\"'“”„‚‘’«»‹›()[]{}<>.,;:!?…–—-*_/\\|·•~`"


def words(text: str) -> list[str]:
    """The words of a text, case folded, the signs around them gone: `Hetero's` stays one."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return [word for raw in text.casefold().split() if (word := raw.strip(_EDGES))]


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of a text start and end; together they are all of it but blanks."""
    start = 0
    for match in _END.finditer(text):
        yield from _span(text, start, match.end())
        start = match.end()
    yield from _span(text, start, len(text))


def _span(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    raw = text[start:end]
    if bare := raw.strip():
        lead = len(raw) - len(raw.lstrip())
        yield start + lead, start + lead + len(bare)
