"""Which posts are taken: what their author, their marks and their kind say, and nothing else.

The German paper drops #nsfw and "daily generated server messages" (2608.30884, §3.4); the rest
is what authors of posts can say about being collected, and what their posts are marked as.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from selectolax.lexbor import LexborHTMLParser

#: In a bio, a display name or a profile field, with # or without, whatever its case.
OPT_OUT = ("bot", "bots", "index", "archive", "search", "scrape", "ai")  # after no, no_ or no-
#: On so many days must an author have posted the same but for its numbers.
DAILY = 3

_OPT_OUT = re.compile(rf"(?:#\s*|(?<!\w))no[-_]?(?:{'|'.join(OPT_OUT)})(?!\w)")
_NSFW = re.compile(r"#\s*nsfw\b")
_INVISIBLE = re.compile("[\xad\u200b-\u200f\u2060\ufeff]")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_DAYS = (
    "montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag "
    "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag "
    "monday tuesday wednesday thursday friday saturday sunday "
    "januar jänner februar märz april mai juni juli august september oktober november dezember "
    "januari februari maart mei augustus december "
    "january february march may june july october"
)
_DAY = re.compile(rf"\b({'|'.join(_DAYS.split())})\b")
_LINK = re.compile(r"https?://\S+")


def reason_against(post: Mapping[str, Any], *, bots: bool, sensitive: bool) -> str:
    """Why a post as the API gives it (a Status) isn't taken; '' if it is.

    `bots` and `sensitive` take what they name too.
    """
    account = post.get("account") or {}
    if post.get("visibility") != "public":
        return "not public"
    if post.get("reblog") is not None:
        return "boost"
    if not account.get("acct") or "@" in account["acct"]:
        return "from another instance"
    if account.get("bot") and not bots:
        return "bot"
    if opted_out(account):
        return "author opted out"
    if _nsfw(post):
        return "#nsfw"
    if (post.get("sensitive") or post.get("spoiler_text")) and not sensitive:
        return "content warning"
    return ""


def opted_out(account: Mapping[str, Any]) -> bool:
    """Whether an author (an Account of the API) doesn't want to be found or collected.

    By the switches `noindex` and `indexable` of their profile, or by a tag such as #nobot in
    their bio, name or profile fields. `indexable` is off unless an author switched it on.
    """
    if account.get("noindex") is True or account.get("indexable") is False:
        return True
    said = [account.get("display_name"), account.get("note")]
    for field in account.get("fields") or ():
        said += [field.get("name"), field.get("value")]
    return any(_says_no(_folded(plain(text))) for text in said if text)


def plain(html: str) -> str:
    """The text of an HTML fragment, what each element holds on a line of its own."""
    return LexborHTMLParser(html).text(separator="\n", strip=True)


def pattern(html: str) -> str:
    """A post's text with its numbers, days and links taken out; '' if it has no number.

    Two posts of one author with the same pattern are one message, generated anew.
    """
    text = _folded(plain(html))
    without_links = _LINK.sub("", text)
    if not _NUMBER.search(without_links):
        return ""
    return " ".join(_NUMBER.sub("0", _DAY.sub("0", without_links)).split())


def _says_no(text: str) -> bool:
    # Once with its lines joined: a tag may be made of several elements.
    return any(_OPT_OUT.search(some) for some in (text, text.replace("\n", "")))


def _nsfw(post: Mapping[str, Any]) -> bool:
    tags = {str(tag.get("name", "")).casefold() for tag in post.get("tags") or ()}
    return "nsfw" in tags or _NSFW.search(_folded(plain(post.get("content") or ""))) is not None


def _folded(text: str) -> str:
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()
