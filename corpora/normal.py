"""Texts as words, for comparing them: no case, no punctuation, no blanks."""

import re
import unicodedata

#: The end of a sentence: its sign and closing marks before a blank, or a line break. (That one
#: class begins it lets the engine skip what can't be an end.)
_END = re.compile(r"[.!?…\n][\"'»«“”’)\]\s]*(?<=\s)")
#: What may stand around a word without being part of it.
_EDGES = "\"'“”„‚‘’«»‹›()[]{}<>.,;:!?…–—-*_/\\|·•~`"


def words(text: str) -> list[str]:
    """The words of a text, case folded, the signs around them gone: `Hetero's` stays one."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return [word for raw in text.casefold().split() if (word := raw.strip(_EDGES))]


def sentences(text: str) -> list[tuple[int, int]]:
    """Where the sentences of a text start and end; together they are all of it but blanks."""
    found = []
    start = 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        raw = text[start:end]
        if bare := raw.strip():
            lead = 0 if raw[0] == bare[0] else len(raw) - len(raw.lstrip())
            found.append((start + lead, start + lead + len(bare)))
        start = end
    return found
