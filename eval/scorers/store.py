"""Scores that were computed before: found again by what they were computed from.

A folder holds finished Score tables, and the parts of those that are on their way. Both are
named by a hash of everything that decides a score: weights, tokenizer, sentences, scorer,
device, versions. So a killed job goes on, and a finished one isn't done again, wherever it
was started from.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from eval import scores
from eval.errors import RequestError
from eval.pairs import Pairs
from eval.scorers.work import Parts, told
from eval.scores import SCORE_COLUMNS, TERM_COLUMNS, Scores


class ScoreStore:
    """Finished and half-finished scores in a folder."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def find(self, key: str) -> Scores | None:
        """The finished Score table of this key; a damaged one is removed and counts as none."""
        path = self._path(key)
        if not path.is_file():
            return None
        try:
            return scores.read(path)
        except RequestError:
            path.unlink(missing_ok=True)
            return None

    def keep(self, key: str, found: Scores) -> None:
        """Write a finished Score table without what the benchmark itself brings."""
        terms = [column for column in TERM_COLUMNS if column in found.table]
        columns = ["pair_id", *SCORE_COLUMNS, *terms]
        scores.write(Scores(found.table[columns], found.meta), self._path(key))

    def parts(self, key: str) -> Parts:
        """Where the parts of an unfinished Score table are kept."""
        return Parts(self.folder / f"{key}.parts")

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.parquet"


def versions() -> dict[str, str]:
    """The packages that decide a number, and which they are here."""
    return {name: version(name) for name in ("torch", "transformers", "tokenizers")}


def key_of(identity: Mapping[str, Any], ids: Iterable[str]) -> str:
    """Name a table by what decides it, and by its rows; their order numbers the requests."""
    digest = hashlib.blake2b(json.dumps(dict(identity), sort_keys=True).encode(), digest_size=12)
    digest.update("\n".join(ids).encode())
    return digest.hexdigest()


def joined(stored: Scores, pairs: Pairs) -> Scores:
    """A stored Score table with the columns of the benchmark as it is read now."""
    wanted = pairs.table.merge(stored.table, on="pair_id", how="inner", validate="one_to_one")
    return Scores(wanted, stored.meta)


def again(stored: Scores, pairs: Pairs) -> Scores:
    """A stored Score table as the result of scoring these pairs now."""
    found = with_source(joined(stored, pairs), pairs)
    found.meta["work"] = {**found.meta["work"], "reused": True}
    return found


def keep(kept: ScoreStore, key: str, found: Scores, parts: Parts) -> None:
    """Write the finished table, once; only then are its parts of no more use."""

    def write() -> None:
        kept.keep(key, found)
        parts.clear()

    told(write)


def with_source(found: Scores, pairs: Pairs) -> Scores:
    """Say where the pairs came from, and how many of them were left out for which reason.

    `unusable` in the metadata: by reason, how many rows the scorer itself left out.
    """
    left_out = counted(pairs.left_out["reason"])
    for reason, count in found.meta["unusable"].items():
        left_out[reason] = left_out.get(reason, 0) + count
    return replace(found, meta={**found.meta, "rows_left_out": left_out, "source": pairs.source})


def counted(reasons: Iterable[Any]) -> dict[str, int]:
    """How often each reason is given."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[str(reason)] = counts.get(str(reason), 0) + 1
    return counts
