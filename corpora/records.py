"""Files of records, whoever made them: JSON, JSON lines, CSV, Parquet, packed or not.

Every kind is read as a stream: a record and a chunk are in memory, not a file. What can't be
read stops the build with its file and place, or is counted and passed with `on_error=skip`.
"""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import tarfile
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from corpora import CorpusSettings, missing
from corpora.documents import no_field, paths
from corpora.errors import RequestError
from corpora.json_stream import CHUNK, BrokenError, members

#: A record, or why there is none: the file's rest or one line can't be read.
Record = dict[str, Any]
UNREADABLE_FILE = "unreadable: the rest of a file"
UNREADABLE_LINE = "unreadable: a line"
UNREADABLE = (UNREADABLE_FILE, UNREADABLE_LINE)

#: So many records of a file show which fields there are; any one may lack some.
LOOKED_AT = 200
#: The first line decides: whichever makes columns of the fields' names out of it.
SEPARATORS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BATCH = 1024  # rows of a Parquet file at a time


@dataclass(frozen=True)
class File:
    """A file of a corpus, in a folder or in an archive."""

    name: str  # shown, and kept as the document's origin
    suffix: str  # .json, .csv, … without .gz
    open: Callable[[], Any]  # a context manager that gives a binary stream
    path: Path  # on disk; of a member, its archive's


def files(settings: CorpusSettings, suffixes: Iterable[str]) -> Iterator[File]:
    """Every file with such a suffix at `settings.path`, by name, those in archives too.

    Raises:
        RequestError: no path, nothing there, or nothing of that kind.
    """
    suffixes = tuple(suffixes)
    if not settings.path:
        raise missing(settings, "no data given")
    path = Path(settings.path).expanduser()
    if not path.exists():
        raise missing(settings, f"nothing at {path}")
    can = f"corpus.reader={settings.reader} takes {', '.join(suffixes)}, those in .zip, .tar, .gz"
    found = False
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if not file.is_file() or _is_hidden(file.relative_to(path)):
            continue
        for some in _in_archive(file) if _is_archive(file) else [_on_disk(file)]:
            if some.suffix in suffixes:
                found = True
                yield some
    if not found and path.is_file() and not _is_archive(path):
        raise RequestError(f"{path}: can't read {path.suffix or 'this'}; {can}")
    if not found:
        raise RequestError(f"{path}: no text in this folder; {can}")


def rows(file: File, settings: CorpusSettings, wanted: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The records of a file: (its id or position, the record or one of UNREADABLE).

    `wanted`: the fields that are needed; they tell a CSV's separator and a Parquet's columns.

    Raises:
        RequestError: a record that can't be read (`on_error=stop`), a wrong encoding.
    """
    wanted = [path for path in wanted if path]
    read = {
        ".json": lambda stream: members(stream, file.name, settings.encoding),
        ".jsonl": lambda stream: _json_lines(stream, file.name, settings),
        ".ndjson": lambda stream: _json_lines(stream, file.name, settings),
        ".csv": lambda stream: _separated(stream, file, settings.encoding, wanted),
        ".tsv": lambda stream: _separated(stream, file, settings.encoding, wanted),
        ".parquet": lambda stream: _parquet(stream, file.name, wanted),
        ".txt": lambda stream: _plain(stream, file.name, settings.encoding),
    }[file.suffix]
    yield from unbroken(file, settings, read)


def unbroken(
    file: File, settings: CorpusSettings, read: Callable[[IO[bytes]], Iterator[tuple[str, Any]]]
) -> Iterator[tuple[str, Any]]:
    """What `read` gives of a file, up to where it breaks: then stop, or say so and go on."""
    try:
        with file.open() as stream:
            yield from read(stream)
    except (BrokenError, OSError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
        said = str(error) if isinstance(error, BrokenError) else f"{file.name}: {error}"
        if settings.on_error != "skip":
            raise RequestError(f"{said}; corpus.on_error=skip goes on with other files") from error
        warnings.warn(f"{said}; the rest of it is left out", stacklevel=2)
        yield "", UNREADABLE_FILE


class Ahead(Iterator[tuple[str, Any]]):
    """Records in their order, of which the next ones can be looked at before they come."""

    def __init__(self, found: Iterator[tuple[str, Any]]) -> None:
        self._found = found
        self._seen: deque[tuple[str, Any]] = deque()

    def __next__(self) -> tuple[str, Any]:
        return self._seen.popleft() if self._seen else next(self._found)

    def look(self) -> list[Record]:
        """The next LOOKED_AT records, those that can be read."""
        self._seen.extend(islice(self._found, LOOKED_AT - len(self._seen)))
        return [record for _, record in self._seen if isinstance(record, dict)]


def check(
    some: list[Record], fields: dict[str, str | None], needed: Iterable[str], name: str
) -> None:
    """Raise where none of some records has one of our fields; a null mapping needs nothing.

    Raises:
        RequestError: with the fields that there are.
    """
    there = {path for record in some for path in paths(record)}
    for ours in needed:
        theirs = fields[ours]
        if some and theirs is not None and theirs not in there:
            raise no_field(ours, theirs, name, there)


def lines(stream: IO[bytes], name: str, encoding: str) -> Iterator[str]:
    """The lines of a text file, each with its line break; a byte-order mark is taken off.

    Raises:
        BrokenError: a byte that isn't of this encoding, with its place.
        RequestError: no such encoding.
    """
    try:
        inner = codecs.getincrementaldecoder(encoding)()
    except LookupError as error:
        raise RequestError(f"corpus.encoding={encoding}: no such codec") from error
    decoder = io.IncrementalNewlineDecoder(inner, translate=True)
    fed, text, first, ended = 0, "", True, False
    while not ended:
        data = stream.read(CHUNK)
        ended = not data
        pending = len(inner.getstate()[0])
        try:
            text += decoder.decode(data, final=ended)
        except UnicodeDecodeError as error:
            raise BrokenError(
                f"{name}: not {encoding} (byte {fed - pending + error.start:,}); say "
                "corpus.encoding=, such as cp1252 or mac_roman"
            ) from error
        fed += len(data)
        if first:
            text, first = text.removeprefix("\ufeff"), False
        *whole, text = text.split("\n")
        for line in whole:
            yield f"{line}\n"
    if text:
        yield text


def _plain(stream: IO[bytes], name: str, encoding: str) -> Iterator[tuple[str, Record]]:
    for line in lines(stream, name, encoding):
        if line.strip():
            yield "", {"text": line}


def _json_lines(
    stream: IO[bytes], name: str, settings: CorpusSettings
) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines(stream, name, settings.encoding), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise BrokenError("not a JSON object")
        except (ValueError, RecursionError, BrokenError) as error:
            said = str(error) if isinstance(error, BrokenError) else f"not JSON ({error})"
            said = f"{name}, line {number}: {said}"
            if settings.on_error != "skip":
                raise RequestError(f"{said}; corpus.on_error=skip leaves it out") from error
            warnings.warn(f"{said}; it is left out", stacklevel=2)
            yield "", UNREADABLE_LINE
        else:
            yield "", record


def _separated(
    stream: IO[bytes], file: File, encoding: str, wanted: list[str]
) -> Iterator[tuple[str, Record]]:
    rest = lines(stream, file.name, encoding)
    header = next(rest, "")
    if not header.strip():
        return

    def fits(separator: str) -> tuple[int, int]:
        columns = next(csv.reader([header], delimiter=separator), [])
        return len(set(wanted) & set(columns)), len(columns)

    separator = max(SEPARATORS[file.suffix], key=fits)
    # A field of the csv module's default length is shorter than a newspaper article.
    csv.field_size_limit(2**31 - 1)
    table = csv.reader(chain([header], rest), delimiter=separator)
    columns = next(table)
    try:
        for row in table:
            if row:
                yield "", dict(zip(columns, row + [""] * (len(columns) - len(row)), strict=False))
    except csv.Error as error:
        raise BrokenError(f"{file.name}, line {table.line_num}: not CSV ({error})") from error


def _parquet(stream: IO[bytes], name: str, wanted: list[str]) -> Iterator[tuple[str, Record]]:
    try:
        table = pq.ParquetFile(stream)
        there = table.schema_arrow.names
        # Where one isn't there, `checked` has to see what is.
        tops = [path if path in there else path.partition(".")[0] for path in wanted]
        columns = list(dict.fromkeys(tops)) if set(tops) <= set(there) else None
        for batch in table.iter_batches(BATCH, columns=columns):
            for record in batch.to_pylist():
                yield "", record
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BrokenError(f"{name}: not a Parquet file, or not all of it") from error


def _is_hidden(path: Path) -> bool:
    return "__MACOSX" in path.parts or any(part.startswith(".") for part in path.parts)


def _is_archive(path: Path) -> bool:
    name = path.name.lower()
    return name.endswith((".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2"))


def _suffix(name: str) -> tuple[str, str]:
    """(the suffix of what is in it, how it is packed)."""
    path = Path(name.lower())
    if path.suffix in PACKED:
        return Path(path.stem).suffix, path.suffix
    return path.suffix, ""


def _on_disk(path: Path) -> File:
    suffix, packed = _suffix(path.name)

    def unpacked() -> IO[bytes]:
        return PACKED[packed](path, "rb") if packed else path.open("rb")

    return File(path.name, suffix, unpacked, path)


def _in_archive(path: Path) -> Iterator[File]:
    """The files in a .zip or .tar, opened one after the other; none is unpacked to disk."""
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive:
                names = [info.filename for info in archive.infolist() if not info.is_dir()]
        else:
            with tarfile.open(path) as packed:
                names = [member.name for member in packed if member.isfile()]
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError) as error:
        raise RequestError(f"{path}: not a whole archive ({error}); download it again") from error
    for name in sorted(names):
        if not _is_hidden(Path(name)):
            yield _member(path, name)


def _member(path: Path, name: str) -> File:
    suffix, packed = _suffix(name)

    @contextmanager
    def unpacked() -> Iterator[IO[bytes]]:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(name) as inner:
                yield _unpacked(inner, packed)
        else:
            with tarfile.open(path) as tar:
                extracted = tar.extractfile(name)
                if extracted is None:
                    raise BrokenError(f"{path.name}/{name}: a link, not a file")
                yield _unpacked(extracted, packed)

    return File(f"{path.name}/{name}", suffix, unpacked, path)


def _unpacked(stream: IO[bytes], packed: str) -> IO[bytes]:
    return PACKED[packed](stream, "rb") if packed else stream
