"""Starting processes, and checking that as many came, and as they were asked for."""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

from eval.errors import RequestError
from mitigate.console import STATUS, world_size
from mitigate.settings import Recipe

TRAIN = Path(__file__).with_name("train.py")
#: How long torch's launcher waits between SIGTERM and SIGKILL: a checkpoint has to be written.
SHUTDOWN, SECONDS_TO_SAVE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "300"


def needs_launcher(recipe: Recipe) -> bool:
    """Whether `mitigate train` must start a launcher; not where one has started it."""
    return recipe.launch.launcher != "none" and "RANK" not in os.environ


def launch(recipe: Recipe, words: Sequence[str]) -> int:
    """Start the launcher of the recipe on train.py and pass on how the job ended.

    SIGTERM goes on to the launcher, which tells every process and waits for their checkpoints.
    """
    environment = {**os.environ, SHUTDOWN: os.environ.get(SHUTDOWN, SECONDS_TO_SAVE)}
    if recipe.launch.cpu:
        environment["ACCELERATE_USE_CPU"] = "true"
        here = (recipe.launch.processes or 1) // recipe.launch.machines
        environment.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // max(1, here))))
    with tempfile.TemporaryDirectory() as folder:
        status = Path(folder) / "status"
        environment[STATUS] = str(status)
        code = _run([*command(recipe, os.environ), str(TRAIN), *words], environment)
        if status.is_file():
            number, _, line = status.read_text("utf-8").partition(" ")
            if line:
                print(line, file=sys.stderr)  # after the launcher's own trace
            return int(number)
    if code:
        where = recipe.run.dir or f"{recipe.run.root}/{recipe.name}-…"
        print(
            "mitigate: a process was ended from outside, as the system does where memory runs out; "
            f"what is done is in {where}; the same command with run.dir=FOLDER goes on",
            file=sys.stderr,
        )
    return code


def command(recipe: Recipe, environment: Mapping[str, str]) -> list[str]:
    """The launcher and its arguments, for this machine among those of the recipe.

    `environment`: where there are several machines, says which this is and which is the first:
    SLURM_NODEID or MACHINE_RANK, MASTER_ADDR, and MASTER_PORT (else 29500).

    Raises:
        RequestError: the processes can't be shared out, DeepSpeed is wanted and not installed, or
            the environment doesn't say which machine this is.
    """
    asked = recipe.launch
    processes, machines = asked.processes or 1, asked.machines
    if processes % machines:
        raise RequestError(
            f"launch.processes={processes} can't be shared by launch.machines={machines}; it "
            "counts the processes of all machines together"
        )
    if asked.strategy == "DEEPSPEED" and not _installed("deepspeed"):
        raise RequestError(f"launch={asked.name}: DeepSpeed is not here: pip install deepspeed")
    place: list[str] = []
    if machines > 1:
        number = environment.get("SLURM_NODEID", environment.get("MACHINE_RANK"))
        address = environment.get("MASTER_ADDR")
        if number is None or address is None:
            raise RequestError(
                f"launch.machines={machines}: which machine is this, and which the first? "
                "SLURM_NODEID (or MACHINE_RANK) and MASTER_ADDR say it; see docs/cluster.md"
            )
        port = environment.get("MASTER_PORT", "29500")
        place = [number, address, port]
    if asked.launcher == "torchrun":
        # `accelerate launch --cpu --num_processes 2` starts one process, without a word.
        found = [sys.executable, "-m", "torch.distributed.run"]
        found += ["--nproc_per_node", str(processes // machines)]
        if place:
            found += ["--nnodes", str(machines), "--node_rank", place[0]]
            found += ["--master_addr", place[1], "--master_port", place[2]]
        else:
            found += ["--standalone"]
    else:
        found = [sys.executable, "-m", "accelerate.commands.launch"]
        found += ["--num_processes", str(processes), "--num_machines", str(machines)]
        found += ["--mixed_precision", "no", "--dynamo_backend", "no"]  # the method's to say
        if place:
            found += ["--machine_rank", place[0]]
            found += ["--main_process_ip", place[1], "--main_process_port", place[2]]
    return [*found, *asked.arguments]


def _run(words: list[str], environment: dict[str, str]) -> int:
    """Run a command to its end, handing SIGTERM on to it."""
    with subprocess.Popen(words, env=environment) as process:
        before = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def use_threads(recipe: Recipe, state: PartialState) -> int:
    """Give this process its share of the cores; returns its threads.

    Without an accelerator `accelerate launch` leaves every process one thread, as it would beside
    a GPU, and the other cores idle. One thread by choice is `launch.threads=1`.
    """
    wanted = recipe.launch.threads
    # What it makes of an empty environment.
    one = "ACCELERATE_MIXED_PRECISION" in os.environ and os.environ.get("OMP_NUM_THREADS") == "1"
    if wanted is None and one and state.device.type == "cpu":
        wanted = max(1, _cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if wanted is not None:
        torch.set_num_threads(wanted)
    return torch.get_num_threads()


def strategy(state: PartialState) -> str:
    """What accelerate really makes of the processes, by its own name (NO, MULTI_GPU, FSDP, …).

    `state` alone doesn't know FSDP: the trainer's Accelerator finds it in the environment, and
    only beside GPUs; with CPUs it takes DDP, without a word.
    """
    found = str(state.distributed_type).rpartition(".")[2]
    sharded = parse_flag_from_env("ACCELERATE_USE_FSDP")
    return "FSDP" if sharded and found.startswith("MULTI_") and found != "MULTI_CPU" else found


def check_strategy(recipe: Recipe, state: PartialState) -> str:
    """Refuse to train otherwise than was asked for; returns the real strategy.

    Raises:
        RequestError: says what was asked for, what accelerate makes of it, and what fits here.
    """
    real = strategy(state)
    asked, by = recipe.launch.strategy, f"launch={recipe.launch.name}"
    for flag, name in (
        ("FSDP", "FSDP"),
        ("DEEPSPEED", "DEEPSPEED"),
        ("MEGATRON_LM", "MEGATRON_LM"),
    ):
        if parse_flag_from_env(f"ACCELERATE_USE_{flag}"):
            asked, by = name, "the launcher"
    if asked is not None and asked != real:
        hint = "launch=cpu" if state.device.type == "cpu" else "launch=ddp"
        raise RequestError(
            f"{by} asks for {asked}, and accelerate makes {real} of {state.num_processes} "
            f"process{'es' if state.num_processes > 1 else ''} on {state.device.type}; {hint} "
            "says what it would be"
        )
    if real == "FSDP" and parse_flag_from_env("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise RequestError(
            "fsdp_cpu_ram_efficient_loading leaves all processes but the first with random "
            "weights, and every one scores; set it to false, as launch=fsdp does"
        )
    return real


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


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
