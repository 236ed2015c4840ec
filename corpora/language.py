"""Which language a text is in: lingua's label, among a few languages, with its confidence.

What a post's author chose as its language is a hint at best (it is an account's default), so
each text gets a label of its own. Placeholders, which are no language's words, don't count.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice

from lingua import IsoCode639_1, LanguageDetector, LanguageDetectorBuilder

from corpora.errors import RequestError
from corpora.placeholders import HANDLE, ID, LINK, PHONE

UNKNOWN = "unknown"
#: Told apart from the wanted ones always: what German and Dutch posts are mixed with most.
NEIGHBOURS = ("de", "en", "nl")
#: Told apart from them, too, where a text has letters that those don't: without Danish to
#: choose, lingua is sure that Danish is German. Many languages make it slow, so not always.
FURTHER = ("cs", "da", "es", "fi", "fr", "hu", "it", "nb", "pl", "pt", "ro", "sv", "tr")
#: So many characters are looked at, half of them at the end: a label gets hardly better from more
#: (of German, Dutch and English sentences 2 in 1,000 get a wrong one, of 120 characters none), and
#: a text that changes its language on the way gets a low confidence. Longer texts are looked at in
#: lingua's quicker mode, by trigrams alone.
LOOKED_AT = 64
#: Fewer letters than a word or two tell nothing.
MIN_LETTERS = 12

# Letters that German, Dutch and English texts hardly have. One in a name costs a little time.
_ELSEWHERE = re.compile(r"[^\W\d_a-zäöüßëïé]", re.IGNORECASE)
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
    near = tuple(sorted({*codes, *NEIGHBOURS}))
    far = tuple(sorted({*near, *FURTHER}))
    labels = []
    for text in texts:
        shown, long = _shown(text)
        if next(islice(filter(str.isalpha, shown), MIN_LETTERS - 1, None), None) is None:
            labels.append((UNKNOWN, 0.0))
            continue
        among = far if not shown.isascii() and _ELSEWHERE.search(shown) else near
        first = _detector(among, long).compute_language_confidence_values(shown)[0]
        confidence = round(first.value, 4)
        code = first.language.iso_code_639_1.name.lower()
        labels.append((code if confidence >= least and confidence else UNKNOWN, confidence))
    return labels


def _shown(text: str) -> tuple[str, bool]:
    """What of a text is looked at, and whether that is long enough for trigrams alone."""
    if "@" in text or LINK in text or "[" in text:
        text = _PLACEHOLDERS.sub(" ", text)
    if len(text) <= LOOKED_AT:
        return text, False
    half = LOOKED_AT // 2
    # Whole words only, where there are any.
    head = text[:half].rpartition(" ")[0] or text[:half]
    tail = text[-half:].partition(" ")[2] or text[-half:]
    return f"{head} {tail}", True


@lru_cache(maxsize=8)
def _detector(codes: tuple[str, ...], long: bool) -> LanguageDetector:
    isos = [getattr(IsoCode639_1, code.upper()) for code in codes]
    builder = LanguageDetectorBuilder.from_iso_codes_639_1(*isos)
    return (builder.with_low_accuracy_mode() if long else builder).build()
