"""What a run measures of its language, that it is measured once, and the gate in every output."""

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
from eval import gate, grammar, lm_tasks, scores
from eval.errors import RequestError
from eval.retention import change, divergence, predictions
from mitigate import card, held_out, models, reporting, settings
from mitigate.run import Run
from mitigate.settings import ModelSettings, Recipe
from tests.mitigate.finished import compared, finished

QUICK = [
    "recipe=demo",
    "retention.sentences=6",
    "retention.places=8",
    "inference.resamples=300",
]


def recipe_of(*words: str) -> Recipe:
    return settings.from_words([*QUICK, *words], recipe=None)


def corpus_of(valid: list[str]) -> corpora.Corpus:
    return corpora.Corpus("made", ["Ein Satz ."], valid, {})


@pytest.fixture(scope="module")
def measured(tiny_masked: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any, Any]:
    """A run whose model after is the one before with its weights shaken."""
    import torch

    folder = tmp_path_factory.mktemp("measured")
    recipe = recipe_of("retention.max_worse=5", "retention.max_grammar_loss=1")
    run = Run(folder, recipe, None)
    before = models.load(ModelSettings(path=str(tiny_masked)))
    after = models.load(ModelSettings(path=str(tiny_masked)))
    with torch.no_grad():
        for weight in after.model.parameters():
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
            weight.add_(0.05 * noise)
    after = dataclasses.replace(after, fingerprint="shaken")
    texts = held_out.held_out_texts(recipe, corpus_of(["Der Hund schläft heute."] * 2))
    held_out.measure_retention(run, "before", before, recipe, texts)
    assert (folder / "retention" / held_out.PREDICTIONS).is_file()
    held_out.measure_retention(run, "after", after, recipe, texts)
    return run, before, after


def noted(run: Run) -> dict[str, Any]:
    return json.loads(run.path("retention.json").read_text("utf-8"))


def test_numbers_are_the_librarys(measured: tuple[Run, Any, Any]) -> None:
    run, before, after = measured
    found = noted(run)
    both = [
        json.loads(run.path("retention", f"{when}-perplexity-neutral.json").read_text("utf-8"))
        for when in ("before", "after")
    ]
    paired = change(
        *(np.array(of["losses"]) for of in both), np.array(both[0]["counts"]), resamples=300
    )
    assert found["neutral"]["change_percent"] == pytest.approx(paired["change_percent"])
    assert found["neutral"]["ci_low"] == pytest.approx(paired["ci_low"])
    texts = held_out.held_out_texts(run.recipe, corpus_of([]))["neutral"]
    moved = divergence(*(predictions(lm, texts, places=8) for lm in (before, after)))
    assert found["divergence"] == {"nats": pytest.approx(moved), "places": 8}
    assert next(iter(found)) == "neutral"  # what a table of runs takes


def test_grammar_is_the_share_right_by_phenomenon(measured: tuple[Run, Any, Any]) -> None:
    run, *_ = measured
    found = noted(run)["grammar"]["de"]
    pairs = grammar.load("de").table
    assert set(found["phenomena"]) == set(pairs["group"])
    assert found["pairs"] == len(pairs)
    assert found["clusters"] == pairs["stereotype_id"].nunique()
    for when in ("before", "after"):
        table = scores.read(run.path("retention", f"{when}-grammar_de.parquet"))
        right = (np.sign(table.margin) + 1) / 2
        assert found[when] == pytest.approx(100 * right.mean())
        for phenomenon, row in found["phenomena"].items():
            mine = (table.table["group"] == phenomenon).to_numpy()
            assert row[when] == pytest.approx(100 * right[mine].mean()), phenomenon
    assert found["ci_low"] <= found["change"] <= found["ci_high"]


def test_nothing_is_measured_twice(
    measured: tuple[Run, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, before, after = measured
    texts = held_out.held_out_texts(run.recipe, corpus_of(["Der Hund schläft heute."] * 2))

    def refused(*some: Any, **more: Any) -> Any:
        raise AssertionError("measured again")

    for name in ("perplexity", "grammar_scores", "predictions"):
        monkeypatch.setattr(held_out, name, refused)
    kept = noted(run)
    held_out.measure_retention(run, "before", before, run.recipe, texts)
    held_out.measure_retention(run, "after", after, run.recipe, texts)
    assert noted(run) == kept
    # other texts, or another model, are something else
    with pytest.raises(AssertionError, match="measured again"):
        held_out.measure_retention(run, "before", before, run.recipe, {"neutral": ["Neu ."]})
    other = dataclasses.replace(before, fingerprint="other")
    with pytest.raises(AssertionError, match="measured again"):
        held_out.measure_retention(run, "before", other, run.recipe, texts)


def test_texts(tmp_path: Path) -> None:
    file = tmp_path / "general.txt"
    file.write_text("Eins .\n\nZwei .\n", "utf-8")
    texts = held_out.held_out_texts(recipe_of(f"retention.text={file}"), corpus_of(["x"] * 9))
    assert list(texts) == ["neutral", "general", "corpus"]
    assert texts["general"] == ["Eins .", "Zwei ."]
    assert [len(some) for some in texts.values()] == [6, 2, 6]
    # English has no embedded world: the right sentences of the minimal pairs serve
    english = recipe_of("corpus.language=en", "benchmark=crows_pairs")
    texts = held_out.held_out_texts(english, corpus_of([]))
    assert texts["neutral"] == grammar.load("en").table["sent_more"].tolist()[:6]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["retention.text=nowhere.txt"], "no such file"),
        (["retention.max_grammar_loss=1", "retention.grammar=false"], "no minimal pairs"),
        (["retention.untargeted=[winoqueer]"], "not among benchmark=samples_de"),
        (["retention.untargeted=[samples_de]"], "one benchmark at least"),
        (["retention.lm_eval=[hellaswag]"], "is for causal models"),
        (["retention.max_worse=-1"], "retention.max_worse=-1.0"),
        (["selection.share=1"], "selection.share=1.0"),
    ],
)
def test_wrong_requests(words: list[str], said: str, measured: tuple[Run, Any, Any]) -> None:
    def asked() -> None:
        recipe = recipe_of(*words)
        held_out.held_out_texts(recipe, corpus_of([]))
        held_out.check(recipe, measured[1])

    with pytest.raises(RequestError) as error:
        asked()
    assert said in str(error.value)


def test_gate_takes_what_was_measured() -> None:
    row = {"kind": "perplexity", "before": 10.0, "after": 12.0, "change_percent": 20.0}
    of = {"before": 80.0, "after": 77.0, "change": -3.0}
    found: dict[str, Any] = {"neutral": row, "grammar": {"nl": of}}
    assert not gate.judged(found, 20.0, 3.0)["degraded"]
    assert gate.judged(found, 19.9, None)["reasons"][0].startswith("perplexity on neutral text")
    assert "Dutch" in gate.judged(found, None, 2.9)["reasons"][0]
    assert not gate.judged(found, None, None)["degraded"]
    row["change_percent"] = float("nan")  # a model that gives none is not through
    assert gate.judged(found, 20.0, None)["degraded"]
    assert gate.degraded(found) == ""


def test_degraded_is_said_in_every_output(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", "retention.max_worse=5")
    noted_ = json.loads(run.path("retention.json").read_text("utf-8"))
    noted_["gate"] = gate.judged(noted_, 5.0, None)
    run.write_text("retention.json", json.dumps(noted_))
    run.note(training={"steps": 1})
    run.manifest["model"] |= {"source": "made", "licence": "", "kind": "masked"}
    run.path("model").mkdir()
    done = reporting.read_run(run.folder)
    comparisons = compared(run)
    reporting.write(done, comparisons, run.folder)
    card.write(run, run.recipe, comparisons, done.retention)
    marked = gate.degraded(done.retention)
    assert marked.startswith("Degraded: perplexity on neutral text changed by +10.0 %")
    assert json.loads(run.path("deltas.json").read_text("utf-8"))["degraded"] == marked
    assert run.path("report.html").read_text("utf-8").count("Degraded: perplexity") == 1
    assert "Degraded: perplexity" in run.path("deltas.md").read_text("utf-8")
    assert "Degraded: perplexity" in run.path("deltas.tex").read_text("utf-8")
    assert marked in run.path("model", "README.md").read_text("utf-8")
    assert reporting.retention_lines(done.retention)[0] == marked
    assert gate.summary(done.retention)["retention/degraded"] is True
    assert gate.summary(done.retention)["retention/neutral/change_percent"] == 10.0


def test_untargeted_benchmarks_stand_beside(tmp_path: Path) -> None:
    run = finished(
        tmp_path / "run", "benchmark=[samples_de,samples_nl]", "retention.untargeted=[samples_nl]"
    )
    comparisons = compared(run)
    found = held_out.conclude(run, run.recipe, comparisons)
    row = found["untargeted"]["samples_nl"]
    assert row["change"] == pytest.approx(comparisons["samples_nl"].headline["delta"])
    assert any("samples_nl, not aimed at" in line for line in gate.sentences(found))


def test_lm_eval_results_are_one_number_a_task() -> None:
    """The form of what simple_evaluate returns (lm-eval 0.4.13)."""
    found = lm_tasks.results(
        {
            "results": {
                "one": {"alias": "one", "acc,none": 0.5, "acc_stderr,none": 0.1,
                        "acc_norm,none": 0.6, "acc_norm_stderr,none": 0.2},
                "two": {"alias": "two", "word_perplexity,none": 9.0,
                        "word_perplexity_stderr,none": "N/A"},
                "whole": {"alias": "whole", " ": " "},
            },
            "group_subtasks": {"whole": ["one"]},
            "versions": {"one": 1.0},
            "n-samples": {"one": {"original": 9, "effective": 5}},
        }
    )  # fmt: skip
    assert set(found) == {"one", "two"}
    assert found["one"]["metric"] == "acc_norm"
    assert (found["one"]["value"], found["one"]["error"], found["one"]["n"]) == (0.6, 0.2, 5)
    assert found["two"]["error"] is None
    moved = lm_tasks.changes(found, {"one": {**found["one"], "value": 0.4}})
    assert moved["one"]["change"] == pytest.approx(-0.2)
    assert set(moved) == {"one"}


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="lm-eval is there")
def test_without_lm_eval_one_line_says_how() -> None:
    with pytest.raises(RequestError, match=r"pip install 'mitigate\[lm-eval\]'"):
        lm_tasks.check(["hellaswag"])
