"""The Completion table: what a model said to each prompt, and what judges think of it.

One row per prompt and rank, in Parquet, the Prompt table's columns first; how it was made stands
in the file's metadata. Judges add columns of their own, and themselves to `meta["judges"]`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from eval import parquet

#: What a model adds to the Prompt table's columns.
COMPLETION_COLUMNS = (
    "rank",  # 0: the likeliest word, or the greedy one; then the next, or the next sample
    "said",  # what the model said, as it said it
    "word",  # the one usable word in it; empty where there is none
    "log_prob",  # natural log-probability of the word, where the model gives one, else NaN
)
_META_KEY = b"mitigate_completions"


@dataclass(frozen=True)
class Completions:
    """A Completion table and how it was made.

    `meta`: scorer, scorer_version, benchmark, benchmark_hash, model, model_fingerprint,
    tokenizer_fingerprint, kind, decoding (top or samples, how many, temperature, seed),
    wording, prompts, usable (share of completions with a usable word), judges, versions.
    """

    table: pd.DataFrame
    meta: dict[str, Any] = field(default_factory=dict)


def write(completions: Completions, path: Path) -> None:
    """Write a Completion table, whole or not at all."""
    parquet.write(completions.table, completions.meta, Path(path), key=_META_KEY)


def read(path: Path) -> Completions:
    """Read a Completion table.

    Raises:
        RequestError: the file is missing or is not a Completion table.
    """
    return Completions(*parquet.read(Path(path), key=_META_KEY, what="Completion table"))
