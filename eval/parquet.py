"""A table in a Parquet file, and in the file's metadata how it was made."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from eval.errors import RequestError
from eval.files import replacing


def write(table: pd.DataFrame, meta: dict[str, Any], path: Path, *, key: bytes) -> None:
    """Write beside the file's place and move it in, so that no torn file is ever seen.

    `key`: where in the file's metadata `meta` stands, as JSON; it tells one kind of table from
    another.
    """
    found = pa.Table.from_pandas(table, preserve_index=False)
    metadata = {**(found.schema.metadata or {}), key: json.dumps(meta).encode()}
    with replacing(path) as temporary:
        pq.write_table(found.replace_schema_metadata(metadata), temporary)


def read(path: Path, *, key: bytes, what: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read what `write` wrote under this key; `what` is how a person calls such a table.

    Raises:
        RequestError: the file is missing, is not Parquet, or holds another kind of table.
    """
    if not path.is_file():
        raise RequestError(f"no {what} {path}")
    try:
        found = pq.read_table(path)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise RequestError(f"{path} is not a Parquet file: {error}") from error
    meta = (found.schema.metadata or {}).get(key)
    if meta is None:
        raise RequestError(f"{path} is Parquet, but not a {what} written by this tool")
    return found.to_pandas(), json.loads(meta)
