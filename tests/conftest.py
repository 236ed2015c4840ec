"""What several tests share: the reference data, tiny models, and the real commands."""

import os

# Before anything imports a library that reads them: no network, no tracker, no noise.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Workers of pytest share the cores: threads of several torches would wait on one another, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Protocol

import pytest
from filelock import FileLock

from tests import commands

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT.parent / "shared" / "reference"


class Run(Protocol):
    """Runs `mitigate …`, or another command with `script`, as a user would."""

    def __call__(
        self,
        *words: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        script: Path | None = None,
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def reference() -> Path:
    """The published files that results are checked against; they are not part of the project."""
    if not REFERENCE.is_dir():
        pytest.skip("no reference data at ../shared/reference")
    return REFERENCE


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that lives as long as the whole session and is the same for all its workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def tiny_masked(session_folder: Path) -> Path:
    """A folder with a random BERT of 2 layers, 32 wide, and a tokenizer that knows its text."""
    return _once(session_folder / "tiny_masked", _build_masked)


@pytest.fixture(scope="session")
def tiny_causal(session_folder: Path) -> Path:
    """A folder with a random GPT-2 of 2 layers, 32 wide, and a tokenizer that knows its text."""
    return _once(session_folder / "tiny_causal", _build_causal)


@pytest.fixture(scope="session")
def forking() -> ForkServerContext:
    """Where commands are forked from: see tests/commands.py."""
    return commands.context()


@pytest.fixture
def run_mitigate(
    session_folder: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    forking: ForkServerContext,
) -> Run:
    """`run_mitigate("score", "model=…")`: the real command; it works in `tmp_path`.

    `env` is set on top of this process's environment; `script=…/train.py` runs that file by
    this Python instead of what the console script runs.
    """

    def run(
        *words: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        script: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        fixed = {
            "MITIGATE_CACHE": str(session_folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
        }
        where, environment = cwd or tmp_path, {**os.environ, **fixed, **(env or {})}
        if script is None:
            out = tmp_path_factory.mktemp("said")
            return commands.run(forking, words, cwd=where, env=environment, out=out)
        return subprocess.run(
            [sys.executable, str(script), *words],
            cwd=where,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def _once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Build a folder in one worker while the others wait for it."""
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            building = folder.with_name(f"{folder.name}.building")
            build(building)
            building.rename(folder)
    return folder


def _text() -> list[str]:
    from corpora.samples.world import load_world, planted_text

    return planted_text(load_world("de"), 500)


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _build_masked(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertForMaskedLM

    from mitigate.sample_models import masked_tokenizer

    tokenizer = masked_tokenizer(_text())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertForMaskedLM(
            BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                max_position_embeddings=128,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                initializer_range=0.1,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    _save(model, tokenizer, folder)


def _build_causal(folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from mitigate.sample_models import causal_tokenizer

    tokenizer = causal_tokenizer(_text())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(tokenizer),
                n_positions=128,
                n_embd=32,
                n_layer=2,
                n_head=2,
                n_inner=64,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                initializer_range=0.1,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    _save(model, tokenizer, folder)
