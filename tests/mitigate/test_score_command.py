"""`mitigate score` and `mitigate describe` through the real command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eval import scores
from tests.conftest import Run

BENCHMARK = ["benchmark=samples_de", "benchmark.limit=300"]


def columns(path: Path) -> np.ndarray:
    return scores.read(path).table[["score_more", "score_less"]].to_numpy()


def work(path: Path) -> dict:
    return scores.read(path).meta["work"]


@pytest.fixture(scope="module")
def once(tmp_path_factory, tiny_masked: Path, tiny_causal: Path) -> dict[str, Path]:
    """Scores of both tiny models, each by a process of its own."""
    folder = tmp_path_factory.mktemp("once")
    found = {}
    for kind, model in (("masked", tiny_masked), ("causal", tiny_causal)):
        found[kind] = folder / f"{kind}.parquet"
        command = [Path(sys.executable).with_name("mitigate"), "score", f"model.path={model}"]
        command += [*BENCHMARK, f"out={found[kind]}", "score.reuse=false"]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return found


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_two_processes_give_what_one_gives(kind, once, tiny_masked, tiny_causal, tmp_path):
    model = {"masked": tiny_masked, "causal": tiny_causal}[kind]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["-m", "mitigate", "score", f"model.path={model}", *BENCHMARK, "out=two.parquet"]
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    env |= {"MITIGATE_CACHE": str(tmp_path / "cache")}
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=300)
    two = tmp_path / "two.parquet"
    np.testing.assert_allclose(columns(two), columns(once[kind]), atol=1e-5, rtol=0)
    one = work(once[kind])
    # Both did something: what each of them needs for itself comes on top.
    assert work(two)["passes"] > 0
    assert one["tokens"] <= work(two)["tokens"] < 1.5 * one["tokens"]


def test_killed_scoring_goes_on(tiny_masked, once, tmp_path, run_mitigate: Run):
    cache = tmp_path / "cache"
    words = ["score", f"model.path={tiny_masked}", *BENCHMARK, "out=killed.parquet"]
    env = {**os.environ, "MITIGATE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    slow = [*words, "score.batch_tokens=1"]  # a forward pass for each request
    process = subprocess.Popen(
        [Path(sys.executable).with_name("mitigate"), *slow],
        cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list(cache.glob("scores/*.parts/[!.]*.npz")):
        assert process.poll() is None, "it ended before anything was saved"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed.parquet").exists()
    again = run_mitigate(*words, env={"MITIGATE_CACHE": str(cache)})
    assert again.returncode == 0, again.stderr
    assert "were done already" in again.stderr
    found = tmp_path / "killed.parquet"
    assert 0 < work(found)["found"] < work(found)["requests"]
    np.testing.assert_allclose(columns(found), columns(once["masked"]), atol=1e-5, rtol=0)
    third = run_mitigate(*words, env={"MITIGATE_CACHE": str(cache)})
    assert "Found finished scores" in third.stderr


def test_weights_on_disk_give_the_same_scores(tiny_causal, once, tmp_path, run_mitigate: Run):
    done = run_mitigate(
        "score", f"model.path={tiny_causal}", *BENCHMARK, "out=disk.parquet",
        "model.device_map=auto", "model.max_memory={cpu: 20KB}", "score.reuse=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    disk, usual = (scores.read(path) for path in (tmp_path / "disk.parquet", once["causal"]))
    np.testing.assert_allclose(disk.margin, usual.margin, atol=1e-5)
    assert disk.meta["model_fingerprint"] == usual.meta["model_fingerprint"]


def test_the_command_says_how_it_was_made(tiny_masked, tmp_path, run_mitigate: Run):
    done = run_mitigate(
        "score", f"model.path={tiny_masked}", *BENCHMARK, "out=aul.parquet", "score.scorer=aul",
        "model.dtype=bfloat16",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Scorer aul, version" in done.stderr
    assert "Margins correlate" in done.stderr
    assert "bfloat16: margins are off by up to" in done.stderr
    meta = scores.read(tmp_path / "aul.parquet").meta
    assert meta["scorer"] == "aul"
    assert meta["dtype"] == "bfloat16"
    assert meta["noise"]["largest"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["score.scorer=shared"], "is for causal models; tiny_masked is masked"),
        (["score.scorer=pl"], "did you mean pll"),
        (["scorer=aul"], "did you mean score.scorer?"),
        (["score.batch_tokens=0"], "must be more than 0"),
        (["model.device_map=around"], "auto, balanced"),
        (["benchmark.tiers=[1]"], "tier"),
        (["benchmark.where='\"nothing == 1\"'"], "nothing"),
    ],
    ids=lambda case: case[0] if isinstance(case, list) else None,
)
def test_wrong_requests_get_one_line(words, said, tiny_masked, run_mitigate: Run):
    words = [word.replace("'", "") if "where" in word else word for word in words]
    done = run_mitigate("score", f"model.path={tiny_masked}", *BENCHMARK, "out=x.parquet", *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().split("\n")) == 1, done.stderr


def test_describe_counts_and_shows_no_sentence(tiny_masked, tmp_path, run_mitigate: Run):
    done = run_mitigate("describe", "benchmark=components", f"model.path={tiny_masked}")
    assert done.returncode == 0, done.stderr
    for said in (
        "stereotypes (clusters)",
        "Tiers of relevance",
        "tokens",
        "left out by the survey",
    ):
        assert said in done.stderr
    as_json = run_mitigate("describe", "benchmark=components", "json=true")
    facts = json.loads(as_json.stdout)
    written = run_mitigate("describe", "benchmark=components", "out=mine")
    assert written.returncode == 0, written.stderr
    pairs = pd.read_csv(tmp_path / "mine" / "pairs.csv")
    assert len(pairs) == facts["facts"]["pairs"]
    assert (tmp_path / "mine" / "DATASHEET.md").is_file()
    for sentence in [*pairs["sent_more"], *pairs["sent_less"]]:
        assert sentence not in done.stderr + as_json.stdout
    again = run_mitigate("describe", "benchmark=components", "out=mine")
    assert again.returncode == 2


def test_two_benchmarks_are_held_against_each_other(run_mitigate: Run):
    done = run_mitigate("describe", "benchmark=[components,samples_de]")
    assert done.returncode == 0, done.stderr
    assert "samples_de" in done.stderr
