"""Kill −9 at seeded moments, the same command again, and compare with an undisturbed run.

python -m tests.performance.kill [--moments 20] [--seed 0] [--out FILE]

A tiny run (random BERT, LoRA, the embedded world) is made once undisturbed, and every file that it
opens, moves or makes in its folder is noted with its time. From that follow its stages; in each the
moments are drawn. Then, for each moment, a run in a new folder with an empty cache kills itself
there by SIGKILL, which it can neither catch nor prepare for, and the same command is given again.

The processes are forked from one that has the libraries loaded, which spares ten seconds each; what
they run is the console script's own entry point.
"""

import argparse
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

STAGES = ("scoring", "training", "checkpointing", "merging", "reporting")
#: A run that has every stage in it and is over in seconds.
RECIPE = (
    "recipe=demo", "method=lora", "method.lora.targets=[query,value]", "method.lr=1e-2",
    "method.batch=8", "method.accumulation=2", "method.max_steps=24", "method.eval_steps=6",
    "method.save_steps=6", "corpus.sentences=300", "benchmark.limit=60", "retention.sentences=8",
    "retention.grammar=false", "inference.resamples=200", "score.batch_tokens=256",
    "result.merge=true", "tracking.mode=disabled",
)  # fmt: skip
SAME = 1e-6


@dataclass(frozen=True)
class Event:
    """Something that a run did to its folder: when (seconds from its start), and to which file."""

    seconds: float
    path: str


@dataclass(frozen=True)
class Moment:
    """When a run is killed: so long after its n-th event."""

    stage: str
    event: int
    delay: float  # seconds


@dataclass(frozen=True)
class Outcome:
    """What came of one moment."""

    moment: Moment
    last: str  # the file that the run had touched last
    ended: str  # killed, or over before the moment came
    differences: tuple[str, ...]  # from the undisturbed run; none is what is wanted


class KillTestError(Exception):
    """A run ended otherwise than it should have; its last lines."""


def command(model: Path, folder: Path) -> list[str]:
    return ["train", *RECIPE, f"model.path={model}", f"run.dir={folder}"]


def preload() -> None:
    """Load what a run needs, so that its forked process has it."""
    for name in (
        "matplotlib.pyplot",
        "peft.tuners.lora",
        "transformers.models.bert.modeling_bert",
        "trl.trainer.sft_trainer",
        "mitigate.methods.continued",
        "mitigate.train",
    ):
        importlib.import_module(name)


def run(
    words: Sequence[str], folder: Path, cache: Path, moment: Moment | None = None
) -> tuple[int, list[Event]]:
    """Run `mitigate WORDS` in a forked process; returns its status and what it did to `folder`.

    With a `moment` it kills itself there. The status is -9 for a killed one.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # no way out of this branch but _exit: the parent's tests must not run twice
        try:
            os.close(reading)
            _be_the_run(words, folder, cache, moment, writing)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(70)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as lines:
        events = [Event(float(line.split(" ", 1)[0]), line[:-1].split(" ", 1)[1]) for line in lines]
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), events


def _be_the_run(
    words: Sequence[str], folder: Path, cache: Path, moment: Moment | None, told: int
) -> None:
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {"MITIGATE_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    begun = time.monotonic()
    count = itertools.count()
    place = str(folder)

    def watch(event: str, arguments: tuple) -> None:
        if event not in ("open", "os.rename", "os.mkdir", "os.remove", "shutil.rmtree"):
            return
        path = str(arguments[1 if event == "os.rename" else 0])
        if not path.startswith(place + os.sep):
            return
        number = next(count)
        os.write(told, f"{time.monotonic() - begun:.4f} {path[len(place) + 1 :]}\n".encode())
        if moment is not None and number == moment.event:
            if moment.delay <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            timer = threading.Timer(moment.delay, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()

    sys.addaudithook(watch)
    sys.argv = ["mitigate", *words]
    from mitigate import cli

    status = cli.guarded(lambda: cli.dispatch(sys.argv[1:]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def stage_of(events: Sequence[Event]) -> list[str]:
    """The stage in which each event lies, and the time up to the next one."""
    found = []
    trained = merged = False
    for event in events:
        top = event.path.split(os.sep)[0]
        inside = "checkpoint-" in event.path
        trained = trained or top.startswith((".adapter", "adapter"))
        merged = merged or top == "report.html" or top.startswith((".deltas", ".report", "figures"))
        if inside:
            found.append("checkpointing")
        elif merged:
            found.append("reporting")
        elif top.startswith((".model", "model")):
            found.append("merging")
        elif top in ("checkpoints", "metrics.jsonl") and not trained:
            found.append("training")
        else:
            found.append("scoring")
    return found


def moments(events: Sequence[Event], count: int, seed: int) -> list[Moment]:
    """So many moments, the stages in turn, each uniform over the time that its stage takes."""
    draw = random.Random(seed)
    stages = stage_of(events)
    gaps = [max(later.seconds - event.seconds, 0.0) for event, later in itertools.pairwise(events)]
    # The first event is the folder itself: before it there is nothing to go on from.
    spans = {
        stage: [(number, gap) for number, gap in enumerate(gaps) if stages[number] == stage]
        for stage in STAGES
    }
    found = []
    for stage, _ in zip(itertools.cycle(STAGES), range(count), strict=False):
        if not spans[stage]:
            raise KillTestError(f"the undisturbed run has no {stage} in it")
        numbers, weights = zip(*spans[stage], strict=True)
        number = draw.choices(numbers, [gap + 1e-4 for gap in weights])[0]
        found.append(Moment(stage, number, draw.random() * gaps[number]))
    return found


def differences(run_folder: Path, undisturbed: Path) -> Iterator[str]:
    """In what a run differs from the undisturbed one; nothing if it went on as if nothing was."""
    import numpy as np
    import pandas as pd
    import torch
    from safetensors.torch import load_file

    status = json.loads((run_folder / "manifest.json").read_text("utf-8"))["status"]
    if status != "finished":
        yield f"its status is {status}"
        return
    ours, theirs = (pd.read_csv(folder / "deltas.csv") for folder in (run_folder, undisturbed))
    numbers = ours.select_dtypes("number").columns
    if list(ours) != list(theirs) or len(ours) != len(theirs):
        yield "deltas.csv has other rows or columns"
    elif not ours.drop(columns=numbers).equals(theirs.drop(columns=numbers)):
        yield "deltas.csv says other things"
    elif not np.allclose(ours[numbers], theirs[numbers], rtol=SAME, atol=SAME, equal_nan=True):
        apart = float(np.nanmax(np.abs(ours[numbers].to_numpy() - theirs[numbers].to_numpy())))
        yield f"deltas.csv is {apart:.2g} off"
    for name in ("adapter/adapter_model.safetensors", "model/model.safetensors"):
        left, right = (load_file(folder / name) for folder in (run_folder, undisturbed))
        if left.keys() != right.keys():
            yield f"{name} has other weights"
            continue
        # torch's maximum keeps a NaN, which Python's may lose
        apart = float(torch.stack([(left[key] - right[key]).abs().max() for key in left]).max())
        if not apart <= SAME:
            yield f"{name} is {apart:.2g} off"
        assert all(tensor.dtype == torch.float32 for tensor in left.values())
    expected = rows_of(undisturbed)
    found = rows_of(run_folder)
    if not expected:
        yield "the undisturbed run logged no rows"
    for step in sorted(expected.keys() | found.keys()):
        if found.get(step) != expected.get(step):
            yield f"step {step} saw other rows: {found.get(step)}, not {expected.get(step)}"
            break
    left_over = [path.name for path in run_folder.glob(".*") if path.name != ".lock"]
    if left_over:
        yield f"left lying: {', '.join(left_over)}"


def rows_of(folder: Path) -> dict[int, set[str]]:
    """The rows of each update as metrics.jsonl has them; one name a step, however often done."""
    found: dict[int, set[str]] = {}
    for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines():
        values = json.loads(line)
        if "train/rows" in values:
            found.setdefault(values["train/step"], set()).add(values["train/rows"])
    return found


def undisturbed(model: Path, work: Path) -> tuple[Path, list[Event]]:
    """The run that all others must equal."""
    folder = work / "undisturbed"
    status, events = run(command(model, folder), folder, work / "cache-undisturbed")
    if status:
        raise KillTestError(_tail(folder))
    return folder, events


def killed_and_again(model: Path, work: Path, moment: Moment, number: int, right: Path) -> Outcome:
    """Kill a run at the moment, give the same command again, and compare."""
    folder, cache = work / f"run-{number}", work / f"cache-{number}"
    words = command(model, folder)
    status, events = run(words, folder, cache, moment)
    ended = {-signal.SIGKILL: "killed", 0: "over before"}.get(status)
    if ended is None:
        raise KillTestError(_tail(folder))
    last = events[-1].path if events else "nothing"
    finished = folder / "manifest.json"
    if not (finished.is_file() and json.loads(finished.read_text("utf-8"))["status"] == "finished"):
        status, _ = run(words, folder, cache)
        if status:
            return Outcome(moment, last, ended, (f"the same command failed: {_tail(folder)}",))
    outcome = Outcome(moment, last, ended, tuple(differences(folder, right)))
    if not outcome.differences:
        for place in (folder, cache):
            shutil.rmtree(place, ignore_errors=True)
    return outcome


def _tail(folder: Path) -> str:
    log = Path(f"{folder}.log")
    return " / ".join(log.read_text("utf-8").splitlines()[-3:]) if log.is_file() else "no output"


def report(outcomes: Sequence[Outcome], events: Sequence[Event], seconds: float) -> str:
    good = sum(not outcome.differences for outcome in outcomes)
    lines = [
        "# Kill test",
        "",
        f"`python -m tests.performance.kill`: SIGKILL at {len(outcomes)} seeded moments, the same "
        f"command again. {good} of {len(outcomes)} ended as the undisturbed run: deltas and "
        f"weights to {SAME:.0e}, and every update on the same rows. The undisturbed run took "
        f"{events[-1].seconds:.0f} s; all took {seconds:.0f} s.",
        "",
        "| stage | event | after it (s) | last touched | ended | differences |",
        "|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        moment = outcome.moment
        said = "; ".join(outcome.differences) or "none"
        lines.append(
            f"| {moment.stage} | {moment.event} | {moment.delay:.3f} | {outcome.last} "
            f"| {outcome.ended} | {said} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    from tests.conftest import _build_masked

    begun = time.monotonic()
    preload()
    with tempfile.TemporaryDirectory(prefix="mitigate-kill-") as place:
        work = Path(place)
        _build_masked(work / "model")
        right, events = undisturbed(work / "model", work)
        outcomes = []
        for number, moment in enumerate(moments(events, given.moments, given.seed)):
            outcome = killed_and_again(work / "model", work, moment, number, right)
            outcomes.append(outcome)
            said = "; ".join(outcome.differences) or "the same"
            print(f"{number + 1:>3} {moment.stage:<14} {outcome.last:<40} {said}", flush=True)
    text = report(outcomes, events, time.monotonic() - begun)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(outcome.differences for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
