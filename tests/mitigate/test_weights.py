"""What a method trains: said, checked before the first step, and nothing else moves."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from corpora.samples.world import load_world, planted_text
from eval.errors import RequestError
from eval.scorers.model import LanguageModel
from mitigate import models
from mitigate.methods import Context, weights
from mitigate.methods.continued import train
from mitigate.settings import LoraSettings, MethodSettings, ModelSettings, from_words, from_yaml

TARGETS = {"masked": ["query", "value"], "causal": ["c_attn"]}
METHODS: dict[str, dict[str, Any]] = {
    "all": {},
    "lora": {"weights": "lora", "lora": LoraSettings(r=2)},
    "rslora": {"weights": "lora", "lora": LoraSettings(r=2, rslora=True)},
    "dora": {"weights": "lora", "lora": LoraSettings(r=2, dora=True)},
    "biases": {"weights": "biases"},
    "last_layers": {"weights": "last_layers", "last_layers": 1},
}


@pytest.fixture
def model(tiny_masked: Path, tiny_causal: Path) -> Callable[[str], LanguageModel]:
    folders = {"masked": tiny_masked, "causal": tiny_causal}

    def load(kind: str) -> LanguageModel:
        return models.load(ModelSettings(path=str(folders[kind]), device="cpu"))

    return load


def settings(name: str, **changed: Any) -> MethodSettings:
    given: dict[str, Any] = {
        "name": name, "lr": 1e-2, "max_steps": 2, "batch": 2, "accumulation": 1,
        "eval_steps": 2, "save_steps": 2, "keep": "last", "block": 32,
    }  # fmt: skip
    return MethodSettings(**(given | METHODS.get(name, {}) | changed))


def logits(lm: LanguageModel, model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(**lm.inputs(torch.tensor([[5, 6, 7, 8, 9, 10]]))).logits
    return found


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("name", METHODS)
def test_before_the_first_step_the_model_is_the_one_that_was_scored(
    name: str, kind: str, model: Callable[[str], LanguageModel]
) -> None:
    lm = model(kind)
    said: list[str] = []
    before = logits(lm, lm.model)
    made = weights.prepare(lm, settings(name), TARGETS[kind], said.append)
    torch.testing.assert_close(logits(lm, made), before, atol=1e-6, rtol=1e-6)
    if hasattr(made, "disable_adapter"):
        with made.disable_adapter():
            torch.testing.assert_close(logits(lm, made), before, atol=0, rtol=0)
    trained, total = weights.share(made)
    assert trained == sum(p.numel() for p in made.parameters() if p.requires_grad) > 0
    assert f"{trained:,} of {total:,} weights, {100 * trained / total:.2f} %" in said[0]
    begins = {"lora": "LoRA on 4", "rslora": "rsLoRA on 4", "dora": "DoRA on 4"}
    if kind == "masked":
        assert said[0].startswith(begins.get(name, "training "))


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("name", METHODS)
def test_only_what_was_said_moves(
    name: str, kind: str, model: Callable[[str], LanguageModel], tmp_path: Path
) -> None:
    text = planted_text(load_world("de"), 60)
    lm = model(kind)
    before = {key: weight.clone() for key, weight in lm.model.named_parameters()}
    made = train(
        Context(
            lm=lm, train=text, valid=[], settings=settings(name), lora_targets=TARGETS[kind],
            seed=0, processes=1, checkpoints=tmp_path / "checkpoints",
            log=lambda values: None, say=lambda line: None,
        )
    )  # fmt: skip
    assert made.adapter == ("lora" in name or name == "dora")
    moved, new = set(), set()
    for key, weight in made.model.named_parameters():
        plain = key.removeprefix("base_model.model.").replace(".base_layer", "")
        if plain not in before:
            new.add(key)
        elif not torch.equal(weight, before[plain]):
            moved.add(plain)
    if made.adapter:
        assert not moved
        assert new
        assert all("lora_" in key for key in new)
        assert any("magnitude" in key for key in new) == (name == "dora")
    elif name == "all":
        assert not new
        assert len(moved) > 0.9 * len(before)
    elif name == "biases":
        # The biases of what is not used (a bias of the keys in attention) have no gradient.
        assert moved
        assert all(key.endswith("bias") or "orm" in key or "ln_" in key for key in moved)
    else:
        layer = {"masked": "bert.encoder.layer.1.", "causal": "transformer.h.1."}[kind]
        assert moved
        assert all(key.startswith(layer) for key in moved)
        assert any(key.endswith("weight") for key in moved)
    assert made.facts["weights"] == settings(name).weights


def test_rslora_scales_by_the_root_of_the_rank(model: Callable[[str], LanguageModel]) -> None:
    scales = {}
    for name in ("lora", "rslora"):
        given = settings(name)
        assert given.lora is not None
        given.lora.r, given.lora.alpha = 16, 8
        made = weights.prepare(model("masked"), given, ["query"], lambda line: None)
        layer = next(module for module in made.modules() if hasattr(module, "lora_A"))
        scales[name] = layer.scaling["default"]
    assert scales == {"lora": 8 / 16, "rslora": 8 / 4}


def test_an_adapter_that_changes_the_model_at_once_is_an_error(
    model: Callable[[str], LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = weights.get_peft_model

    def wrong(given: Any, config: Any) -> Any:
        config.init_lora_weights = False  # B is drawn at random, not nothing
        return plain(given, config)

    monkeypatch.setattr(weights, "get_peft_model", wrong)
    with pytest.raises(RuntimeError, match="ready to be trained is not the one that was scored"):
        weights.prepare(model("masked"), settings("lora"), ["query"], lambda line: None)


def refused(lm: LanguageModel, given: MethodSettings) -> str:
    with pytest.raises(RequestError) as error:
        weights.check(lm, given, ["query"])
    said = str(error.value)
    assert "\n" not in said
    return said


def test_what_can_not_be_trained_is_refused_in_one_line(
    model: Callable[[str], LanguageModel], tmp_path: Path
) -> None:
    lm = model("masked")
    assert refused(lm, settings("last_layers", last_layers=3)).startswith(
        "method.last_layers=3: tiny_masked has 2 layers"
    )
    assert refused(lm, settings("all", lora=LoraSettings())).startswith("method.lora: this recipe")
    given: Any = lm.model
    given.hf_device_map = {"bert": 0, "cls": "cpu"}
    assert refused(lm, settings("all")).startswith("model.device_map: ")
    given.hf_device_map = {"": 0}
    weights.check(lm, settings("all"), [])
    given.is_quantized = True
    assert refused(lm, settings("all")).startswith("model.bits: ")
    weights.check(lm, settings("lora"), ["query"])

    given = weights.prepare(model("masked"), settings("lora"), ["query"], lambda line: None)
    stacked = dataclasses.replace(lm, model=given)
    for name in METHODS:
        assert refused(stacked, settings(name)).startswith("model.adapter: ")


def test_no_biases_and_no_list_of_layers(model: Callable[[str], LanguageModel]) -> None:
    lm = model("masked")
    bare = torch.nn.Linear(2, 2, bias=False)
    bare.config = SimpleNamespace(num_hidden_layers=2)  # type: ignore[assignment]
    odd = dataclasses.replace(lm, model=bare)  # type: ignore[arg-type]
    assert "has neither biases nor norms" in refused(odd, settings("biases"))
    assert "keeps no list of 2 layers" in refused(odd, settings("last_layers"))


def test_four_bits_without_a_gpu_are_refused_before_the_model_is_read(tmp_path: Path) -> None:
    given = from_words(["method=qlora", f"model.path={tmp_path / 'none'}"], recipe="taz_lora")
    assert (given.model.bits, given.method.weights) == (4, "lora")
    given.model.device = "cpu"
    with pytest.raises(RequestError, match=r"model\.bits=4: .* need a GPU, .* cpu; method=lora"):
        models.load(given.model)


def test_settings_of_an_adapter_do_not_turn_one_on() -> None:
    with pytest.raises(RequestError, match=r"method\.lora: .*weights=all; method=lora"):
        from_words(["method=full", "method.lora.r=4"], recipe="taz_lora")
    assert from_words(["method.lora.r=4"], recipe="taz_lora").method.lora == LoraSettings(r=4)
    # Of runs before there was a key for it, which reports still read.
    assert from_yaml("method: {lora: {r: 4}}").method.weights == "lora"


@pytest.mark.parametrize("name", ["full", "lora", "rslora", "dora", "qlora", "biases"])
def test_every_recipe_trains_what_it_is_called_after(name: str) -> None:
    method = from_words([f"method={name}"], recipe="taz_lora").method
    assert method.name == name
    expected = {"full": "all", "biases": "biases"}.get(name, "lora")
    assert method.weights == expected
    assert (method.lora is not None) == (expected == "lora")
    if method.lora is not None:
        assert method.lora.dora == (name == "dora")
        assert method.lora.rslora == (name == "rslora")
