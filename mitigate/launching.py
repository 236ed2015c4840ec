"""Starting processes, and checking that as many came as were asked for."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from eval.errors import RequestError
from mitigate.console import STATUS, world_size
from mitigate.settings import Recipe

TRAIN = Path(__file__).with_name("train.py")


def needs_launcher(recipe: Recipe) -> bool:
    """Whether `mitigate train` must start a launcher; not where one has started it."""
    return recipe.launch.launcher != "none" and "RANK" not in os.environ


def launch(recipe: Recipe, words: Sequence[str]) -> int:
    """Start the launcher of the recipe on train.py and pass on how the job ended."""
    wanted = str(recipe.launch.processes or 1)
    environment = dict(os.environ)
    if recipe.launch.launcher == "torchrun":
        # `accelerate launch --cpu --num_processes 2` starts one process, without a word.
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc_per_node", wanted]
    else:
        command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", wanted]
    if recipe.launch.cpu:
        environment["ACCELERATE_USE_CPU"] = "true"
        environment.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // int(wanted))))
    with tempfile.TemporaryDirectory() as folder:
        status = Path(folder) / "status"
        environment[STATUS] = str(status)
        command += [*recipe.launch.arguments, str(TRAIN), *words]
        code = subprocess.run(command, env=environment, check=False).returncode
        if status.is_file():
            number, _, line = status.read_text("utf-8").partition(" ")
            if line:
                print(line, file=sys.stderr)  # after the launcher's own trace
            return int(number)
    return code


def check_world_size(recipe: Recipe) -> None:
    """Refuse to run as one process where several were asked for, or the other way round.

    Raises:
        RequestError: says how many there are and which command starts as many as asked.
    """
    asked = recipe.launch.processes or _asked_of_accelerate()
    if asked is not None and asked != world_size():
        raise RequestError(
            f"{asked} processes were asked for and {world_size()} started; on CPUs: "
            f"mitigate train recipe={recipe.name} launch=cpu launch.processes={asked}"
        )


def _asked_of_accelerate() -> int | None:
    """The --num_processes of an `accelerate launch` that started this process, if it has one."""
    parent = psutil.Process().parent()
    if parent is None or world_size() > 1:
        return None
    try:
        words = parent.cmdline()
    except (psutil.AccessDenied, psutil.ZombieProcess):
        return None
    if not any("accelerate" in word for word in words[:3]):
        return None
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in ("--num_processes", "--num-processes", "-n"):
            value = value or (words[index + 1] if index + 1 < len(words) else "")
            return int(value) if value.isdigit() else None
    return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
