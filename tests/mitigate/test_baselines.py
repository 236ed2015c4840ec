"""Baselines: projections are folded into plain weights, dropout is raised and put back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from corpora.samples.world import community_text, load_world, planted_text
from eval.errors import RequestError
from eval.scorers.model import LanguageModel
from mitigate.methods import Context, dropout, projection
from mitigate.models import fingerprint, load, save_folder
from mitigate.sample_models import causal_tokenizer, masked_tokenizer
from mitigate.settings import DropoutSettings, MethodSettings, ModelSettings, ProjectionSettings
from tests.conftest import Run
from tests.mitigate.test_architectures import build, kind_of

#: Every way a head is built: one linear layer more, the output layer alone, tied or with a bias.
HEADS = (
    *("bert", "roberta", "distilbert", "modernbert", "flaubert", "xlm masked", "xlm causal"),
    *("gpt2", "bloom", "opt", "phi", "llama", "gemma3", "granite"),
)


@pytest.fixture(scope="module")
def text() -> list[str]:
    return planted_text(load_world("de"), 300)


@pytest.fixture(scope="module")
def tokenizers(text: list[str]) -> dict[str, PreTrainedTokenizerBase]:
    return {"masked": masked_tokenizer(text), "causal": causal_tokenizer(text)}


def loaded(
    architecture: str, tokenizers: dict[str, PreTrainedTokenizerBase], folder: Path
) -> tuple[LanguageModel, ModelSettings]:
    settings = build(architecture, tokenizers[kind_of(architecture)], folder)
    return load(settings), settings


def off(width: int, directions: int, seed: int = 0) -> torch.Tensor:
    """A projection off some random directions. (width, width)"""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, directions)))
    return torch.from_numpy(np.eye(width) - basis @ basis.T)


def logits(lm: LanguageModel, sentences: list[str]) -> torch.Tensor:
    return projection._logits(lm, sentences)


def embedded(lm: LanguageModel) -> torch.Tensor:
    layer: Any = lm.model.get_input_embeddings()
    weight: torch.Tensor = layer.weight.detach()
    return weight


@pytest.mark.parametrize("architecture", HEADS)
def test_folded_weights_equal_a_projected_hidden_state(
    architecture: str, tokenizers: dict[str, Any], text: list[str], tmp_path: Path
) -> None:
    """And still do when the folder is loaded as any other; the embeddings are as they were."""
    lm, settings = loaded(architecture, tokenizers, tmp_path / "base")
    some = text[:6]
    before = logits(lm, some)
    _, layer, _ = projection.first_of_head(lm)
    embeddings = embedded(lm).clone()
    taken = off(layer.weight.shape[1], 3)
    with projection.projected(lm, taken):
        expected = logits(lm, some)
    assert (expected - before).abs().max() > 1e-2
    projection.fold(lm, taken)
    assert (logits(lm, some) - expected).abs().max() < 1e-5 * max(1.0, float(expected.abs().max()))
    assert torch.equal(embedded(lm), embeddings)

    save_folder(lm.model, lm.tokenizer, tmp_path / "folded")
    settings.path = str(tmp_path / "folded")
    again = load(settings)
    assert (logits(again, some) - expected).abs().max() < 1e-5 * max(
        1.0, float(expected.abs().max())
    )
    assert torch.equal(embedded(again), embeddings)


def test_inlp_leaves_nothing_to_read() -> None:
    """Two classes apart in two of eight directions: afterwards no direction tells them apart."""
    draw = np.random.default_rng(0)
    marked, unmarked = draw.normal(size=(2, 400, 8))
    marked[:, 2] += 3
    marked[:, 5] -= 2
    taken, facts = projection.inlp(marked, unmarked, 3)
    np.testing.assert_allclose(taken @ taken, taken, atol=1e-10)
    assert np.linalg.matrix_rank(taken, tol=1e-6) == 5
    gap = taken @ (marked.mean(axis=0) - unmarked.mean(axis=0))
    assert np.linalg.norm(gap) < 0.2
    assert facts["accuracy_first"] > 95
    assert facts["accuracy_last"] < 62


def test_sentence_debias_is_the_first_component() -> None:
    """By its definition: the eigenvector of the centred differences' covariance."""
    draw = np.random.default_rng(1)
    unmarked = draw.normal(size=(200, 6)) + 4
    marked = unmarked + np.outer(draw.normal(2, 0.3, 200), [0, 1, 0, 0, 0, 0])
    taken, _ = projection.sentence_debias(marked, unmarked, 1)
    one, other = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (marked, unmarked))
    half = (one - other) / 2
    rows = np.concatenate([half, -half])
    _, vectors = np.linalg.eigh(rows.T @ rows)
    np.testing.assert_allclose(
        taken, np.eye(6) - np.outer(vectors[:, -1], vectors[:, -1]), atol=1e-8
    )


def test_pairs_have_one_marked_side() -> None:
    texts = ["Kim ist schwul.", "Kim ist hetero.", "Der Zug fährt ab.", "Kim ist cis."]
    marked, unmarked = projection.counterfactual_pairs(texts, "de", 10, 0)
    assert "Kim ist schwul." in marked
    assert "Kim ist hetero." in unmarked
    assert len(marked) == len(unmarked) == 3
    with pytest.raises(RequestError, match="no counterfactuals for language 'fr'"):
        projection.counterfactual_pairs(texts, "fr", 10, 0)


def context(lm: LanguageModel, settings: MethodSettings, folder: Path, **more: Any) -> Context:
    world = load_world("de")
    given: dict[str, Any] = {
        "train": community_text(world, 300),
        "valid": [],
        "lora_targets": [],
        "seed": 0,
        "processes": 1,
        "checkpoints": folder,
        "log": lambda values: None,
        "say": lambda line: None,
        "language": "de",
    }
    return Context(lm=lm, settings=settings, **(given | more))


@pytest.mark.parametrize("kind", ["inlp", "sentence_debias"])
def test_projection_says_what_it_changes(
    kind: str, tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    lm, _ = loaded("gpt2", tokenizers, tmp_path / "base")
    settings = MethodSettings(name=kind, projection=ProjectionSettings(kind, 2, 100))
    said: list[str] = []
    trained = projection.train(context(lm, settings, tmp_path, say=said.append))
    facts = trained.facts
    assert not trained.adapter
    assert facts["projection"]["layer"] == "lm_head"
    assert facts["projection"]["untied"]
    assert f"{facts['trained_weights']:,} of {facts['all_weights']:,}" in said[0]
    assert fingerprint(trained.model) != lm.fingerprint


def test_projection_refuses(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    lm, _ = loaded("bert", tokenizers, tmp_path / "base")

    def refused(**changed: Any) -> str:
        settings = MethodSettings(name="inlp", **changed)
        with pytest.raises(RequestError) as error:
            projection.check(lm, settings, [], 1)
        return str(error.value)

    assert "method.projection is missing" in refused()
    assert "has 16" in refused(projection=ProjectionSettings("inlp", 16))
    assert "weights=all" in refused(projection=ProjectionSettings("inlp", 2), weights="biases")


@pytest.mark.parametrize(
    "architecture", ["bert", "roberta", "distilbert", "xlm masked", "gpt2", "opt"]
)
def test_dropout_is_raised_everywhere(
    architecture: str, tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    """At 0.9 two passes differ far more than at 0.0, where they don't; attention is told apart."""
    lm, _ = loaded(architecture, tokenizers, tmp_path / "base")
    found = list(dropout.places(lm.model))
    layers = 2
    assert sum(place.attention for place in found) >= layers
    assert sum(not place.attention for place in found) >= layers
    sentence = lm.inputs(torch.tensor([lm.tokenizer("Kim ist queer.")["input_ids"]]))

    def spread(hidden: float, attention: float) -> float:
        dropout.raise_dropout(lm.model, DropoutSettings(hidden, attention))
        lm.model.train()
        with torch.no_grad():
            one, other = (lm.model(**sentence).logits for _ in range(2))
        return float((one - other).abs().max())

    assert spread(0.0, 0.0) == 0
    assert spread(0.9, 0.0) > 0
    assert spread(0.0, 0.9) > 0


def test_dropout_is_put_back(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    lm, _ = loaded("bert", tokenizers, tmp_path / "base")
    before = [place.get() for place in dropout.places(lm.model)]
    settings = MethodSettings(
        name="dropout", module="dropout", max_steps=1, batch=2, accumulation=1, block=32,
        eval_steps=1, save_steps=1, keep="last", dropout=DropoutSettings(0.3, 0.2),
    )  # fmt: skip
    said: list[str] = []
    trained = dropout.train(context(lm, settings, tmp_path / "run", say=said.append))
    assert [place.get() for place in dropout.places(lm.model)] == before
    assert trained.facts["dropout"]["places"] == {"hidden": 5, "attention": 2}
    assert "0.3" in said[0]
    assert fingerprint(trained.model) != lm.fingerprint


@pytest.mark.long
def test_inlp_through_the_real_command(
    run_mitigate: Run, tiny_causal: Path, tmp_path: Path
) -> None:
    """Scored before and after, from the folder that the projection left."""
    done = run_mitigate(
        "train", "recipe=demo_inlp", f"model.path={tiny_causal}", "run.dir=run",
        "method.projection.directions=4", "corpus.sentences=300", "benchmark.limit=60",
        "retention.sentences=5", "inference.resamples=200", "tracking.mode=disabled",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))
    assert facts["training"]["projection"]["directions"] == 4
    assert "weights changed" in done.stderr
    lm = load(ModelSettings(path=str(tmp_path / "run" / "model")))
    assert lm.model.config.tie_word_embeddings is False


def test_the_same_text_gives_the_same_pieces_in_the_same_order() -> None:
    text = ["Die Nachbarin näht.", "Der Nachbar kocht gern, oder?", "Sie näht und kocht nie."] * 5
    one, other = (masked_tokenizer(text).get_vocab() for _ in range(2))
    assert one == other
    assert masked_tokenizer(text).tokenize("Sie näht.") == ["Sie", "näht", "."]
    assert set(masked_tokenizer(text).all_special_tokens) == {
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    }  # fmt: skip
