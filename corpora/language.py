"""Which language a text is in: lingua's label, among a few languages, with its confidence.

What a post's author chose as its language is a hint at best (it is an account's default), so
each text gets a label of its own. Placeholders, which are no language's words, don't count.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from lingua import IsoCode639_1, LanguageDetector, LanguageDetectorBuilder

from corpora.errors import RequestError
from corpora.placeholders import HANDLE, ID, LINK, PHONE

UNKNOWN = "unknown"
#: Told apart from the wanted ones: what German and Dutch texts are mixed with most.
NEIGHBOURS = ("de", "en", "nl", "fr")
#: So many characters are looked at, half of them at the end: a label gets no better from more,
#: and a text that changes its language in the middle gets a low confidence.
LOOKED_AT = 240
#: Fewer letters than a word or two tell nothing.
MIN_LETTERS = 12

_PLACEHOLDERS = re.compile("|".join(map(re.escape, (HANDLE, PHONE, ID))) + rf"|\b{LINK}\b")


def wanted(language: str, languages: Iterable[str]) -> tuple[str, ...]:
    """The languages that a corpus is to have; none: any.

    Raises:
        RequestError: a code that lingua doesn't know.
    """
    codes = tuple(dict.fromkeys([*languages] or ([language] if language else [])))
    for code in codes:
        if not hasattr(IsoCode639_1, code.upper()) or code != code.lower():
            raise RequestError(
                f"corpus.languages={code}: no ISO 639-1 code that lingua knows; such as de, nl, en"
            )
    return codes


def label(texts: Sequence[str], codes: Sequence[str], least: float) -> list[tuple[str, float]]:
    """Label each text with its language and lingua's confidence, 0 to 1.

    A text is `unknown` where it has too few letters, or where the confidence is below `least`;
    `codes` are the wanted languages, the only ones but for NEIGHBOURS that it can be in. The
    same text gets the same label, whatever else is there.
    """
    if not codes:
        return [("", 0.0)] * len(texts)
    detector = _detector(tuple(sorted({*codes, *NEIGHBOURS})))
    labels = []
    for text in texts:
        shown = _shown(text)
        if sum(map(str.isalpha, shown)) < MIN_LETTERS:
            labels.append((UNKNOWN, 0.0))
            continue
        first = detector.compute_language_confidence_values(shown)[0]
        confidence = round(first.value, 4)
        code = first.language.iso_code_639_1.name.lower()
        # Rounding errors aside, a confidence is the same on every machine; ties are no label.
        labels.append((code if confidence >= least else UNKNOWN, confidence))
    return labels


def _shown(text: str) -> str:
    """What of a text is looked at."""
    if "@" in text or LINK in text or "[" in text:
        text = _PLACEHOLDERS.sub(" ", text)
    if len(text) <= LOOKED_AT:
        return text
    half = LOOKED_AT // 2
    # Whole words only.
    return text[:half].rpartition(" ")[0] + " " + text[-half:].partition(" ")[2]


@lru_cache(maxsize=4)
def _detector(codes: tuple[str, ...]) -> LanguageDetector:
    isos = [getattr(IsoCode639_1, code.upper()) for code in codes]
    builder = LanguageDetectorBuilder.from_iso_codes_639_1(*isos)
    return builder.with_preloaded_language_models().build()
