"""Benchmarks: one file each, with `read(settings) -> Pairs`, or `-> Prompts`.

A new benchmark is one file here and one file in `recipes/benchmark/`, whose `reader` names it.
"""

import difflib
import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any

from eval.errors import RequestError
from eval.pairs import Pairs
from eval.prompts import Prompts


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
    url: str | None = None  # without a path, the file is downloaded from here, into the cache
    sha256: str | None = None  # of the file at `url`; null: recorded when it first comes
    hub: str | None = None  # or a dataset of the Hugging Face hub, owner/name
    split: str | None = None  # of that dataset, where it has several
    revision: str | None = None  # of that dataset: a commit, tag or branch
    predicates_path: str | None = None  # winoqueer_nl: the predicates file beside the pairs
    predicates_url: str | None = None
    predicates_sha256: str | None = None
    language: str = ""  # nl, de, en, fr
    format: str = "auto"  # auto, csv, tsv, jsonl, parquet: auto goes by the file's ending
    encoding: str = "auto"  # auto: UTF-8, with a byte-order mark or without; else a codec's name
    separator: str = "auto"
    columns: Columns = field(default_factory=Columns)
    labels: dict[str, Any] = field(default_factory=dict)  # published label: canonical name
    tiers: list[int] = field(default_factory=list)  # keep pairs of these tiers; all if empty
    groups: list[str] = field(default_factory=list)  # keep pairs of these groups, canonical names
    origin: str | None = None  # keep pairs of this origin: survey, translated, …
    where: str | None = None  # keep pairs that fulfil this: 'harm_mean > 2 and tier == 1'
    subset: str | None = None  # of prompts: paper300, QueerGen's for five words each
    limit: int | None = None  # score so many pairs or prompts, a stratified and seeded sample
    seed: int = 0
    paper: str = ""
    licence: str = ""
    source: str = ""  # where the file comes from, said when it is missing


#: Modules here that read no benchmark.
_HELPERS = ("filters", "sources")
#: Readers of prompts, which are completed; all others read pairs, which are scored.
_OF_PROMPTS = ("queergen",)


def is_prompts(settings: BenchmarkSettings) -> bool:
    """Whether the benchmark holds prompts to complete (`load_prompts`) and not pairs (`load`)."""
    return settings.reader in _OF_PROMPTS


def load(settings: BenchmarkSettings) -> Pairs:
    """Read the benchmark that `settings` names, and keep what its filters and `limit` keep.

    Raises:
        RequestError: the file is missing, empty, unreadable, or lacks a column; no such reader;
            a filter that asks for what isn't there, or leaves nothing; it holds prompts.
    """
    from eval.benchmarks.filters import narrow  # which needs the settings above

    if is_prompts(settings):
        raise RequestError(
            f"benchmark {settings.name or settings.reader}: holds prompts to complete, not pairs; "
            "mitigate score and mitigate train take it"
        )
    if settings.subset:
        raise RequestError(
            f"benchmark.subset={settings.subset}: is for prompts; {settings.name} holds pairs: "
            "benchmark.where, benchmark.limit"
        )
    pairs: Pairs = _reader(settings).read(settings)
    return narrow(pairs, settings)


def load_prompts(settings: BenchmarkSettings) -> Prompts:
    """Read the prompts that `settings` names, and keep what `subset`, `where` and `limit` keep.

    Raises:
        RequestError: as `load`; a subset that there isn't, or a filter that is for pairs.
    """
    from eval.benchmarks.filters import narrow_prompts

    prompts: Prompts = _reader(settings).read(settings)
    return narrow_prompts(prompts, settings)


def _reader(settings: BenchmarkSettings) -> Any:
    """The module that reads the benchmark."""
    if settings.limit is not None and settings.limit < 1:
        raise RequestError(f"benchmark.limit={settings.limit}: 1 at least, or null for all")
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    readers = [name for name in modules if name not in _HELPERS]
    if settings.reader not in readers:
        close = difflib.get_close_matches(settings.reader, readers, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(readers)}"
        raise RequestError(f"benchmark.reader={settings.reader}: no such reader; {hint}")
    return importlib.import_module(f"eval.benchmarks.{settings.reader}")
