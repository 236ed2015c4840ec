"""The same steps on many machines, as a `datatrove` pipeline (`pip install mitigate[cluster]`).

Two stages. What looks at one file alone is done a file a time, in as many tasks as there are
files at most, by whatever executor datatrove has:

    SlurmPipelineExecutor(pipeline=stage(settings, work, benchmark), tasks=512, …).run()

What looks at all of them, `gather` reads back in the order of the files; on one machine,
`corpora.build(settings, out, ready=gather(settings, work))` does the rest. The result is that of
one machine, but for boilerplate: lines are counted by file here, too, where a source is a file,
and not across files that are one document each.

The work folder holds who wrote what. It belongs to nobody else, and is deleted afterwards.
"""

import importlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corpora import decontaminate, steps
from corpora.documents import Document
from corpora.errors import RequestError

try:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise RequestError(
        "corpora.cluster needs datatrove: pip install 'mitigate[cluster]'; one machine needs "
        "none, corpus.workers=N"
    ) from error

if TYPE_CHECKING:
    from corpora import CorpusSettings

#: A file's documents, their signatures, and its counts.
DOCUMENTS, BANDS, COUNTS = "documents.jsonl", "bands.npy", "counts.json"


class Prepare(PipelineStep):
    """Reads, cleans, labels and decontaminates the files whose turn it is, into a work folder."""

    name = "Prepare a corpus"
    type = "mitigate"

    def __init__(
        self,
        settings: "CorpusSettings",
        work: Path,
        benchmark: decontaminate.Benchmark | None = None,
    ) -> None:
        super().__init__()
        self.settings, self.work, self.benchmark = replace(settings, workers=1), work, benchmark

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Prepare every `world_size`-th file from the `rank`-th on; a file that is done stays."""
        yield from data or ()
        for number, file in list(enumerate(_files(self.settings)))[rank::world_size]:
            place = self.work / f"{number:06}"
            if place.exists():
                continue
            with self.track_time(unit="file"):
                one = replace(self.settings, path=str(file))
                prepared = steps.prepare(_documents(one), one, self.benchmark)
                _save(prepared, place)
            self.stat_update("documents", value=len(prepared.kept), unit="file")


def stage(
    settings: "CorpusSettings", work: Path, benchmark: decontaminate.Benchmark | None = None
) -> list[PipelineStep]:
    """The pipeline of the first stage, for any executor of datatrove."""
    return [Prepare(settings, Path(work), benchmark)]


def run(
    settings: "CorpusSettings",
    work: Path,
    benchmark: decontaminate.Benchmark | None = None,
    *,
    tasks: int = 1,
) -> steps.Built:
    """Both stages on this machine, with datatrove's local executor.

    Raises:
        RequestError: as `corpora.steps.run`; or the work folder holds files of other data.
    """
    work = Path(work)
    executor = LocalPipelineExecutor(
        pipeline=stage(settings, work / "files", benchmark),
        tasks=tasks,
        workers=min(tasks, settings.workers),
        logging_dir=str(work / "logs"),
    )
    executor.run()
    return steps.finish(gather(settings, work / "files"), settings)


def gather(settings: "CorpusSettings", work: Path) -> steps.Prepared:
    """What the first stage left, of all files, in their order.

    Raises:
        RequestError: a file is missing there, so that a task hasn't ended.
    """
    kept: list[steps.Kept] = []
    bands, counts = [], list[list[steps.Step]]()
    cut: Counter[tuple[str, str, str]] = Counter()
    for number, file in enumerate(_files(settings)):
        place = Path(work) / f"{number:06}"
        if not (place / COUNTS).is_file():
            raise RequestError(f"{work}: {file.name} isn't done; run the first stage again")
        said = json.loads((place / COUNTS).read_text(encoding="utf-8"))
        counts.append([steps.Step(**step) for step in said["steps"]])
        cut += Counter({tuple(what): times for *what, times in said["cut"]})
        with (place / DOCUMENTS).open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                document = Document(**row.pop("document"))
                kept.append(steps.Kept(document=document, groups=tuple(row.pop("groups")), **row))
        bands.append(np.load(place / BANDS))
    return steps.Prepared(
        kept,
        np.concatenate([some for some in bands if len(some)] or bands),
        [steps.added(list(of)) for of in zip(*counts, strict=True)],
        cut,
    )


def _files(settings: "CorpusSettings") -> list[Path]:
    path = Path(settings.path or "").expanduser()
    if not settings.path or not path.exists():
        raise RequestError(f"corpus.path={settings.path}: a folder of files, or a file")
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [file for file in files if not file.name.startswith(".")]


def _documents(settings: "CorpusSettings") -> Iterator[Document]:
    module = importlib.import_module(f"corpora.{settings.reader}")
    documents: Iterator[Document] = module.read(settings)
    return documents


def _save(prepared: steps.Prepared, place: Path) -> None:
    """Write a file's part beside its place and move it in: there whole or not at all."""
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    beside.mkdir(parents=True, mode=0o700)
    with (beside / DOCUMENTS).open("w", encoding="utf-8") as file:
        for kept in prepared.kept:
            file.write(json.dumps(asdict(kept), ensure_ascii=False) + "\n")
    np.save(beside / BANDS, prepared.bands)
    said = {
        "steps": [asdict(step) for step in prepared.counts],
        "cut": [[*what, times] for what, times in prepared.cut.items()],
    }
    (beside / COUNTS).write_text(json.dumps(said, ensure_ascii=False), encoding="utf-8")
    beside.rename(place)
