"""Benchmarks: one file each, with `read(settings) -> Pairs`.

A new benchmark is one file here and one file in `recipes/benchmark/`, whose `reader` names it.
"""

import importlib
from dataclasses import dataclass, field
from typing import Any

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
    encoding: str = "auto"  # auto: UTF-8, then by a kept library's strict detection; or a codec
    separator: str = "auto"
    columns: Columns = field(default_factory=Columns)
    groups: dict[str, Any] = field(default_factory=dict)  # published label: canonical name
    limit: int | None = None  # score so many pairs, a stratified and seeded sample
    seed: int = 0
    paper: str = ""
    licence: str = ""
    source: str = ""  # where the file comes from, said when it is missing


def load(settings: BenchmarkSettings) -> Pairs:
    """Read the benchmark that `settings` names.

    Raises:
        RequestError: the file is missing, empty, unreadable, or lacks a column.
    """
    name = f"eval.benchmarks.{settings.reader}"
    if importlib.util.find_spec(name) is None:
        raise RequestError(f"benchmark.reader={settings.reader}: no file {name}")
    return importlib.import_module(name).read(settings)
