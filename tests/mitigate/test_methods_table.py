"""The table of all methods: what its sentences say follows from the runs, whatever they say."""

import os
from pathlib import Path

import pandas as pd
import pytest

from mitigate import settings
from tests.conftest import ROOT
from tests.performance import methods

ROWS = [row for row in methods.ROWS if row.name in ("control", "full", "dpo", "qlora")]


def record(method: str, kind: str, seed: int, **other: float) -> dict[str, object]:
    after = {"control": 40.0, "full": 12.0, "dpo": 15.0}[method] + 0.3 * seed
    return {
        **{"method": method, "kind": kind, "seed": seed, "bias_before": 90.0},
        **{"bias_after": 50 + after, "distance_before": 40.0, "distance_after": after},
        **{"distance_se": 2.0, "clusters": 22, "pairs": 528, "worse": 1.5, "degraded": False},
        **{"grammar_before": 60.0, "grammar_after": 59.0, "train_seconds": 9.0},
        **{"cpu_seconds": 21.0, "share": 100.0},
        **other,
    }


def records(**of_dpo: float) -> pd.DataFrame:
    runs = [
        record(method, kind, seed, **(of_dpo if method == "dpo" else {}))
        for method in ("control", "full", "dpo")
        for kind in methods.KINDS
        for seed in range(3)
        if not (method == "dpo" and kind == "masked")
    ]
    return pd.DataFrame(runs)[list(methods.RECORD)]


def line(text: str, begin: str) -> str:
    (found,) = [some for some in text.splitlines() if some.startswith(begin)]
    return found


def test_what_the_runs_show_is_said() -> None:
    text = methods.report(records(), ROWS)
    assert "**It has no effect**" in line(text, "- The control, masked")
    said = line(text, "- dpo, causal")
    assert "40.0 → 15.3" in said
    assert said.endswith("**It moves bias toward 50 inside the gate.**")
    cells = line(text, "| full | masked").split(" | ")
    assert cells[2] == "3"
    assert cells[3] == "40.0 → 12.3 (12.0 to 12.6)"
    assert cells[5] == "+1.5 (+1.5 to +1.5)"
    assert cells[6] == "inside"


@pytest.mark.parametrize(
    ("of_dpo", "said"),
    [
        ({"distance_after": 40.4}, "0 of 3 runs end nearer 50; beyond the control: no"),
        ({"degraded": True}, "not shown**: 3 of 3 runs are outside the gate."),
    ],
)
def test_what_the_runs_do_not_show_is_not_said(of_dpo: dict[str, float], said: str) -> None:
    text = line(methods.report(records(**of_dpo), ROWS), "- dpo, causal")
    assert said in text
    assert "It moves bias" not in text


def test_a_control_that_moves_is_told() -> None:
    moved = records()
    moved.loc[moved["method"] == "control", "distance_after"] -= 20
    text = line(methods.report(moved, ROWS), "- The control, causal")
    assert "−19.7 points on average over 3 runs (−20.0 to −19.4)" in text
    assert "**not shown**" in text


def test_a_cell_says_why_it_is_empty() -> None:
    text = methods.table(records(), ROWS)
    assert "does not apply: a masked model" in line(text, "| dpo | masked")
    assert "needs a GPU" in line(text, "| qlora | causal")
    assert "not run" in line(methods.table(records(), methods.ROWS), "| inlp | masked")


def test_more_seeds_are_the_control_s_and_what_is_claimed() -> None:
    jobs = methods.planned(methods.ROWS, 1, 2)
    later = {job.row.name for job in jobs if job.seed}
    assert later == {methods.CONTROL, *methods.CLAIMED}
    assert sum(job.row.name == "full" for job in jobs) == 3 * len(methods.KINDS)


def test_the_readme_shows_the_short_table_as_it_was_written() -> None:
    short = methods.short_table(records(degraded=True), ROWS).splitlines()
    assert short[2] == "| `control` | 40.0 → 40.3, +1.5 % | 40.0 → 40.3, +1.5 % |"
    assert short[4] == "| `dpo` | – | 40.0 → 15.3, +1.5 % (outside) |"
    written = methods.TARGET.read_text("utf-8").splitlines()
    begin = written.index(short[0])
    table = "\n".join(written[begin : written.index("", begin)])
    assert f"{table}\n" in (ROOT / "README.md").read_text("utf-8")


def test_every_run_is_a_recipe_and_all_are_scored_on_the_same_pairs(tmp_path: Path) -> None:
    rows = [row for row in methods.ROWS if row.name in ("control", "lora", "cda", "dpo", "inlp")]
    jobs = methods.planned(rows, 1)
    assert [job.kind for job in jobs[:2]] == ["masked", "causal"]
    assert {job.row.name for job in jobs if job.row.name == methods.CONTROL} == {"control"}
    found = [settings.from_words(methods.command(job, tmp_path)[1:], recipe=None) for job in jobs]
    assert len({str(recipe.benchmark) for recipe in found}) == 1
    assert len({recipe.run.dir for recipe in found}) == len(found)
    assert {recipe.name for recipe in found if recipe.placebo} == {"control"}
    trained, evaluated = methods.halves()
    assert set(trained).isdisjoint(evaluated)
    (dpo,) = [recipe for recipe in found if recipe.name == "dpo"]
    assert dpo.method.preference is not None
    assert dpo.method.preference.train_on == trained


def test_a_finished_run_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = methods.planned(ROWS, 1)[:3]
    done = jobs[0].folder(tmp_path)
    done.mkdir()
    (done / "manifest.json").write_text('{"status": "finished"}', "utf-8")
    begun = []

    def start(job: methods.Job, out: Path) -> int:
        begun.append(job)
        return _exits_with(0)

    monkeypatch.setattr(methods, "start", start)
    methods.run_all(jobs, tmp_path)
    assert begun == jobs[1:]
    assert float((tmp_path / f"{begun[0].folder(tmp_path).name}.cpu").read_text("ascii")) >= 0


def test_after_a_failure_no_other_run_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def start(job: methods.Job, out: Path) -> int:
        begun.append(job)
        (tmp_path / f"{job.folder(tmp_path).name}.log").write_text("what went wrong\n", "utf-8")
        return _exits_with(1)

    monkeypatch.setattr(methods, "start", start)
    with pytest.raises(methods.RunFailedError, match="what went wrong"):
        methods.run_all(methods.planned(ROWS, 2), tmp_path, workers=1)
    assert len(begun) == 1


def _exits_with(status: int) -> int:
    child = os.fork()
    if not child:
        os._exit(status)
    return child
