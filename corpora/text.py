"""Any text: a file, a folder, an archive, a dataset of the hub, a mailbox of posts.

- `.txt`: one document a line.
- `.csv`, `.tsv`, `.json`, `.jsonl`, `.parquet`, and datasets (`corpus.hub`): one document a row,
  in the field `fields.text` (`text` unless said otherwise; dotted, such as `post.content`, where
  JSON is nested), or in `fields.html` where it is HTML. `author`, `date`, `id`, `host` and
  `language` are mapped the same way; they never enter a text, and let it be taken out again.
- `.mbox` and the `outbox.json` of a Mastodon archive: posts that a person hands over.

Folders that `mitigate corpus` made are read, with their split, whatever the reader.
"""

from collections.abc import Iterator
from typing import Any

from corpora import CorpusSettings, hub, mailbox, records
from corpora.documents import Document, iso_date, lookup
from corpora.errors import RequestError

#: What we want of a row, and where it is unless `corpus.fields` says otherwise.
FIELDS: dict[str, str | None] = {
    "text": "text",
    "html": None,
    "author": None,
    "date": None,
    "id": None,
    "host": None,
    "language": None,
}
TABLES = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")
MAILBOX = ".mbox"


def read(settings: CorpusSettings) -> Iterator[Document]:
    """Give every line, row or post.

    Raises:
        RequestError: nothing at the path, no such file in the folder, a missing field, an
            encoding that doesn't fit, a line that is not JSON.
    """
    fields = _fields(settings)
    if settings.hub:
        yield from _rows(hub.rows(settings), settings.hub, fields)
        return
    for file in records.files(settings, [*TABLES, MAILBOX]):
        if file.suffix == MAILBOX:
            if file.name != file.path.name:
                raise RequestError(f"{file.name}: unpack the mailbox; corpus.path=FILE.mbox")
            yield from mailbox.mails(file, settings)
        elif mailbox.is_outbox(file):
            yield from mailbox.outbox(file, settings)
        else:
            own = {**FIELDS, "text": "text"} if file.suffix == ".txt" else fields
            found = records.rows(file, settings, [path for path in own.values() if path])
            yield from _rows(found, file.name, own)


def _fields(settings: CorpusSettings) -> dict[str, str | None]:
    unknown = sorted(set(settings.fields) - set(FIELDS))
    if unknown:
        raise RequestError(f"corpus.fields.{unknown[0]}: text has {', '.join(FIELDS)}")
    fields = {**FIELDS, **settings.fields}
    if fields["html"]:
        fields["text"] = None
    elif not fields["text"]:
        raise RequestError("corpus.fields.text: which field is the text? or corpus.fields.html")
    return fields


def _rows(
    found: Iterator[tuple[str, Any]], name: str, fields: dict[str, str | None]
) -> Iterator[Document]:
    rows = records.Ahead(found)
    records.check(rows.look(), fields, FIELDS, name)
    for key, record in rows:
        if not isinstance(record, dict):
            if record not in records.UNREADABLE:
                raise RequestError(f"{name}: not a JSON object a document")
            yield Document("", origin=name, dropped=str(record))
            continue
        values = {ours: _value(record, theirs) for ours, theirs in fields.items()}
        yield Document(
            _text(values["html"] if fields["html"] else values["text"]),
            origin=name,
            key=_text(values["id"]) if fields["id"] else key,
            author=_text(values["author"]),
            host=_text(values["host"]),
            date=iso_date(values["date"]),
            language=_text(values["language"]),
            html=bool(fields["html"]),
        )


def _value(record: dict[str, Any], path: str | None) -> Any:
    return lookup(record, path) if path else None


def _text(value: Any) -> str:
    """A string, a list of paragraphs, or nothing."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    return str(value)
