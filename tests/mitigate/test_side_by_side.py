"""`mitigate report RUN RUN …`: what stands in the files, and what is refused."""

import html
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eval.errors import RequestError
from eval.inference import DELTA_COLUMNS
from eval.scores import Scores
from mitigate import side_by_side
from mitigate.cli import dispatch
from tests.eval.scored import simulated
from tests.mitigate.finished import compared, finished


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three seeds of a recipe that moves margins by a nat, and three placebo runs."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for recipe, effect in (("demo", -1.0), ("demo_control", 0.0)):
        for seed in range(3):
            pair = simulated(effect=effect + 0.05 * seed, run_noise=0.2, seed=7)
            name = f"{recipe}-{seed}"
            finished(folder / name, f"seed={seed}", recipe=recipe, scored=pair)
            found.append(folder / name)
    return found


def test_files_hold_every_run(runs: list[Path], tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert dispatch(["report", *map(str, runs), f"out={out}"]) == 0
    told = capsys.readouterr().err
    assert f"Report: {out / 'report.html'}" in told
    names = {"report.html", "runs.csv", "runs.md", "deltas.csv", "german.tex", "dutch.tex"}
    names |= {"claims.csv", "between_runs.csv"}
    assert {path.name for path in out.iterdir()} == names | {"figures"}
    table = pd.read_csv(out / "runs.csv")
    assert list(table) == list(side_by_side.COLUMNS)
    assert table["run"].tolist() == [path.name for path in runs]
    assert table["placebo"].tolist() == [False] * 3 + [True] * 3
    page = html.unescape((out / "report.html").read_text("utf-8"))
    for run in table["run"]:
        assert run in page
        assert run in (out / "runs.md").read_text("utf-8")

    assert (out / "dutch.tex").read_text("utf-8").count(r"\quad after") == len(runs) + 1
    # The claim is the page's and the terminal's, and what the library says of the rows.
    (claim,) = side_by_side.read(runs).claims().sentences
    assert claim.startswith("demo on made, samples_de: the mean over groups of |bias")
    assert claim in told
    assert claim in page


def test_a_method_is_held_against_its_own_placebo(runs: list[Path]) -> None:
    found = side_by_side.read(runs).claims()
    row = found.table[(found.table["scope"] == "overall") & (found.table["metric"] == "margin")]
    assert row["n_runs"].item() == row["n_placebo"].item() == 3
    assert row["difference"].item() == pytest.approx(-1.0, abs=1e-9)  # the same noise in both
    assert row["p_adjusted"].item() < 0.05
    assert row["differing"].item() == ""
    one = side_by_side.read(runs[:1]).claims()
    assert "Nothing can be claimed about the method" in one.sentences[0]


def test_a_placebo_with_other_settings_is_none(runs: list[Path], tmp_path: Path) -> None:
    others = []
    for seed in range(2):
        folder = tmp_path / f"other-{seed}"
        scored = simulated(effect=0.05 * seed, run_noise=0.2, seed=7)
        words = (f"seed={seed}", "method.lr=1e-5")
        finished(folder, *words, recipe="demo_control", scored=scored)
        others.append(folder)
    found = side_by_side.read([*runs[:3], *others]).claims()
    assert set(found.table["differing"]) == {"settings: lr=0.001 against lr=1e-05"}
    assert "differ in more than their text (settings: lr=0.001" in found.sentences[0]


def test_models_and_languages_have_their_mean_rows(tmp_path: Path) -> None:
    folders = []
    for name, language, seed in (("one", "de", 1), ("one", "de", 2), ("two", "nl", 3)):
        pair = simulated(seed=seed)
        pair = tuple(Scores(some.table.assign(language=language), some.meta) for some in pair)
        folder = tmp_path / f"{name}-{seed}"
        words = (f"seed={seed}", f"benchmark=samples_{language}")
        finished(folder, *words, scored=pair).note(model={"name": name})
        folders.append(folder)
    out = tmp_path / "out"
    side_by_side.show(folders, out)
    runs = pd.read_csv(out / "deltas.csv")
    means = pd.read_csv(out / "across.csv").set_index(["language", "scope", "metric"])
    of = (runs["language"] == "de") & (runs["scope"] == "macro") & (runs["metric"] == "distance")
    assert means.loc[("de", "macro", "distance"), "after"] == pytest.approx(
        runs[of]["after"].mean()
    )
    assert means.loc[("de", "macro", "distance"), "n_models"] == 1  # two seeds are one model
    languages = pd.read_csv(out / "languages.csv")
    assert list(languages) == ["scope", "metric", "when", "de", "nl", "range"]
    spread = pd.read_csv(out / "spread.csv")
    assert set(spread["model"]) == {"one", "two", "mean"}
    page = (out / "report.html").read_text("utf-8")
    assert "Across models and languages" in page


def test_a_row_is_what_the_run_itself_reports(runs: list[Path]) -> None:
    found = side_by_side.read(runs)
    run = found.runs[runs[1].name]
    comparison = next(iter(run.comparisons().values()))
    row = found.table.set_index("run").loc[runs[1].name]
    bias = comparison.rows("bias").set_index("scope").loc["overall"]
    for column, name in (("bias_before", "before"), ("bias_delta", "delta"), ("bias_se", "se")):
        assert row[column] == bias[name]
    assert row["distance_after"] == comparison.headline["after"]
    assert row["perplexity_change_percent"] == 10.0
    mine = found.rows[found.rows["run"] == runs[1].name]
    columns = list(DELTA_COLUMNS)
    pd.testing.assert_frame_equal(mine[columns].reset_index(drop=True), comparison.table[columns])


def test_heat_has_the_model_before_and_each_run_after(runs: list[Path]) -> None:
    found = side_by_side.read(runs)
    assert found.heat.index.tolist() == ["made before", *(path.name for path in runs)]
    after = found.comparisons[runs[0].name, "samples_de"].rows("bias", "group")
    np.testing.assert_array_equal(found.heat.loc[runs[0].name], after["after"])
    assert found.heat.columns.tolist() == ["gay", "lesbian", "transgender"]


def test_a_run_counts_once_and_names_stay_apart(runs: list[Path], tmp_path: Path, capsys) -> None:
    twin = tmp_path / runs[0].name
    shutil.copytree(runs[0], twin)
    found = side_by_side.read([runs[0], twin, runs[0]])
    assert list(found.runs) == [runs[0].name, str(twin)]
    assert "named twice, counted once" in capsys.readouterr().err


def test_runs_on_other_pairs_are_refused_in_one_line(runs: list[Path], tmp_path: Path) -> None:
    finished(tmp_path / "other", scored=simulated(clusters=5))
    out = tmp_path / "out"
    with pytest.raises(RequestError, match="demo-0 and other were scored on different pairs") as e:
        dispatch(["report", str(runs[0]), str(tmp_path / "other"), f"out={out}"])
    assert "\n" not in str(e.value)
    assert not out.exists()


def test_a_folder_may_have_a_sign_of_equality_and_an_option_may_not(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finished(Path("lr=1e-4"))
    assert dispatch(["report", "lr=1e-4", "out=new"]) == 0
    assert "deltas.csv" in os.listdir("new")
    with pytest.raises(RequestError, match="seed=1: takes run folders and out=DIR"):
        dispatch(["report", "lr=1e-4", "seed=1"])


def test_made_up_runs_are_read_as_runs_are(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", "benchmark=[samples_de,samples_nl]")
    assert list(compared(run)) == ["samples_de", "samples_nl"]
