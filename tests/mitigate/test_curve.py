"""Scores during training: the rows, that training does not notice, resuming, the figure."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from corpora.samples.world import load_world, planted_text
from eval import benchmarks, metrics, scores
from eval.errors import RequestError
from eval.pairs import Pairs
from eval.report import figures, html
from eval.scorers import ScoringError, score
from eval.scorers.model import LanguageModel
from mitigate import curve, models, settings
from mitigate.curve import Curve
from mitigate.methods import Context, Trained
from mitigate.methods.continued import train
from mitigate.settings import CurveSettings, LoraSettings, MethodSettings, ModelSettings, Recipe
from tests.mitigate import wandb_file

MITIGATE = Path(sys.executable).with_name("mitigate")
TARGETS = {"masked": ["query", "value"], "causal": ["c_attn"]}
SETUPS = [(kind, lora) for kind in TARGETS for lora in (False, True)]


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return settings.from_words(["curve.pairs=24", "score.batch_tokens=512"], recipe="demo")


@pytest.fixture(scope="module")
def pairs(recipe: Recipe) -> dict[str, Pairs]:
    return {name: benchmarks.load(some) for name, some in recipe.benchmark.items()}


@pytest.fixture(scope="module")
def text() -> list[str]:
    return planted_text(load_world("de"), 60)


@pytest.fixture
def model(tiny_masked: Path, tiny_causal: Path) -> Callable[[str], LanguageModel]:
    """`model("masked")`: a fresh one with dropout, so that random numbers count in training."""

    def load(kind: str) -> LanguageModel:
        path = tiny_masked if kind == "masked" else tiny_causal
        lm = models.load(ModelSettings(path=str(path), name=kind))
        for module in lm.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.1
        return lm

    return load


def method_settings(lora: bool = False, **changed: Any) -> MethodSettings:
    given = {
        "name": "continued",
        "lr": 1e-2,
        "max_steps": 6,
        "batch": 2,
        "accumulation": 2,
        "eval_steps": 2,
        "save_steps": 2,
        "keep": "last",
        "block": 24,
        "weights": "lora" if lora else "all",
        "lora": LoraSettings(r=2, dropout=0.1) if lora else None,
    }
    return MethodSettings(**(given | changed))


def trained(
    lm: LanguageModel,
    text: list[str],
    folder: Path,
    checkpoint: Callable[[int, float | None, float | None], None] | None,
    **changed: Any,
) -> Trained:
    given: dict[str, Any] = {
        "train": text[:20],
        "valid": text[40:46],
        "settings": method_settings(),
        "lora_targets": TARGETS[lm.kind],
        "seed": 0,
        "processes": 1,
        "checkpoints": folder / "checkpoints",
        "log": lambda values: None,
        "say": lambda line: None,
    }
    return train(Context(lm=lm, checkpoint=checkpoint, **(given | changed)))


def weights(found: Trained) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in found.model.state_dict().items()}


# Training does not notice, and the rows are those of the model as it stood.


@pytest.mark.parametrize(("kind", "lora"), SETUPS)
def test_the_weights_are_the_same_with_a_curve_and_without(
    kind: str,
    lora: bool,
    recipe: Recipe,
    pairs: dict[str, Pairs],
    model: Callable[[str], LanguageModel],
    text: list[str],
    tmp_path: Path,
) -> None:
    given = method_settings(lora)
    plain = weights(trained(model(kind), text, tmp_path / "plain", None, settings=given))
    lm = model(kind)
    log: list[dict[str, Any]] = []
    at = Curve(tmp_path / "curve.csv", recipe, lm, pairs, log.append)
    before = metrics.measure(score(lm, at.pairs["samples_de"], recipe.score), slices=[])
    training: list[dict[str, Any]] = []
    found = trained(lm, text, tmp_path / "with", at, settings=given, log=training.append)
    for name, tensor in weights(found).items():
        assert torch.equal(tensor, plain[name]), name
    after = metrics.measure(score(lm, at.pairs["samples_de"], recipe.score), slices=[])

    rows = curve.read(tmp_path / "curve.csv")
    assert list(rows["step"].unique()) == [0, 2, 4, 6]
    assert list(rows.columns) == list(curve.COLUMNS)
    losses = {
        line["train/step"]: line["train/eval_loss"]
        for line in training
        if "train/eval_loss" in line
    }
    assert dict(zip(rows["step"], rows["valid_loss"], strict=True)) == losses
    assert len(set(losses.values())) == 4
    assert rows["epoch"].iloc[0] == 0
    assert rows["epoch"].iloc[-1] == pytest.approx(found.facts["epochs"])
    for step, expected in ((0, before), (6, after)):
        of = rows[rows["step"] == step].reset_index(drop=True)
        assert list(of["scope"]) == list(expected["scope"])
        for metric in curve.METRICS:
            np.testing.assert_allclose(of[metric], expected[metric], atol=1e-6, rtol=0)
    assert not np.allclose(before["margin"], after["margin"], atol=1e-3)
    assert [line["train/step"] for line in log] == [0, 2, 4, 6]
    overall = rows.loc[(rows["step"] == 6) & (rows["scope"] == "overall"), "bias"]
    assert log[-1]["curve/overall/bias"] == overall.item()


def test_the_sample_is_stratified_and_the_same_each_time(
    recipe: Recipe, pairs: dict[str, Pairs]
) -> None:
    whole = pairs["samples_de"]
    some = curve.sampled(whole, CurveSettings(pairs=60))
    assert len(some) == 60
    share = some.table["group"].value_counts() / whole.table["group"].value_counts()
    assert share.max() / share.min() < 1.2
    again = curve.sampled(whole, CurveSettings(pairs=60))
    other = curve.sampled(whole, CurveSettings(pairs=60, seed=1))
    assert some.hash == again.hash != other.hash
    assert curve.sampled(whole, CurveSettings(pairs=10**6)) is whole


def test_modes_random_states_and_the_forward_pass_come_back(
    recipe: Recipe,
    pairs: dict[str, Pairs],
    model: Callable[[str], LanguageModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm = model("masked")
    lm.model.train()
    frozen = next(iter(lm.model.children()))
    frozen.eval()  # a module that training keeps still
    modes = [module.training for module in lm.model.modules()]
    assert set(modes) == {True, False}
    own = lm.model.forward

    def wrapped(*args: Any, **more: Any) -> Any:
        raise AssertionError("scored through the trainer's forward pass")

    lm.model._original_forward, lm.model.forward = own, wrapped  # as accelerate does
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = random.random(), np.random.random(), torch.rand(1)
    random.seed(3), np.random.seed(3), torch.manual_seed(3)

    def noisy(*args: Any, **more: Any) -> Any:
        random.random(), np.random.random(), torch.rand(1)
        assert not any(module.training for module in lm.model.modules())
        assert not torch.is_grad_enabled()
        assert args[0].fingerprint != lm.fingerprint  # or a stored score would be taken for it
        return score(*args, **more)

    monkeypatch.setattr(curve, "score", noisy)
    Curve(tmp_path / "curve.csv", recipe, lm, pairs, lambda values: None)(0, None, None)
    assert (random.random(), np.random.random(), torch.rand(1)) == expected
    assert [module.training for module in lm.model.modules()] == modes
    assert lm.model.forward is wrapped


def test_half_precision_is_scored_as_before_training(
    recipe: Recipe,
    pairs: dict[str, Pairs],
    tiny_masked: Path,
    text: list[str],
    tmp_path: Path,
) -> None:
    """Not under the trainer's autocast; and float32, for the noise, leaves no trace."""
    given = method_settings(max_steps=1, save_steps=1)

    def half() -> LanguageModel:
        return models.load(ModelSettings(path=str(tiny_masked), name="half", dtype="bfloat16"))

    plain = weights(trained(half(), text, tmp_path / "plain", None, settings=given))
    lm = half()
    at = Curve(tmp_path / "curve.csv", recipe, lm, pairs, lambda values: None)
    before = metrics.measure(score(lm, at.pairs["samples_de"], recipe.score), slices=[])
    found = trained(lm, text, tmp_path / "with", at, settings=given)
    rows = curve.read(tmp_path / "curve.csv")
    np.testing.assert_array_equal(rows.loc[rows["step"] == 0, "margin"], before["margin"])
    for name, tensor in weights(found).items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, plain[name]), name


def test_a_checkpoint_that_was_not_evaluated_has_no_loss(
    recipe: Recipe,
    pairs: dict[str, Pairs],
    model: Callable[[str], LanguageModel],
    text: list[str],
    tmp_path: Path,
) -> None:
    lm = model("causal")
    at = Curve(tmp_path / "curve.csv", recipe, lm, pairs, lambda values: None)
    trained(lm, text, tmp_path, at, settings=method_settings(max_steps=4, eval_steps=4))
    rows = curve.read(tmp_path / "curve.csv")
    known = rows[rows["valid_loss"].notna()]
    assert list(rows["step"].unique()) == [0, 2, 4]
    assert list(known["step"].unique()) == [0, 4]


def test_no_number_is_logged_where_there_is_none() -> None:
    row = {"scope": "group:gay", "bias": float("nan"), "soft": 50.0, "margin": 0.0}
    found = curve._keys({"one": pd.DataFrame([row | {"distance": float("nan")}])})
    assert found == {"curve/group/gay/soft": 50.0, "curve/group/gay/margin": 0.0}


def test_no_validation_texts_and_several_benchmarks(
    model: Callable[[str], LanguageModel],
    text: list[str],
    tmp_path: Path,
) -> None:
    words = ["benchmark=[samples_de,samples_nl]", "curve.pairs=7"]
    recipe = settings.from_words(words, recipe="demo")
    both = {name: benchmarks.load(some) for name, some in recipe.benchmark.items()}
    lm = model("masked")
    log: list[dict[str, Any]] = []
    at = Curve(tmp_path / "curve.csv", recipe, lm, both, log.append)
    given = method_settings(max_steps=2, save_steps=5)  # saved at its end only
    trained(lm, text, tmp_path, at, settings=given, valid=[])
    rows = curve.read(tmp_path / "curve.csv")
    assert rows["valid_loss"].isna().all()
    assert list(rows["step"].unique()) == [0, 2]
    assert list(rows["benchmark"].unique()) == ["samples_de", "samples_nl"]
    assert (rows.loc[rows["scope"] == "overall", "n_pairs"] == 7).all()
    assert {"curve/samples_de/overall/bias", "curve/samples_nl/macro/distance"} <= set(log[0])


# Killed, resumed, failed.


class KilledError(RuntimeError):
    """What ends a run from inside."""


@pytest.mark.parametrize(("kind", "lora"), [("masked", True), ("causal", False)])
@pytest.mark.parametrize("where", ["in training", "before scoring", "while scoring"])
def test_killed_and_resumed_has_every_row_once(
    kind: str,
    lora: bool,
    where: str,
    recipe: Recipe,
    pairs: dict[str, Pairs],
    model: Callable[[str], LanguageModel],
    text: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = method_settings(lora)

    def run(name: str, log: Callable[[dict[str, Any]], None], scored: Any = score) -> str:
        monkeypatch.setattr(curve, "score", scored)
        lm = model(kind)
        at = Curve(tmp_path / name / "curve.csv", recipe, lm, pairs, lambda values: None)
        trained(lm, text, tmp_path / name, at, settings=given, log=log)
        return (tmp_path / name / "curve.csv").read_text("utf-8")

    whole = run("whole", lambda values: None)
    calls: list[int] = []

    def log(values: dict[str, Any]) -> None:
        if where == "in training" and values["train/step"] >= 5:
            raise KilledError

    def scored(*args: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 3 and where == "before scoring":  # of step 4, whose checkpoint is there
            raise KilledError
        found = score(*args, **more)
        if len(calls) == 4 and where == "while scoring":  # of step 6, when training is done
            raise KilledError
        return found

    with pytest.raises(KilledError):
        run("parts", log, scored)
    done = {"in training": [0, 2, 4], "before scoring": [0, 2], "while scoring": [0, 2, 4]}[where]
    assert list(curve.read(tmp_path / "parts" / "curve.csv")["step"].unique()) == done
    calls.clear()
    parts = run(
        "parts", lambda values: None, lambda *a, **more: calls.append(1) or score(*a, **more)
    )
    assert len(calls) == 4 - len(done)  # what was there is not scored again
    rows = [pd.read_csv(tmp_path / name / "curve.csv") for name in ("whole", "parts")]
    pd.testing.assert_frame_equal(*rows, atol=1e-4, rtol=0)
    kept = [line for line in whole.splitlines() if line.startswith(tuple(f"{s}," for s in done))]
    assert parts.splitlines()[1 : 1 + len(kept)] == kept


def test_rows_after_the_step_that_training_stands_at_are_dropped(
    recipe: Recipe, pairs: dict[str, Pairs], model: Callable[[str], LanguageModel], tmp_path: Path
) -> None:
    path = tmp_path / "curve.csv"
    lm = model("masked")
    at = Curve(path, recipe, lm, pairs, lambda values: None)
    for step in (0, 2, 4):
        at(step, step / 10, 3.0 - step)
    text = path.read_text("utf-8")
    # The last checkpoint was torn: a resumed run stands at step 2 again.
    log: list[dict[str, Any]] = []
    again = Curve(path, recipe, lm, pairs, log.append)
    again(2, 0.2, 1.0)
    assert not log
    assert path.read_text("utf-8") == text[: text.index("\n4,") + 1]
    again(4, 0.4, -1.0)
    assert path.read_text("utf-8") == text
    assert [line["train/step"] for line in log] == [4]


def test_a_failure_in_scoring_stops_the_run(
    recipe: Recipe,
    pairs: dict[str, Pairs],
    model: Callable[[str], LanguageModel],
    text: list[str],
    tmp_path: Path,
) -> None:
    lm = model("masked")
    at = Curve(tmp_path / "curve.csv", recipe, lm, pairs, lambda values: None)

    def broken(step: int, epoch: float | None, valid_loss: float | None) -> None:
        if step == 2:
            lm.model.get_input_embeddings().weight.data.fill_(float("nan"))
        at(step, epoch, valid_loss)

    with pytest.raises(ScoringError, match="samples_de"):
        trained(lm, text, tmp_path, broken)
    assert list(curve.read(tmp_path / "curve.csv")["step"].unique()) == [0]


# Bad input.


def test_bad_input_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match=r"^curve\.pairs=-1: 0 for no curve, or more$"):
        settings.from_words(["curve.pairs=-1"], recipe="demo")
    path = tmp_path / "curve.csv"
    path.write_text("time,pressure\n1,2\n")
    with pytest.raises(RequestError, match="not a curve: its columns are time, pressure"):
        curve.read(path)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    curve.check(settings.from_words([], recipe="demo"))
    with pytest.raises(RequestError, match=r"curve\.pairs=5: .* FSDP"):
        curve.check(settings.from_words(["curve.pairs=5"], recipe="demo"))


def test_reading_changes_no_digit_and_no_name(tmp_path: Path) -> None:
    row = {
        "step": 1, "epoch": 0.1, "benchmark": "NA", "scope": "group:null", "n_pairs": 3,
        "n_clusters": 2, "bias": 100 / 3, "soft": 50.00000000000001, "margin": float("nan"),
        "distance": 1e-17, "valid_loss": float("nan"),
    }  # fmt: skip
    table = pd.DataFrame([row, row | {"step": 2}])
    path = tmp_path / "curve.csv"
    path.write_text(table.to_csv(index=False, lineterminator="\n"))
    pd.testing.assert_frame_equal(curve.read(path), table, check_exact=True, check_dtype=False)
    assert curve.read(path).to_csv(index=False, lineterminator="\n") == path.read_text()


# The figure and the page.


def made(name: str = "samples_de", groups: tuple[str, ...] = ("gay", "lesbian")) -> pd.DataFrame:
    rows = [
        {
            "step": step, "epoch": step / 100, "benchmark": name, "scope": scope, "n_pairs": 40,
            "n_clusters": 9, "bias": 80 - step / 10 - at, "soft": 50.5, "distance": 0.0,
            "margin": 1.5 - step / 200, "valid_loss": 3.25 if step else float("nan"),
        }
        for step in (0, 100, 200)
        for at, scope in enumerate(["overall", "macro", *(f"group:{one}" for one in groups)])
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_the_figure_shows_every_scope_of_every_benchmark() -> None:
    table = pd.concat([made(), made("winoqueer_nl", ("$x$", "queer", "gay"))])
    figure = figures.draw_curve(table)
    assert len(figure.axes) >= 5  # and the validation loss beneath
    for (left, right), groups in (
        (figure.axes[:2], ["gay", "lesbian"]),
        (figure.axes[2:4], ["$x$", "queer", "gay"]),
    ):
        names = [text.get_text() for text in right.get_legend().get_texts()]
        assert names == ["overall", *groups, "no preference"]  # by where the lines end
        drawn = [line for line in left.lines if len(line.get_xdata()) == 3]
        assert [line.get_ydata()[-1] for line in drawn] == [
            60.0,
            *(58.0 - i for i in range(len(groups))),
        ]
        assert len({(line.get_linestyle(), line.get_marker()) for line in drawn}) == len(drawn)
        for axes, neutral in ((left, 50), (right, 0)):
            assert list(axes.lines[0].get_ydata()) == [neutral, neutral]
    assert figure.axes[0].get_title(loc="left") == "samples_de, 40 pairs"


def test_a_group_without_a_bias_leaves_a_gap() -> None:
    table = made()
    table.loc[table["scope"] == "group:gay", "bias"] = float("nan")
    names = [t.get_text() for t in figures.draw_curve(table).axes[1].get_legend().get_texts()]
    assert names == ["overall", "lesbian", "gay", "no preference"]


def test_the_same_curve_gives_the_same_files(tmp_path: Path) -> None:
    first, second = (figures.write_curve(made(), tmp_path / name) for name in "ab")
    assert [path.name for path in first] == ["curve.png", "curve.svg", "curve.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert figures.stem("curve") != "curve"  # a benchmark of that name has other files


def test_the_page_has_the_curve_in_words_and_numbers() -> None:
    table = made(groups=("gay", "<b>x</b>"))
    table.loc[(table["step"] == 0) & (table["scope"] == "group:gay"), "bias"] = float("nan")
    shown = html._curve(table)
    assert shown["alt"].startswith("Bias in percent of pairs")
    assert (
        "samples_de, overall bias 80.0 at update 0 to 60.0 at update 200, lowest 60.0"
        in (shown["alt"])
    )
    (numbers,) = shown["tables"]
    assert numbers["head"][4:] == ["overall (W)", "macro (M)", "gay", "<b>x</b>"]
    assert numbers["rows"][0] == [
        "0", "0.00", "– (not evaluated)", "+1.500", "80.0", "79.0", "– (only ties)", "77.0",
    ]  # fmt: skip
    assert [row[0] for row in numbers["rows"]] == ["0", "100", "200"]


# The real command.


@pytest.mark.long
def test_the_real_command_on_two_processes(tiny_masked: Path, tmp_path: Path) -> None:
    """Step 0 is the first score and the last step the second one, since all pairs are asked."""
    folder = tmp_path / "run"
    words = [
        "recipe=demo", f"model.path={tiny_masked}", f"run.dir={folder}", "benchmark.limit=60",
        "corpus.sentences=300", "method.epochs=1", "method.eval_steps=5", "method.save_steps=5",
        "method.keep=last", "retention.sentences=10", "inference.resamples=200",
        "curve.pairs=60", "launch=cpu", "launch.processes=2",
    ]  # fmt: skip
    done = subprocess.run(
        [str(MITIGATE), "train", *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = curve.read(folder / "curve.csv")
    steps = list(rows["step"].unique())
    last = json.loads((folder / "manifest.json").read_text("utf-8"))["training"]["steps"]
    assert steps == [*range(0, last, 5), last]
    assert not rows.duplicated(["step", "benchmark", "scope"]).any()
    for when, step in (("before", 0), ("after", last)):
        expected = metrics.measure(scores.read(folder / f"{when}.parquet"), slices=[])
        of = rows[rows["step"] == step].reset_index(drop=True)
        assert list(of["scope"]) == list(expected["scope"])
        np.testing.assert_allclose(of["margin"], expected["margin"], atol=1e-5, rtol=0)
        np.testing.assert_allclose(of["bias"], expected["bias"], atol=1e-9, rtol=0)

    tracked = wandb_file.read(folder)
    points = [row for row in tracked["history"] if "curve/overall/bias" in row]
    assert [row["train/step"] for row in points] == steps
    of = rows[rows["scope"] == "group:gay"]
    assert [row["curve/group/gay/margin"] for row in points] == pytest.approx(list(of["margin"]))

    stems = [
        "curve",
        "samples_de",
        *(f"samples_de-{of}" for of in ("forest", "margins", "threshold")),
    ]
    names = {f"{stem}.{end}" for stem in stems for end in figures.FORMATS}
    assert {path.name for path in (folder / "figures").iterdir()} == names
    page = (folder / "report.html").read_text("utf-8")
    assert "While it was trained</h2>" in page
    assert "Bias in percent of pairs, and margin in nats" in page
    assert re.search(r"overall bias \d+\.\d at update 0 to \d+\.\d at update", page)
