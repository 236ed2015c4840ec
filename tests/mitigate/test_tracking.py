"""What goes to W&B, from made-up runs: keys, tables, artifacts, resuming; nothing is trained."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import wandb

from eval import scores
from eval.inference import InferenceSettings, compare
from mitigate import reporting, tracking
from mitigate.tracking import Tracker
from tests.eval.scored import simulated
from tests.mitigate import wandb_file
from tests.mitigate.finished import compared, finished

FAST = InferenceSettings(resamples=200)


@pytest.fixture(autouse=True)
def _data_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    # The tracker sets it where it is not set; here it must not outlive the test.
    monkeypatch.setenv("WANDB_DATA_DIR", "")
    del os.environ["WANDB_DATA_DIR"]


def end(tracker: Tracker) -> None:
    """Finish, and wait until W&B's own process has written its file and is gone."""
    tracker.finish()
    wandb.teardown()


def sent(run: Any) -> dict[str, Any]:
    """What W&B's file of a run holds after its findings."""
    done, comparisons = reporting.read_run(run.folder), compared(run)
    figures = reporting.write(done, comparisons, run.folder)
    tracker = Tracker(run, {"seed": run.recipe.seed})
    for name, comparison in comparisons.items():
        tracker.finding(name, len(comparisons) > 1, comparison, figures[name])
    end(tracker)
    return wandb_file.read(run.folder)


def artifacts(folder: Path) -> dict[str, Any]:
    """The logged artifacts of the type `scores`, by name."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    found = [record.artifact for record in wandb_file.records(file) if record.HasField("artifact")]
    return {artifact.name: artifact for artifact in found if artifact.type == "scores"}


def test_every_key_of_a_summary_is_the_number_in_the_table() -> None:
    comparison = compare(*simulated(), FAST)
    keys = tracking.summary_of(comparison)
    row = comparison.rows("soft").set_index("scope").loc["group:gay"]
    assert keys["bias/delta/group/gay/soft"] == row["delta"]
    for name in tracking.OF_A_CHANGE:
        assert keys[f"bias/delta/group/gay/soft/{name}"] == row[name]
    assert keys["bias/after/distance_from_50"] == comparison.headline["after"]
    assert keys["bias/delta/distance_from_50/verdict"] == comparison.headline["verdict"]
    assert keys["bias/finding"] == " ".join(comparison.sentences())
    assert not any(isinstance(value, float) and math.isnan(value) for value in keys.values())
    assert all(key.endswith("/x") for key in tracking.summary_of(comparison, "/x"))


def test_what_cannot_be_had_has_no_key() -> None:
    one = compare(*simulated(clusters=1), FAST)
    keys = tracking.summary_of(one)
    assert "bias/delta/overall/bias" in keys
    assert "bias/delta/overall/bias/ci_low" not in keys
    assert "not shown (one stereotype" in str(keys["bias/delta/overall/bias/verdict"])


def test_means_over_benchmarks_have_neither_interval_nor_p() -> None:
    two = [tracking.summary_of(compare(*simulated(seed=seed), FAST)) for seed in (1, 2)]
    found = tracking.means({"one": two[0], "two": two[1]})
    for key in ("bias/delta/overall/soft", "bias/after/distance_from_50", "bias/before/macro/bias"):
        assert found[key] == pytest.approx((two[0][key] + two[1][key]) / 2)
    assert not any(key.endswith(("ci_low", "p", "p_adjusted", "verdict")) for key in found)
    assert not any("group" in key for key in found)


def test_without_sentences_nothing_that_was_said_is_left() -> None:
    before, after = (
        scores.Scores(
            found.table.assign(predicate="are odd", tier=2, origin="survey", template="{} are odd"),
            found.meta,
        )
        for found in simulated()
    )
    bare = [tracking.without_sentences(found) for found in (before, after)]
    text = bare[0].table.to_csv()
    for said in ("more 0", "less 0", "are odd"):
        assert said not in text
    assert not set(bare[0].table["stereotype_id"]) & set(before.table["stereotype_id"])
    assert bare[0].table["tier"].eq(2).all()
    whole, without = compare(before, after, FAST), compare(*bare, FAST)
    pd.testing.assert_frame_equal(whole.table, without.table)


def test_the_sample_of_pairs_is_small_even_and_says_what_moved() -> None:
    before, after = simulated(clusters=100)
    shown = tracking.pairs_table(before, after, 0, sentences=False)
    assert len(shown) == tracking.SAMPLED
    assert "sent_more" not in shown
    assert shown["group"].value_counts().between(66, 67).all()
    row = shown.iloc[17]
    at = before.table.index[before.table["pair_id"] == row["pair_id"]][0]
    assert row["margin_before"] == before.margin[at]
    assert row["change"] == pytest.approx(after.margin[at] - before.margin[at])
    assert row["flipped"] == (np.sign(before.margin[at]) != np.sign(after.margin[at]))
    again = tracking.pairs_table(before, after, 0, sentences=True)
    assert again["pair_id"].tolist() == shown["pair_id"].tolist()
    assert again["sent_more"].iloc[17] == before.table["sent_more"][at]


def test_a_stopped_run_that_goes_on_is_one_run_whose_steps_never_go_back(tmp_path: Path) -> None:
    run = finished(tmp_path / "stopped", "seed=3")
    run.note(resumed=["then"])
    first = [{"train/step": step, "train/loss": float(step)} for step in range(5)]
    first.append({"train/step": 4, "curve/overall/bias": 60.0})
    tracker = Tracker(run, {})
    for values in first:
        run.log(values)
        tracker.log(values)
    end(tracker)  # where a kill would leave its file as it is
    with run.path("metrics.jsonl").open("a") as file:
        file.write('{"time": 1, "train/st')  # what a kill leaves of a line

    tracker = Tracker(run, {})
    for step in range(3, 8):  # training begins again at its checkpoint
        tracker.log({"train/step": step, "train/loss": -1.0})
    tracker.log({"train/step": 7, "curve/overall/bias": 55.0})
    end(tracker)
    found = wandb_file.read(run.folder)
    steps = [row["train/step"] for row in found["history"]]
    assert steps == [*range(5), 4, 5, 6, 7, 7]
    losses = {
        row["train/step"]: row["train/loss"]
        for row in found["history"]
        if len(row) and "train/loss" in row
    }
    assert losses == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: -1.0, 6: -1.0, 7: -1.0}
    assert len(list(run.path("wandb", "earlier").iterdir())) == 1


def test_findings_tables_figures_and_scores_go_up(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = finished(Path("one"), recipe="demo_control")
    found = sent(run)
    assert found["runs"] == 1
    for key in ("deltas", "published", "pairs"):
        assert found["summary"][f"bias/{key}/_type"] == "table-file", key
    for key in ("figure", "forest", "margins"):
        assert found["summary"][f"bias/{key}/_type"] == "image-file", key
    (record,) = (
        r.run
        for r in wandb_file.records(next(run.folder.glob("wandb/*/*.wandb")))
        if r.HasField("run")
    )
    assert (record.run_group, record.job_type) == ("demo_control", "placebo")
    assert list(record.tags) == ["made", "full"]
    (artifact,) = artifacts(run.folder).values()
    assert json.loads(artifact.metadata)["sentences"] is False
    files = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
    assert set(files) == {"before.parquet", "after.parquet"}
    home = run.folder.resolve()
    assert all(path.is_absolute() and path.is_relative_to(home) for path in files.values())
    kept = compare(*(scores.read(files[f"{when}.parquet"]) for when in ("before", "after")), FAST)
    pd.testing.assert_frame_equal(kept.table, compared(run)["samples_de"].table)
    # No sentence is in anything that goes up.
    texts = [path.read_bytes() for path in home.joinpath("wandb").rglob("*") if path.is_file()]
    assert not any(b"more 11" in text for text in texts)
    # Nothing waits for a sync outside the run's folder.
    staged = [
        Path(entry.local_path)
        for r in wandb_file.records(next(home.glob("wandb/*/*.wandb")))
        if r.HasField("artifact")
        for entry in r.artifact.manifest.contents
    ]
    assert staged
    assert all(path.is_relative_to(home) for path in staged)


def test_several_benchmarks_are_named_and_their_means_are_not(tmp_path: Path) -> None:
    run = finished(tmp_path / "two", "benchmark=[samples_de,samples_nl]", "tracking.sentences=true")
    found = sent(run)["summary"]
    names = ("samples_de", "samples_nl")
    each = [found[f"bias/delta/overall/soft/{name}"] for name in names]
    assert found["bias/delta/overall/soft"] == pytest.approx(np.mean(each))
    assert "bias/delta/overall/soft/ci_low" not in found
    assert "bias/delta/overall/soft/ci_low/samples_nl" in found
    kept = artifacts(run.folder)
    assert set(kept) == {f"scores-two-{name}" for name in names}
    (path,) = (
        e.local_path for e in kept["scores-two-samples_nl"].manifest.contents if "after" in e.path
    )
    assert "more 11" in set(scores.read(Path(path)).table["sent_more"])


def test_other_processes_and_disabled_tracking_leave_nothing(tmp_path: Path, monkeypatch) -> None:
    off = finished(tmp_path / "off", "tracking.mode=disabled")
    Tracker(off, {}).log({"train/step": 1})
    monkeypatch.setenv("RANK", "1")
    other = finished(tmp_path / "other")
    tracker = Tracker(other, {})
    tracker.log({"train/step": 1, "train/loss": 1.0})
    tracker.finish()
    for run in (off, other):
        assert not run.path("wandb").exists()
