"""`mitigate compare`: files and runs, two models or one, pairs left out, what could be shown."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eval import inference, scores
from eval.errors import RequestError
from eval.inference import InferenceSettings, power
from eval.scores import Scores
from mitigate import comparing
from mitigate.cli import dispatch
from tests.eval.scored import simulated, table

QUICK = ["inference.resamples=200"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Scores, Scores]:
    """before.parquet and after.parquet of one model, in the working directory."""
    monkeypatch.chdir(tmp_path)
    before, after = simulated()
    for name, found in (("before", before), ("after", after)):
        scores.write(found, Path(f"{name}.parquet"))
    return before, after


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert dispatch(["compare", *words, *QUICK]) == 0
    out = capsys.readouterr()
    assert out.out == ""
    return out.err


def test_published_models_agree_on_849_pairs(reference: Path, tmp_path, capsys, monkeypatch):
    folder = reference / "dutch_crows_pairs"
    monkeypatch.chdir(tmp_path)
    one, two = (str(folder / f"results_{model}.csv") for model in ("bertje", "robbert"))
    text = said(capsys, one, two, "out=new")
    assert "Overall bias is 54.82 in bertje and 54.82 in robbert" in text
    assert "agree on 849 of 1,463 pairs (58.0 %); of the other 614, 307 favour" in text
    assert "no difference is shown" in text
    assert "McNemar chi2, p = 0.9678" in text
    deltas = pd.read_csv("new/deltas.csv").set_index(["scope", "metric"])
    assert deltas.loc[("overall", "bias"), "before"] == pytest.approx(54.8189, abs=1e-4)
    page = Path("new/report.html").read_text("utf-8")
    assert "mitigate compare" in page


def test_one_model_before_and_after(files, capsys):
    text = said(capsys, "before.parquet", "after.parquet")
    comparison = inference.compare(*files, InferenceSettings(resamples=200), name="made")
    first, second = comparison.sentences()
    assert text.startswith(first)
    assert second in text
    for note in comparison.notes:
        assert f"Note: {note}" in text
    same = (np.sign(files[0].margin) == np.sign(files[1].margin)).sum()
    assert f"before and after agree on {same} of 72 pairs" in text


def test_rows_in_another_order_are_the_same_pairs(files, capsys):
    after = files[1]
    turned = after.table.sample(frac=1, random_state=0).reset_index(drop=True)
    scores.write(replace(after, table=turned), Path("after2.parquet"))
    texts = [said(capsys, "before.parquet", f"after{end}.parquet") for end in ("", "2")]
    assert texts[0] == texts[1].replace("after2", "after")


def test_other_pairs_are_refused_unless_the_common_ones_are_asked_for(files, capsys):
    after = files[1]
    kept = after.table[after.table["group"] != "gay"]
    scores.write(replace(after, table=kept), Path("fewer.parquet"))
    with pytest.raises(RequestError, match=r"72 before, 48 after; 24 only before.*all of gay only"):
        dispatch(["compare", "before.parquet", "fewer.parquet"])
    text = said(capsys, "before.parquet", "fewer.parquet", "pairs=common")
    assert "Note: Compared on the 48 pairs that both hold; left out: 24 only before (" in text
    assert "agree on" in text
    assert " of 48 pairs" in text


def test_scores_that_cannot_be_compared_get_one_line_and_leave_nothing(files, capsys):
    after = files[1]
    broken = after.table.copy()
    broken.loc[3, "score_more"] = np.nan
    scores.write(replace(after, table=broken), Path("nan.parquet"))
    scores.write(table([("a", "s", -1.0, -2.0)], name="other"), Path("other.parquet"))
    moved = after.table.assign(group="gay")
    scores.write(replace(after, table=moved), Path("moved.parquet"))
    cases = {
        "nan": r"1 of 72 pairs have a score that is not a finite number.*made-3",
        "other": "compare: different benchmarks: before.parquet has made; other.parquet has other",
        "moved": "48 pairs are of another group.*lesbian before, gay after",
    }
    for name, line in cases.items():
        with pytest.raises(RequestError, match=line) as error:
            dispatch(["compare", "before.parquet", f"{name}.parquet", "out=new"])
        assert "\n" not in str(error.value)
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a"], "compare: two score files or run folders, BEFORE AFTER"),
        (["a", "b", "c"], "compare: two score files or run folders, BEFORE AFTER"),
        (["a", "b", "pairs=comon"], "pairs=comon: did you mean common?"),
        (["a", "b", "power=yes"], "power=yes: there are: true, false"),
        (["a", "b", "seed=1"], "no key seed; did you mean inference.seed"),
        (["a", "b", "--out", "c"], "--out is no option"),
        (["a", "b", "clusters=3"], "clusters=3: is for power=true"),
        (["a", "power=true", "clusters=many"], "clusters=many: a number of stereotypes"),
        (["a", "b", "inference.alpah=1"], "no key inference.alpah; did you mean inference.alpha"),
    ],
)
def test_wrong_words_get_one_line(words, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError) as error:
        dispatch(["compare", *words])
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    assert not os.listdir()


def test_agreement_counts_what_a_loop_counts():
    rng = np.random.default_rng(0)
    for _ in range(20):
        more, less = rng.integers(-3, 0, (2, 2, 30)) + rng.choice([0, 0.0004], (2, 2, 30))
        one, two = (
            table([("g", f"s{i}", more[m, i], less[m, i]) for i in range(30)]) for m in range(2)
        )
        for ties in ("half", "reference"):
            found = comparing.agreement(one, two, ties)
            same = wins = losses = 0
            for i in range(30):
                a, b = (
                    round(more[m, i], 3) - round(less[m, i], 3)
                    if ties == "reference"
                    else more[m, i] - less[m, i]
                    for m in range(2)
                )
                same += (a > 0) == (b > 0) and (a < 0) == (b < 0)
                wins += a > 0 and not b > 0
                losses += b > 0 and not a > 0
            assert (found.same, found.only_before, found.only_after) == (same, wins, losses)


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (-0.4, "robbert lies nearer 50"),
        (4.0, "bertje lies nearer 50"),
        (-4.0, "they lie on different sides of 50"),
        (0.0, "no difference is shown"),
    ],
)
def test_two_models_are_never_told_as_a_change(effect, words):
    before, after = simulated(clusters=40, effect=effect, run_noise=0.1, lean=0.6)
    other = replace(after, meta={**after.meta, "tokenizer_fingerprint": "other"})
    assert not comparing.two_models(before, after)
    assert comparing.two_models(before, other)
    comparison = inference.compare(before, after, InferenceSettings(resamples=200))
    lines = comparing.finding(comparison, before, other, ("bertje", "robbert")).lines
    assert lines[0].endswith(f": {words}.")
    assert not any(word in " ".join(lines) for word in ("moved", "went from", "change is"))


# What could be shown.


def test_power_from_two_files_and_from_their_deltas(files, capsys):
    text = said(capsys, "before.parquet", "after.parquet", "power=true", "out=new")
    assert "smallest change that could be shown" in text
    planned = pd.read_csv("new/power.csv")
    assert planned["planned"].unique().tolist() == list(power.CLUSTERS)
    with pytest.raises(RequestError, match="holds changes, not scores"):
        dispatch(["compare", "new/deltas.csv", "before.parquet"])
    with pytest.raises(RequestError, match="plan for two stereotypes or more"):
        dispatch(["compare", "new/deltas.csv", "power=true", "clusters=1"])
    said(capsys, "new/deltas.csv", "power=true", "clusters=[30,167]", "out=again")
    again = pd.read_csv("again/power.csv")
    keys = ["benchmark", "scope", "metric", "planned"]
    both = planned.merge(again, on=keys, suffixes=("", "_again"))
    assert len(both) == len(again)
    np.testing.assert_allclose(both["smallest_change"], both["smallest_change_again"])
    bias = again[(again["scope"] == "overall") & (again["metric"] == "bias")]
    assert bias["smallest_change"].is_monotonic_decreasing


def test_power_needs_a_change(files):
    line = r"one score file \(12 stereotypes\) has no change.*power=true clusters=12"
    with pytest.raises(RequestError, match=line):
        dispatch(["compare", "before.parquet", "--power"])
