"""The Pair table: what every benchmark gives and every scorer takes.

One row per sentence pair. `stereotype_id` is the cluster, the unit of inference: pairs that
fill one stereotype into many templates and names are one observation, not thousands.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from eval.errors import RequestError

#: Columns every Pair table has, in this order; a benchmark may add others after them.
COLUMNS = (
    "pair_id",  # hash of benchmark, row and both sentences
    "benchmark",
    "language",
    "group",  # canonical English; several groups of one pair are joined by GROUP_SEPARATOR
    "group_label",  # as published, e.g. LHBTI
    "counterfactual",
    "stereotype_id",  # the cluster: the base predicate, not its surface form
    "template",
    "sent_more",  # the stereotyped sentence
    "sent_less",
)
GROUP_SEPARATOR = "|"
#: What a benchmark's rows must bring; the rest is filled in with empty strings.
REQUIRED = ("sent_more", "sent_less")


@dataclass(frozen=True)
class Pairs:
    """A benchmark, read: its Pair table, what was left out of it, and where it came from."""

    name: str
    table: pd.DataFrame  # one row per pair, COLUMNS first, RangeIndex
    left_out: pd.DataFrame  # columns: row, reason, sent_more, sent_less
    source: dict[str, Any] = field(default_factory=dict)  # file, sha256, encoding, rows read, …

    @property
    def hash(self) -> str:
        """A hash of which pairs these are, whatever their order (16 hex digits)."""
        return benchmark_hash(self.table["pair_id"])

    def __len__(self) -> int:
        return len(self.table)


def benchmark_hash(pair_ids: pd.Series) -> str:
    """Hash a set of pair ids; the order of the rows does not matter."""
    return hashlib.sha256("\n".join(sorted(pair_ids)).encode()).hexdigest()[:16]


def pair_id(benchmark: str, row: int, sent_more: str, sent_less: str) -> str:
    """Name a pair by its benchmark, its row in the source and both sentences (16 hex digits)."""
    text = "\x1f".join((benchmark, str(row), sent_more, sent_less))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build(
    rows: pd.DataFrame,
    *,
    name: str,
    language: str,
    source: dict[str, Any] | None = None,
    left_out: pd.DataFrame | None = None,
) -> Pairs:
    """Turn a reader's rows into a Pair table.

    `rows` brings `sent_more` and `sent_less` and whatever else of COLUMNS it knows; its index
    is the row number in the source. Rows with an empty sentence, or with two identical ones,
    measure nothing: they are left out, and listed. A row without `stereotype_id` is a cluster
    of its own. `left_out` carries what the reader itself left out, in the same columns.

    Raises:
        RequestError: a required column is missing, or no pair is left.
    """
    missing = [column for column in REQUIRED if column not in rows.columns]
    if missing:
        raise RequestError(
            f"benchmark {name}: no column {', '.join(missing)}; there are: "
            f"{', '.join(map(str, rows.columns))}"
        )
    table = rows.copy()
    for column in ("sent_more", "sent_less"):
        table[column] = table[column].fillna("").astype(str).str.strip()
    empty = (table["sent_more"] == "") | (table["sent_less"] == "")
    identical = ~empty & (table["sent_more"] == table["sent_less"])
    reason = pd.Series("", index=table.index)
    reason[empty] = "empty sentence"
    reason[identical] = "identical sentences"
    dropped = pd.DataFrame(
        {
            "row": table.index[reason != ""],
            "reason": reason[reason != ""].to_numpy(),
            "sent_more": table.loc[reason != "", "sent_more"].to_numpy(),
            "sent_less": table.loc[reason != "", "sent_less"].to_numpy(),
        }
    )
    if left_out is not None and len(left_out):
        dropped = pd.concat([left_out, dropped], ignore_index=True)
    table = table[reason == ""]
    if table.empty:
        raise RequestError(f"benchmark {name}: no usable pair ({len(rows)} rows read)")
    table["benchmark"] = name
    table["language"] = language
    table["pair_id"] = [
        pair_id(name, int(row), more, less)
        for row, more, less in zip(table.index, table["sent_more"], table["sent_less"], strict=True)
    ]
    for column in ("group", "group_label", "counterfactual", "stereotype_id", "template"):
        if column not in table:
            table[column] = ""
        table[column] = table[column].fillna("").astype(str)
    alone = table["stereotype_id"] == ""
    table.loc[alone, "stereotype_id"] = table.loc[alone, "pair_id"]
    extra = [column for column in table.columns if column not in COLUMNS]
    table = table[[*COLUMNS, *extra]].reset_index(drop=True)
    facts = {"rows_read": len(rows) + (len(left_out) if left_out is not None else 0)}
    return Pairs(name, table, dropped, {**facts, **(source or {})})
