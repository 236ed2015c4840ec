"""What every reader gives, and how records of other people's shapes are looked into."""

import datetime
import difflib
import email.utils
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from corpora.errors import RequestError


@dataclass(frozen=True)
class Document:
    """One document of a source: an article, a post, a line."""

    text: str
    origin: str = ""  # the name of the file, or the host, that it comes from
    split: str = ""  # train or valid, where the source has its own split
    dropped: str = ""  # why it isn't used, counted in the facts; then `text` is empty
    # What follows is for splitting, choosing and deleting; none of it is written beside a text.
    key: str = ""  # the source's own id of the document: an article's, a post's
    author: str = ""  # the source's own name of who wrote it: a handle, a byline
    host: str = ""  # the instance it was posted on
    date: str = ""  # ISO 8601, as far as known: 2021, 2021-03, 2021-03-08T12:00:00Z
    language: str = ""  # the source's hint; our own label is another thing
    html: bool = False  # whether `text` is HTML


def lookup(record: Any, path: str) -> Any:
    """The value at a dotted path such as `text.body`; None where there is none.

    A table's column may itself be called `text.body`.
    """
    if isinstance(record, dict) and path in record:
        return record[path]
    for key in path.split("."):
        if not isinstance(record, dict) or key not in record:
            return None
        record = record[key]
    return record


def paths(record: dict[str, Any], prefix: str = "") -> list[str]:
    """Every dotted path in a record, those of its groups too."""
    found = []
    for key, value in record.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, dict):
            found += paths(value, f"{prefix}{key}.")
    return found


def no_field(ours: str, theirs: str, where: str, there: Iterable[str]) -> RequestError:
    """The error for a field mapping that doesn't fit: what there is, and what is nearest."""
    names = sorted(there)
    close = difflib.get_close_matches(theirs, names, n=1, cutoff=0.5)
    nearest = close[0] if close else "NAME"
    return RequestError(
        f"corpus.fields.{ours}={theirs}: no such field in {where}; there are: "
        f"{', '.join(names)}; say corpus.fields.{ours}={nearest}"
    )


_ISO = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?\S*))?)?)?")
_COMPACT = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)(?!\d)")
_GERMAN = re.compile(r"(\d{1,2})\.\s?(\d{1,2})\.\s?(\d{4})(?!\d)")
_ANY_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")


def iso_date(value: object) -> str:
    """A date in whatever form as ISO 8601, as far as it can be told; '' where it can't.

    2021-03-08T12:00:00Z, 2021-03, 20210308, 08.03.2021, Mon, 08 Mar 2021 12:00:00 +0100, a year
    somewhere in a text, or what Python and Arrow have for it.
    """
    if isinstance(value, datetime.date):  # a datetime is one too
        return value.isoformat()
    said = str(value).strip() if value is not None else ""
    if match := _COMPACT.match(said):
        return "-".join(match.groups())
    if match := _ISO.match(said):
        return said.replace(" ", "T", 1) if match[4] else "-".join(filter(None, match.groups()))
    if match := _GERMAN.match(said):
        return f"{match[3]}-{int(match[2]):02}-{int(match[1]):02}"
    try:
        return email.utils.parsedate_to_datetime(said).isoformat()
    except (TypeError, ValueError):
        match = _ANY_YEAR.search(said)
        return match[0] if match else ""
