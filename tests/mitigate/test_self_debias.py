"""Self-Debias: its formula by definition, no strength no change, and through a whole run."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corpora.samples.world import community_text, load_world
from eval import benchmarks, scores
from eval.benchmarks import BenchmarkSettings
from eval.errors import RequestError
from eval.pairs import Pairs
from eval.scorers import ScoreSettings, encode_all, max_length, score
from eval.scorers.model import LanguageModel
from eval.scorers.spans import shared
from mitigate import settings
from mitigate.methods import Context, self_debias
from mitigate.methods.self_debias import SelfDebias
from mitigate.models import load, save_folder
from mitigate.settings import MethodSettings, ModelSettings, SelfDebiasSettings
from mitigate.train import main

PREFIXES = ("Kim ist nicht nett:", "Der Zug ist alt und sehr laut:")
SENTENCES = ("Kim ist schwul.", "Alle queeren Menschen sind mutig.", "Heute fährt kein Zug.")


@pytest.fixture(scope="module", params=["masked", "causal"])
def lm(request: pytest.FixtureRequest, tiny_masked: Path, tiny_causal: Path) -> LanguageModel:
    """A tiny random model of either kind, in float64, that prefers some tokens by far."""
    found = load(ModelSettings(path=str(tiny_masked if request.param == "masked" else tiny_causal)))
    with torch.no_grad():
        for weight in found.model.parameters():
            weight.mul_(1.5)
    found.model.double()
    return found


def rule(lm: LanguageModel, **changed: Any) -> SelfDebias:
    plain = SelfDebias("", None, lm.fingerprint, lm.kind, PREFIXES, 50.0, 0.01)
    return dataclasses.replace(plain, **changed)


def by_definition(lm: LanguageModel, ids: list[int], place: int, of: SelfDebias) -> np.ndarray:
    """log p̃ of the token at `place`, from forward passes of one sequence each. (vocabulary,)"""

    def p(sequence: list[int], at: int) -> np.ndarray:
        given = torch.tensor([sequence])
        if lm.kind == "masked":
            given[0, at] = lm.tokenizer.mask_token_id
        with torch.no_grad():
            logits = lm.model(**lm.inputs(given)).logits[0, at if lm.kind == "masked" else at - 1]
        return logits.double().softmax(-1).numpy()

    plain = p(ids, place)
    alpha = np.ones_like(plain)
    for prefix in of.prefixes:
        # Both tokenizers of these models put one special token in front.
        front = lm.tokenizer(prefix + "\n", add_special_tokens=False)["input_ids"]
        delta = plain - p([ids[0], *front, *ids[1:]], place + len(front))
        each = np.where(delta >= 0, 1.0, np.maximum(np.exp(of.strength * delta), of.floor))
        alpha = np.minimum(alpha, each)
    assert alpha.min() < 1
    unscaled = alpha * plain
    return np.log(unscaled / unscaled.sum())


@pytest.mark.parametrize("floor", [0.0, 0.01, 0.9])
def test_equals_the_definition(lm: LanguageModel, floor: float) -> None:
    of = rule(lm, floor=floor)
    wrapped = of.around(lm)
    for sentence in SENTENCES[:2]:
        encoded = encode_all(lm, [sentence])[0]
        for place, special in enumerate(encoded.special):
            if special or place == 0:
                continue
            ids = torch.tensor([encoded.ids])
            if lm.kind == "masked":
                ids[0, place] = lm.tokenizer.mask_token_id
            at = place if lm.kind == "masked" else place - 1
            with torch.no_grad():
                found = wrapped.model(**wrapped.inputs(ids)).logits[0, at].double().log_softmax(-1)
            expected = by_definition(lm, list(encoded.ids), place, of)
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


def test_scores_are_sums_of_the_definition(lm: LanguageModel, pairs: Pairs) -> None:
    """Through the scorer: the shared tokens' log p̃; and a batch of all equals one at a time."""
    wrapped = rule(lm).around(lm)
    found = score(wrapped, pairs, ScoreSettings())
    row = found.table.iloc[0]
    more, less = (encode_all(lm, [row[side]])[0] for side in ("sent_more", "sent_less"))
    places, _ = shared(more, less)
    expected = sum(
        by_definition(lm, list(more.ids), at, rule(lm))[more.ids[at]] for at in places if at
    )
    assert row["score_more"] == pytest.approx(expected, abs=1e-6)
    one = score(wrapped, pairs, ScoreSettings(batch_tokens=1))
    for column in ("score_more", "score_less"):
        np.testing.assert_allclose(found.table[column], one.table[column], atol=1e-6)
    assert found.meta["decoding"] == "Self-Debias behind 2 prefixes, λ = 50, ε = 0.01"
    assert found.meta["model_fingerprint"] != lm.fingerprint


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return benchmarks.load(
        BenchmarkSettings(
            name="samples_de", reader="samples", path="pkg:corpora/samples/de.yaml",
            language="de", limit=4,
        )
    )  # fmt: skip


def test_no_strength_is_the_model_itself(lm: LanguageModel, pairs: Pairs) -> None:
    off = rule(lm, strength=0.0).around(lm)
    ids = lm.tokenizer(SENTENCES[0], return_tensors="pt")["input_ids"]
    if lm.kind == "causal":
        ids = torch.tensor([encode_all(lm, SENTENCES[:1])[0].ids])
    with torch.no_grad():
        both = [each.model(**each.inputs(ids)).logits for each in (lm, off)]
    assert torch.equal(*both)
    plain, same = (score(each, pairs, ScoreSettings()) for each in (lm, off))
    for column in ("score_more", "score_less"):
        np.testing.assert_allclose(plain.table[column], same.table[column], atol=1e-6)


def test_several_prefixes_take_the_smallest_factor() -> None:
    """Of one place: what either prefix makes likelier is scaled by the larger of the two rises."""
    plain, one, other = torch.tensor(
        [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.1, 0.5, 0.4]], dtype=torch.float64
    ).log()
    found = self_debias.adjusted(plain, [one, other], 2.0, 0.0).softmax(-1)
    expected = torch.tensor([0.5, 0.3 * np.exp(-0.4), 0.2 * np.exp(-0.6)], dtype=torch.float64)
    torch.testing.assert_close(found, expected / expected.sum())
    swapped = self_debias.adjusted(plain, [other, one], 2.0, 0.0).softmax(-1)
    torch.testing.assert_close(found, swapped)


def test_kept_and_loaded_again(lm: LanguageModel, tmp_path: Path) -> None:
    """The folder holds the rule alone, and only this package takes it for a model."""
    save_folder(lm.model, lm.tokenizer, tmp_path / "base")
    base = load(ModelSettings(path=str(tmp_path / "base")))
    of = rule(base, base=str(tmp_path / "base"))
    wrapped = of.around(base)
    save_folder(wrapped.model, base.tokenizer, tmp_path / "kept")
    assert not list((tmp_path / "kept").glob("*.safetensors"))
    assert SelfDebias.read(tmp_path / "kept") == of
    again = load(ModelSettings(path=str(tmp_path / "kept")))
    assert again.fingerprint == wrapped.fingerprint
    assert again.decoding == str(of)
    assert max_length(again) == max_length(base) - again.reserved

    with torch.no_grad():
        next(iter(base.model.parameters())).add_(1.0)
    save_folder(base.model, base.tokenizer, tmp_path / "base")
    with pytest.raises(RequestError, match="made for weights with the fingerprint"):
        load(ModelSettings(path=str(tmp_path / "kept")))
    (tmp_path / "kept" / self_debias.FILE).write_text("{}", "utf-8")
    with pytest.raises(RequestError, match="not a rule of Self-Debias"):
        load(ModelSettings(path=str(tmp_path / "kept")))


def test_fingerprint_tells_rules_apart(lm: LanguageModel) -> None:
    rules = [
        rule(lm), rule(lm, strength=10.0), rule(lm, floor=0.0), rule(lm, prefixes=PREFIXES[:1]),
        rule(lm, fingerprint="0" * 16),
    ]  # fmt: skip
    assert len({each.own_fingerprint for each in rules}) == len(rules)
    assert rule(lm, base="elsewhere").own_fingerprint == rules[0].own_fingerprint


def test_takes_sentences_only(lm: LanguageModel) -> None:
    wrapped = rule(lm).around(lm)
    ids = torch.tensor([encode_all(lm, SENTENCES[:1])[0].ids])
    with pytest.raises(ValueError, match="whole sentences"):
        wrapped.model(input_ids=ids, position_ids=torch.zeros_like(ids))
    with pytest.raises(ValueError, match="special tokens in front"):
        wrapped.model(input_ids=ids[:, 1:])


def test_our_prefixes() -> None:
    known = self_debias.known_prefixes()
    assert set(known) == {"de", "nl", "en"}
    assert len({len(some) for some in known.values()}) == 1
    for prefix in (each for some in known.values() for each in some):
        assert prefix.endswith(":")


def test_says_what_it_does(lm: LanguageModel, tmp_path: Path) -> None:
    said: list[str] = []
    context = Context(
        lm=lm, train=community_text(load_world("de"), 20), valid=[],
        settings=MethodSettings(name="self_debias", self_debias=SelfDebiasSettings()),
        lora_targets=[], seed=0, processes=1, checkpoints=tmp_path,
        log=lambda values: None, say=said.append, language="de",
    )  # fmt: skip
    facts = self_debias.train(context).facts
    assert facts["trained_weights"] == 0
    assert facts["self_debias"]["prefixes"] == tuple(self_debias.known_prefixes()["de"])
    assert facts["self_debias"]["largest_change"] > 0
    assert "0 of" in said[0]
    with pytest.raises(RequestError, match="no prefixes in language 'fr'"):
        self_debias.train(dataclasses.replace(context, language="fr"))


def test_refuses(lm: LanguageModel) -> None:
    def refused(**changed: Any) -> str:
        with pytest.raises(RequestError) as error:
            self_debias.check(lm, MethodSettings(name="self_debias", **changed), [], 1)
        return str(error.value)

    assert "weights=all" in refused(weights="lora")
    long = SelfDebiasSettings(prefixes=["Kim ist sehr nett und " * 30])
    assert "a sentence needs 64" in refused(self_debias=long)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("result.merge=true", "nothing to merge"),
        ("hub.push=someone/something", "nothing to publish"),
        ("retention.lm_eval=[hellaswag]", "without it"),
        ("curve.pairs=10", "no checkpoints"),
        ("method.self_debias.strength=0", "more than 0"),
        ("method.self_debias.floor=1", "less than 1"),
        ("method.self_debias.prefixes=['']", "empty"),
        ("corpus.language=fr", "has prefixes in de, nl, en"),
    ],
)
def test_refuses_what_needs_weights(word: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        settings.from_words([word], recipe="demo_self_debias")


@pytest.mark.long
def test_a_whole_run(
    lm: LanguageModel, tiny_masked: Path, tiny_causal: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Before and after by the same scorer; the folder, its card and its Score tables say what."""
    monkeypatch.setenv("MITIGATE_CACHE", str(tmp_path / "cache"))
    base = tiny_masked if lm.kind == "masked" else tiny_causal
    folder = main(
        [
            "recipe=demo_self_debias", f"model.path={base}", f"run.dir={tmp_path / 'run'}",
            "corpus.sentences=60", "benchmark.limit=12", "retention.sentences=2",
            "retention.grammar=false", "retention.places=3", "inference.resamples=100",
            "tracking.mode=disabled", "model.device=cpu",
        ]
    )  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    assert manifest["status"] == "finished"
    before, after = (scores.read(folder / f"{when}.parquet") for when in ("before", "after"))
    assert "decoding" not in before.meta
    assert after.meta["decoding"].startswith("Self-Debias behind 3 prefixes")
    assert not np.allclose(before.margin, after.margin)
    retention = json.loads((folder / "retention.json").read_text("utf-8"))
    assert retention["neutral"]["before"] != retention["neutral"]["after"]
    assert retention["divergence"]["nats"] > 0
    card = (folder / "model" / "README.md").read_text("utf-8")
    assert "holds no weights" in card
    assert "from transformers" not in card
    again = load(ModelSettings(path=str(folder / "model"), device="cpu"))
    assert again.fingerprint == after.meta["model_fingerprint"]
