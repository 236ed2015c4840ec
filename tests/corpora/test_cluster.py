"""The datatrove pipeline, run by its local executor: the same corpus as on one machine."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from corpora import CorpusSettings, RequestError, build, decontaminate, steps

pytest.importorskip("datatrove", reason="datatrove isn't there: pip install 'mitigate[cluster]'")

from corpora import cluster
from corpora.text import read
from tests.corpora.test_steps import BENCHMARK, documents


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The posts of the other tests in three files."""
    made = tmp_path / "data"
    made.mkdir()
    for number in range(3):
        with (made / f"{number}.jsonl").open("w", encoding="utf-8") as file:
            for at, document in enumerate(documents()):
                if at % 3 == number:
                    file.write(json.dumps({"text": document.text}) + "\n")
    return made


def settings(folder: Path, **more: Any) -> CorpusSettings:
    return CorpusSettings(name="posts", path=str(folder), language="de", **more)


@pytest.mark.parametrize("tasks", [1, 2])
def test_the_same_as_on_one_machine(folder: Path, tmp_path: Path, tasks: int) -> None:
    asked = settings(folder, workers=tasks)
    expected = steps.run(read(asked), settings(folder), BENCHMARK)
    built = cluster.run(asked, tmp_path / "work", BENCHMARK, tasks=tasks)
    assert built == expected
    # What is done is not done again.
    empty = decontaminate.Benchmark()
    assert cluster.run(asked, tmp_path / "work", empty, tasks=tasks) == expected


def test_a_folder_is_built_of_what_is_prepared(folder: Path, tmp_path: Path) -> None:
    asked = settings(folder)
    (pipeline,) = cluster.stage(asked, tmp_path / "work", BENCHMARK)
    list(pipeline.run(None))
    ready = cluster.gather(asked, tmp_path / "work")
    for name, more in (("here", {"benchmark": BENCHMARK}), ("cluster", {"ready": ready})):
        build(asked, tmp_path / name, private=tmp_path / "private", **more)
    here, there = (load_from_disk(str(tmp_path / name)) for name in ("here", "cluster"))
    for split in ("train", "valid"):
        assert here[split]["text"] == there[split]["text"]


def test_a_task_that_has_not_ended_is_named(folder: Path, tmp_path: Path) -> None:
    (pipeline,) = cluster.stage(settings(folder), tmp_path / "work")
    list(pipeline.run(None, rank=0, world_size=2))  # the first file and the third
    with pytest.raises(RequestError, match=r"1\.jsonl isn't done; run the first stage again"):
        cluster.gather(settings(folder), tmp_path / "work")
