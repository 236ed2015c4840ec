"""Folders that `mitigate corpus … out=DIR` made: written once, read by every recipe."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpora.documents import Document
from corpora.errors import RequestError

if TYPE_CHECKING:
    from corpora import CorpusSettings

MANIFEST = "manifest.json"
DATASHEET = "DATASHEET.md"
SPLITS = ("train", "valid")


def is_prepared(path: Path) -> bool:
    """Whether a path is a folder of ours."""
    return (path / MANIFEST).is_file() and (path / "train.jsonl").is_file()


def read(settings: "CorpusSettings") -> Iterator[Document]:
    """Read such a folder, with the split that it has.

    Raises:
        RequestError: its files aren't what they were, or keywords or years are asked for
            that it was not built with.
    """
    folder = Path(settings.path or "")
    manifest = _manifest(folder)
    if manifest.get("reader") == settings.reader:
        for key in ("keywords", "years"):
            built, asked = manifest.get(key), getattr(settings, key)
            if built != asked:
                raise RequestError(
                    f"corpus.{key}={asked}: {folder} was built with {built}; build it anew, or "
                    "give the data that it was built from as corpus.path"
                )
    for split in SPLITS:
        file = folder / f"{split}.jsonl"
        if not file.is_file():
            raise RequestError(f"{folder}: {MANIFEST} is there but {file.name} is not")
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    text = json.loads(line)["text"]
                except (ValueError, KeyError, TypeError) as error:
                    raise RequestError(
                        f"{file}, line {number}: not a JSON object with a text"
                    ) from error
                yield Document(text, origin=file.name, split=split)


def folder_facts(path: Path) -> dict[str, Any]:
    """What a folder says of itself: the hash of its datasheet; how it was built, if by us."""
    facts: dict[str, Any] = {}
    if (path / DATASHEET).is_file():
        facts["datasheet_sha256"] = hashlib.sha256((path / DATASHEET).read_bytes()).hexdigest()
    if is_prepared(path):
        facts["built_from"] = _manifest(path)
    return facts


def check_free(out: Path) -> None:
    """Raise unless a new folder can be made at `out`."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise RequestError(f"out={out}: is there already; choose a new folder or empty it")


def write(out: Path, train: list[str], valid: list[str], facts: dict[str, Any]) -> None:
    """Write a folder beside its place and move it in: it is there whole or not at all."""
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        for split, texts in zip(SPLITS, (train, valid), strict=True):
            with (beside / f"{split}.jsonl").open("w", encoding="utf-8") as file:
                for text in texts:
                    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        manifest = json.dumps(facts, ensure_ascii=False, indent=2)
        (beside / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
        (beside / DATASHEET).write_text(_datasheet(facts), encoding="utf-8")
        beside.chmod(0o755)  # mkdtemp gives it to its owner alone
        if out.is_dir():
            out.rmdir()  # empty, as checked
        os.replace(beside, out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except ValueError as error:
        raise RequestError(f"{folder / MANIFEST}: not JSON ({error})") from error
    if not isinstance(manifest, dict):
        raise RequestError(f"{folder / MANIFEST}: not a JSON object")
    return manifest


def _datasheet(facts: dict[str, Any]) -> str:
    """A datasheet (Gebru et al. 2021) with what is known filled in and the rest asked."""
    dropped = "".join(f"  - {why}: {n:,}\n" for why, n in facts["dropped"].items())
    keywords = ", ".join(facts["keywords"]) or "none: every document"
    return f"""# Datasheet: {facts["name"]}

Filled in from the build; whoever builds the corpus answers what is marked **to answer**.

## Motivation
- For what purpose, by whom, funded by whom: **to answer**

## Composition
- Language: {facts["language"] or "**to answer**"}
- Documents: {facts["documents_kept"]:,} ({facts["documents_train"]:,} for training,
  {facts["documents_valid"]:,} held out), of {facts["documents_read"]:,} read; dropped:
{dropped or "  - none" + chr(10)}- Characters: {facts["characters"]:,}; words: {facts["words"]:,}
- Texts, SHA-256: `{facts["sha256"]}`
- Could it identify people, or cause them harm: **to answer**

## Collection
- Source: {facts["source"] or "**to answer**"}
- Files: {", ".join(facts["files"]) or "none: generated"}
- Years: {facts["years"] or "all"}; keywords: {keywords}
- Consent of those who wrote the text, and how it is withdrawn: **to answer**

## Preprocessing
- Cleaning, version {facts["cleaning"]}: Unicode NFC, blanks, HTML entities; links, handles and
  mail addresses replaced by placeholders; exact duplicates removed before the split (seed
  {facts["seed"]}, share held out {facts["valid_share"]}). Gender forms are kept as written.

## Uses
- What it is meant for, and what it must not be used for: **to answer**

## Distribution and maintenance
- Licence of the texts: {facts["licence"].replace("unknown", "") or "**to answer**"}
- Who keeps it, how deletions reach those who have it: **to answer**
"""
