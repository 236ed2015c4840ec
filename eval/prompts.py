"""The Prompt table: what a benchmark of unfinished sentences gives, and what is completed.

One row per prompt. Prompts share their subject, marker and template, so no two of them are
independent; `marker` is the cluster by default. (QueerGen, 2601.20731, §3.1)
"""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from eval.pairs import benchmark_hash

#: What the subject of a prompt is, in the paper's order.
CATEGORIES = ("unmarked", "non-queer", "queer")
#: Columns every Prompt table has, in this order; a benchmark may add others after them.
COLUMNS = (
    "prompt_id",  # hash of benchmark, row and text (16 hex digits)
    "benchmark",
    "language",
    "category",  # one of CATEGORIES
    "marker",  # as the table of markers names it; empty where the subject is unmarked
    "subject",
    "template",
    "text",  # the sentence up to the word that is wanted, without a blank at its end
    "after",  # what follows that word, mostly a full stop
    "identity",  # how subject and marker stand in `text`, so that a judge can be kept from it
)


@dataclass(frozen=True)
class Prompts:
    """A benchmark of unfinished sentences, read."""

    name: str
    table: pd.DataFrame  # one row per prompt, COLUMNS first, RangeIndex
    source: dict[str, Any] = field(default_factory=dict)  # file, sha256, sizes of the grid, …

    @property
    def hash(self) -> str:
        """A hash of which prompts these are, whatever their order (16 hex digits)."""
        return benchmark_hash(self.table["prompt_id"])

    def __len__(self) -> int:
        return len(self.table)
