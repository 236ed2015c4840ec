"""Runs that survive: kill −9, SIGTERM, torn files, and folders that are not theirs."""

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eval.errors import RequestError
from mitigate import checkpoints, cli, models, settings
from mitigate.checkpoints import check_processes, last_whole_checkpoint, whole
from mitigate.methods import Context
from mitigate.methods.continued import train
from mitigate.run import check_folder, open_run
from mitigate.settings import MethodSettings, ModelSettings
from mitigate.signals import Stopped, listening
from tests.performance import kill


def moments_of(stages: tuple[str, ...], model: Path, work: Path) -> list[kill.Outcome]:
    """Kill a run once in each of the stages; called in a process of its own."""
    kill.preload()
    right, events = kill.undisturbed(model, work)
    drawn = kill.moments(events, len(kill.STAGES), seed=3)
    return [
        kill.killed_and_again(model, work, moment, number, right)
        for number, moment in enumerate(drawn)
        if moment.stage in stages
    ]


@pytest.mark.parametrize("stages", [("checkpointing", "merging")])
def test_killed_runs_end_as_an_undisturbed_one(
    stages: tuple[str, ...], tiny_masked: Path, tmp_path: Path
) -> None:
    """Two of the moments of `python -m tests.performance.kill`, which draws twenty.

    Its runs are forked, and a fork of this process would wait for ever for threads that libraries
    have started here for other tests (rensa's), so they are forked from a new one.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as clean:
        outcomes = clean.submit(moments_of, stages, tiny_masked, tmp_path).result(timeout=300)
    assert [outcome.moment.stage for outcome in outcomes] == list(stages)
    for outcome in outcomes:
        assert outcome.ended == "killed"
        assert not outcome.differences


def test_the_kill_test_sees_a_difference(tiny_masked: Path, tmp_path: Path) -> None:
    """Weights 1e-5 off, or another row in one update, are told."""
    for name in ("right", "other"):
        folder = tmp_path / name
        for part in ("adapter/adapter_model.safetensors", "model/model.safetensors"):
            (folder / part).parent.mkdir(parents=True)
            save_file({"w": torch.zeros(3)}, folder / part)
        (folder / "manifest.json").write_text('{"status": "finished"}', "utf-8")
        (folder / "deltas.csv").write_text("scope,delta\noverall,1.5\n", "utf-8")
        line = {"train/step": 1, "train/rows": "1:abc"}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    right, other = tmp_path / "right", tmp_path / "other"
    assert not list(kill.differences(other, right))
    save_file({"w": torch.full((3,), 1e-5)}, other / "model" / "model.safetensors")
    with (other / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"train/step": 1, "train/rows": "1:abd"}) + "\n")
    (other / "deltas.csv").write_text("scope,delta\noverall,1.6\n", "utf-8")
    said = " ".join(kill.differences(other, right))
    for part in ("deltas.csv is 0.1 off", "model.safetensors is 1e-05 off", "step 1 saw other"):
        assert part in said


@pytest.fixture
def training(tiny_masked: Path, tmp_path: Path) -> Callable[..., Any]:
    """`training(log=…)`: eight steps of a tiny model, its checkpoints in tmp_path."""
    from corpora.samples.world import load_world, planted_text

    text = planted_text(load_world("de"), 60)

    def run(folder: str = "checkpoints", **changed: Any) -> Any:
        given: dict[str, Any] = {
            "lm": models.load(ModelSettings(path=str(tiny_masked))),
            "train": text[:50],
            "valid": [],
            "settings": MethodSettings(
                name="full", lr=1e-2, max_steps=8, batch=4, accumulation=1, eval_steps=4,
                save_steps=4, keep="last", block=24,
            ),
            "lora_targets": [],
            "seed": 0,
            "processes": 1,
            "checkpoints": tmp_path / folder,
            "log": lambda values: None,
            "say": lambda line: None,
        }  # fmt: skip
        return train(Context(**given | changed))

    return run


def test_sigterm_saves_the_step_and_the_run_goes_on(
    training: Callable[..., Any], tmp_path: Path
) -> None:
    expected = training("undisturbed").model.state_dict()

    def ask(values: dict[str, Any]) -> None:
        if values.get("train/step") == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match=r"stopped by SIGTERM, step [23] is saved"), listening():
        training(log=ask)
    saved = last_whole_checkpoint(tmp_path / "checkpoints")
    assert saved is not None
    assert saved.name in ("checkpoint-2", "checkpoint-3")  # of no interval: it was asked for
    with listening():
        found = training().model.state_dict()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, atol=1e-6, rtol=0)


def test_sigterm_outside_of_training_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def told_twice() -> None:  # as by a launcher beside Slurm: the second must not disturb the end
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped), listening():
        told_twice()
    assert signal.getsignal(signal.SIGTERM) is before


def test_how_a_run_ended_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def ending(error: BaseException) -> str:
        def work() -> None:
            raise error

        assert cli.guarded(work) == 1
        return capsys.readouterr().err.splitlines()[-1]

    assert "step 40 is saved" in ending(Stopped("stopped by SIGTERM, step 40 is saved"))
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ):
        assert "out of memory; while scoring, score.batch_tokens" in ending(error)


def test_the_best_checkpoint_is_found_where_the_folder_was_moved(
    training: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given as a relative path in one working directory, and gone on with from another."""
    from corpora.samples.world import load_world, planted_text

    short = MethodSettings(
        name="full", lr=1e-2, max_steps=2, batch=4, accumulation=1, eval_steps=2, save_steps=2,
        keep="best", block=24,
    )  # fmt: skip
    valid = planted_text(load_world("de"), 70)[60:]
    monkeypatch.chdir(tmp_path)
    first = training(valid=valid, settings=short, checkpoints=Path("checkpoints"))
    expected = {name: tensor.clone() for name, tensor in first.model.state_dict().items()}
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree("checkpoints", elsewhere / "moved")
    shutil.rmtree("checkpoints")
    path = elsewhere / "moved" / "checkpoint-2" / "trainer_state.json"
    state = json.loads(path.read_text("utf-8"))
    assert state["best_model_checkpoint"] == "checkpoints/checkpoint-2"
    path.write_text(json.dumps({**state, "best_metric": 0.0}), "utf-8")  # none later is better

    monkeypatch.chdir(elsewhere)
    longer = dataclasses.replace(short, max_steps=4)
    again = training(valid=valid, settings=longer, checkpoints=Path("moved"))
    assert again.facts["steps"] == 4
    assert again.facts["kept"] == "best"
    for name, tensor in again.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], atol=0, rtol=0)


@pytest.fixture
def checkpoint(training: Callable[..., Any], tmp_path: Path) -> Path:
    training()
    return tmp_path / "checkpoints" / "checkpoint-8"


def test_a_checkpoint_with_any_file_cut_off_is_torn(checkpoint: Path) -> None:
    assert whole(checkpoint)
    kinds = ("*.safetensors", "*.pt", "*.pth", "trainer_state.json")
    files = [path for kind in kinds for path in checkpoint.glob(kind)]
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"} <= {
        path.name for path in files
    }
    for path in files:
        content = path.read_bytes()
        for length in (0, 5, len(content) // 2, len(content) - 2):
            path.write_bytes(content[:length])
            assert not whole(checkpoint), f"{path.name} cut to {length} of {len(content)} bytes"
        path.write_bytes(content)
    for name in ("model.safetensors", "rng_state.pth"):
        moved = checkpoint / name
        moved.rename(checkpoint / "away")
        assert not whole(checkpoint), f"no {name}"
        (checkpoint / "away").rename(moved)
    assert whole(checkpoint)


def test_the_checkpoint_before_a_torn_one_is_taken(
    checkpoint: Path, training: Callable[..., Any]
) -> None:
    folder = checkpoint.parent
    expected = load_file(checkpoint / "model.safetensors")
    optimizer = checkpoint / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-100])
    said: list[str] = []
    training(say=said.append)
    assert [line for line in said if "going on" in line] == ["going on from checkpoint-4"]
    found = load_file(folder / "checkpoint-8" / "model.safetensors")
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, atol=1e-6, rtol=0)


def test_parts_of_weights_that_are_missing_are_seen(checkpoint: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    assert not whole(checkpoint)
    shutil.copy(checkpoint / "model.safetensors", checkpoint / "model-00001-of-00002.safetensors")
    assert whole(checkpoint)


def test_another_number_of_processes_is_refused(checkpoint: Path) -> None:
    check_processes(checkpoint.parent, 1)
    with pytest.raises(RequestError, match=r"written by 1 process, and now there are 2.*=1"):
        check_processes(checkpoint.parent, 2)
    assert checkpoints.RANDOM_STATES == "rng_state*.pth"


def test_a_folder_that_is_another_runs_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [f"run.dir={folder}", "tracking.mode=disabled"]
    recipe = settings.from_words(words, recipe="demo")
    open_run(recipe, "mitigate train").close()
    check_folder(recipe)
    for change, said in (("method.lr=1", "method.lr"), ("model=samples_masked_nl", "model.")):
        with pytest.raises(RequestError, match=f"another recipe.*{said}"):
            check_folder(settings.from_words([*words, change], recipe="demo"))
    shutil.copytree(checkpoint.parent, folder / "checkpoints")
    two = settings.from_words([*words, "launch=cpu", "launch.processes=2"], recipe="demo")
    with pytest.raises(RequestError, match="written by 1 process"):
        check_folder(two)
    (folder / "model").mkdir()  # trained: from here on any number may score
    check_folder(two)


def test_what_a_kill_left_half_written_is_cleared_up(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recipe = settings.from_words([f"run.dir={folder}"], recipe="demo")
    folder.mkdir()
    (folder / ".recipe.abc.yaml").write_text("na", "utf-8")  # killed before anything was in place
    open_run(recipe, "mitigate train").close()
    (folder / ".model.abc").mkdir()
    (folder / "figures").mkdir()
    (folder / "figures" / ".bias.abc.png").write_text("", "utf-8")
    log = folder / "metrics.jsonl"
    log.write_text('{"a": 1}\n{"b":', "utf-8")
    run = open_run(recipe, "mitigate train")
    run.log({"c": 2})
    with pytest.raises(RequestError, match="another run is using"):
        open_run(recipe, "mitigate train")
    run.close()
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [sorted(line) for line in lines] == [["a"], ["c", "time"]]
    hidden = {path.name for path in folder.rglob(".*")}
    assert hidden == {".lock"}
