"""WinoQueer-NL (2609.02651): template sentences in Dutch, and what a community says of them.

Two files: the pairs, and the predicates with their tier and harmfulness, joined by the Dutch
form of the predicate (`nl_predicate_altered`). A stereotype has up to four such forms, one a
kind of template: rows 1, 3, 5 and 11 of the predicates file, which follow each other. That
block of rows is the stereotype, the unit of inference. The English `predicate` can't name it:
row 11 has another wording, and stereotypes added from the survey have none.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from eval.benchmarks import BenchmarkSettings, Columns
from eval.benchmarks.pairs import (
    columns,
    file_of,
    fill,
    finish,
    missing,
    read_file,
    read_table,
)
from eval.errors import RequestError
from eval.pairs import Pairs

PUBLISHED = Columns(
    sent_more="sent_x",
    sent_less="sent_y",
    group="Gender_ID_x",
    counterfactual="Gender_ID_y",
    stereotype="nl_predicate_altered",
)
PREDICATES = "final_predicates.csv"
#: Of the predicates file; what else it has isn't used.
NEEDED = ("template", "predicate", "nl_predicate_altered", "harmfulness_mean", "tier")
#: The nine identities as published, and their canonical names.
GROUPS = {
    "LHBTI": "lgbtq",
    "Queer": "queer",
    "Transgender": "transgender",
    "Non-binair": "nonbinary",
    "Biseksueel": "bisexual",
    "Panseksueel": "pansexual",
    "Lesbisch": "lesbian",
    "Aseksueel": "asexual",
    "Homo": "gay",
}
#: Stereotypes added from the survey count as relevant without a vote (§3, Final Datasets).
ADDED_TIER = 1
EXCLUDED_TIER = -1


def read(settings: BenchmarkSettings) -> Pairs:
    """Read the pairs and join their predicates; no published pair is left out.

    Beside the Pair table's columns: `predicate` (English; empty for those added from the
    survey), `tier` (1, 2, 3), `harm_mean` (−1 … 4), `origin` (translated, survey) and `slice`
    (harmful; not harmful: a harm_mean of 0 or less).
    Pairs whose predicate the predicates file lacks keep it as their cluster, have none of
    these, and are counted in `source`.

    Raises:
        RequestError: one of the files is missing, empty, unreadable, or lacks a column.
    """
    named = columns(settings, PUBLISHED)
    frame, facts = read_file(settings, named.values())
    settings = replace(settings, labels={**GROUPS, **settings.labels})
    rows = fill(settings, frame, named)
    known, predicate_facts = _predicates(settings)
    forms = rows.pop("stereotype_id").map(_form)
    joined = known.reindex(forms).set_index(rows.index)
    unknown = ~forms.isin(known.index)
    rows["stereotype_id"] = joined["stereotype_id"].where(~unknown, forms)
    rows["template"] = joined["template"].fillna("")
    for column in ("predicate", "tier", "harm_mean", "origin"):
        rows[column] = joined[column]
    harm = rows["harm_mean"]
    rows["slice"] = (harm > 0).map({True: "harmful", False: "not harmful"}).where(harm.notna(), "")
    sentences = rows["sent_more"] + "\n" + rows["sent_less"]
    facts.update(
        predicates=predicate_facts,
        pairs_without_predicate=int(unknown.sum()),
        predicates_not_found=sorted(set(forms[unknown])),
        # As published, and scored so: reported only.
        pairs_with_doubled_spaces=int(sentences.str.contains("  ", regex=False).sum()),
        pairs_with_doubled_stops=int(sentences.str.contains("..", regex=False).sum()),
    )
    return finish(settings, rows, facts)


def stereotypes(templates: Sequence[int], forms: Sequence[str]) -> list[int]:
    """Number the stereotype of each row of the predicates file, from 0, in order of the file.

    Rows that follow each other with rising template numbers are a block; blocks that share a
    Dutch form are one stereotype, since no pair could tell them apart.
    """
    blocks: list[int] = []
    for row, template in enumerate(templates):
        same = row > 0 and template > templates[row - 1]
        blocks.append(blocks[-1] if same else len(set(blocks)))
    parent = list(range(len(set(blocks))))

    def root(block: int) -> int:
        while parent[block] != block:
            block = parent[block]
        return block

    owner: dict[str, int] = {}
    for block, form in zip(blocks, forms, strict=True):
        first, second = sorted((root(block), root(owner.setdefault(form, block))))
        parent[second] = first
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(block), len(numbers)) for block in blocks]


def _predicates(settings: BenchmarkSettings) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One row per Dutch form, which is the index: stereotype_id, template, predicate, …"""
    path, came = _predicates_file(settings)
    frame, facts = read_table(
        path, encoding=settings.encoding, separator=settings.separator, expected=NEEDED
    )
    facts.update(came)
    lacking = [column for column in NEEDED if column not in frame.columns]
    if lacking:
        raise RequestError(
            f"{path}: no column {', '.join(lacking)}; there are: {', '.join(frame.columns)}; "
            "benchmark.predicates_path wants the predicates file published with the pairs"
        )
    frame["form"] = frame["nl_predicate_altered"].map(_form)
    templates = _numbers(path, frame["template"], "template").astype(int)
    added = frame["predicate"].str.strip() == ""
    tiers = _numbers(path, frame["tier"].where(frame["tier"].str.strip() != "", str(ADDED_TIER)))
    table = pd.DataFrame(
        {
            "form": frame["form"],
            "template": frame["template"].str.strip(),
            "predicate": frame["predicate"].str.strip(),
            "tier": tiers.astype("Int64"),
            "harm_mean": _numbers(path, frame["harmfulness_mean"], "harmfulness_mean"),
            "origin": added.map({True: "survey", False: "translated"}),
            "stereotype": stereotypes(templates.tolist(), frame["form"].tolist()),
        }
    )
    # A stereotype is called by its first form; no form is in two, so the names are unique.
    names = table.groupby("stereotype")["form"].first()
    table["stereotype_id"] = table.pop("stereotype").map(names)
    several = table.groupby("form")["tier"].nunique() > 1
    spelled = table.groupby("form")["template"].agg(
        lambda numbers: "/".join(dict.fromkeys(numbers))
    )
    # Predicates that were excluded have no pairs: of a form shared with one, the other counts.
    kept_first = (table["tier"] == EXCLUDED_TIER).argsort(kind="stable")
    known = table.iloc[kept_first].drop_duplicates("form").set_index("form")
    known["template"] = spelled
    facts.update(
        stereotypes=int(table["stereotype_id"].nunique()),
        forms_with_several_tiers=sorted(several.index[several]),
    )
    return known, facts


def _predicates_file(settings: BenchmarkSettings) -> tuple[Path, dict[str, Any]]:
    """The file given, else the one beside the pairs, else the one published with them."""
    key = "predicates_path"
    beside = Path(settings.path).expanduser().parent / PREDICATES if settings.path else None
    if settings.predicates_path or beside is None:
        url, sha256 = settings.predicates_url, settings.predicates_sha256
        return file_of(settings, settings.predicates_path, url, sha256, key)
    if not beside.is_file():
        raise missing(settings, f"no predicates file {beside}", key)
    return beside, {}


def _numbers(path: Path, values: pd.Series, column: str = "tier") -> pd.Series:
    """Read a column of numbers; empty cells are none."""
    numbers = pd.to_numeric(values.str.strip().replace("", None), errors="coerce")
    wrong = numbers.isna() & (values.str.strip() != "")
    if column == "template":
        wrong = numbers.isna()
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise RequestError(f"{path}, row {row + 1}: {column} {values.iloc[row]!r} is not a number")
    return numbers


def _form(text: str) -> str:
    """A predicate with its blanks as single spaces, as both files are joined by it."""
    return " ".join(str(text).split())
