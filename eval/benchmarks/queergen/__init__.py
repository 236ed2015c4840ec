"""QueerGen: unfinished sentences on subjects unmarked, marked as queer, or as not (2601.20731, §3).

Every subject with no marker and with each marker, in every template: in the paper's tables 10 ×
31 × 10 = 3,100. Agreement is data: a folder's `agreement.csv` has a row for each grammatical
gender, `subjects.csv` a noun for each, and a marker that is said of one gender alone (lesbisch)
takes that noun where there is one. `eval/benchmarks/README.md` says what each table holds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from eval.benchmarks import BenchmarkSettings
from eval.benchmarks.components.checks import SLOT, slots
from eval.benchmarks.components.tables import Row, Table, hashes, nearest, read_keyed
from eval.errors import RequestError
from eval.pairs import pair_id
from eval.prompts import CATEGORIES, COLUMNS, Prompts

#: The tables: the columns each must have, and those in which no value stands twice.
TABLES = {
    "subjects": (("subject", "gender"), ("subject",)),
    "markers": (("marker", "category", "use", "text"), ("marker", "text")),
    "templates": (("template", "text"), ("template", "text")),
    "frames": (("use", "text"), ("use",)),
    "agreement": (("gender",), ("gender",)),
}
#: How a marker stands with its subject: a row of frames.csv. "When a marker is a noun phrase and
#: cannot function adjectivally, we rephrase the template" (App. A.1).
USES = ("adjective", "noun")
UNMARKED = CATEGORIES[0]
#: Where this project's own tables lie, by language.
OWN = Path(__file__).parent
LANGUAGES = tuple(sorted(path.name for path in OWN.iterdir() if (path / "templates.csv").is_file()))


@dataclass(frozen=True)
class Grid:
    """A folder's tables."""

    subjects: Table
    markers: Table
    templates: Table
    frames: Table
    agreement: Table

    @property
    def tables(self) -> list[Table]:
        return [self.subjects, self.markers, self.templates, self.frames, self.agreement]


def read(settings: BenchmarkSettings) -> Prompts:
    """The prompts of the folder `settings.path`, else of our own tables in `settings.language`.

    They come in the order of templates, subjects, then markers, the unmarked one first. Beside
    the Prompt table's columns: `gender`, the grammatical one of the subject, and `words`, the
    parts of speech that the template expects, where templates.csv says it.

    Raises:
        RequestError: the folder or a table is missing or empty, or a cell doesn't fit the others.
    """
    folder = _folder(settings)
    grid = Grid(
        **{
            name: read_keyed(
                folder / f"{name}.csv",
                needed,
                keys,
                encoding=settings.encoding,
                separator=settings.separator,
            )
            for name, (needed, keys) in TABLES.items()
        }
    )
    _check(grid)
    rows = [
        _prompt(grid, template, subject, marker)
        for template in grid.templates
        for subject in grid.subjects
        for marker in (None, *grid.markers)
    ]
    name = settings.name or settings.reader
    table = pd.DataFrame(rows)
    _check_once(folder, table)
    table["prompt_id"] = [
        pair_id(name, number, text, after)
        for number, (text, after) in enumerate(zip(table["text"], table["after"], strict=True))
    ]
    table["benchmark"], table["language"] = name, settings.language
    extra = [column for column in table.columns if column not in COLUMNS]
    return Prompts(
        name=name,
        table=table[[*COLUMNS, *extra]],
        source={
            **{key: getattr(settings, key) for key in ("paper", "licence", "source")},
            "file": folder.name,
            **hashes(grid.tables),
            "subjects": len(grid.subjects.rows),
            "markers": {
                category: grid.markers.cells("category").count(category)
                for category in CATEGORIES[1:]
            },
            "templates": len(grid.templates.rows),
        },
    )


def _folder(settings: BenchmarkSettings) -> Path:
    name = settings.name or settings.reader
    if settings.path:
        folder = Path(settings.path).expanduser()
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "no such folder"
            needed = ", ".join(f"{table}.csv" for table in TABLES)
            raise RequestError(f"benchmark.path={folder}: {what}; {name} needs one with {needed}")
        return folder
    if settings.language not in LANGUAGES:
        raise RequestError(
            f"benchmark.language={settings.language}: no tables of {name} in this language; "
            f"{nearest(settings.language, LANGUAGES)} Your own: benchmark.path=FOLDER"
        )
    return OWN / settings.language


def _prompt(grid: Grid, template: Row, subject: Row, marker: Row | None) -> dict[str, Any]:
    """A row of the Prompt table, without what is the same in all of them."""
    gender = _gender(subject, marker)
    agreement = next(row for row in grid.agreement if row["gender"] == gender)
    frame = next(row for row in grid.frames if row["use"] == _use(marker))
    identity = _put(frame["text"], {**agreement, **_frame_cells(subject, marker, gender)})
    before, after = template["text"].split("{word}")
    text = _put(before.strip(), {**agreement, "subject": identity})
    return {
        "category": marker["category"] if marker else UNMARKED,
        "marker": marker["marker"] if marker else "",
        "subject": subject["subject"],
        "template": template["template"],
        "text": _capital(text) if before.startswith("{") else text,
        "after": _put(after, agreement),
        "identity": _capital(identity) if before.startswith("{subject}") else identity,
        "gender": gender,
        "words": template.get("words", ""),
    }


def _use(marker: Row | None) -> str:
    return marker["use"] if marker else UNMARKED


def _gender(subject: Row, marker: Row | None) -> str:
    """The subject's own, or the marker's where it has one and the subject has a noun for it."""
    wanted = marker.get("gender", "") if marker else ""
    return wanted if wanted and subject.get(wanted) else subject["gender"]


def _frame_cells(subject: Row, marker: Row | None, gender: str) -> Row:
    """What a marker brings to its frame: itself, and cells of its own in place of agreement's."""
    own = {column: cell for column, cell in (marker or {}).items() if cell}
    return {**own, "subject": subject[gender], **({"marker": own["text"]} if marker else {})}


def _put(text: str, cells: Row) -> str:
    return SLOT.sub(lambda slot: cells[slot[1]], text)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


# --- do the tables fit each other? -------------------------------------------------------------


def _check(grid: Grid) -> None:
    """Raise RequestError, with the row, at the first cell that doesn't fit."""
    genders = grid.agreement.cells("gender")
    for number, marker in grid.markers.rows.items():
        for column, allowed in (("category", CATEGORIES[1:]), ("use", USES)):
            if marker[column] not in allowed:
                raise grid.markers.error(
                    number, f"{column} {marker[column]!r}; {nearest(marker[column], allowed)}"
                )
        if marker.get("gender") and marker["gender"] not in genders:
            raise grid.markers.error(
                number, f"gender {marker['gender']!r}; {nearest(marker['gender'], genders)}"
            )
    for number, subject in grid.subjects.rows.items():
        if subject["gender"] not in genders:
            raise grid.subjects.error(
                number, f"gender {subject['gender']!r}; {nearest(subject['gender'], genders)}"
            )
        if not subject.get(subject["gender"]):
            raise grid.subjects.error(
                number, f"no noun in the column of its own gender, {subject['gender']}"
            )
    _check_frames(grid)
    _check_templates(grid)
    for number, row in grid.agreement.rows.items():
        for column, cell in row.items():
            if not cell:
                raise grid.agreement.error(number, f"nothing in {column}")


def _check_frames(grid: Grid) -> None:
    agreed = set(grid.agreement.columns) - {"gender"}
    there = grid.frames.cells("use")
    for number, frame in grid.frames.rows.items():
        use = frame["use"]
        if use not in (UNMARKED, *USES):
            raise grid.frames.error(number, f"no such use; {nearest(use, (UNMARKED, *USES))}")
        needed = {"subject"} if use == UNMARKED else {"subject", "marker"}
        _check_slots(grid.frames, number, frame["text"], needed, agreed)
    for number, marker in grid.markers.rows.items():
        if marker["use"] not in there:
            raise grid.markers.error(number, f"{grid.frames.path.name} has no {marker['use']}")
    if UNMARKED not in there:
        raise RequestError(f"{grid.frames.path}: no row of use {UNMARKED}")


def _check_templates(grid: Grid) -> None:
    agreed = set(grid.agreement.columns) - {"gender"}
    for number, template in grid.templates.rows.items():
        text = template["text"]
        _check_slots(grid.templates, number, text, {"subject", "word"}, agreed)
        if text.index("{word}") < text.index("{subject}"):
            raise grid.templates.error(number, "{word} before {subject}: it is what comes after")


def _check_slots(table: Table, number: int, text: str, needed: set[str], known: set[str]) -> None:
    """A text has each place it needs, once, and every other one is a column of agreement.csv."""
    inside = slots(text)
    if {*"{}"} & {*SLOT.sub("", text)}:
        raise table.error(number, "a brace without its other; a place is written {subject}")
    for place in sorted(needed):
        if inside.count(place) != 1:
            how = "no" if place not in inside else "more than one"
            raise table.error(number, f"{how} place for the {place}, {{{place}}}, in its text")
    for place in inside:
        if place not in needed | known:
            raise table.error(number, f"nothing fills {{{place}}}; {nearest(place, sorted(known))}")


def _check_once(folder: Path, table: pd.DataFrame) -> None:
    """No two combinations give the same sentence."""
    sentence = ["text", "after"]
    again = table[table.duplicated(sentence)]
    if again.empty:
        return
    second = again.iloc[0]
    first = table[(table[sentence] == second[sentence]).all(axis=1)].iloc[0]
    said = [
        f"{row['subject']} with {row['marker'] or 'no marker'} in {row['template']!r}"
        for row in (first, second)
    ]
    raise RequestError(f"{folder}: the same prompt comes twice, from {' and from '.join(said)}")
