"""Any text: a file, or a folder of files.

- `.txt`: one document a line.
- `.csv`, `.tsv`, `.jsonl`, `.parquet`: one document a row, in the field `fields.text` (`text`
  unless said otherwise; dotted, such as `post.content`, where JSON is nested).

Folders that `mitigate corpus` made are read, with their split, whatever the reader.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corpora import CorpusSettings, missing
from corpora.documents import Document, lookup, no_field, paths
from corpora.errors import RequestError

SUFFIXES = (".txt", ".csv", ".tsv", ".jsonl", ".parquet")
#: The first line decides: whichever makes a column of the field's name out of it.
SEPARATORS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}


def read(settings: CorpusSettings) -> Iterator[Document]:
    """Give every line or row of the file or folder at `settings.path`.

    Raises:
        RequestError: nothing at the path, no such file in the folder, a missing field, an
            encoding that doesn't fit, a line that is not JSON.
    """
    field = str(settings.fields.get("text") or "text")
    for file in _files(settings):
        read_rows = {".txt": _lines, ".jsonl": _json_lines, ".parquet": _parquet}
        reader = read_rows.get(file.suffix.lower(), _separated)
        try:
            for text in reader(file, field, settings.encoding):
                yield Document(text, origin=file.name)
        except UnicodeDecodeError as error:
            raise RequestError(
                f"{file}: not {settings.encoding} (byte {error.start}); say corpus.encoding=, "
                "such as cp1252 or mac_roman"
            ) from error
        except LookupError as error:
            raise RequestError(f"corpus.encoding={settings.encoding}: no such codec") from error


def _files(settings: CorpusSettings) -> list[Path]:
    if not settings.path:
        raise missing(settings, "no data given")
    path = Path(settings.path).expanduser()
    if not path.exists():
        raise missing(settings, f"nothing at {path}")
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise RequestError(f"{path}: can't read {path.suffix or 'this'}; {_can_read()}")
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise RequestError(f"{path}: no text in this folder; {_can_read()}")
    return files


def _can_read() -> str:
    return f"corpus.reader=text takes {', '.join(SUFFIXES)}"


def _lines(file: Path, _field: str, encoding: str) -> Iterator[str]:
    with file.open(encoding=_codec(encoding)) as lines:
        yield from lines


def _json_lines(file: Path, field: str, _encoding: str) -> Iterator[str]:
    with file.open(encoding="utf-8-sig") as lines:  # JSON is UTF-8 by definition (RFC 8259)
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise RequestError(f"{file}, line {number}: not JSON ({error})") from error
            if not isinstance(record, dict):
                raise RequestError(f"{file}, line {number}: not a JSON object")
            value = lookup(record, field)
            if value is None and field not in paths(record):
                raise no_field("text", field, f"{file}, line {number}", paths(record))
            yield _text(value)


def _separated(file: Path, field: str, encoding: str) -> Iterator[str]:
    with file.open(encoding=_codec(encoding), newline="") as lines:
        header = lines.readline()
        if not header.strip():
            return
        columns, used = [""], ","
        for separator in SEPARATORS[file.suffix.lower()]:
            found = next(csv.reader([header], delimiter=separator), [])
            if field in found or len(found) > len(columns):
                columns, used = found, separator
            if field in found:
                break
        if field not in columns:
            raise no_field("text", field, str(file), columns)
        # A field of the csv module's default length is shorter than a newspaper article.
        csv.field_size_limit(2**31 - 1)
        at = columns.index(field)
        for row in csv.reader(lines, delimiter=used):
            if row:
                yield row[at] if at < len(row) else ""


def _parquet(file: Path, field: str, _encoding: str) -> Iterator[str]:
    try:
        table = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise RequestError(f"{file}: not a Parquet file") from error
    if field not in table.schema_arrow.names:
        raise no_field("text", field, str(file), table.schema_arrow.names)
    for batch in table.iter_batches(columns=[field]):
        yield from map(_text, batch.column(0).to_pylist())


def _codec(encoding: str) -> str:
    # With a byte-order mark or without: Windows writes one.
    return "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding


def _text(value: Any) -> str:
    """A string, a list of paragraphs, or nothing."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    return str(value)
