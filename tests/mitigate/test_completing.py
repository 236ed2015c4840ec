"""Prompts in the real commands: `mitigate score` on QueerGen, and a run with pairs and prompts."""

import json
from pathlib import Path

import numpy as np
import pytest

from eval import completions
from mitigate import completing, settings
from mitigate.cli import dispatch, guarded
from tests.conftest import Run
from tests.eval.completed import GOOD, completed, drawn_words, prompts, rated

PROMPTS = ["benchmark=queergen_de", "benchmark.limit=31", "judges.measures=[]"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The last line of a command that must end with status 2."""
    capsys.readouterr()
    status = guarded(lambda: dispatch(words))
    said = capsys.readouterr().err
    assert status == 2, said
    return said.strip().splitlines()[-1]


def test_score_writes_completions_and_shows_no_word(
    tiny_masked: Path, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.setenv("MITIGATE_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "c.parquet"
    words = ["score", f"model.path={tiny_masked}", *PROMPTS, "completion.top=5", f"out={out}"]
    assert guarded(lambda: dispatch(words)) == 0
    printed = capsys.readouterr()
    said = printed.out + printed.err
    found = completions.read(out)
    assert len(found.table) == 5 * 31
    assert found.meta["benchmark"] == "queergen_de"
    counts = completing.by_category(found).set_index("category")
    assert counts["prompts"].to_dict() == {"unmarked": 1, "non-queer": 10, "queer": 20}
    assert (counts["usable %"] == 100).all()
    assert "155 completions of 31 prompts" in said
    assert "Usable words: 100.0 %" in said
    shown = set(said.split())
    assert not [word for word in found.table["word"] if len(word) > 6 and word in shown]
    assert guarded(lambda: dispatch(words)) == 0
    assert "Found finished completions" in capsys.readouterr().err


def test_requests_that_cannot_be_met(tiny_masked: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = [f"model.path={tiny_masked}", "out=c.parquet"]
    said = refused(capsys, "score", *model, *PROMPTS, "completion.wording=2")
    assert "completion.wording=2: is for causal models; tiny_masked is masked" in said
    said = refused(capsys, "score", *model, *PROMPTS, "completion.wording=first")
    assert said.startswith("mitigate: completion.wording=first: there are: auto, plain, 1")
    assert "must be more than 0" in refused(capsys, "score", *model, *PROMPTS, "completion.top=0")
    said = refused(capsys, "score", *model, "benchmark=queergen", "benchmark.language=fr")
    assert "no tables of queergen in this language" in said
    said = refused(capsys, "describe", "benchmark=queergen")
    assert "benchmark queergen: holds prompts to complete, not pairs" in said
    said = refused(capsys, "export", "lm-eval", "benchmark=queergen", "out=tasks")
    assert "holds prompts to complete, not pairs" in said
    said = refused(capsys, "train", "recipe=demo", "benchmark=queergen", "run.dir=run")
    assert "holds prompts alone, and a run compares scores of pairs; benchmark=[queergen," in said
    assert sorted(path.name for path in tmp_path.iterdir()) == []


def test_a_model_that_says_no_word_is_told_of_and_ends_nothing(tmp_path: Path):
    """What the real SmolLM2 does: it repeats the sentence instead."""
    recipe = settings.from_words(["benchmark=[samples_de,queergen]"], recipe="demo")
    recipe.inference.resamples = 100
    table = prompts()
    words = drawn_words(table, {"unmarked": 0.1, "non-queer": 0.2, "queer": 0.5})
    for when, said in (("before", words), ("after", [""] * len(table))):
        values = np.asarray([float(word in GOOD) if word else np.nan for word in said])
        found = rated(completed(table, said), sentiment_word=values)
        found.meta.update(kind="causal", wording="2", usable=float(np.mean(values >= 0)))
        completions.write(found, tmp_path / completing.completion_file(when, "queergen"))
    assert completing.changes(tmp_path, recipe) == {}
    (line,) = completing.unsaid(tmp_path, recipe)
    assert line.startswith(f"made: none of the {len(table)} completions after has a usable word")
    assert "completion.wording=plain" in line
    found.meta.update(wording="plain")
    assert completing.no_word(found).endswith("has a usable word, so they show nothing")


def test_recipe_tells_pairs_from_prompts():
    recipe = settings.from_words(["benchmark=[samples_de,queergen_de]"], recipe="demo")
    assert completing.of_pairs(recipe) == ["samples_de"]
    prompts = completing.read(recipe)
    assert list(prompts) == ["queergen_de"]
    facts = completing.facts(prompts)["queergen_de"]
    assert isinstance(facts, dict)
    assert facts["prompts"] == 3_100
    assert facts["markers"] == {"non-queer": 10, "queer": 20}


@pytest.mark.long
def test_run_completes_before_and_after(tiny_masked: Path, tmp_path: Path, run_mitigate: Run):
    words = [
        *("train", "recipe=demo", f"model.path={tiny_masked}", "run.dir=run"),
        *("benchmark=[samples_de,queergen]", "benchmark.samples_de.limit=120"),
        *("benchmark.queergen.limit=31", "completion.top=5", "corpus.sentences=500"),
        "judges.measures=[sentiment]",
        *("method.epochs=1", "method.eval_steps=5", "method.save_steps=5"),
        *("retention.sentences=10", "inference.resamples=500"),
    ]
    done = run_mitigate(*words)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run"
    assert (folder / "before.parquet").is_file()  # the one benchmark of pairs has the plain name
    before, after = (
        completions.read(folder / completing.completion_file(when, "queergen"))
        for when in ("before", "after")
    )
    assert before.table["prompt_id"].equals(after.table["prompt_id"])
    assert before.meta["model_fingerprint"] != after.meta["model_fingerprint"]
    assert not (before.table["log_prob"] == after.table["log_prob"]).any()
    assert [record["tool"] for record in after.meta["judges"]] == ["vader"] * 3
    assert after.table["sentiment_word"].notna().all()
    change = json.loads((folder / "completions-queergen.json").read_text("utf-8"))
    assert {row["measure"] for row in change["changes"]} >= {"sentiment_word"}
    assert "What it writes" in (folder / "report.html").read_text("utf-8")
    facts = json.loads((folder / "manifest.json").read_text("utf-8"))
    assert facts["prompts"]["queergen"]["prompts"] == 31
    assert facts["completions"]["after queergen"]["usable"] == 1
    card = next(folder.glob("*/README.md")).read_text("utf-8")
    assert "completed queergen" in card
    assert (folder / "report.html").is_file()
