"""The W&B file of a real run, through the real command, read back: docs/wandb.md kept its word."""

import re
from pathlib import Path

import pytest

from mitigate import reporting
from tests.conftest import ROOT, Run
from tests.mitigate import wandb_file

QUICK = [
    *("benchmark.limit=60", "corpus.sentences=200", "method.max_steps=4", "method.eval_steps=2"),
    *("method.save_steps=2", "retention.sentences=5", "inference.resamples=200", "curve.pairs=12"),
]


@pytest.fixture(scope="module")
def folder(tiny_masked: Path, run_module: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    elsewhere = tmp_path_factory.mktemp("tracked")
    words = ["train", "recipe=demo", f"model.path={tiny_masked}", "run.dir=tracked", *QUICK]
    done = run_module(*words, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    return elsewhere / "tracked"
