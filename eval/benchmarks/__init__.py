"""Benchmarks: one file each, with `read(settings) -> Pairs`.

A new benchmark is one file here and one file in `recipes/benchmark/`, whose `reader` names it.
"""

import difflib
import hashlib
import importlib
import pkgutil
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from eval.errors import RequestError
from eval.pairs import Pairs


@dataclass
class Columns:
    """Which column of the file means what; the defaults are ours, a recipe says the file's."""

    sent_more: str = "sent_more"
    sent_less: str = "sent_less"
    group: str = "group"
    stereotype: str = "stereotype"
    template: str = "template"
    counterfactual: str = "counterfactual"


@dataclass
class BenchmarkSettings:
    """How to read one benchmark."""

    name: str = ""
    reader: str = "pairs"  # the module of eval.benchmarks that reads it
    path: str | None = None
    predicates_path: str | None = None  # winoqueer_nl: the predicates file beside the pairs
    language: str = ""  # nl, de, en, fr
    format: str = "auto"  # auto, csv, tsv, jsonl, parquet: auto goes by the file's ending
    encoding: str = "auto"  # auto: UTF-8, with a byte-order mark or without; else a codec's name
    separator: str = "auto"
    columns: Columns = field(default_factory=Columns)
    groups: dict[str, Any] = field(default_factory=dict)  # published label: canonical name
    limit: int | None = None  # score so many pairs, a stratified and seeded sample
    seed: int = 0
    paper: str = ""
    licence: str = ""
    source: str = ""  # where the file comes from, said when it is missing


def load(settings: BenchmarkSettings) -> Pairs:
    """Read the benchmark that `settings` names; with `limit`, a sample of it.

    Raises:
        RequestError: the file is missing, empty, unreadable, or lacks a column; no such reader.
    """
    if settings.limit is not None and settings.limit < 1:
        raise RequestError(f"benchmark.limit={settings.limit}: 1 pair at least, or null for all")
    readers = [module.name for module in pkgutil.iter_modules(__path__)]
    if settings.reader not in readers:
        close = difflib.get_close_matches(settings.reader, readers, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(readers)}"
        raise RequestError(f"benchmark.reader={settings.reader}: no such reader; {hint}")
    pairs = importlib.import_module(f"eval.benchmarks.{settings.reader}").read(settings)
    if settings.limit is None or settings.limit >= len(pairs):
        return pairs
    table = sample(pairs.table, settings.limit, settings.seed)
    facts = {"limit": settings.limit, "seed": settings.seed, "pairs_sampled_from": len(pairs)}
    return replace(pairs, table=table, source={**pairs.source, **facts})


def sample(table: pd.DataFrame, limit: int, seed: int) -> pd.DataFrame:
    """Draw `limit` pairs, each group in proportion, in the order of the source.

    A group's share is rounded by largest remainder, but none goes out as long as there are as
    many places as groups. Which pairs of a group are drawn depends on the seed and their ids
    alone, so that neither the platform nor the order of the file changes the sample.
    """
    sizes = {str(group): len(rows) for group, rows in table.groupby("group")}  # sorted by name
    exact = {group: size * limit / len(table) for group, size in sizes.items()}
    least = 1 if limit >= len(sizes) else 0
    places = {group: max(least, int(share)) for group, share in exact.items()}
    # A group raised to one pair has a negative remainder, and is the last to gain another.
    by_remainder = sorted(sizes, key=lambda group: places[group] - exact[group])
    for group in by_remainder[: max(0, limit - sum(places.values()))]:
        places[group] += 1
    while sum(places.values()) > limit:  # many small groups: the largest gives way
        places[max(places, key=places.__getitem__)] -= 1
    ranks = table["pair_id"].map(
        lambda pair: hashlib.blake2b(f"{seed}\x1f{pair}".encode(), digest_size=8).hexdigest()
    )
    # A stable sort, so that pair ids that stand twice keep their order.
    within = ranks.sort_values(kind="stable").groupby(table["group"]).cumcount()
    chosen = within.reindex(table.index) < table["group"].map(places)
    return table[chosen].reset_index(drop=True)
