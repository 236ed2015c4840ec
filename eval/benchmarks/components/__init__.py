"""A benchmark from components: templates × names × identities × counterfactuals × predicates.

A folder of small tables says what a community's survey found; this fills the templates. Which
identity is set against which counterfactual, and which names it takes, are data too: WinoQueer's
pairing rules (2609.02651, §3, Dataset Translation) stand in `winoqueer_rules.csv`, and a
`rules.csv` in the folder replaces them. `eval/benchmarks/README.md` says what each table holds.
"""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

import eval as package
from eval.benchmarks import BenchmarkSettings
from eval.benchmarks.components.checks import EVERY_GROUP, MEANT, NO_FORM, SLOT, check, slots
from eval.benchmarks.components.survey import VOTES, Judgement, judge
from eval.benchmarks.components.tables import (
    WINOQUEER,
    Components,
    Row,
    Table,
    hashes,
    parts,
    read_components,
)
from eval.errors import RequestError
from eval.pairs import Pairs, build

#: A path that begins so is one of this project's own folders.
OWN = "pkg:"
EXAMPLE = f"{OWN}eval/benchmarks/components/example"


def read(settings: BenchmarkSettings) -> Pairs:
    """Fill the templates of the folder `settings.path` with every combination the rules allow.

    Pairs come in the order of the predicates, then identities, counterfactuals, templates and
    names. Beside the Pair table's columns: `name`, `tier` (1, 2, 3; none without votes),
    `harm_mean` (−1 … 4), `harm_count`, `origin` (translated, survey), `yes`, `no`, `unsure`, and
    what else predicates.csv holds. Predicates that the survey rejects are in `left_out`, a row
    each, without sentences: `row` is that of predicates.csv. Facts: `files` (name: SHA-256),
    `rules`, `predicates_left_out` (stereotype: votes), `forms_left_out`.

    Raises:
        RequestError: the folder or a table is missing or empty, or a cell doesn't fit the others.
    """
    folder = _folder(settings)
    found = read_components(folder, encoding=settings.encoding, separator=settings.separator)
    judged = judge(found.predicates)
    kept = {number: said for number, said in judged.items() if not said.left_out}
    check(found, kept)
    if not kept:
        raise RequestError(f"{found.predicates.path}: the survey leaves no predicate in")
    rows = _fill(found, kept)
    _check_once(folder, rows)
    rejected = {number: said for number, said in judged.items() if said.left_out}
    names = found.predicates.rows
    left_out = [
        {"row": number, "reason": said.left_out, "sent_more": "", "sent_less": ""}
        for number, said in rejected.items()
    ]
    said_of = {names[number]["stereotype"]: said.votes for number, said in rejected.items()}
    return build(
        rows,
        name=settings.name or settings.reader,
        language=settings.language or next(filter(None, found.templates.cells("language")), ""),
        source={
            **{key: getattr(settings, key) for key in ("paper", "licence", "source")},
            "file": folder.name,
            **hashes(found.tables),
            "rules": "WinoQueer's" if found.rules.path == WINOQUEER else found.rules.path.name,
            "rows_read": len(rows),
            "predicates_read": len(judged),
            "predicates_left_out": said_of,
            "forms_left_out": sum(
                names[number][form] == NO_FORM
                for number, form in product(kept, found.templates.cells("predicate"))
            ),
        },
        left_out=pd.DataFrame(left_out),
    )


def _fill(found: Components, kept: dict[int, Judgement]) -> pd.DataFrame:
    """The rows of the Pair table."""
    forms = found.templates.cells("predicate")
    extra = [column for column in found.predicates.columns if column not in {*MEANT, *forms}]
    rules = {rule["group"]: rule for rule in found.rules}
    rows: list[dict[str, Any]] = []
    for number, judgement in kept.items():
        predicate = found.predicates.rows[number]
        said = {**asdict(judgement), **{column: predicate[column] for column in extra}}
        del said["left_out"]
        templates = [one for one in found.templates if predicate[one["predicate"]] != NO_FORM]
        for identity in _identities(found.identities, predicate["groups"]):
            rule = rules[identity["group"]]
            contrasts = parts(rule["contrasts"])
            others = [one for one in found.counterfactuals if one["contrast"] in contrasts]
            for other, template in product(others, templates):
                for filler in _fillers(found.names, template, rule["genders"]):
                    rows.append(
                        {
                            "stereotype_id": predicate["stereotype"],
                            **_pair(template, filler, predicate, identity, other),
                            **said,
                        }
                    )
    counts = dict.fromkeys(("tier", "harm_count", *VOTES), "Int64")
    return pd.DataFrame(rows).astype({**counts, "harm_mean": "float64"})


def _pair(template: Row, filler: Row, predicate: Row, identity: Row, other: Row) -> dict[str, str]:
    """One template filled twice: with an identity, and with its counterfactual."""
    form = _put(predicate[template["predicate"]], filler)
    more, less = (
        _sentence(
            template["text"],
            {**filler, "predicate": form, "identity": who[template["identity"]]},
        )
        for who in (identity, other)
    )
    return {
        "group": identity["group"],
        "group_label": identity["label"],
        "counterfactual": other["counterfactual"],
        "template": template["template"],
        "sent_more": more,
        "sent_less": less,
        "name": filler.get("name", ""),
    }


def _identities(identities: Table, groups: str) -> Iterator[Row]:
    """The identities that a predicate is said of, in the order of identities.csv."""
    named = {part.casefold() for part in parts(groups)}
    for row in identities:
        if named & {EVERY_GROUP, row["group"].casefold(), row["label"].casefold()}:
            yield row


def _fillers(names: Table | None, template: Row, genders: str) -> list[Row]:
    """What fills a template's other slots: each name's columns, or else the template's own."""
    own = {column: cell for column, cell in template.items() if cell}
    if names is None or "name" not in slots(template["text"]):
        return [own]
    wanted = parts(genders)
    return [
        {**own, **{column: cell for column, cell in name.items() if cell}}
        for name in names
        if not wanted or name["gender"] in wanted
    ]


def _put(text: str, cells: Row) -> str:
    return SLOT.sub(lambda slot: cells[slot[1]], text)


def _sentence(text: str, cells: Row) -> str:
    """Fill a template; a slot at its beginning gets a capital letter."""
    sentence = _put(text, cells)
    return sentence[0].upper() + sentence[1:] if text.startswith("{") else sentence


def _check_once(folder: Path, rows: pd.DataFrame) -> None:
    """No two combinations give the same two sentences."""
    sentences = ["sent_more", "sent_less"]
    again = rows[rows.duplicated(sentences)]
    if again.empty:
        return
    second = again.iloc[0]
    first = rows[(rows[sentences] == second[sentences]).all(axis=1)].iloc[0]
    one, other = (
        f"{row['stereotype_id']} of {row['group']} in template {row['template']}"
        for row in (first, second)
    )
    raise RequestError(
        f"{folder}: the same pair comes twice, from {one} and from {other}, and so do "
        f"{len(again) - 1} others; leave one of the two out"
    )


def _folder(settings: BenchmarkSettings) -> Path:
    name = settings.name or settings.reader
    hint = f"give a folder as benchmark.path=FOLDER, or {EXAMPLE} to see one"
    if not settings.path:
        raise RequestError(f"benchmark {name}: no folder given; {hint}")
    folder = Path(settings.path).expanduser()
    if settings.path.startswith(OWN):
        root = Path(str(package.__file__)).resolve().parents[1]
        folder = root / settings.path.removeprefix(OWN)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise RequestError(f"benchmark {name}: {folder}: {what}; {hint}")
    return folder
