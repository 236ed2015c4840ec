"""The W&B file of a real run, through the real command, read back: what docs/wandb.md promises."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mitigate import reporting
from tests.mitigate import wandb_file

QUICK = [
    *("benchmark.limit=60", "corpus.sentences=200", "method.max_steps=4", "method.eval_steps=2"),
    *("method.save_steps=2", "retention.sentences=5", "inference.resamples=200", "curve.pairs=12"),
]


@pytest.fixture(scope="module")
def folder(tiny_masked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a curve, from a directory of its own."""
    elsewhere = tmp_path_factory.mktemp("tracked")
    command = [str(Path(sys.executable).with_name("mitigate")), "train", "recipe=demo"]
    command += [f"model.path={tiny_masked}", "run.dir=tracked", *QUICK]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in elsewhere.iterdir()] == ["tracked"]
    return elsewhere / "tracked"


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return wandb_file.read(folder)


def test_it_is_one_run_with_the_recipe_as_its_config(found: dict[str, Any], folder: Path) -> None:
    assert found["runs"] == 1
    assert found["id"] == folder.name
    assert found["config"]["method"]["max_steps"] == 4


def test_the_summary_holds_every_promised_key_and_the_tables_numbers(
    found: dict[str, Any], folder: Path
) -> None:
    done = reporting.read_run(folder)
    comparison = done.comparisons()["samples_de"]
    summary = found["summary"]
    for row in comparison.table.to_dict("records"):
        place = f"{row['scope'].replace(':', '/')}/{row['metric']}"
        for when in ("before", "after", "delta"):
            if row[when] == row[when]:
                assert summary[f"bias/{when}/{place}"] == row[when], place
        assert summary[f"bias/delta/{place}/verdict"] == row["verdict"]
        for name in ("ci_low", "ci_high", "p", "p_adjusted"):
            if row[name] == row[name]:
                assert summary[f"bias/delta/{place}/{name}"] == row[name], (place, name)
    for when in ("before", "after", "delta"):
        assert summary[f"bias/{when}/distance_from_50"] == comparison.headline[when]
    assert summary["bias/delta/distance_from_50/verdict"] == comparison.headline["verdict"]
    for key in ("bias/before/spread", "bias/after/spread", "bias/clusters", "bias/clusters_moved"):
        assert key in summary
    assert summary["bias/finding"] == " ".join(comparison.sentences())
    assert summary["retention/neutral/change_percent"] == pytest.approx(
        done.retention["neutral"]["change_percent"]
    )


def test_steps_never_go_back_and_the_curve_lies_on_them(found: dict[str, Any]) -> None:
    steps = [row["train/step"] for row in found["history"] if "train/step" in row]
    assert steps == sorted(steps)
    assert {row["train/step"] for row in found["history"] if "train/loss" in row} == {1, 2, 3, 4}
    curve = {
        row["train/step"]: row["curve/overall/bias"]
        for row in found["history"]
        if "curve/overall/bias" in row
    }
    assert list(curve) == [0, 2, 4]
    for row in found["history"]:
        assert row["_step"] >= 0
        if any(key.startswith(("train/", "curve/")) for key in row):
            assert "train/step" in row


def test_tables_figures_and_scores_are_there_and_no_sentence_is(
    found: dict[str, Any], folder: Path
) -> None:
    for key, kind in (
        *((f"bias/{name}", "table-file") for name in ("deltas", "published", "pairs")),
        *((f"bias/{name}", "image-file") for name in ("figure", "forest", "margins", "curve")),
    ):
        assert found["summary"][f"{key}/_type"] == kind
    assert found["summary"]["bias/pairs/nrows"] == 60
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    kept = [r.artifact for r in wandb_file.records(file) if r.HasField("artifact")]
    names = {artifact.name for artifact in kept if artifact.type == "scores"}
    assert names == {"scores-tracked-samples_de"}
    pairs = reporting.read_run(folder).tables["samples_de"][0].table
    sentence = str(pairs["sent_more"].iloc[0]).encode()
    for path in folder.joinpath("wandb").rglob("*"):
        assert not path.is_file() or sentence not in path.read_bytes(), path
