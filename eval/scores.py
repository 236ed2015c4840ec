"""The Score table: what every scorer gives and all statistics take.

One row per pair, float64, in Parquet; how it was made stands in the file's metadata. The
file carries the Pair table's columns too, so that it can be analysed on its own.
"""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from eval.errors import RequestError
from eval.files import replacing
from eval.pairs import benchmark_hash, pair_id

#: What a scorer adds to the Pair table's columns.
SCORE_COLUMNS = ("score_more", "score_less", "shared_tokens", "length_more", "length_less")
_META_KEY = b"mitigate"


@dataclass(frozen=True)
class Scores:
    """A Score table and how it was made.

    `table`: the Pair table's columns and SCORE_COLUMNS; scores are natural-log likelihoods
    summed over the shared tokens. `meta`: scorer, scorer_version, benchmark, benchmark_hash,
    model, model_fingerprint, tokenizer_fingerprint, kind, bos_policy, dtype, alignment,
    lowercase, rows_used, rows_left_out, versions.
    """

    table: pd.DataFrame
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def margin(self) -> np.ndarray:
        """log-likelihood of the stereotyped sentence minus that of the other, in nats. (pairs,)"""
        return (self.table["score_more"] - self.table["score_less"]).to_numpy(float)


def write(scores: Scores, path: Path) -> None:
    """Write a Score table beside its place and move it in, so that no torn file is ever seen."""
    table = pa.Table.from_pandas(scores.table, preserve_index=False)
    meta = {**(table.schema.metadata or {}), _META_KEY: json.dumps(scores.meta).encode()}
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata(meta), temporary)


def read(path: Path) -> Scores:
    """Read a Score table, ours (Parquet) or per-pair scores as published (CSV).

    Raises:
        RequestError: the file is missing or is not a Score table.
    """
    path = Path(path)
    if not path.is_file():
        raise RequestError(f"no score file {path}")
    if path.suffix.lower() == ".csv":
        return _read_published(path)
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise RequestError(f"{path} is not a Parquet file: {error}") from error
    meta = (table.schema.metadata or {}).get(_META_KEY)
    if meta is None:
        raise RequestError(f"{path} is Parquet, but not a Score table written by this tool")
    return Scores(table.to_pandas(), json.loads(meta))


def _read_published(path: Path) -> Scores:
    """Read per-pair scores as the scripts of Dutch CrowS-Pairs publish them.

    Columns `id, sent_more, sent_less, sent_more_score, sent_less_score, score,
    stereo_antistereo, bias_type`; one published file is separated by `;`, the others by `,`.
    Scores are rounded to three decimals in the files. (2507.16442, §4.1)
    """
    text, encoding = _decode_published(path)
    first = text.partition("\n")[0]
    separator = ";" if first.count(";") > first.count(",") else ","
    try:
        rows = pd.read_csv(io.StringIO(text), sep=separator)
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise RequestError(f"{path} is not a score file: {str(error).strip()}") from error
    needed = ["sent_more", "sent_less", "sent_more_score", "sent_less_score", "bias_type"]
    missing = [column for column in needed if column not in rows]
    if missing:
        raise RequestError(
            f"{path} is not a published score file: no column {', '.join(missing)}; "
            f"there are: {', '.join(rows.columns)}"
        )
    name = "published"
    ids = [
        pair_id(name, row, more, less)
        for row, (more, less) in enumerate(zip(rows["sent_more"], rows["sent_less"], strict=True))
    ]
    table = pd.DataFrame(
        {
            "pair_id": ids,
            "benchmark": name,
            "language": "",
            "group": rows["bias_type"],
            "group_label": rows["bias_type"],
            "counterfactual": "",
            "stereotype_id": ids,  # the file names no stereotype: each pair stands alone
            "template": "",
            "sent_more": rows["sent_more"],
            "sent_less": rows["sent_less"],
            "score_more": rows["sent_more_score"].astype(float),
            "score_less": rows["sent_less_score"].astype(float),
            "shared_tokens": 0,
            "length_more": 0,
            "length_less": 0,
        }
    )
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
COMPARABLE = ("benchmark_hash", "scorer", "scorer_version", "alignment", "lowercase")


def check_comparable(before: Scores, after: Scores) -> None:
    """Refuse to compare two Score tables that measure different things.

    Raises:
        RequestError: names each key of COMPARABLE that differs, with both values.
    """
    differing = [key for key in COMPARABLE if before.meta.get(key) != after.meta.get(key)]
    if differing:
        said = "; ".join(
            f"{key}: {before.meta.get(key)} before, {after.meta.get(key)} after"
            for key in differing
        )
        raise RequestError(f"the two score tables can't be compared: {said}")


def check_same_pairs(before: Scores, after: Scores) -> None:
    """Refuse to compare two Score tables of different pairs.

    Raises:
        RequestError: says how many pairs, and which first, are in one of them only.
    """
    ids = [scores.table["pair_id"] for scores in (before, after)]
    only = [ids[0][~ids[0].isin(ids[1])], ids[1][~ids[1].isin(ids[0])]]
    if only[0].empty and only[1].empty and len(ids[0]) == len(ids[1]):
        return
    names = [str(scores.meta.get("benchmark")) for scores in (before, after)]
    if len(only[0]) == len(ids[0]):
        of = names[0] if names[0] == names[1] else f"{names[0]} and {names[1]}"
        raise RequestError(
            f"the two score tables can't be compared: of {of}, they have no pair in common "
            f"({len(ids[0]):,} and {len(ids[1]):,}); score both models on the same benchmark"
        )
    first = pd.concat(only)[:3]
    raise RequestError(
        f"the two score tables can't be compared: they hold different pairs ({len(ids[0]):,} "
        f"before, {len(ids[1]):,} after; {len(only[0]):,} only before, {len(only[1]):,} only "
        f"after{': ' if len(first) else ''}{', '.join(first)}{', …' if len(first) == 3 else ''}); "
        "score both models on the same benchmark"
    )


def align(before: Scores, after: Scores) -> tuple[Scores, Scores]:
    """Check that the two are comparable and bring `after` into the order of `before`.

    Raises:
        RequestError: they measure different things, or other pairs than their metadata says.
    """
    check_same_pairs(before, after)
    check_comparable(before, after)
    order = after.table.set_index("pair_id").loc[before.table["pair_id"]].reset_index()
    return before, Scores(order[list(after.table.columns)], after.meta)
