"""Cleaning: as little as a training text needs, the same for every source.

Gender forms (Schüler*innen, Lehrer:innen, Kolleg_innen, LehrerInnen, Schüler@innen) come out
byte for byte as they went in: nothing here touches a sign inside a word.
"""

import html
import re
import unicodedata

#: Goes into the facts: the same texts cleaned otherwise are another corpus.
VERSION = 1
#: Placeholders as TweetEval has them (Barbieri et al. 2020), known to models of such text.
LINK = "http"
HANDLE = "@user"

# With its semicolon only: `?a=1&copy=2` holds no ©.
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,30});")
_URL = re.compile(r"(?:https?://|www\.)[^\s<>\"«»„“”]+", re.IGNORECASE)
_HANDLE = re.compile(r"(?<![\w.@/])@\w(?:[\w.-]*\w)?(?:@\w(?:[\w.-]*\w)?)?")
# An address, not a gender form before a sentence glued to it (Schüler@innen.Und).
_EMAIL = re.compile(r"(?<![\w.@])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,24}\b")
_BREAK = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Control signs, halves of surrogate pairs (no UTF-8 has them), soft hyphens and the like; the
# joiners stay, which emoji and some scripts need.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u200b\u2060\ufeff\ud800-\udfff]"
)
_AFTER_URL = ".,;:!?…)]}'’*_"


def clean(text: str) -> str:
    """Clean one document; a cleaned text stays as it is.

    Resolves HTML entities, composes letters (NFC), takes out control signs, soft hyphens and
    zero-width spaces, puts placeholders for links, handles and mail addresses, and makes
    every run of blanks one space and every run of line breaks one line break.
    """
    while (cleaned := _once(text)) != text:  # what goes may join what stood around it
        text = cleaned
    return text


def _once(text: str) -> str:
    text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    text = _INVISIBLE.sub("", _BREAK.sub("\n", text))
    text = unicodedata.normalize("NFC", text)
    text = _URL.sub(_placeholder, text)
    text = _EMAIL.sub(HANDLE, _HANDLE.sub(HANDLE, text))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def _placeholder(match: re.Match[str]) -> str:
    """The placeholder, and after it the punctuation that isn't part of the link."""
    link = match[0].rstrip(_AFTER_URL)
    return LINK + match[0][len(link) :]
