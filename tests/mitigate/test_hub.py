"""One run with everything that is kept of it: the merged model, its card, the hub's stand-in."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load

from eval import scores
from eval.errors import RequestError
from mitigate import hub, models, settings
from mitigate.run import Run
from mitigate.settings import ModelSettings
from tests.mitigate.hub_server import TOKEN, Hub, serving

MITIGATE = Path(sys.executable).with_name("mitigate")
NAME = "someone/calmer-bert"
WORDS = (
    "recipe=demo", "method=lora", "method.lora.targets=[query,value]", "method.lr=1e-2",
    "method.batch=8", "method.accumulation=1", "method.max_steps=6", "method.eval_steps=3",
    "method.save_steps=3", "corpus.sentences=300", "benchmark.limit=60", "retention.sentences=8",
    "retention.grammar=false", "inference.resamples=200", "tracking.mode=disabled",
    "result.merge=true", f"hub.push={NAME}",
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    folder: Path
    server: Hub
    refused: subprocess.CompletedProcess[str]
    done: subprocess.CompletedProcess[str]

    @property
    def manifest(self) -> dict:
        return json.loads((self.folder / "manifest.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def published(tiny_masked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """A run whose push fails at first, and the same command again."""
    folder = tmp_path_factory.mktemp("hub") / "run"
    with serving() as server:
        environment = {
            **os.environ,
            "HF_ENDPOINT": server.address,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": TOKEN,
            "MITIGATE_CACHE": str(folder.parent / "cache"),
        }
        command = [str(MITIGATE), "train", *WORDS]
        command += [f"model.path={tiny_masked}", f"run.dir={folder}"]

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )

        server.broken = True
        refused = run()
        server.broken = False
        done = run()
        assert done.returncode == 0, done.stderr
        yield Published(folder, server, refused, done)


def test_a_refused_push_leaves_the_run_and_is_tried_again(published: Published) -> None:
    assert published.refused.returncode == 1
    last = published.refused.stderr.splitlines()[-1]
    assert "the hub refused: out of order" in last
    assert last.endswith(f"the same command with run.dir={published.folder} goes on")
    assert published.manifest["status"] == "finished"
    assert published.manifest["hub"]["name"] == NAME
    assert len(published.server.commits) == 1
    assert published.server.repositories[NAME]["visibility"] == "private"
    assert TOKEN not in (published.folder / "manifest.json").read_text("utf-8")


def test_what_is_published_loads_and_holds_no_text_or_path(
    published: Published, tmp_path: Path
) -> None:
    files = published.server.files[NAME]
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    for name, content in files.items():
        assert not name.endswith((".parquet", ".jsonl", ".csv")), name
        assert str(published.folder.parent).encode() not in content, name
        (tmp_path / name).write_bytes(content)
    ours = models.load(ModelSettings(path=str(tmp_path)))
    assert (
        ours.fingerprint
        == models.load(ModelSettings(path=str(published.folder / "model"))).fingerprint
    )
    assert load(files["model.safetensors"])
    assert not [said for said in published.server.unknown if not said.startswith("GET")]


def test_the_merged_model_does_what_the_adapter_does(
    published: Published, tiny_masked: Path
) -> None:
    merged = published.manifest["merged"]
    assert merged["kept"]
    assert merged["difference"] <= models.SAME
    whole = models.load(ModelSettings(path=str(published.folder / "model")))
    adapted = models.load(
        ModelSettings(path=str(tiny_masked), adapter=str(published.folder / "adapter"))
    )
    base = models.load(ModelSettings(path=str(tiny_masked)))
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        logits = [lm.model(input_ids=ids).logits for lm in (whole, adapted, base)]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)
    assert (logits[1] - logits[2]).abs().max() > 1e-3
    after = scores.read(published.folder / "after.parquet")
    assert after.meta["model_fingerprint"] == adapted.fingerprint


def test_the_card_is_in_the_hubs_form(published: Published) -> None:
    deltas = pd.read_csv(published.folder / "deltas.csv").set_index(["scope", "metric"])
    bias = deltas.loc["overall", "bias"]
    for name, library in (("adapter", "peft"), ("model", "transformers")):
        card = ModelCard.load(published.folder / name / "README.md")
        assert card.data.library_name == library
        assert card.data.model_name == "calmer-bert"
        found = {result.metric_type: result for result in card.data.eval_results}
        assert found["bias"].metric_value == pytest.approx(bias["after"], abs=1e-3)
        assert found["bias"].metric_args["delta"] == pytest.approx(bias["delta"], abs=1e-3)
        assert found["bias"].dataset_name == "samples_de"
        for heading in ("What changed", "Is it still a language model?", "Data", "limits"):
            assert heading in card.text
        assert "licence apache-2.0" in card.text
        assert "perplexity on neutral text" in card.text
        assert "unbiased" not in card.text
        assert str(published.folder.parent) not in card.text.replace(f'"{published.folder}', "")


def asked(*words: str) -> settings.Recipe:
    return settings.from_words(words, recipe="demo")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hub.push=calmer"], "OWNER/NAME"),
        (["hub.push=a/b/c"], "not a name on the hub"),
        (["hub.push=a/b", "method=lora"], "result.merge=true"),
    ],
)
def test_a_push_that_can_t_work_is_refused(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(RequestError, match=said):
        hub.check(asked(*words))


def test_only_the_environment_s_token_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A login that lies on the machine is none."""
    (tmp_path / "token").write_text("hf_of_a_login", "utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(RequestError, match="no token"):
        hub.check(asked("hub.push=a/b"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(RequestError, match="HF_HUB_OFFLINE"):
        hub.check(asked("hub.push=a/b"))


def test_an_adapter_that_was_not_merged_is_not_published_alone(tmp_path: Path) -> None:
    recipe = asked("hub.push=a/b", "method=lora", "result.merge=true")
    with pytest.raises(hub.PushError, match="could not be merged"):
        hub.push(Run(tmp_path, recipe, None), recipe, tmp_path / "adapter")
