"""A small reader of W&B's offline file: a LevelDB log of protobuf records."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

HEADER, BLOCK = 7, 32 * 1024  # bytes: W&B's own header and each record's; a block of the log
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """Every record of a `.wandb` file, in order."""
    data = path.read_bytes()
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        place += HEADER
        body = data[place : place + length]
        place += length
        parts = body if kind in (FULL, FIRST) else parts + body
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record


def read(folder: Path) -> dict[str, Any]:
    """The one run in a run folder's wandb/: config keys, history rows, summary."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 1, files
    found: dict[str, Any] = {"runs": 0, "history": [], "summary": {}, "config": {}}
    for record in records(files[0]):
        if record.HasField("run"):
            found["runs"] += 1
            found["id"] = record.run.run_id
            for item in record.run.config.update:
                found["config"][item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        if record.HasField("history"):
            found["history"].append(_items(record.history.item))
        if record.HasField("summary"):
            found["summary"] |= _items(record.summary.update)
    return found


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
