"""The main job through the real command, on tiny models and a slice of the embedded world."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from eval import scores
from mitigate import models, settings
from mitigate.settings import ModelSettings
from tests.mitigate import wandb_file

MITIGATE = Path(sys.executable).with_name("mitigate")
ROOT = Path(__file__).resolve().parents[2]
QUICK = [
    "benchmark.limit=120",
    "corpus.sentences=500",
    "method.epochs=1",
    "method.eval_steps=5",
    "method.save_steps=5",
    "retention.sentences=10",
    "inference.resamples=500",
]
FILES = (
    *("recipe.yaml", "manifest.json", "retention.json", "metrics.jsonl"),
    *("before.parquet", "after.parquet"),
    *("deltas.csv", "deltas.json", "deltas.tex", "deltas.md", "report.html"),
)


def words(model: Path, folder: Path, *more: str) -> list[str]:
    return ["recipe=demo", f"model.path={model}", f"run.dir={folder}", *QUICK, *more]


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MITIGATE), *command], capture_output=True, text=True, cwd=cwd, check=False
    )


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def masked_run(tiny_masked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run of a masked model, every weight trained, from another directory."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = run("train", *words(tiny_masked, Path("the_run")), cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in elsewhere.iterdir()) == ["the_run"]
    return elsewhere / "the_run"


def test_run_folder_is_whole(masked_run: Path) -> None:
    missing = [name for name in FILES if not (masked_run / name).is_file()]
    assert not missing
    assert {path.suffix for path in (masked_run / "figures").iterdir()} == {".png", ".svg", ".pdf"}
    assert "limits" in (masked_run / "model" / "README.md").read_text("utf-8")
    facts = manifest(masked_run)
    assert facts["status"] == "finished"
    assert facts["processes"][0]["rank"] == 0
    assert facts["training"]["strategy"] == "NO"
    assert facts["training"]["steps"] > 5
    stored = settings.from_yaml((masked_run / "recipe.yaml").read_text("utf-8"))
    assert stored.method.epochs == 1


def test_scores_of_the_kept_model_are_the_table(masked_run: Path) -> None:
    lm = models.load(ModelSettings(path=str(masked_run / "model")))
    assert scores.read(masked_run / "after.parquet").meta["model_fingerprint"] == lm.fingerprint
    before, after = (scores.read(masked_run / f"{when}.parquet") for when in ("before", "after"))
    assert not np.allclose(before.margin, after.margin)


def test_wandb_has_one_run_with_every_key(masked_run: Path) -> None:
    found = wandb_file.read(masked_run)
    assert found["id"] == masked_run.name
    for key in ("overall/bias", "macro/distance", "group/gay/margin"):
        for when in ("before", "after", "delta"):
            assert f"bias/{when}/{key}" in found["summary"], key
    assert "retention/neutral/change_percent" in found["summary"]
    assert found["config"]["method"]["epochs"] == 1
    logged = set().union(*found["history"])
    assert {"train/loss", "train/eval_loss"} <= logged
    assert found["summary"]["bias/deltas/_type"] == "table-file"
    assert found["summary"]["bias/figure/_type"] == "image-file"
    steps = [row["train/step"] for row in found["history"] if "train/step" in row]
    assert steps == sorted(steps)


def test_finished_folder_is_refused(masked_run: Path, tiny_masked: Path) -> None:
    before = (masked_run / "deltas.csv").read_bytes()
    done = run("train", *words(tiny_masked, masked_run))
    assert done.returncode == 2
    assert "finished" in done.stderr.splitlines()[-1]
    assert (masked_run / "deltas.csv").read_bytes() == before


def test_report_again_and_side_by_side(masked_run: Path, tmp_path: Path) -> None:
    done = run("report", str(masked_run), f"out={tmp_path / 'again'}")
    assert done.returncode == 0, done.stderr
    again = (tmp_path / "again" / "deltas.csv").read_bytes()
    assert again == (masked_run / "deltas.csv").read_bytes()
    done = run("report", str(masked_run), str(masked_run), f"out={tmp_path / 'many'}")
    assert done.returncode == 0, done.stderr
    assert "bias_after" in (tmp_path / "many" / "runs.csv").read_text("utf-8")


def test_causal_lora_through_accelerate(tiny_causal: Path, tmp_path: Path) -> None:
    """`accelerate launch` from another directory; several benchmarks; a killed run goes on."""
    folder = tmp_path / "run"
    command = [
        str(Path(sys.executable).with_name("accelerate")), "launch",
        str(ROOT / "mitigate" / "train.py"),
        *words(tiny_causal, folder, "method=lora", "'method.lora.targets=[c_attn]'".strip("'")),
        "method.lr=1e-3", "method.batch=8", "method.accumulation=2",
        "benchmark=[samples_de,samples_nl]", "launch.threads=1",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True
    )
    checkpoints = folder / "checkpoints"
    while not list(checkpoints.glob("checkpoint-*/trainer_state.json")):
        assert process.poll() is None, "ended before its first checkpoint"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert manifest(folder)["status"] == "running"

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert manifest(folder)["status"] == "finished"
    assert manifest(folder)["resumed"]
    assert manifest(folder)["threads"] == 1
    names = {path.name for path in folder.glob("*.parquet")}
    assert names == {f"{when}-samples_{lang}.parquet" for when in ("before", "after")
                     for lang in ("de", "nl")}  # fmt: skip
    lm = models.load(ModelSettings(path=str(tiny_causal), adapter=str(folder / "adapter")))
    after = scores.read(folder / "after-samples_nl.parquet")
    assert after.meta["model_fingerprint"] == lm.fingerprint
    assert (folder / "deltas.csv").read_text("utf-8").count("samples_nl,overall") == 6


def test_two_processes_equal_one(masked_run: Path, tiny_masked: Path, tmp_path: Path) -> None:
    """Ranks in the manifest, one folder, one W&B run, the same scores."""
    folder = tmp_path / "two"
    done = run("train", *words(tiny_masked, folder), "launch=cpu", "launch.processes=2")
    assert done.returncode == 0, done.stderr
    assert [facts["rank"] for facts in manifest(folder)["processes"]] == [0, 1]
    assert manifest(folder)["training"]["world_size"] == 2
    assert manifest(folder)["training"]["strategy"] == "MULTI_CPU"
    assert wandb_file.read(folder)["id"] == "two"
    # Adam takes the sign of gradients that are nothing but rounding, so after training the
    # two agree less closely than before it, where only the scorer counts.
    for when, tolerance in (("before", 1e-5), ("after", 1e-2)):
        one, two = (scores.read(run / f"{when}.parquet") for run in (masked_run, folder))
        assert (one.table["pair_id"] == two.table["pair_id"]).all()
        for column in ("score_more", "score_less"):
            np.testing.assert_allclose(one.table[column], two.table[column], atol=tolerance, rtol=0)
    first = [
        next(row for row in losses(run) if row["train/step"] == 1) for run in (masked_run, folder)
    ]
    assert first[0]["train/loss"] == pytest.approx(first[1]["train/loss"], rel=1e-5)
    assert first[0]["train/grad_norm"] == pytest.approx(first[1]["train/grad_norm"], rel=1e-4)


def losses(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "train/loss" in row]


def test_score_command_meets_the_published_scores(reference: Path, tmp_path: Path) -> None:
    """`mitigate score … benchmark=pairs` on the golden file, one masked and one causal model."""
    import pandas as pd

    golden = pd.read_csv(reference / "golden_scores.csv")
    for name in ("roberta", "llama"):
        rows = golden[golden["model"] == name]
        source = tmp_path / f"{name}.csv"
        rows.to_csv(source, index=False)
        out = tmp_path / f"{name}.parquet"
        done = run(
            "score", f"model.path={reference / 'models' / name}", "benchmark=pairs",
            f"benchmark.path={source}", "benchmark.columns.sent_more=sent_x",
            "benchmark.columns.sent_less=sent_y", f"out={out}",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        table = scores.read(out).table
        assert len(table) == 240
        np.testing.assert_allclose(table["score_more"], rows["score_x"], atol=1e-4, rtol=0)
        np.testing.assert_allclose(table["score_less"], rows["score_y"], atol=1e-4, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["demo", "demo_causal"])
def test_demo_moves_a_known_bias(recipe: str, tmp_path: Path) -> None:
    """The planted bias is there, fine-tuning takes it nearer 50, and the model still speaks."""
    folder = tmp_path / recipe
    done = run("train", f"recipe={recipe}", f"run.dir={folder}")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((folder / "deltas.json").read_text("utf-8"))["benchmarks"].values()
    deltas = {(row["scope"], row["metric"]): row for row in found["deltas"]}
    bias = deltas["overall", "bias"]
    assert bias["before"] >= 75
    assert abs(bias["before"] - 50) - abs(bias["after"] - 50) >= 10
    assert bias["p"] < 0.05
    retention = json.loads((folder / "retention.json").read_text("utf-8"))
    assert retention["neutral"]["change_percent"] < 20


def test_interrupt_says_what_is_saved_and_how_to_go_on(tiny_masked: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [str(MITIGATE), "train", *words(tiny_masked, folder, "method.epochs=500")],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list((folder / "checkpoints").glob("checkpoint-*/trainer_state.json")):
        assert process.poll() is None, "ended before its first checkpoint"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert stderr.splitlines()[-1] == (
        f"mitigate: interrupted; what is done is in {folder}; "
        f"the same command with run.dir={folder} goes on"
    )
    assert scores.read(folder / "before.parquet").meta["rows_used"] == 120


def test_full_disk_says_so_and_the_run_goes_on(tiny_masked: Path, tmp_path: Path) -> None:
    """On a disk of 600 KiB the run ends with one line; with room, the same command ends well."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no small disk here: mounting one needs root")
    try:
        command = words(tiny_masked, disk / "run", "tracking.mode=disabled")
        done = run("train", *command)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert "No space left on device" in last
        assert last.endswith(f"with run.dir={disk / 'run'} goes on")
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        done = run("train", *command)
        assert done.returncode == 0, done.stderr
        assert manifest(disk / "run")["status"] == "finished"
    finally:
        subprocess.run(["umount", str(disk)], check=True)
