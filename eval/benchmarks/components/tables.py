"""The small tables of a benchmark from components: read, and checked each by itself."""

import difflib
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.benchmarks.pairs import read_table
from eval.errors import RequestError

#: The tables, and the columns that each must have.
NEEDED = {
    "templates": ("template", "text", "identity", "predicate"),
    "identities": ("group", "label"),
    "counterfactuals": ("counterfactual", "contrast"),
    "predicates": ("stereotype", "groups"),
    "names": ("name", "gender"),
    "rules": ("group", "contrasts", "genders"),
}
#: Tables that may be absent: names where no template takes one, rules for WinoQueer's.
OPTIONAL = ("names", "rules")
#: Columns in which every cell is filled, and no value stands twice.
KEYS = {
    "templates": ("template",),
    "identities": ("group", "label"),
    "counterfactuals": ("counterfactual",),
    "predicates": ("stereotype",),
    "names": ("name",),
    "rules": ("group",),
}
#: WinoQueer's pairing rules (2609.02651, §3, Dataset Translation).
WINOQUEER = Path(__file__).with_name("winoqueer_rules.csv")

#: A row of a table: column → cell, every cell a string without superfluous blanks.
Row = dict[str, str]

_LIST = re.compile(r"\s*[;,]\s*")


@dataclass(frozen=True)
class Table:
    """One of the tables."""

    path: Path
    columns: tuple[str, ...]
    rows: dict[int, Row]  # by the row's number: from 1, the header and blank lines not counted

    def error(self, number: int, problem: str) -> RequestError:
        """The error of one row, called by its number and its name."""
        name = next(iter(self.rows[number].values())) or "no name"
        return RequestError(f"{self.path}, row {number} ({name}): {problem}")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows.values())

    def cells(self, column: str) -> list[str]:
        """A column, row by row; empty strings if the table has none of that name."""
        return [row.get(column, "") for row in self]


@dataclass(frozen=True)
class Components:
    """All the tables of a folder."""

    templates: Table
    identities: Table
    counterfactuals: Table
    predicates: Table
    names: Table | None
    rules: Table

    @property
    def tables(self) -> list[Table]:
        """Those that there are."""
        every = (self.templates, self.identities, self.counterfactuals, self.predicates)
        return [*every, *([self.names] if self.names else []), self.rules]


def read_components(folder: Path, *, encoding: str, separator: str) -> Components:
    """Read a folder's tables; without rules of its own, WinoQueer's.

    Raises:
        RequestError: a table is missing, unreadable or empty, lacks a column or a name, or has
            a name twice.
    """
    tables: dict[str, Table] = {}
    for name in NEEDED:
        path = folder / f"{name}.csv"
        if path.is_file():
            tables[name] = read_rows(path, name, encoding=encoding, separator=separator)
        elif name not in OPTIONAL:
            raise _no_table(folder, name)
    rules = tables.pop("rules", None) or read_rows(WINOQUEER, "rules")
    return Components(names=tables.pop("names", None), rules=rules, **tables)


def read_rows(path: Path, name: str, *, encoding: str = "auto", separator: str = "auto") -> Table:
    """Read one table; `name` says which of NEEDED it is. Raises as `read_components`."""
    return read_keyed(path, NEEDED[name], KEYS[name], encoding=encoding, separator=separator)


def read_keyed(
    path: Path,
    needed: Sequence[str],
    keys: Sequence[str],
    *,
    encoding: str = "auto",
    separator: str = "auto",
) -> Table:
    """Read one table with the columns `needed`; in `keys` every cell is filled, no value twice.

    Raises:
        RequestError: it is missing, unreadable or empty, lacks a column or a name, or has a
            name twice.
    """
    frame, _ = read_table(path, encoding=encoding, separator=separator, expected=needed)
    columns = [str(column) for column in frame.columns]
    for column in needed:
        if column not in columns:
            raise RequestError(f"{path}: no column {column}; {nearest(column, columns)}")
    # The name first, as errors say it.
    columns.sort(key=lambda column: column != needed[0])
    rows = {
        number: {column: " ".join(str(row[column]).split()) for column in columns}
        for number, row in enumerate(frame.fillna("").to_dict("records"), 1)
    }
    table = Table(path, tuple(columns), {at: row for at, row in rows.items() if any(row.values())})
    if not table.rows:
        raise RequestError(f"{path}: has a header and no row")
    for key in keys:
        seen: dict[str, int] = {}
        for number, row in table.rows.items():
            if not row[key]:
                raise table.error(number, f"no {key}")
            first = seen.setdefault(row[key].casefold(), number)
            if first != number:
                raise table.error(number, f"the same {key} as row {first}; leave one out")
    return table


def hashes(tables: Iterable[Table]) -> dict[str, Any]:
    """The SHA-256 of each table's file, and one of all."""
    files = {
        table.path.name: hashlib.sha256(table.path.read_bytes()).hexdigest() for table in tables
    }
    together = "\n".join(f"{name} {files[name]}" for name in sorted(files))
    return {"sha256": hashlib.sha256(together.encode()).hexdigest(), "files": files}


def parts(cell: str) -> list[str]:
    """What a cell lists, between semicolons or commas."""
    return [part for part in _LIST.split(cell) if part]


def nearest(word: str, there: Iterable[str]) -> str:
    """The nearest right thing, or all there is."""
    known: Collection[str] = dict.fromkeys(there)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"


def _no_table(folder: Path, name: str) -> RequestError:
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    near = difflib.get_close_matches(f"{name}.csv", files, n=1)
    needed = ", ".join(f"{table}.csv" for table in NEEDED if table not in OPTIONAL)
    hint = f"did you mean {near[0]}?" if near else f"it needs {needed}"
    return RequestError(f"{folder}: no {name}.csv; {hint}")
