"""Preferences: what is trained on is never evaluated, and step 0 is the model itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from corpora.samples.world import load_world, planted_text
from eval import benchmarks, scores
from eval.benchmarks import BenchmarkSettings
from eval.errors import RequestError
from eval.pairs import Pairs, build
from eval.scorers import score
from eval.scorers.model import LanguageModel
from mitigate import settings as recipes
from mitigate.methods import Context, preference, splits
from mitigate.methods.record import TrainingError
from mitigate.models import load
from mitigate.sample_models import causal_tokenizer, masked_tokenizer
from mitigate.settings import LoraSettings, MethodSettings, PreferenceSettings
from tests.conftest import Run
from tests.mitigate.test_architectures import ARCHITECTURES, kind_of
from tests.mitigate.test_architectures import build as build_model


def samples(name: str, **more: Any) -> Pairs:
    path = f"pkg:corpora/samples/{name.removeprefix('samples_')}.yaml"
    return benchmarks.load(BenchmarkSettings(name=name, reader="samples", path=path, **more))


@pytest.fixture(scope="module")
def de() -> Pairs:
    return samples("samples_de")


@pytest.fixture(scope="module")
def nl() -> Pairs:
    return samples("samples_nl")


@pytest.fixture(scope="module")
def other() -> Pairs:
    return samples("samples_pairs_de")


def chosen(**changed: Any) -> PreferenceSettings:
    return PreferenceSettings(**({"pairs": "samples_pairs_de"} | changed))


def table(name: str, language: str, rows: list[dict[str, str]]) -> Pairs:
    given = [
        {"sent_more": f"{name} {at} a", "sent_less": f"{name} {at} b", **row}
        for at, row in enumerate(rows)
    ]
    return build(pd.DataFrame(given), name=name, language=language)


# --- the split -------------------------------------------------------------------------------


def test_pairs_of_preference_are_the_worlds_in_other_sentences(de: Pairs, other: Pairs) -> None:
    world = load_world("de")
    assert set(de.table["stereotype_id"]) == set(other.table["stereotype_id"])
    sentences = {*other.table["sent_more"], *other.table["sent_less"]}
    assert sentences.isdisjoint({*de.table["sent_more"], *de.table["sent_less"]})
    trained_on = set(planted_text(world, 2000))
    assert sentences.isdisjoint(trained_on)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_stereotype_is_on_both_sides(de: Pairs, nl: Pairs, other: Pairs, seed: int) -> None:
    """Across languages too: the worlds share their ids."""
    found = splits.split(other, {"samples_de": de, "samples_nl": nl}, chosen(), seed)
    trained = set(found.train.table["stereotype_id"]) | set(found.valid.table["stereotype_id"])
    assert len(trained) == 22
    assert set(found.train.table["stereotype_id"]).isdisjoint(found.valid.table["stereotype_id"])
    for name, pairs in found.evaluated.items():
        left = set(pairs.table["stereotype_id"])
        assert left.isdisjoint(trained), name
        assert len(left) == 22
    assert not found.notes
    assert "22 stereotypes" in found.sentence()


def test_the_split_is_the_seeds(de: Pairs, other: Pairs) -> None:
    one, again, two = (
        splits.split(other, {"samples_de": de}, chosen(), seed).train.table["pair_id"].tolist()
        for seed in (0, 0, 1)
    )
    assert one == again
    assert one != two


def test_the_same_benchmark_must_be_said_and_another_shown(de: Pairs, nl: Pairs) -> None:
    with pytest.raises(RequestError, match=r"has the same pairs.*same_benchmark=true"):
        splits.split(de, {"samples_de": de}, chosen(pairs=""), 0)
    same = chosen(pairs="", same_benchmark=True)
    with pytest.raises(RequestError, match="a second benchmark must show"):
        splits.split(de, {"samples_de": de}, same, 0)
    both = {"samples_de": de, "samples_nl": nl}
    found = splits.split(de, both, chosen(pairs="samples_de", same_benchmark=True), 0)
    assert "trained on the benchmark's distribution" in found.notes[0]
    assert "samples_de" in found.notes[0]
    # Templates are held out as well, in the translation too.
    for pairs in found.evaluated.values():
        assert set(pairs.table["template"]).isdisjoint(found.train.table["template"])
        assert len(set(pairs.table["template"])) == 4


def test_a_copy_under_another_name_is_the_same_benchmark(de: Pairs) -> None:
    copy = Pairs("mine", de.table, de.left_out, de.source)
    with pytest.raises(RequestError, match="evaluates samples_de"):
        splits.split(copy, {"samples_de": de}, chosen(pairs="mine"), 0)


def test_a_stereotype_in_both_splits_is_refused(de: Pairs, nl: Pairs, other: Pairs) -> None:
    pinned = chosen(train_on=["moody", "loud"], evaluate_on=["vain", "moody"])
    with pytest.raises(RequestError, match="stereotype 'moody' of samples_nl is in the pref"):
        splits.split(other, {"samples_nl": nl}, pinned, 0)
    apart = chosen(train_on=["moody", "loud"], evaluate_on=["vain"])
    found = splits.split(other, {"samples_de": de}, apart, 0)
    assert set(found.evaluated["samples_de"].table["stereotype_id"]) == {"vain"}
    with pytest.raises(RequestError, match="no stereotype moddy; did you mean moody"):
        splits.split(other, {"samples_de": de}, chosen(train_on=["moddy"]), 0)


def test_translations_are_one_stereotype() -> None:
    """By their English predicate but for number, by a translation group, by the same id."""
    en = table("winoqueer", "en", [
        {"stereotype_id": "are early risers", "predicate": "are early risers"},
        {"stereotype_id": "are early risers", "predicate": "an early riser"},
        {"stereotype_id": "keep lists", "predicate": "keep lists"},
    ])  # fmt: skip
    nl = table("winoqueer_nl", "nl", [
        {"stereotype_id": "staan vroeg op", "predicate": "early risers"},
        {"stereotype_id": "maken lijstjes", "predicate": "keeps lists"},
        {"stereotype_id": "eigen", "predicate": ""},
    ])  # fmt: skip
    mine = table("mine", "de", [
        {"stereotype_id": "früh", "translation": "x"},
        {"stereotype_id": "spät", "translation": "y"},
    ])  # fmt: skip
    yours = table("yours", "nl", [{"stereotype_id": "vroeg", "translation": "X "}])
    every = {pairs.name: pairs for pairs in (en, nl, mine, yours)}
    group = splits.translation_groups(every)
    assert group["winoqueer", "are early risers"] == group["winoqueer_nl", "staan vroeg op"]
    assert group["winoqueer", "keep lists"] == group["winoqueer_nl", "maken lijstjes"]
    assert group["mine", "früh"] == group["yours", "vroeg"]
    assert len(set(group.values())) == 5


def test_unknown_translations_are_said() -> None:
    mine = table("mine", "de", [{"stereotype_id": name} for name in "abcd"])
    theirs = table("theirs", "nl", [{"stereotype_id": name} for name in "pqr"])
    found = splits.split(mine, {"theirs": theirs}, chosen(pairs="mine"), 0)
    assert found.facts["translations_unknown"] == ["theirs"]
    assert "not known here" in found.notes[0]
    same = table("same", "de", [{"stereotype_id": name} for name in "pqr"])
    assert not splits.split(mine, {"same": same}, chosen(pairs="mine"), 0).notes


def test_templates_of_winoqueer_and_its_translation() -> None:
    """WinoQueer-NL numbers by the form of the predicate, which several templates take."""
    assert splits.template_keys("winoqueer_nl", "5") == splits.template_keys("winoqueer", "8-name")
    assert splits.template_keys("winoqueer_nl", "1/11") == {"winoqueer 1-4", "winoqueer 11-11"}
    assert splits.template_keys("mine", "5") != splits.template_keys("winoqueer", "5")
    assert splits.template_keys("mine", "") == set()


def test_survey_de_is_refused_for_training(de: Pairs) -> None:
    recipe = recipes.from_words(
        ["recipe=demo_dpo", "method.preference.pairs=survey_de", "method.preference.path=x.csv"],
        recipe=None,
    )
    with pytest.raises(RequestError, match=r"survey_de: not for training.*datasheet"):
        splits.preferences(recipe, {"samples_de": de})


def test_limit_spreads_over_stereotypes(de: Pairs, other: Pairs) -> None:
    found = splits.split(other, {"samples_de": de}, chosen(limit=44), 0)
    counts = pd.concat([found.train.table, found.valid.table])["stereotype_id"].value_counts()
    assert counts.sum() == 44
    assert set(counts) == {2}


# --- training --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, PreTrainedTokenizerBase]:
    text = planted_text(load_world("de"), 300)
    return {"masked": masked_tokenizer(text), "causal": causal_tokenizer(text)}


@pytest.fixture
def few(other: Pairs) -> Pairs:
    return Pairs(other.name, other.table.iloc[::200].reset_index(drop=True), other.left_out)


def loaded(architecture: str, tokenizers: dict[str, Any], folder: Path) -> LanguageModel:
    return load(build_model(architecture, tokenizers[kind_of(architecture)], folder))


def quick(**changed: Any) -> MethodSettings:
    given: dict[str, Any] = {
        "name": "dpo", "module": "preference", "lr": 1e-2, "max_steps": 3, "batch": 4,
        "accumulation": 1, "eval_steps": 3, "save_steps": 3, "keep": "last",
        "preference": PreferenceSettings(),
    }  # fmt: skip
    return MethodSettings(**(given | changed))


def context(
    lm: LanguageModel, settings: MethodSettings, pairs: Pairs, folder: Path, **more: Any
) -> Context:
    empty = Pairs(pairs.name, pairs.table.iloc[:0], pairs.left_out)
    given: dict[str, Any] = {
        "train": [], "valid": [], "lora_targets": [], "seed": 0, "processes": 1,
        "log": lambda values: None, "say": lambda line: None, "pairs": (pairs, empty),
    }  # fmt: skip
    return Context(lm=lm, settings=settings, checkpoints=folder, **(given | more))


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("architecture", ["gpt2", "bloom", "llama", "xlm causal"])
def test_policy_is_the_reference_at_step_0(
    architecture: str, adapter: bool, tokenizers: dict[str, Any], few: Pairs, tmp_path: Path
) -> None:
    """trl's forward pass, padded and in a batch, gives the scorer's own likelihoods."""
    lm = loaded(architecture, tokenizers, tmp_path / "model")
    targets = ARCHITECTURES[architecture][2]
    weights = {"weights": "lora", "lora": LoraSettings(targets=targets)} if adapter else {}
    rows = preference.preferences(lm, few)
    expected = score(lm, few, preference.SCORE).table
    np.testing.assert_allclose(rows["ref_rejected_logps"], expected["score_more"])
    np.testing.assert_allclose(rows["ref_chosen_logps"], expected["score_less"])
    settings = quick(**weights)
    model = preference.weights.prepare(lm, settings, [], lambda line: None)
    trainer = preference.make_trainer(context(lm, settings, few, tmp_path), model, rows, None)
    assert list(getattr(model, "peft_config", {})) == (["default"] if adapter else [])
    assert trainer.check_start(1e-3) < 1e-3
    loss = trainer.compute_loss(trainer.model, trainer._prepare_inputs(next(iter(
        trainer.get_train_dataloader()
    ))))  # fmt: skip
    assert loss.item() == pytest.approx(np.log(2), abs=1e-4)  # -log sigmoid(0)
    with torch.no_grad():
        for weight in (each for each in model.parameters() if each.requires_grad):
            weight.add_(torch.randn_like(weight))  # a constant would shift all logits alike
    with pytest.raises(TrainingError, match="before the first step"):
        trainer.check_start(1e-3)


def test_the_identity_itself_is_no_part_of_a_preference(
    tokenizers: dict[str, Any], few: Pairs, tmp_path: Path
) -> None:
    lm = loaded("gpt2", tokenizers, tmp_path / "model")
    rows = preference.preferences(lm, few)
    for row, pair in zip(rows, few.table.itertuples(), strict=True):
        marked = [
            token
            for token, scored in zip(row["rejected"], row["rejected_scored"], strict=True)
            if scored
        ]
        unmarked = [
            token
            for token, scored in zip(row["chosen"], row["chosen_scored"], strict=True)
            if scored
        ]
        assert marked == unmarked
        assert pair.group_label not in str(lm.tokenizer.decode(marked)).split()


def test_indifference_is_written_out() -> None:
    chosen_, rejected, ref_chosen, ref_rejected = torch.randn(4, 7)
    expected = np.mean([
        float((c - r) ** 2 + 0.3 * ((c - a + r - b) / 2) ** 2)
        for c, r, a, b in zip(chosen_, rejected, ref_chosen, ref_rejected, strict=True)
    ])  # fmt: skip
    found = preference.indifference(chosen_, rejected, ref_chosen, ref_rejected, 0.3)
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss", ["dpo", "indifference"])
def test_margins_go_where_the_loss_says(
    loss: str, tokenizers: dict[str, Any], few: Pairs, tmp_path: Path
) -> None:
    """DPO raises the counter-stereotype, past 50; indifference makes margins small."""
    lm = loaded("gpt2", tokenizers, tmp_path / "model")
    before = score(lm, few, preference.SCORE).table
    settings = quick(
        max_steps=12, batch=8, eval_steps=12, save_steps=12,
        preference=PreferenceSettings(loss=loss),
    )  # fmt: skip
    logged: list[dict[str, Any]] = []
    given = context(lm, settings, few, tmp_path / "run", log=logged.append)
    trained = preference.train(given)
    after = score(lm, few, preference.SCORE).table
    margins = [(each["score_more"] - each["score_less"]).to_numpy() for each in (before, after)]
    if loss == "dpo":
        assert (margins[1] < 0).mean() > 0.9
        assert margins[1].mean() < margins[0].mean()
    else:
        assert np.abs(margins[1]).mean() < 0.5 * np.abs(margins[0]).mean()
    assert trained.facts["loss"] == loss
    assert trained.facts["steps"] == 12
    assert any("train/loss" in values for values in logged)


def test_what_is_refused(tokenizers: dict[str, Any], few: Pairs, tmp_path: Path) -> None:
    masked = loaded("bert", tokenizers, tmp_path / "masked")
    with pytest.raises(RequestError, match="is a masked model") as error:
        preference.check(masked, quick(), [], 1)
    assert "\n" not in str(error.value)
    lm = loaded("gpt2", tokenizers, tmp_path / "causal")
    with pytest.raises(RequestError, match=r"method\.preference is missing"):
        preference.check(lm, quick(preference=None), [], 1)
    with pytest.raises(RequestError, match="fewer than a batch of 64"):
        preference.train(context(lm, quick(batch=64), few, tmp_path))
    with pytest.raises(RequestError, match="loss=ipo"):
        recipes.from_words(["recipe=demo_dpo", "method.preference.loss=ipo"], recipe=None)
    with pytest.raises(RequestError, match="must lie between 0 and 1"):
        recipes.from_words(["recipe=demo_dpo", "method.preference.stereotypes=1"], recipe=None)


@pytest.mark.long
def test_the_real_command_says_and_keeps_the_split(
    run_mitigate: Run, tiny_causal: Path, tmp_path: Path
) -> None:
    """On the benchmark's own distribution, which every output then says."""
    done = run_mitigate(
        "train", "recipe=demo_dpo", f"model.path={tiny_causal}", "run.dir=run",
        "benchmark=[samples_de,samples_nl]", "method.preference.pairs=samples_de",
        "method.preference.same_benchmark=true", "method.preference.limit=60",
        "method.max_steps=2", "benchmark.limit=400", "corpus.sentences=300",
        "retention.sentences=5", "inference.resamples=200", "tracking.mode=disabled",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    facts = json.loads((run / "manifest.json").read_text("utf-8"))
    assert facts["preferences"]["same_benchmark"] == ["samples_de"]
    assert "to train on" in done.stderr
    trained = set(facts["preferences"]["stereotypes_trained_on"])
    for name in ("samples_de", "samples_nl"):
        for when in ("before", "after"):
            evaluated = scores.read(run / f"{when}-{name}.parquet").table
            assert trained.isdisjoint(evaluated["stereotype_id"])
    said = "trained on the benchmark's distribution"
    for name in ("deltas.md", "deltas.json", "report.html"):
        text = (run / name).read_text("utf-8").replace("&#39;", "'").replace("’", "'")
        assert said in text, name


def test_a_masked_model_is_refused_before_anything_is_scored(
    run_mitigate: Run, tiny_masked: Path, tmp_path: Path
) -> None:
    done = run_mitigate(
        "train", "recipe=demo_dpo", f"model.path={tiny_masked}", "run.dir=run",
        "benchmark.limit=60", "corpus.sentences=50",
    )  # fmt: skip
    assert done.returncode == 2
    assert "is a masked model" in done.stderr.strip().splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", ["dpo", "indifference"])
def test_accumulated_pairs_equal_a_batch(
    loss: str, tokenizers: dict[str, Any], few: Pairs, tmp_path: Path
) -> None:
    """Two forward passes of four pairs are one of eight, in loss and in the gradient's norm."""
    found = []
    for batch, accumulation in ((8, 1), (4, 2)):
        folder = tmp_path / str(batch)
        lm = loaded("gpt2", tokenizers, folder / "model")
        settings = quick(
            max_steps=1, batch=batch, accumulation=accumulation, eval_steps=1, save_steps=1,
            preference=PreferenceSettings(loss=loss),
        )  # fmt: skip
        logged: list[dict[str, Any]] = []
        preference.train(context(lm, settings, few, folder / "run", log=logged.append))
        found += [row for row in logged if "train/loss" in row][:1]
    for key in ("train/loss", "train/grad_norm"):
        assert found[0][key] == pytest.approx(found[1][key], rel=1e-4), key
