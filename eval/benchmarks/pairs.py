"""Any file of sentence pairs: CSV, TSV, JSONL or Parquet, its columns named in the recipe.

The other readers read their files through this one, so that encodings, separators, missing
columns and several groups in a cell are dealt with in one place.
"""

import codecs
import csv
import difflib
import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import charset_normalizer
import pandas as pd
import pyarrow as pa

from eval.benchmarks import BenchmarkSettings, Columns
from eval.benchmarks.sources import download, from_hub, kept_at, offline
from eval.errors import RequestError
from eval.pairs import COLUMNS, GROUP_SEPARATOR, REQUIRED, Pairs, build
from eval.scores import SCORE_COLUMNS

#: Which ending means which format.
FORMATS = {
    ".csv": "csv",
    ".txt": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
#: A column of settings, and the column of the Pair table that it fills.
FILLS = {
    "sent_more": "sent_more",
    "sent_less": "sent_less",
    "group": "group",
    "stereotype": "stereotype_id",
    "template": "template",
    "counterfactual": "counterfactual",
}
#: Encodings that European spreadsheets write; shown, never chosen, where UTF-8 doesn't fit.
USUAL = ("cp1252", "mac_roman")

_SEVERAL = re.compile(r"\s*[,;]\s*")


def read(settings: BenchmarkSettings) -> Pairs:
    """Read a file of pairs as `settings` describes it.

    Raises:
        RequestError: the file is missing, empty, unreadable, or lacks a column.
    """
    frame, facts = read_file(settings, columns(settings).values())
    return finish(settings, fill(settings, frame, columns(settings)), facts)


def read_file(
    settings: BenchmarkSettings, expected: Iterable[str] = ()
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read the file at `settings.path`, else the hub's dataset, else what is at `settings.url`.

    Raises:
        RequestError: there is none, it can't be had, or it can't be read as told.
    """
    if not settings.path and settings.hub:
        frame, facts = from_hub(settings.hub, settings.split, settings.revision, give())
        frame.columns = [str(column).strip() for column in frame.columns]
        return frame, facts
    path, came = file_of(settings, settings.path, settings.url, settings.sha256)
    frame, facts = read_table(
        path,
        format=settings.format,
        encoding=settings.encoding,
        separator=settings.separator,
        expected=expected,
    )
    return frame, {**facts, **came}


def file_of(
    settings: BenchmarkSettings,
    path: str | Path | None,
    url: str | None,
    sha256: str | None,
    key: str = "path",
) -> tuple[Path, dict[str, Any]]:
    """A file of a benchmark: the one given, else the one at `url`; and facts on a download.

    Raises:
        RequestError: neither is given, there is no file `path`, or it can't be downloaded.
    """
    if path:
        path = Path(path).expanduser()
        if not path.exists():
            raise missing(settings, f"no file {path}", key)
        return path, {}
    if not url:
        raise missing(settings, "no file given", key)
    if offline() and not kept_at(url).is_file():
        raise missing(settings, f"no file given, and HF_HUB_OFFLINE keeps {url} from coming", key)
    return download(url, sha256, give(key))


def finish(settings: BenchmarkSettings, rows: pd.DataFrame, facts: dict[str, Any]) -> Pairs:
    """Build the Pair table of the rows that a reader has filled in."""
    named = {key: getattr(settings, key) for key in ("paper", "licence", "source")}
    return build(
        rows,
        name=settings.name or settings.reader,
        language=settings.language,
        source={**named, **facts},
    )


def give(key: str = "path") -> str:
    """How a user gives a file by hand, for the end of an error."""
    return f"give it as benchmark.{key}=FILE (of several benchmarks, benchmark.NAME.{key}=FILE)"


def missing(settings: BenchmarkSettings, problem: str, key: str = "path") -> RequestError:
    """The error for a benchmark without its file: the problem, its source, what to type."""
    source = f"; {settings.source.rstrip('. ')}" if settings.source else ""
    sample = settings.language if settings.language in ("de", "nl") else "de"
    by_hand = give(key)
    return RequestError(
        f"benchmark {settings.name or settings.reader}: {problem}{source}. "
        f"{by_hand[0].upper()}{by_hand[1:]}; benchmark=samples_{sample} tries the recipe offline"
    )


def columns(settings: BenchmarkSettings, published: Columns | None = None) -> dict[str, str]:
    """Which column of the file means what: as the user says, else as `published`."""
    defaults, said = asdict(Columns()), asdict(settings.columns)
    known = asdict(published or Columns())
    return {ours: known[ours] if said[ours] == defaults[ours] else said[ours] for ours in said}


def fill(settings: BenchmarkSettings, frame: pd.DataFrame, named: dict[str, str]) -> pd.DataFrame:
    """Turn a file's columns into those of the Pair table; what else it has comes after them.

    `named` is what `columns` gives. A column may be absent if nobody asked for it: the
    optional ones whose name is our own default. Groups get their canonical names, and
    `group_label` keeps them as published. A column of the file whose name means something
    else in the Pair or the Score table is kept as `<name>_in_file`.

    Raises:
        RequestError: a column is missing.
    """
    defaults = asdict(Columns())
    taken = {*COLUMNS, *SCORE_COLUMNS}
    rows = pd.DataFrame(index=frame.index)
    for ours, theirs in named.items():
        if theirs in frame.columns:
            rows[FILLS[ours]] = frame[theirs]
        elif ours in REQUIRED or theirs != defaults[ours]:
            raise _no_column(settings, ours, theirs, frame.columns)
    if "group" in rows:
        labels = rows["group"].map(_label)
        rows["group_label"] = frame.get("group_label", labels)
        rows["group"] = canonical(labels, settings.labels)
    for column in frame.columns:
        if column not in named.values() and column != "group_label":
            rows[f"{column}_in_file" if column in taken else column] = frame[column]
    return rows


def canonical(labels: pd.Series, mapping: dict[str, Any]) -> pd.Series:
    """Map published labels to canonical names, whatever their case.

    Where there is a mapping and a whole label isn't in it, commas and semicolons separate
    several groups. A label that the mapping lacks stays as it is.
    """
    if not mapping:
        return labels
    names = {str(label).casefold(): str(name) for label, name in mapping.items()}

    def one(label: str) -> str:
        if label.casefold() in names:
            return names[label.casefold()]
        parts = [part for part in _SEVERAL.split(label) if part]
        mapped = (names.get(part.casefold(), part) for part in parts)
        return GROUP_SEPARATOR.join(dict.fromkeys(mapped))

    return labels.map({label: one(label) for label in labels.unique()})


def read_table(
    path: Path,
    *,
    format: str = "auto",
    encoding: str = "auto",
    separator: str = "auto",
    expected: Iterable[str] = (),
    keys: str = "benchmark",
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read a table of text: the rows, every value of a CSV a string, and facts on the file.

    `expected`: names that help to find the separator; they need not be there. `keys`: the
    group of settings that an error names (`benchmark.encoding=…`). Facts: `file` (its name
    without folders), `sha256`, `encoding`, `separator`, `rows_read`.

    Raises:
        RequestError: no such file, an empty one, or one that can't be read as told.
    """
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "no such file"
        raise RequestError(f"{keys}.path={path}: {what}")
    form = _format(path, format, keys)
    try:
        data = path.read_bytes()
    except PermissionError as error:
        raise RequestError(f"{keys}.path={path}: may not be read by you") from error
    facts: dict[str, Any] = {"file": path.name, "sha256": hashlib.sha256(data).hexdigest()}
    if form == "parquet":
        frame = _parquet(path, data)
    else:
        text, facts["encoding"] = _decode(path, data, encoding, keys)
        if not text.strip():
            raise RequestError(f"{path}: is empty")
        if form == "jsonl":
            frame = _json_lines(path, text)
        else:
            found = _separator(text, form, separator, expected, keys)
            facts["separator"] = SEPARATORS.get(found, found)
            frame = _separated(path, text, found, keys)
    frame.columns = [str(column).strip() for column in frame.columns]
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise RequestError(f"{path}: two columns are called {twice}")
    return frame, {**facts, "rows_read": len(frame)}


def _format(path: Path, said: str, keys: str) -> str:
    known = sorted(set(FORMATS.values()))
    if said != "auto":
        if said not in known:
            raise RequestError(f"{keys}.format={said}: auto, {', '.join(known)}")
        return said
    if path.suffix.lower() not in FORMATS:
        raise RequestError(
            f"{path}: its ending says no format; say {keys}.format={'|'.join(known)}"
        )
    return FORMATS[path.suffix.lower()]


def _decode(path: Path, data: bytes, said: str, keys: str) -> tuple[str, str]:
    """The text, and the name of the encoding it was read with."""
    try:
        codec = codecs.lookup("utf-8" if said == "auto" else said).name
        # With a byte-order mark or without: spreadsheets write one.
        text = data.decode("utf-8-sig" if codec == "utf-8" else codec)
    except UnicodeDecodeError as error:
        if said == "auto":
            raise _not_utf8(path, data, error, keys) from error
        raise RequestError(
            f"{path}: not {said}, which {keys}.encoding says (byte {error.start:,})"
        ) from error
    except LookupError as error:
        raise RequestError(f"{keys}.encoding={said}: no such encoding of text") from error
    if "\0" in text:
        raise RequestError(f"{path}: not text in {codec} (zero bytes); say {keys}.encoding=utf-16")
    return text, codec


def _not_utf8(path: Path, data: bytes, error: UnicodeDecodeError, keys: str) -> RequestError:
    """Say how the word that UTF-8 can't read looks in other encodings; the user chooses.

    The detector alone won't do: it takes the Dutch CrowS-Pairs, in Mac OS Roman, for cp1250.
    """
    guess = charset_normalizer.from_bytes(data[max(0, error.start - 2_000) :][:200_000]).best()
    suggested = guess.encoding if guess else None
    before = re.split(rb"[\s,;]", data[max(0, error.start - 20) : error.start])[-1]
    after = re.split(rb"[\s,;]", data[error.start : error.start + 20])[0]
    looks = []
    for codec in dict.fromkeys([*([suggested] if suggested else []), *USUAL]):
        word = (before + after).decode(codec, errors="replace")
        looks.append(f"{word!r} in {codec}")
    detector = f"charset-normalizer suggests {suggested or 'none'}"
    return RequestError(
        f"{path}: unknown encoding; tried utf-8, which fails at byte {error.start:,}; {detector}, "
        f"which may be wrong: the word there is {', '.join(looks)}; "
        f"say which one reads it rightly, {keys}.encoding=NAME"
    )


def _separator(text: str, form: str, said: str, expected: Iterable[str], keys: str) -> str:
    named = {name: sign for sign, name in SEPARATORS.items()} | {"\\t": "\t"}
    if said != "auto":
        sign = named.get(said, said)
        if len(sign) != 1:
            raise RequestError(f"{keys}.separator={said}: one sign, or {', '.join(named)}")
        return sign
    if form == "tsv":
        return "\t"
    wanted = set(expected)

    def fits(sign: str) -> tuple[int, int]:
        header = _header(text, sign)
        return len(wanted.intersection(header)), len(header)

    return max(SEPARATORS, key=fits)


def _header(text: str, separator: str) -> list[str]:
    """The names in the first line that isn't blank, wherever lines end (old Macs: \\r)."""
    return next(csv.reader(io.StringIO(text.lstrip("\r\n"), newline=None), delimiter=separator), [])


def _separated(path: Path, text: str, separator: str, keys: str) -> pd.DataFrame:
    try:
        frame = pd.read_csv(io.StringIO(text), sep=separator, dtype=str, keep_default_na=False)
    except pd.errors.ParserError as error:
        reason = str(error).rpartition("error: ")[2].strip() or str(error)
        raise RequestError(
            f"{path}: rows don't fit its header ({reason}); read with {keys}.separator="
            f"{SEPARATORS.get(separator, separator)}"
        ) from error
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes what is too much for an index
        raise RequestError(
            f"{path}: rows have more fields than the header has names; read with "
            f"{keys}.separator={SEPARATORS.get(separator, separator)}"
        )
    frame = frame.rename(columns={"Unnamed: 0": "row_in_file"})  # an index, as pandas writes it
    # pandas would call the second of them NAME.1, and who knows which one was meant.
    header = [name for name in _header(text, separator) if name.strip()]
    twice = {name for name in header if header.count(name) > 1}
    if twice:
        raise RequestError(f"{path}: two columns are called {', '.join(sorted(twice))}")
    return frame


def _json_lines(path: Path, text: str) -> pd.DataFrame:
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise RequestError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise RequestError(f"{path}, line {number}: not a JSON object")
        records.append(record)
    return pd.DataFrame(records)


def _parquet(path: Path, data: bytes) -> pd.DataFrame:
    if not data:
        raise RequestError(f"{path}: is empty")
    try:
        return pd.read_parquet(io.BytesIO(data)).reset_index(drop=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise RequestError(f"{path}: not a Parquet file, or not all of it") from error


def _label(value: Any) -> str:
    """A cell of groups as text; JSON and Parquet may hold a list of them, or nothing."""
    if isinstance(value, str):
        return value.strip()
    if hasattr(value, "__iter__"):
        return ", ".join(_label(item) for item in value)
    return "" if pd.isna(value) else str(value)


def _no_column(
    settings: BenchmarkSettings, ours: str, theirs: str, there: Sequence[str] | pd.Index
) -> RequestError:
    names = [str(name) for name in there]
    close = difflib.get_close_matches(theirs, names, n=1, cutoff=0.5)
    return RequestError(
        f"benchmark {settings.name or settings.reader}: no column {theirs} in "
        f"{Path(settings.path or '').name}; there are: {', '.join(names)}; "
        f"say benchmark.columns.{ours}={close[0] if close else 'NAME'}"
    )
