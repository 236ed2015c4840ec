"""Sweeps: what is run, what is left alone, the front over them, and W&B's file."""

import importlib.util
import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eval.errors import RequestError
from eval.report.figures import FRONT_COLUMNS, draw_front, on_front
from mitigate import selection, settings, side_by_side, sweep
from mitigate.cli import dispatch
from tests.eval.scored import simulated
from tests.mitigate.finished import QUICK, finished

WANDB = Path(settings.RECIPES) / "sweeps" / "wandb.yaml"


def test_every_combination_is_a_run(tmp_path: Path) -> None:
    words = ["recipe=demo", "seed=0,1,2", "method.lr=1e-4,2e-4", "method.epochs=2"]
    found = sweep.planned(words, tmp_path)
    assert found.axes == {"seed": ["0", "1", "2"], "method.lr": ["0.0001", "0.0002"]}
    assert len(found.runs) == 6
    recipes = [settings.from_words(own, recipe=None) for own in found.runs.values()]
    assert {(one.seed, one.method.lr) for one in recipes} == set(
        itertools.product((0, 1, 2), (1e-4, 2e-4))
    )
    assert {one.method.epochs for one in recipes} == {2}


def test_lists_ranges_and_quotes(tmp_path: Path) -> None:
    found = sweep.planned(
        ["seed=range(1,4)", "benchmark=[samples_de,samples_nl]", "inference.slices=[tier,origin]"],
        tmp_path,
    )
    assert found.axes == {"seed": ["1", "2", "3"]}
    assert list(found.runs) == ["seed-1", "seed-2", "seed-3"]
    corpora = sweep.planned(["corpus=samples_de,control_de"], tmp_path)
    assert len(corpora.runs) == 2


def test_without_out_the_same_words_mean_the_same_folder() -> None:
    words = ["recipe=demo", "seed=0,1"]
    assert sweep.planned(words).folder == sweep.planned(list(words)).folder
    assert sweep.planned(words).folder != sweep.planned(["recipe=demo", "seed=0,2"]).folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recipe=demo", "seed=0"], "nothing varies"),
        (["seed=0,1", "run.dir=here"], "out=DIR"),
        (["seed=range(0,500)"], "at most 200"),
        (["seed=0,0"], "twice"),
        (["seed=0,1", "seed=2,3"], "varies twice"),
        (["method.lr=0.1,-1"], "method.lr=-1.0: must be more than 0"),
        (["metod.lr=0.1,0.2"], "no key metod.lr"),
        (["recipe=demo,demoo"], "no recipe named demoo"),
    ],
)
def test_wrong_requests(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as error:
        sweep.run(words, tmp_path / "out")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def made(folder: Path, words: list[str], *, levels: bool = False) -> sweep.Sweep:
    """A sweep's folder with every run finished: the higher rate moves more and costs more."""
    found = sweep.planned([*words, *QUICK], folder)
    for name, own in found.runs.items():
        recipe = settings.from_words(own, recipe="demo")
        strength = recipe.method.lr * 1000
        pair = simulated(effect=-strength, run_noise=0.1, seed=3)
        run = finished(found.run_folder(name), *own, scored=pair)
        retention = json.loads(run.path("retention.json").read_text("utf-8"))
        retention["neutral"] |= {"after": 10 + 3 * strength, "change_percent": 30 * strength}
        retention["grammar"] = {"de": {"before": 90.0, "after": 89.0, "change": -1.0}}
        retention["grammar"]["de"] |= {"pairs": 9, "clusters": 3, "phenomena": {}}
        if strength > 0.5:
            reasons = ["pseudo-perplexity rose"]
            retention["gate"] = {"degraded": True, "reasons": reasons}
        run.write_text("retention.json", json.dumps(retention))
        if levels:
            after = 33.0 - recipe.seed - (strength > 0.5)
            of = {"distance_before": 40.0, "distance_after": after}
            run.write_text(selection.LEVELS, selection.write_levels({"samples_de": of}))
            run.manifest["selection"] = {"share": 0.3}
            run.note()
    (folder / sweep.FILE).write_text(
        json.dumps({"command": "made", "axes": found.axes, "runs": found.runs}), "utf-8"
    )
    return found


WORDS = ["recipe=demo", "seed=0,1", "method.lr=1e-4,1e-3"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "swept"
    made(folder, WORDS, levels=True)
    return folder


def test_finished_runs_are_skipped_and_set_side_by_side(
    swept: Path, tmp_path: Path, capsys
) -> None:
    before = {path: path.stat().st_mtime_ns for path in swept.rglob("*.parquet")}
    assert dispatch(["sweep", *WORDS, *QUICK, f"out={swept}"]) == 0
    told = capsys.readouterr().err
    assert told.count("is finished") == 4
    assert before == {path: path.stat().st_mtime_ns for path in before}
    page = swept / sweep.PAGE
    for name in ("report.html", "front.csv", "figures/front.png", "figures/front.pdf"):
        assert (page / name).is_file(), name
    text = (page / "report.html").read_text("utf-8")
    assert "Near 50 against language left" in text
    assert "Degraded, having failed the gate" in text
    assert "set aside to choose by" in text
    assert pd.read_csv(page / "runs.csv")["degraded"].sum() == 2
    with pytest.raises(RequestError, match="another sweep is in it"):
        dispatch(["sweep", *WORDS[:2], *QUICK, f"out={swept}"])


def test_front_is_of_settings_over_seeds_and_of_what_was_set_aside(swept: Path) -> None:
    # `mitigate report` takes the sweep's folder for its runs
    read = side_by_side.read(sweep.run_folders(swept))
    front = read.front()
    assert list(front) == list(FRONT_COLUMNS)
    assert front["runs"].tolist() == [2, 2]
    assert front["worse"].tolist() == pytest.approx([3, 30])
    assert front["grammar"].tolist() == [-1, -1]
    assert front["degraded"].tolist() == [False, True]
    # the levels of the part to choose by, and not those of the table
    assert front["distance"].tolist() == [32.5, 31.5]  # means over seeds 0 and 1
    assert front["on_front"].tolist() == [True, False]  # nearer 50, but degraded: no choice
    assert read.table["distance_after"].nunique() > 1


def test_one_setting_has_no_front(tmp_path: Path) -> None:
    made(tmp_path / "swept", ["recipe=demo", "seed=0,1"])
    read = side_by_side.read(sweep.run_folders(tmp_path / "swept"))
    assert read.front().empty
    assert not any("front" in note for note in read.notes())


def test_on_front_is_what_nobody_beats() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        points = rng.integers(0, 6, size=(12, 2)).astype(float)
        wanted = [
            not any(
                (other <= one).all() and (other < one).any()
                for at, other in enumerate(points)
                if at != number
            )
            for number, one in enumerate(points)
        ]
        assert on_front(*points.T).tolist() == wanted


def test_figure_names_what_is_on_the_front() -> None:
    points = pd.DataFrame(
        {
            "benchmark": "made",
            "setting": ["lr=1", "lr=2", "lr=3 $x"],
            "runs": 1,
            "worse": [1.0, 2.0, 9.0],
            "distance": [9.0, 3.0, 5.0],
            "distance_before": 12.0,
            "grammar": np.nan,
            "degraded": [False, False, True],
            "on_front": [True, True, False],
        }
    )
    (axes,) = draw_front(points).axes
    told = {text.get_text() for text in axes.texts}
    assert {"lr=1", "lr=2", "before"} == told


@pytest.mark.long
def test_a_real_sweep_ends_and_goes_on(tiny_masked: Path, tmp_path: Path, run_mitigate) -> None:
    """Two short runs; one is unfinished again, and only that one is run again."""
    words = [
        "sweep", "recipe=demo", f"model.path={tiny_masked}", "seed=0,1", "method.max_steps=2",
        "corpus.sentences=80", "benchmark.limit=60", "retention.sentences=4", "retention.places=4",
        "retention.grammar=false", "inference.resamples=200", "tracking.mode=disabled",
        "selection.share=0.3", f"out={tmp_path / 'swept'}",
    ]  # fmt: skip
    done = run_mitigate(*words)
    assert done.returncode == 0, done.stderr
    runs = [tmp_path / "swept" / f"seed-{seed}" for seed in (0, 1)]
    assert all(sweep.finished(run) for run in runs)
    first = (runs[0] / "manifest.json").read_bytes()
    manifest = json.loads((runs[1] / "manifest.json").read_text("utf-8"))
    (runs[1] / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}), "utf-8")
    done = run_mitigate(*words)
    assert done.returncode == 0, done.stderr
    assert (runs[0] / "manifest.json").read_bytes() == first
    assert json.loads((runs[1] / "manifest.json").read_text("utf-8"))["resumed"]
    levels = selection.read_levels(runs[0])["samples_de"]
    assert levels["n_clusters"] > 0


def test_wandb_file_is_what_wandb_takes() -> None:
    """W&B's own reader, command and, where it is installed, schema; each combination a recipe."""
    from wandb.sdk.launch.sweeps import utils

    config = utils.load_sweep_config(str(WANDB))
    assert config is not None
    if importlib.util.find_spec("sweeps") is not None:
        from sweeps.config import SweepConfig, schema_violations_from_proposed_config

        assert schema_violations_from_proposed_config(SweepConfig(config)) == []
    command = utils.create_sweep_command(list(config["command"]))
    assert command == ["${env}", "mitigate", "train", "${args_no_hyphens}"]
    fields = {
        key: of["values"] if "values" in of else [of["value"]]
        for key, of in config["parameters"].items()
    }
    for values in itertools.product(*fields.values()):
        given = {key: {"value": value} for key, value in zip(fields, values, strict=True)}
        words = utils.create_sweep_command_args({"args": given})["args_no_hyphens"]
        recipe = settings.from_words(words, recipe=None)
        assert recipe.selection.share > 0
    keys = selection.summary({"made": {"distance_before": 9.0, "distance_after": 3.0}})
    assert config["metric"]["name"] in keys
    assert keys[config["metric"]["name"]] == 3.0
