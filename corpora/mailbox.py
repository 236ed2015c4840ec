"""Posts that people hand over: a mailbox (mbox), or the archive that Mastodon gives an account.

Only what the person wrote is taken: of a mail its own lines, not those it answers; of an
archive the posts that were public, no boosts, none with a content warning or marked sensitive
unless `corpus.sensitive=true`. The author, the post's id and its date go along, so that a
post can be taken out of a corpus again.
"""

import mailbox
from collections.abc import Iterator
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parseaddr
from typing import Any
from urllib.parse import urlsplit

from corpora import CorpusSettings, json_stream
from corpora.documents import Document, iso_date
from corpora.records import UNREADABLE, File, unbroken

#: Who may read a post that is public, in ActivityStreams' words.
PUBLIC = ("https://www.w3.org/ns/activitystreams#Public", "as:Public", "Public")
#: Looked through for what tells an archive from other JSON.
HEAD = 4096


def is_outbox(file: File) -> bool:
    """Whether a JSON file is the `outbox.json` of a Mastodon archive."""
    if file.suffix != ".json":
        return False
    with file.open() as stream:
        return b'"OrderedCollection"' in stream.read(HEAD)


def outbox(file: File, settings: CorpusSettings) -> Iterator[Document]:
    """Give every activity of an archive, those that are no public post marked as dropped."""

    def items(stream: Any) -> Iterator[tuple[str, Any]]:
        return json_stream.members(stream, file.name, inside="orderedItems")

    for _, item in unbroken(file, settings, items):
        if not isinstance(item, dict):
            reason = str(item) if item in UNREADABLE else "not a post"
            yield Document("", origin=file.name, dropped=reason)
            continue
        post = item.get("object")
        reason = _not_wanted(item, post, settings)
        if reason or not isinstance(post, dict):
            yield Document("", origin=file.name, dropped=reason)
            continue
        author = urlsplit(str(post.get("attributedTo") or item.get("actor") or ""))
        languages = list(post.get("contentMap") or {})
        yield Document(
            str(post.get("content") or ""),
            origin=file.name,
            key=_last(str(post.get("id") or "")),
            author=_last(author.path),
            host=author.hostname or "",
            date=iso_date(post.get("published") or item.get("published")),
            language=languages[0] if len(languages) == 1 else "",
            html=True,
        )


def _not_wanted(item: dict[str, Any], post: Any, settings: CorpusSettings) -> str:
    """Why an activity isn't taken; '' if it is."""
    if item.get("type") != "Create":
        return "boosts"
    if not isinstance(post, dict) or post.get("type") not in ("Note", "Article", "Question"):
        return "not a post"
    to = post.get("to") or item.get("to") or []
    if not set(PUBLIC) & set(to if isinstance(to, list) else [to]):
        return "not public"
    if not settings.sensitive and (post.get("sensitive") or post.get("summary")):
        return "sensitive, or with a content warning"
    return ""


def _last(address: str) -> str:
    return address.rstrip("/").rpartition("/")[2]


def mails(file: File, settings: CorpusSettings) -> Iterator[Document]:
    """Give every mail of a mailbox, as its own lines say it."""
    box = mailbox.mbox(file.path, create=False)
    try:
        for number in box.iterkeys():
            mail = box[number]
            name, address = parseaddr(_header(mail, "From"))
            text, html = _body(mail, settings.encoding)
            yield Document(
                text if html else _own_lines(text),
                origin=file.name,
                key=_header(mail, "Message-ID").strip("<> "),
                author=address or name,
                date=iso_date(_header(mail, "Date")),
                html=html,
            )
    finally:
        box.close()


def _header(mail: Message, name: str) -> str:
    said = mail.get(name, "")
    try:
        return str(make_header(decode_header(said)))
    except (LookupError, UnicodeDecodeError):  # an encoding that isn't, or isn't what it says
        return str(said)


def _body(mail: Message, encoding: str) -> tuple[str, bool]:
    """A mail's text and whether it is HTML; the plain one if it has both."""
    found: dict[str, str] = {}
    for part in mail.walk():
        kind = part.get_content_type()
        if kind not in ("text/plain", "text/html") or part.get_filename():
            continue
        payload = part.get_payload(decode=True)
        if isinstance(payload, bytes):
            found.setdefault(kind, _decoded(payload, part.get_content_charset(), encoding))
    if "text/plain" in found:
        return found["text/plain"], False
    return found.get("text/html", ""), "text/html" in found


def _decoded(payload: bytes, said: str | None, encoding: str) -> str:
    try:
        return payload.decode(said or encoding)
    except (LookupError, UnicodeDecodeError):
        return payload.decode("utf-8", "replace")


def _own_lines(text: str) -> str:
    """What the sender wrote: no lines of the mail that is answered, no signature."""
    own = []
    for line in text.splitlines():
        if line.rstrip("\r\n") in ("-- ", "--"):
            break
        if not line.lstrip().startswith(">"):
            own.append(line)
    return "\n".join(own)
