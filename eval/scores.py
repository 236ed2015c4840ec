"""The Score table: what every scorer gives and all statistics take.

One row per pair, float64, in Parquet; how it was made stands in the file's metadata. The
file carries the Pair table's columns too, so that it can be analysed on its own.
"""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval import parquet
from eval.errors import RequestError
from eval.pairs import GROUP_SEPARATOR, benchmark_hash, pair_id

#: What a scorer adds to the Pair table's columns.
SCORE_COLUMNS = ("score_more", "score_less", "shared_tokens", "length_more", "length_less")
#: What it adds besides, where it was asked: log-likelihood of the words that differ, in nats.
TERM_COLUMNS = ("identity_more", "identity_less")
#: What prompted choice adds: a row is an answer, of a pair asked in one order.
PAIR_OF = "pair_of"  # the id of the pair that was asked about
ORDER = "order"
FIRST, SECOND = "stereotype first", "stereotype second"
#: A published file's own name for a row, kept so that a person finds the pair there.
PUBLISHED_ID = "id"
_META_KEY = b"mitigate"


@dataclass(frozen=True)
class Scores:
    """A Score table and how it was made.

    `table`: the Pair table's columns and SCORE_COLUMNS; scores are natural-log likelihoods
    summed over the shared tokens. `meta`: scorer, scorer_version, benchmark, benchmark_hash,
    model, model_fingerprint, tokenizer_fingerprint, kind, bos_policy, dtype, alignment,
    lowercase, rows_used, rows_left_out, versions; decoding, where a rule changes the logits.
    """

    table: pd.DataFrame
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def margin(self) -> np.ndarray:
        """log-likelihood of the stereotyped sentence minus that of the other, in nats. (pairs,)"""
        return (self.table["score_more"] - self.table["score_less"]).to_numpy(float)


def write(scores: Scores, path: Path) -> None:
    """Write a Score table, whole or not at all."""
    parquet.write(scores.table, scores.meta, Path(path), key=_META_KEY)


def read(path: Path) -> Scores:
    """Read a Score table, ours (Parquet) or per-pair scores as published (CSV).

    Raises:
        RequestError: the file is missing or is not a Score table.
    """
    path = Path(path)
    if path.suffix.lower() == ".csv" and path.is_file():
        return _read_published(path)
    return Scores(*parquet.read(path, key=_META_KEY, what="Score table"))


def _read_published(path: Path) -> Scores:
    """Read per-pair scores as the scripts of Dutch CrowS-Pairs publish them.

    Columns `id, sent_more, sent_less, sent_more_score, sent_less_score, score,
    stereo_antistereo, bias_type`; one published file is separated by `;`, the others by `,`.
    Scores are rounded to three decimals in the files. A pair is named by the file's `id` where
    it has one, so that rows in another order are the same pairs; else by its row. (2507.16442,
    §4.1)
    """
    text, encoding = _decode_published(path)
    first = text.partition("\n")[0]
    separator = ";" if first.count(";") > first.count(",") else ","
    try:
        rows = pd.read_csv(io.StringIO(text), sep=separator, dtype={PUBLISHED_ID: str})
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise RequestError(f"{path} is not a score file: {str(error).strip()}") from error
    needed = ["sent_more", "sent_less", "sent_more_score", "sent_less_score", "bias_type"]
    missing = [column for column in needed if column not in rows]
    if missing:
        raise RequestError(
            f"{path} is not a published score file: no column {', '.join(missing)}; "
            f"there are: {', '.join(map(str, rows.columns))}"
        )
    if rows.empty:
        raise RequestError(f"{path}: a score file without a row")
    for column in ("sent_more", "sent_less", "bias_type"):
        rows[column] = rows[column].fillna("").astype(str)
    for column in ("sent_more_score", "sent_less_score"):
        numbers = pd.to_numeric(rows[column], errors="coerce")
        wrong = rows.index[numbers.isna()]
        if len(wrong):
            raise RequestError(
                f"{path}: {column} is no number in {len(wrong)} of {len(rows):,} rows, the first "
                f"is row {wrong[0]} ({rows[column][wrong[0]]})"
            )
        rows[column] = numbers.astype(float)
    name = "published"
    named = rows["id"] if "id" in rows else pd.Series(rows.index)
    table = pd.DataFrame(
        {
            "pair_id": [
                pair_id(name, row, more, less)
                for row, more, less in zip(named, rows["sent_more"], rows["sent_less"], strict=True)
            ],
            "benchmark": name,
            "language": "",
            "group": rows["bias_type"],
            "group_label": rows["bias_type"],
            "counterfactual": "",
            "stereotype_id": "",
            "template": "",
            "sent_more": rows["sent_more"],
            "sent_less": rows["sent_less"],
            "score_more": rows["sent_more_score"],
            "score_less": rows["sent_less_score"],
            "shared_tokens": 0,
            "length_more": 0,
            "length_less": 0,
            PUBLISHED_ID: named.astype(str),
        }
    )
    # The file names no stereotype: each pair stands alone.
    table["stereotype_id"] = table["pair_id"]
    if "stereo_antistereo" in rows:
        table["stereo_antistereo"] = rows["stereo_antistereo"].fillna("").astype(str)
    meta = {
        "scorer": "published",
        "scorer_version": "dutch-crows-pairs",
        "benchmark": name,
        "benchmark_hash": benchmark_hash(table["pair_id"]),
        "model": path.stem.removeprefix("results_"),
        "encoding": encoding,
    }
    return Scores(table, meta)


def _decode_published(path: Path) -> tuple[str, str]:
    """Decode a published score file: UTF-8, or Mac OS Roman as the Dutch ones are.

    Those hold one *é* left over in UTF-8. The name of the encoding goes into the metadata.
    """
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("mac_roman").replace("√©", "é"), "mac_roman"


#: What two Score tables must share to be compared; a difference is named.
COMPARABLE = (
    *("benchmark_hash", "scorer", "scorer_version", "alignment", "lowercase"),
    *("prompt_hash", "answer"),  # of prompted choice; personas may differ, and are named
)


def check_comparable(before: Scores, after: Scores) -> None:
    """Refuse to compare two Score tables that measure different things.

    Raises:
        RequestError: names each key of COMPARABLE that differs, with both values.
    """
    unlike = [key for key in COMPARABLE if before.meta.get(key) != after.meta.get(key)]
    if unlike:
        said = "; ".join(
            f"{key}: {before.meta.get(key)} before, {after.meta.get(key)} after" for key in unlike
        )
        raise RequestError(f"the two score tables can't be compared: {said}")


@dataclass(frozen=True)
class Differing:
    """Which pairs of two Score tables are in one of them only, and what goes with them.

    Names are those that the source gives its rows where it gives any, else pair ids; groups are
    those of which no pair is shared.
    """

    shared: int
    before: list[str]
    after: list[str]
    groups_before: list[str]
    groups_after: list[str]

    def __bool__(self) -> bool:
        return bool(self.before or self.after)

    def __str__(self) -> str:
        """How many pairs are in one table only, which are the first, and which groups."""
        said = []
        for when, names, groups in (
            ("before", self.before, self.groups_before),
            ("after", self.after, self.groups_after),
        ):
            first = f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""
            said.append(f"{len(names):,} only {when}{first}")
            if groups:
                said.append(f"all of {', '.join(groups)} only {when}")
        return ", ".join(said)


def differing(before: Scores, after: Scores) -> Differing:
    """Say which pairs are in one of two Score tables only.

    Raises:
        RequestError: a table names one pair twice, so that pairs can't be joined.
    """
    for when, scores in (("before", before), ("after", after)):
        twice = scores.table["pair_id"].duplicated()
        if twice.any():
            raise RequestError(
                f"the score table {when} ({scores.meta.get('model')}) holds a pair twice: "
                f"{_names(scores.table)[twice].iloc[0]} is the first of {int(twice.sum())}"
            )
    ids = [scores.table["pair_id"] for scores in (before, after)]
    only = [~ids[0].isin(ids[1]), ~ids[1].isin(ids[0])]
    groups = [_groups(before.table[~only[0]]), _groups(after.table[~only[1]])]
    return Differing(
        int((~only[0]).sum()),
        _names(before.table)[only[0]].tolist(),
        _names(after.table)[only[1]].tolist(),
        sorted(_groups(before.table) - groups[0]),
        sorted(_groups(after.table) - groups[1]),
    )


def _names(table: pd.DataFrame) -> pd.Series:
    """What a person finds a pair by: the source's own id for it, else ours."""
    return table[PUBLISHED_ID] if PUBLISHED_ID in table else table["pair_id"]


def _groups(table: pd.DataFrame) -> set[str]:
    names = table["group"].fillna("").astype(str).str.split(GROUP_SEPARATOR, regex=False)
    return {part.strip() for parts in names for part in parts} - {""}


def check_same_pairs(before: Scores, after: Scores) -> None:
    """Refuse to compare two Score tables of different pairs, or of pairs in different groups.

    Raises:
        RequestError: says how many pairs, and which first, are in one of them only; or are of
            one group before and of another after.
    """
    found = differing(before, after)
    sizes = [len(scores.table) for scores in (before, after)]
    if not found:
        _check_same_groups(before, after)
        return
    if not found.shared:
        names = [str(scores.meta.get("benchmark")) for scores in (before, after)]
        of = names[0] if names[0] == names[1] else f"{names[0]} and {names[1]}"
        raise RequestError(
            f"the two score tables can't be compared: of {of}, they have no pair in common "
            f"({sizes[0]:,} and {sizes[1]:,}); score both models on the same benchmark"
        )
    raise RequestError(
        f"the two score tables can't be compared: they hold different pairs ({sizes[0]:,} "
        f"before, {sizes[1]:,} after; {found}); score both models on the same benchmark, or "
        f"pairs=common for the {found.shared:,} that both have"
    )


def _check_same_groups(before: Scores, after: Scores) -> None:
    group = [
        scores.table.set_index("pair_id")["group"].fillna("").astype(str)
        for scores in (before, after)
    ]
    other = group[1].loc[group[0].index]
    moved = (group[0] != other).to_numpy()
    if moved.any():
        first = int(np.flatnonzero(moved)[0])
        raise RequestError(
            f"the two score tables can't be compared: {int(moved.sum()):,} pairs are of another "
            f"group, the first is {_names(before.table).iloc[first]}: "
            f"{group[0].iloc[first] or 'none'} before, {other.iloc[first] or 'none'} after"
        )


def common(before: Scores, after: Scores) -> tuple[Scores, Scores, Differing]:
    """Keep the pairs that both tables hold, in the order of `before`, and say what was left out.

    The tables' benchmark hash becomes that of the pairs kept; `pairs_left_out` in their metadata
    counts the others.

    Raises:
        RequestError: they share no pair, or measure different things.
    """
    found = differing(before, after)
    if not found.shared:
        check_same_pairs(before, after)
    ids = before.table["pair_id"]
    ids = ids[ids.isin(after.table["pair_id"])]
    kept = []
    for scores, left_out in ((before, found.before), (after, found.after)):
        table = scores.table.set_index("pair_id", drop=False).loc[ids].reset_index(drop=True)
        changed = {"benchmark_hash": benchmark_hash(ids), "pairs_left_out": len(left_out)}
        kept.append(Scores(table, {**scores.meta, **changed}))
    check_comparable(*kept)
    return kept[0], kept[1], found


def align(before: Scores, after: Scores) -> tuple[Scores, Scores]:
    """Check that the two are comparable and bring `after` into the order of `before`.

    Raises:
        RequestError: they measure different things, or other pairs than their metadata says.
    """
    check_same_pairs(before, after)
    check_comparable(before, after)
    order = after.table.set_index("pair_id").loc[before.table["pair_id"]].reset_index()
    return before, Scores(order[list(after.table.columns)], after.meta)
