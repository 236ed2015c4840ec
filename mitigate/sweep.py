"""`mitigate sweep recipe=NAME key=A,B …`: one run after another, for every combination.

Values between commas are tried in turn, several keys in every combination. Each run is a process
of its own with a folder of its own; the same command again leaves what is finished as it is, goes
on with what is not, and ends with the page that sets all of them side by side.
"""

import hashlib
import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from eval.errors import RequestError
from mitigate import settings
from mitigate.console import messages, say
from mitigate.run import write_text

#: A sweep's own file in its folder; and its page's folder beside the runs'.
FILE, PAGE = "sweep.json", "report"
#: More runs than this are a slip (a range too many) until they are said to be meant.
MOST = 200


@dataclass(frozen=True)
class Sweep:
    """What is to be run: a folder's name and the words of `mitigate train`, for each."""

    folder: Path
    axes: dict[str, list[str]]
    runs: dict[str, list[str]]

    def run_folder(self, name: str) -> Path:
        return self.folder / name


def planned(words: Sequence[str], out: Path | None = None) -> Sweep:
    """Read a command's words, and check every combination as a recipe.

    `key=a,b` and `key=range(1,4)` are axes; a list in brackets or a text in quotes is one value,
    as for `mitigate train`. Without `out` the folder is named after recipe and words, so that the
    same words mean the same folder.

    Raises:
        RequestError: no axis, too many runs, `run.dir`, or a combination that is no recipe.
    """
    fixed, axes = _axes(words)
    if not axes:
        raise RequestError(
            "sweep: nothing varies; commas do: mitigate sweep recipe=demo seed=0,1,2 "
            "method.lr=1e-4,2e-4"
        )
    for key in ("run.dir", "run.root"):
        if any(word.startswith(f"{key}=") for word in words):
            raise RequestError(f"sweep: {key}: each run has a folder of its own; out=DIR for all")
    combinations = list(itertools.product(*axes.values()))
    if len(combinations) > MOST:
        raise RequestError(f"sweep: {len(combinations):,} runs; at most {MOST}: several sweeps")
    runs = {}
    for values in combinations:
        varied = [f"{key}={value}" for key, value in zip(axes, values, strict=True)]
        name = _name(dict(zip(axes, values, strict=True)))
        if name in runs:
            raise RequestError(f"sweep: {', '.join(varied)} stands there twice")
        settings.from_words([*fixed, *varied], recipe="demo")
        runs[name] = [*fixed, *varied]
    if out is None:
        digest = hashlib.sha256("\x1f".join(words).encode()).hexdigest()[:8]
        recipe = settings.from_words(next(iter(runs.values())), recipe="demo")
        out = Path(recipe.run.root) / f"sweep-{recipe.name}-{digest}"
    return Sweep(out, axes, runs)


def run(words: Sequence[str], out: Path | None = None) -> int:
    """Run what isn't finished, then set all side by side; 1 where a run failed.

    A run that fails while it works (a rate at which the loss is NaN) is told and left, and the
    others go on; a wrong request ends the sweep, since the others would meet it too.

    Raises:
        RequestError: see `planned`; or the folder holds something else.
    """
    sweep = planned(words, out)
    _claim(sweep, words)
    failed = []
    for number, (name, own) in enumerate(sweep.runs.items(), start=1):
        folder = sweep.run_folder(name)
        if finished(folder):
            say(f"{number} of {len(sweep.runs)}: {name} is finished")
            continue
        say(f"{number} of {len(sweep.runs)}: {name}")
        status = _train(own, folder)
        if status == 2:
            raise RequestError(f"sweep: {name} can't be run (its line stands above)")
        if status:
            failed.append(name)
    done = [sweep.run_folder(name) for name in sweep.runs if finished(sweep.run_folder(name))]
    if len(done) > 1:
        from mitigate import side_by_side

        say(f"Report: {side_by_side.show(done, sweep.folder / PAGE)}")
    if failed:
        say(
            f"{len(failed)} of {len(sweep.runs)} runs failed: {', '.join(failed)}; the same "
            "command goes on with them"
        )
    return 1 if failed else 0


def finished(folder: Path) -> bool:
    """Whether a folder holds a run that came to its end."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return False
    return bool(json.loads(manifest.read_text("utf-8")).get("status") == "finished")


def run_folders(folder: Path) -> list[Path]:
    """The finished runs of a sweep's folder, in its order; the folder itself if it is none.

    Raises:
        RequestError: a sweep without a finished run.
    """
    path = folder / FILE
    if not path.is_file():
        return [folder]
    names = json.loads(path.read_text("utf-8"))["runs"]
    found = [folder / name for name in names if finished(folder / name)]
    if not found:
        raise RequestError(f"{folder}: a sweep of {len(names)} runs, none of which is finished")
    if len(found) < len(names):
        say(f"{folder}: {len(found)} of {len(names)} runs are finished")
    return found


def _axes(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The words with one value, and the values of each key with several."""
    parser = OverridesParser.create()
    fixed: list[str] = []
    axes: dict[str, list[str]] = {}
    for word in words:
        try:
            override = parser.parse_override(word)
            several = override.is_sweep_override()
        except HydraException:  # told well by what reads a recipe
            several = False
        if not several:
            fixed.append(word)
            continue
        key = override.key_or_group
        if key in axes:
            raise RequestError(f"sweep: {key} varies twice")
        try:
            axes[key] = list(override.sweep_string_iterator())
        except HydraException as error:
            raise RequestError(f"sweep: {word}: {str(error).splitlines()[0]}") from error
    return fixed, axes


def _name(values: dict[str, Any]) -> str:
    """A run's folder: seed-0_lr-1e-4, short of what a file system takes."""
    named = "_".join(f"{key.rpartition('.')[2]}-{value}" for key, value in values.items())
    plain = re.sub(r"[^\w.+-]+", "-", named)
    if len(plain) <= 80 and plain == named:
        return plain
    full = "_".join(f"{key}={value}" for key, value in values.items())
    return f"{plain[:80]}-{hashlib.sha256(full.encode()).hexdigest()[:6]}"


def _claim(sweep: Sweep, words: Sequence[str]) -> None:
    """Take the folder for this sweep, new or as it was left."""
    path = sweep.folder / FILE
    mine = {
        "command": "mitigate sweep " + shlex.join(words),
        "axes": sweep.axes,
        "runs": sweep.runs,
    }
    if path.is_file():
        theirs = json.loads(path.read_text("utf-8"))
        if theirs["runs"] != sweep.runs:
            raise RequestError(
                f"out={sweep.folder}: another sweep is in it ({theirs['command']}); name a new "
                "folder"
            )
        return
    if sweep.folder.exists() and (not sweep.folder.is_dir() or any(sweep.folder.iterdir())):
        raise RequestError(f"out={sweep.folder}: is there and not empty; name a new folder")
    write_text(path, json.dumps(mine, indent=2))


def _train(words: Sequence[str], folder: Path) -> int:
    """`mitigate train` in a process of its own, so that no run meets another's memory."""
    command = [sys.executable, "-m", "mitigate", "train", *words, f"run.dir={folder}"]
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # The terminal interrupts both: let the run say what it saved, then end too.
        process.wait()
        messages.print(f"the same sweep goes on from {folder}", markup=False, soft_wrap=True)
        raise
