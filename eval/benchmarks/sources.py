"""Where a benchmark's file comes from: a local path, a URL with its hash, or the Hugging Face hub.

Nothing is downloaded where a file is given, nor under HF_HUB_OFFLINE=1. What is downloaded is
kept in the cache folder and checked by its hash each time: the one that the recipe states, or
the one that was recorded beside the file when it first came.
"""

import hashlib
import logging
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pandas as pd
import pooch
from filelock import FileLock
from platformdirs import user_cache_path
from requests import exceptions

from eval.errors import RequestError

#: Seconds to wait for a server's next bytes.
TIMEOUT = 30
_TRUE = {"1", "ON", "YES", "TRUE"}  # as huggingface_hub reads its switches


def cache_folder() -> Path:
    """Where downloads are kept: `MITIGATE_CACHE`, else the user's cache folder."""
    stated = os.environ.get("MITIGATE_CACHE")
    base = Path(stated).expanduser() if stated else user_cache_path("mitigate")
    return base / "benchmarks"


def offline() -> bool:
    """Whether the user keeps this machine from the network, by the hub's own switch."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE


def kept_at(url: str) -> Path:
    """Where the file at `url` is kept, under the name it was published with."""
    name = Path(unquote(urlsplit(url).path)).name or "file"
    return cache_folder() / hashlib.sha256(url.encode()).hexdigest()[:12] / name


def download(url: str, sha256: str | None, give: str) -> tuple[Path, dict[str, Any]]:
    """The file at `url`, from the cache or downloaded into it, and facts on it.

    `sha256`: what it must be; None: what it was when it first came, which is recorded beside
    it. `give`: how the user gives the file instead, to end an error with. Facts: `url`, and
    `hash_known`: stated, recorded, or "no: recorded now".

    Raises:
        RequestError: it can't be had, or is not the file that it was.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise RequestError(f"{url}: an address begins with https://; {give}")
    path = kept_at(url)
    record = path.with_name(f"{path.name}.sha256")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            recorded = record.read_text(encoding="ascii").strip() if record.is_file() else None
            known = (sha256 or recorded or "").lower() or None
            if not path.is_file() or (known and _sha256(path) != known):
                _fetch(url, path, known, record if not sha256 else None, give)
            if known is None:
                record.write_text(_sha256(path) + "\n", encoding="ascii")
    except PermissionError as error:
        raise RequestError(f"{path.parent}: may not be written by you; {give}") from error
    how = "stated" if sha256 else "recorded" if recorded else "no: recorded now"
    return path, {"url": url, "hash_known": how}


def _fetch(url: str, path: Path, known: str | None, record: Path | None, give: str) -> None:
    """Download into place, whole and of the known hash, or raise and leave what there was."""
    ask = f"download it by hand and {give}"
    if offline():
        raise RequestError(f"HF_HUB_OFFLINE keeps {url} from being downloaded; {ask}")
    logging.getLogger(__name__).warning("downloading %s", url)
    pooch.get_logger().setLevel(logging.WARNING)  # our own line says it
    # What was kept and doesn't fit its hash stays until the new file is there.
    try:
        pooch.retrieve(
            url,
            f"sha256:{known}" if known else None,
            fname=path.name,
            path=path.parent,
            downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
        )
    except exceptions.RequestException as error:
        raise RequestError(f"{url} can't be downloaded: {_reason(error)}; {ask}") from error
    except ValueError as error:  # pooch's answer to another hash
        accept = f", or delete {record} to take it as it is now" if record else ""
        source = "recorded when it first came" if record else "the recipe states"
        raise RequestError(
            f"{url}: what is there now is not the file with sha256 {known}, which {source}; "
            f"find out why{accept}"
        ) from error


def _reason(error: exceptions.RequestException) -> str:
    """What went wrong, in a few words; requests' own texts are nested traces."""
    if error.response is not None:
        return f"the server says {error.response.status_code} {error.response.reason}"
    if isinstance(error, exceptions.Timeout):
        return f"no answer in {TIMEOUT} seconds"
    if isinstance(error, exceptions.ChunkedEncodingError | exceptions.ContentDecodingError):
        return "the connection broke off"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection"
    return " ".join(str(error).split())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def from_hub(
    name: str, split: str | None, revision: str | None, give: str
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A dataset of the hub, or a folder in its form, as a table, and facts on it.

    `split`: which part; None where there is only one. `revision`: a commit, tag or branch.
    Facts: `hub`, `split`, `revision` (the commit, where it is known), `rows_read`.

    Raises:
        RequestError: there is no such dataset, split or revision, or it can't be had.
    """
    import datasets  # seconds, and seldom needed
    from huggingface_hub import errors

    asked = f"benchmark.hub={name}" + (f" benchmark.revision={revision}" if revision else "")
    try:
        found = datasets.load_dataset(name, revision=revision)
    except datasets.exceptions.DataFilesNotFoundError as error:
        raise RequestError(f"{asked}: no table of CSV, JSONL or Parquet in it; {give}") from error
    except (datasets.exceptions.DatasetNotFoundError, errors.RepositoryNotFoundError) as error:
        what = "not in the hub's cache, and HF_HUB_OFFLINE is set" if offline() else "no such"
        raise RequestError(f"{asked}: {what} dataset, or a private one; {give}") from error
    except (
        ConnectionError,
        FileNotFoundError,
        errors.HfHubHTTPError,
        errors.OfflineModeIsEnabled,
    ) as error:
        raise RequestError(f"{asked}: can't be had ({_first(error)}); {give}") from error
    except (ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise RequestError(f"{asked}: can't be read ({_first(error)}); {give}") from error
    splits = list(found)
    if split is None and len(splits) > 1:
        raise RequestError(f"{asked} has several splits; say benchmark.split={'|'.join(splits)}")
    chosen = split or splits[0]
    if chosen not in found:
        raise RequestError(f"{asked}: no split {chosen}; there are: {', '.join(splits)}")
    rows = found[chosen]
    frame = rows.to_pandas()
    for column, feature in rows.features.items():
        if isinstance(feature, datasets.ClassLabel):  # a number that stands for a name
            names = dict(enumerate(feature.names))  # -1 stands for none
            frame[column] = frame[column].map(names).fillna("")
    commit = _commit(rows.info.download_checksums or {})
    facts = {"hub": name, "split": chosen, "revision": commit or revision or ""}
    return frame, {**facts, "rows_read": len(frame)}


def _commit(sources: dict[str, Any]) -> str:
    """The commit in the addresses that a dataset's files came from: hf://datasets/a/b@COMMIT/…"""
    for address in sources:
        scheme, _, rest = str(address).partition("@")
        if scheme.startswith("hf://"):
            return rest.partition("/")[0]
    return ""


def _first(error: Exception) -> str:
    return " ".join(str(error).strip().split("\n")[0].split()).rstrip(".")
