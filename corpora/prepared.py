"""Folders that `mitigate corpus … out=DIR` made: what every recipe reads, and nothing names.

    train/, valid/, dataset_dict.json   the texts: `datasets.load_from_disk(DIR)`
    manifest.json                       what was done, and the SHA-256 of every file
    DATASHEET.md                        the same for people; they answer the rest of it
    corpus.html, figures/               the same in pictures
    removed.jsonl                       what was cut of benchmarks: which, how often, its hash

A row holds a text, its language and the identities that it names, and four keys: its own, its
author's, its post's and its instance's (see `corpora.privacy`). A folder is written beside its
place and moved in; a rewritten one takes the old one's place in two moves, and `settle` ends
what a kill left between them.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from corpora import datasheet
from corpora.errors import RequestError

if TYPE_CHECKING:
    from corpora import CorpusSettings

#: Of the folder's layout: 1 was two files of JSON lines, without keys.
FORMAT = 2
MANIFEST = "manifest.json"
DATASHEET = "DATASHEET.md"
REMOVED = "removed.jsonl"
SPLITS = ("train", "valid")
ROWS = pa.schema(
    [
        ("text", pa.string()),
        ("key", pa.string()),
        ("author", pa.string()),
        ("post", pa.string()),
        ("instance", pa.string()),
        ("language", pa.string()),
        ("groups", pa.list_(pa.string())),
    ]
)
#: Files that people may change without making it another corpus.
_FREE = (MANIFEST, DATASHEET)


def is_prepared(path: Path) -> bool:
    """Whether a path is a folder of ours, of whatever version."""
    return (path / MANIFEST).is_file() and (
        (path / "dataset_dict.json").is_file() or (path / "train.jsonl").is_file()
    )


def check(settings: "CorpusSettings") -> dict[str, Any]:
    """The manifest of the folder at `settings.path`, which is what it was when it was built.

    Raises:
        RequestError: another version made it, its files are others, or keywords, years or
            origins are asked for that it was not built with.
    """
    folder = Path(settings.path or "").expanduser()
    manifest = load_manifest(folder)
    asked = ["keywords", "years"] if manifest.get("reader") == settings.reader else []
    for key in [*asked, *(["origins"] if settings.origins else [])]:
        built, wanted = manifest.get(key), getattr(settings, key)
        if built != wanted:
            raise RequestError(
                f"corpus.{key}={wanted}: {folder} was built with {built}; build it anew, or "
                "give the data that it was built from as corpus.path"
            )
    check_files(folder, manifest)
    return manifest


def tables(folder: Path) -> dict[str, pa.Table]:
    """The splits of a folder, mapped from disk (columns: ROWS)."""
    import datasets  # a second to import

    found = datasets.load_from_disk(str(folder))
    return {split: found[split].with_format("arrow")[:] for split in SPLITS if split in found}


def load_manifest(folder: Path) -> dict[str, Any]:
    """What a folder says of itself.

    Raises:
        RequestError: it is no folder of ours, or of another version.
    """
    if not is_prepared(folder):
        raise RequestError(f"{folder}: not a corpus that `mitigate corpus … out=DIR` built")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except ValueError as error:
        raise RequestError(f"{folder / MANIFEST}: not JSON ({error})") from error
    if not isinstance(manifest, dict):
        raise RequestError(f"{folder / MANIFEST}: not a JSON object")
    made = manifest.get("format", 1)
    if made != FORMAT:
        raise RequestError(
            f"{folder}: built by another version (format {made}, this one reads {FORMAT}); build "
            "it anew from its source with `mitigate corpus`"
        )
    return manifest


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise unless the folder's files are those that its manifest has the hashes of."""
    for name, noted in manifest.get("hashes", {}).items():
        path = folder / name
        if not path.is_file():
            raise RequestError(f"{folder}: {MANIFEST} names {name}, which is not there")
        if name not in _FREE and _sha256(path) != noted:
            raise RequestError(
                f"{path}: not what it was when the corpus was built (its hash is another); build "
                "it anew"
            )


def folder_facts(path: Path) -> dict[str, Any]:
    """What a folder says of itself: the hash of its datasheet; how it was built, if by us."""
    facts: dict[str, Any] = {}
    if (path / DATASHEET).is_file():
        facts["datasheet_sha256"] = _sha256(path / DATASHEET)
    if is_prepared(path):
        facts["built_from"] = load_manifest(path)
    return facts


def check_free(out: Path) -> None:
    """Raise unless a new folder can be made at `out`."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise RequestError(f"out={out}: is there already; choose a new folder or empty it")


def write(
    out: Path, splits: dict[str, pa.Table], facts: dict[str, Any], removed: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write a new folder: it is there whole or not at all. Returns what its manifest says."""
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(out, "part")
    facts = _fill(beside, splits, facts, removed, "")
    if out.is_dir():
        out.rmdir()  # empty, as checked
    os.replace(beside, out)
    _settle_on_disk(out.parent)
    return facts


def rewrite(folder: Path, splits: dict[str, pa.Table], facts: dict[str, Any]) -> dict[str, Any]:
    """Put another content in a folder's place, answers in its datasheet kept.

    Killed at any moment, it leaves the old folder or the new one, and `settle` does the rest.
    """
    answers = (folder / DATASHEET).read_text(encoding="utf-8")
    part, new = _beside(folder, "part"), _beside(folder, "new")
    removed = folder / REMOVED
    cut = [json.loads(line) for line in removed.open("rb")] if removed.is_file() else []
    facts = _fill(part, splits, facts, cut, answers)
    os.replace(part, new)  # from here on it counts
    _settle_on_disk(folder.parent)
    settle(folder)
    _settle_on_disk(folder.parent)
    return facts


def set_aside(folder: Path) -> None:
    """Take a folder from its place at once; `sweep` ends it, `settle` brings it back."""
    os.replace(folder, _beside(folder, "old"))
    _settle_on_disk(folder.parent)


def sweep(folder: Path) -> None:
    """Delete what was set aside; it never comes back, not even in part."""
    os.replace(_beside(folder, "old"), _beside(folder, "part"))
    shutil.rmtree(_beside(folder, "part"), ignore_errors=True)
    _settle_on_disk(folder.parent)


def settle(folder: Path) -> None:
    """End what a kill left of `write` or `rewrite`, undo what it left of a removal."""
    part, new, old = (_beside(folder, kind) for kind in ("part", "new", "old"))
    shutil.rmtree(part, ignore_errors=True)
    if new.is_dir():
        if folder.is_dir() and not old.is_dir():
            os.replace(folder, old)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(new, folder)
    elif old.is_dir() and not folder.exists():
        os.replace(old, folder)
    shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path, kind: str) -> Path:
    folder = Path(os.path.abspath(folder))
    return folder.with_name(f".{folder.name}.{kind}")


def _fill(
    beside: Path,
    splits: dict[str, pa.Table],
    facts: dict[str, Any],
    removed: list[dict[str, Any]],
    answers: str,
) -> dict[str, Any]:
    """Write everything that a folder holds; on failure nothing of it stays."""
    import datasets

    from corpora import pictures  # matplotlib is slow to import

    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir()
        parts = {  # a split without rows can't be loaded
            split: datasets.Dataset(table.cast(ROWS).combine_chunks(), fingerprint=facts["id"])
            for split, table in splits.items()
            if len(table)
        }
        bars = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            datasets.DatasetDict(parts).save_to_disk(str(beside))
        finally:
            if not bars:
                datasets.enable_progress_bars()
        if removed:
            with (beside / REMOVED).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in removed)
        pictures.write(facts, beside)
        (beside / DATASHEET).write_text(datasheet.render(facts, answers), encoding="utf-8")
        files = sorted(path for path in beside.rglob("*") if path.is_file())
        hashes = {path.relative_to(beside).as_posix(): _sha256(path) for path in files}
        facts = {**facts, "format": FORMAT, "hashes": hashes}
        manifest = json.dumps(facts, ensure_ascii=False, indent=2)
        (beside / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
        for path in [*files, beside / MANIFEST]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return facts


def _settle_on_disk(folder: Path) -> None:
    """Let a move survive a power cut, where the system can say so of folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
