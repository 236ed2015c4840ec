"""Our pairs as tasks of lm-eval: what the harness computes of them is what we compute."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from eval import benchmarks, lm_tasks
from eval.errors import RequestError
from eval.scorers import ScoreSettings, score
from eval.scorers.model import LanguageModel
from mitigate import export, models, settings
from mitigate.cli import dispatch
from mitigate.settings import ModelSettings

INSTALLED = importlib.util.find_spec("lm_eval") is not None


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "tasks"
    words = ["lm-eval", "benchmark=[samples_de,samples_nl]", "benchmark.limit=200", f"out={out}"]
    assert dispatch(["export", *words]) == 0
    return out


def test_task_files(exported: Path) -> None:
    names = {f"mitigate_samples_{language}" for language in ("de", "nl")}
    files = {f"{name}.{ending}" for name in names for ending in ("yaml", "jsonl")}
    assert {path.name for path in exported.iterdir()} == files | {"README.md"}
    for name in names:
        task = yaml.safe_load((exported / f"{name}.yaml").read_text("utf-8"))
        assert task["task"] == name
        assert task["output_type"] == "multiple_choice"
        data = exported / task["dataset_kwargs"]["data_files"]["test"]
        rows = [json.loads(line) for line in data.read_text("utf-8").splitlines()]
        assert len(rows) == task["metadata"]["pairs"] == 200
        assert all(len(row[task["doc_to_choice"]]) == 2 for row in rows)
        chosen = settings.from_words(
            [f"benchmark={name.removeprefix('mitigate_')}", "benchmark.limit=200"], recipe=None
        )
        (pairs,) = (benchmarks.load(some) for some in chosen.benchmark.values())
        assert task["metadata"]["benchmark_hash"] == pairs.hash
        assert [row["pair_id"] for row in rows] == pairs.table["pair_id"].tolist()
        assert [row["choices"] for row in rows] == pairs.table[
            ["sent_more", "sent_less"]
        ].to_numpy().tolist()
    readme = (exported / "README.md").read_text("utf-8")
    assert "no accuracy" in readme
    assert all(name in readme for name in names)


def _harness(lm: LanguageModel, text: str) -> float:
    """What the harness's loglikelihood gives for a continuation of an empty context.

    One prefix token, BOS, then the continuation's ids without special tokens; the sum of
    their log-probabilities (lm_eval.models.huggingface.HFLM, 0.4.13).
    """
    ids = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    given = torch.tensor([[lm.tokenizer.bos_token_id, *ids]])
    with torch.inference_mode():
        logits = lm.model(input_ids=given).logits[0].double().log_softmax(-1)
    return float(logits[range(len(ids)), ids].sum())


def test_choices_equal_ours_on_200_pairs(exported: Path, tiny_causal: Path) -> None:
    lm = models.load(ModelSettings(path=str(tiny_causal)))
    lines = (exported / "mitigate_samples_de.jsonl").read_text("utf-8").splitlines()
    theirs = np.array([[_harness(lm, text) for text in json.loads(of)["choices"]] for of in lines])
    chosen = settings.from_words(["benchmark=samples_de", "benchmark.limit=200"], recipe=None)
    (pairs,) = (benchmarks.load(some) for some in chosen.benchmark.values())
    ours = score(lm, pairs, ScoreSettings(scorer="full", reuse=False)).table
    numbers = ours[["score_more", "score_less"]].to_numpy(float)
    np.testing.assert_allclose(numbers, theirs, atol=1e-3)
    assert (numbers.argmax(axis=1) == theirs.argmax(axis=1)).sum() == 200


@pytest.mark.skipif(not INSTALLED, reason="lm-eval is not installed")
def test_the_harness_itself_agrees(exported: Path, tiny_causal: Path) -> None:
    lm = models.load(ModelSettings(path=str(tiny_causal)))
    name = "mitigate_samples_de"
    lm_tasks.check([name], exported)
    found = lm_tasks.measure(lm, [name], folder=exported)
    chosen = settings.from_words(["benchmark=samples_de", "benchmark.limit=200"], recipe=None)
    (pairs,) = (benchmarks.load(some) for some in chosen.benchmark.values())
    ours = score(lm, pairs, ScoreSettings(scorer="full", reuse=False))
    assert found[name]["value"] == pytest.approx((ours.margin > 0).mean())
    assert found[name]["n"] == 200


def test_wrong_requests(exported: Path, tmp_path: Path) -> None:
    for words, said in (
        (["lm-evol", "out=x"], "lm-eval"),
        (["lm-eval", "benchmark=samples_de"], "out=DIR"),
        (["lm-eval", f"out={tmp_path / 'x'}"], "which benchmark"),
        (["lm-eval", "benchmark=samples_de", f"out={exported}"], "not empty"),
    ):
        with pytest.raises(RequestError, match=said):
            dispatch(["export", *words])


def test_version_is_the_tasks_own(exported: Path) -> None:
    text = (exported / "mitigate_samples_nl.yaml").read_text("utf-8")
    assert yaml.safe_load(text)["metadata"]["version"] == export.VERSION
