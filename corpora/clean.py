"""Cleaning: what a training text needs, the same for every source.

Gender forms (Schüler*innen, Lehrer:innen, Kolleg_innen, LehrerInnen, Schüler@innen) come out
byte for byte as they went in: nothing here touches a sign inside a word.
"""

import html
import re
import unicodedata
from collections import Counter

import ftfy

from corpora.placeholders import HANDLE, ID, LINK, PHONE

#: Goes into the facts: the same texts cleaned otherwise are another corpus.
VERSION = 2

# With its semicolon only: `?a=1&copy=2` holds no ©.
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,30});")
# Addresses of the web, of posts (at:, acct:, tag:, urn:), and bare `www.`.
_URL = re.compile(
    r"(?:(?:https?|ftp|gemini|at|ipfs|matrix)://|www\.|(?<![\w:])(?:acct|mailto|xmpp|did|urn):(?=\w)"
    r"|(?<![\w:])tag:(?=[\w.-]+,\d{4}))[^\s<>\"«»„“”]+",
    re.IGNORECASE,
)
_HANDLE = re.compile(r"(?<![\w.@/])@\w(?:[\w.-]*\w)?(?:@\w(?:[\w.-]*\w)?)?")
# An address, not a gender form before a sentence glued to it (Schüler@innen.Und).
_EMAIL = re.compile(r"(?<![\w.@])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,24}\b")
# A number to call: with a country's code, with an area's and a separator after it, a mobile's,
# or after a word that says so. A year, a date, a price, a paragraph, an article's number has
# none of these; numbers that are said to be something else are left (Nr. 0151…, ISBN …).
_PHONE = re.compile(
    r"(?<![\w/.,!#+-])(?<!nr\. )(?<!nr )(?<!no\. )(?<!isbn )(?<!issn )(?<!€ )"
    r"(?!\(?0?\d[-/ ]\d{1,2}[-/ ](?:19|20)\d\d)"  # 01-02-2021, 01/02/2021
    r"(?:"
    r"\+(?![\d ]*(?: 000)+\b)[1-9]\d{0,2}[ /(-]{0,2}(?:0\)[ /-]?)?\d(?:[ /()-]{0,2}\d){6,12}"
    r"|00[1-9]\d{0,2}[ /(-]{1,2}(?:0\)[ /-]?)?\d(?:[ /()-]{0,2}\d){5,11}"
    r"|\(0[1-9]\d{1,4}\)[ /-]{0,2}\d(?:[ /-]?\d){4,9}"
    r"|0[1-9]\d{1,4}[ ]?[/-][ ]?\d(?:[ /-]?\d){4,9}"
    r"|0[1-9]\d{1,4} \d(?:[ -]?\d){5,8}"
    r"|0(?:1[567]\d|6)[ /-]?\d(?:[ /-]?\d){6,8}"
    r")(?![\w%€]|[.,/-]\d| ?(?:Euro|EUR|Mio|Mrd))",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"(\b(?:tel(?:efon|efoon|\.-nr)?|phone|mobil(?:e|funk)?|mobiel|handy|fax|whatsapp|signal)\b"
    r"\.?:? ?|[☎📞📱]\ufe0f? ?)\(?\d(?:[ /()-]{0,2}\d){5,14}(?!\w)",
    re.IGNORECASE,
)
_UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
# Posts' ids of Mastodon and its like (18 digits today), and UUIDs.
_ID = re.compile(rf"(?<![\w.,-])(?:\d{{17,20}}|{_UUID})(?![\w]|[.,]\d)", re.IGNORECASE)
# Custom emoji :blobcat: but neither a gender form (Lehrer:innen:), nor a time (10:30:00).
_EMOJI = re.compile(r"(?<![\w:]):(?!in(?:nen)?:)(?=\w*[A-Za-z_])\w{2,64}:(?=$|[^\w]|\w+:)")
_TAG = re.compile(r"(?<![\w#&/])#(?=\w*[^\W\d_])(?=\w)")
_IS_TAG = re.compile(r"[(„\"]?#\w*[^\W\d_]\w*(?:[*:·_/-]\w+)*[.,;:!?…)“\"]*")
_BREAK = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Control signs, halves of surrogate pairs (no UTF-8 has them), soft hyphens and the like; the
# joiners stay, which emoji and some scripts need.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u200b\u2060\ufeff\ud800-\udfff]"
)
# UTF-8 that was read as something else begins so: a lead byte's sign, then a continuation's.
_MOJIBAKE = re.compile(
    "[\xc2-\xf4\u0102\u0103\u0139\u221a\u251c\u252c\u0393\u0432]"
    "[\x80-\xbf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u2022\u2026"
    "\u2030\u2039\u203a\u20ac\u2122\u2202\u2206\u2211\u2260\u2500-\u257f]"
)
_C1 = re.compile("[\x80-\x84\x86-\x9f]")
_REPAIR = ftfy.TextFixerConfig(explain=False)
_SCHEMES = ("acct:", "mailto:", "xmpp:", "did:", "urn:", "tag:")
# Six digits with little between them: fewer are no number to call.
_HAS_NUMBER = re.compile(r"[0-9](?:[ /()-]{0,2}[0-9]){5}")
_DIGIT = re.compile("[0-9]")
_AFTER_URL = ".,;:!?…)]}'’*_"


def clean(text: str, counts: Counter[str] | None = None) -> str:
    """Clean one document; a cleaned text stays as it is.

    Repairs UTF-8 that was read as another encoding, resolves HTML entities, composes letters
    (NFC), takes out control signs, soft hyphens and zero-width spaces, puts placeholders for
    links, handles, mail addresses, telephone numbers and ids of posts, takes out custom emoji
    and hashtags that end a text, keeps other hashtags as words, and makes every run of blanks
    one space and every run of line breaks one line break.

    `counts` is told how often it did what.
    """
    counts = Counter() if counts is None else counts
    while (cleaned := _once(text, counts)) != text:  # what goes may join what stood around it
        text = cleaned
        counts = Counter()  # counted once
    return text


def _once(text: str, counts: Counter[str]) -> str:
    # Each step first asks what costs little: most texts, and most words, need few of them.
    if not text.isascii() and (_MOJIBAKE.search(text) or "Ã " in text or _C1.search(text)):
        repaired = ftfy.fix_encoding(text, _REPAIR)
        counts["encodings repaired"] += repaired != text
        text = repaired
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    if not text.replace("\n", "").isprintable():
        text = _INVISIBLE.sub("", _BREAK.sub("\n", text))
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    lines = []
    tagged = "#" in text
    for line in text.split("\n"):
        words = line.split()
        digits = False
        for at in [at for at, word in enumerate(words) if not word.isalpha()]:
            word = words[at]
            if not word[:-1].isalpha():  # more than a comma
                words[at] = _word(word, counts)
                digits = digits or _DIGIT.search(word) is not None
        if digits:
            words = _numbers(" ".join(words), counts).split()
        if tagged:
            words = [word for word in words if word]
        lines.append(words)
    if tagged:
        lines = _without_tags([words for words in lines if words], counts)
    return "\n".join(joined for words in lines if (joined := " ".join(filter(None, words))))


def _word(word: str, counts: Counter[str]) -> str:
    """What no blank can be part of: links, handles, addresses, custom emoji."""
    if _may_link(word):
        word, links = _URL.subn(_placeholder, word)
        counts["links"] += links
    if "@" in word and word != HANDLE:
        word, handles = _HANDLE.subn(HANDLE, word)
        word, mails = _EMAIL.subn(HANDLE, word)
        counts["handles and mail addresses"] += handles + mails
    if word.count(":") > 1:
        word, emoji = _EMOJI.subn("", word)
        counts["custom emoji"] += emoji
    return word


def _may_link(word: str) -> bool:
    """Whether a word may hold an address; the pattern itself takes much longer."""
    if "://" in word:
        return True
    lowered = word.lower()
    return "www." in lowered or (":" in word and any(map(lowered.__contains__, _SCHEMES)))


def _numbers(line: str, counts: Counter[str]) -> str:
    """Telephone numbers, ids of posts."""
    if not _HAS_NUMBER.search(line) and line.count("-") < 4:
        return line
    line, calls = _CALL.subn(rf"\g<1>{PHONE}", line)
    line, phones = _PHONE.subn(PHONE, line)
    line, ids = _ID.subn(ID, line)
    counts["telephone numbers"] += calls + phones
    counts["ids"] += ids
    return line


def _placeholder(match: re.Match[str]) -> str:
    """The placeholder, and after it the punctuation that isn't part of the link."""
    link = match[0].rstrip(_AFTER_URL)
    return LINK + match[0][len(link) :]


def _without_tags(lines: list[list[str]], counts: Counter[str]) -> list[list[str]]:
    """Hashtags as words, those of lines of nothing else and at the end of the text dropped."""
    kept = []
    for number, words in enumerate(lines, 1):
        signs = [at for at, word in enumerate(words) if "#" in word]
        if signs:
            tags = {at for at in signs if _IS_TAG.fullmatch(words[at])}
            block = _block(words, tags, last=number == len(lines)) if tags else set()
            counts["hashtags dropped"] += len(block)
            for at in signs:
                words[at], found = _TAG.subn("", "" if at in block else words[at])
                counts["hashtags kept as words"] += found
        kept.append(words)
    return kept


def _block(words: list[str], tags: set[int], *, last: bool) -> set[int]:
    """Which of a line's words are hashtags that only file it, and are no part of a sentence."""
    start = len(words)
    # Emoji, signs and links may stand among them.
    while start and (
        start - 1 in tags or not any(map(str.isalpha, words[start - 1])) or words[start - 1] == LINK
    ):
        start -= 1
    block = {at for at in tags if at >= start}
    if start == 0:
        return block
    if not last:
        return set()
    ended = words[start - 1][-1] in '.!?…:)“"»'
    return block if len(block) > 1 or ended else set()
