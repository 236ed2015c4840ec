"""How processes are started: every launch recipe, one machine or several, and what came of it."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from accelerate import PartialState
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from torch import nn
from torch.distributed.run import get_args_parser

from eval.errors import RequestError
from mitigate import settings
from mitigate.launching import check_strategy, command, launch, use_threads
from mitigate.models import whole_state

MITIGATE = Path(sys.executable).with_name("mitigate")
QUICK = (
    "recipe=demo", "benchmark.limit=60", "corpus.sentences=300", "method.batch=8",
    "method.accumulation=1", "method.eval_steps=4", "method.save_steps=4",
    "retention.sentences=8", "retention.grammar=false", "inference.resamples=200",
    "tracking.mode=disabled",
)  # fmt: skip


def recipe(*words: str) -> settings.Recipe:
    return settings.from_words(words, recipe="demo")


def parsed(*words: str, environment: dict[str, str] | None = None) -> argparse.Namespace:
    """What accelerate's own parser makes of a launch recipe's command."""
    found = command(recipe(*words), environment or {})
    assert found[:3] == [sys.executable, "-m", "accelerate.commands.launch"]
    arguments, _, _ = _validate_launch_command(
        launch_command_parser().parse_args([*found[3:], "train.py", "recipe=demo"])
    )
    assert arguments.training_script == "train.py"
    return arguments


@pytest.mark.parametrize(
    ("words", "environment", "device", "threads"),
    [
        ((), {"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1"}, "cpu", 6),
        (
            (),
            {"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "4"},
            "cpu",
            1,
        ),
        (("launch.threads=2",), {"ACCELERATE_MIXED_PRECISION": "no"}, "cpu", 2),
        ((), {"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1"}, "cuda", None),
        ((), {"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "3"}, "cpu", None),
        ((), {"OMP_NUM_THREADS": "1"}, "cpu", None),
    ],
)
def test_a_launcher_without_a_gpu_leaves_no_core_idle(
    words: tuple[str, ...],
    environment: dict[str, str],
    device: str,
    threads: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr("mitigate.launching._cores", lambda: 6)
    for name in ("ACCELERATE_MIXED_PRECISION", "OMP_NUM_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    state: Any = SimpleNamespace(device=torch.device(device))
    use_threads(recipe(*words), state)
    assert given == ([] if threads is None else [threads])


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were installed."""
    monkeypatch.setattr("mitigate.launching._installed", lambda name: True)


def test_every_launch_recipe_is_one_that_this_version_knows() -> None:
    assert settings.available("launch") == ["auto", "cpu", "ddp", "fsdp", "gpu", "zero3"]
    for name in settings.available("launch"):
        assert recipe(f"launch={name}").launch.name == name


def test_ddp_is_what_accelerate_takes_for_it() -> None:
    found = parsed("launch=ddp", "launch.processes=4")
    assert (found.multi_gpu, found.num_processes, found.num_machines) == (True, 4, 1)


def test_fsdp_is_the_second_one_and_loads_whole_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that accelerate gives the processes, and the plugin they make of it."""
    found = parsed("launch=fsdp", "launch.processes=4")
    assert found.use_fsdp
    for key, value in prepare_multi_gpu_env(found).items():
        monkeypatch.setenv(key, value)
    assert os.environ["ACCELERATE_USE_FSDP"] == "true"
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.cpu_ram_efficient_loading is False
    assert "SHARDED_STATE_DICT" in str(plugin.state_dict_type)
    assert "transformer" in str(plugin.auto_wrap_policy)


def test_zero3_is_what_accelerate_takes_for_it(deepspeed: None) -> None:
    found = parsed("launch=zero3", "launch.processes=8")
    assert (found.use_deepspeed, found.zero_stage, found.num_processes) == (True, 3, 8)
    assert found.zero3_save_16bit_model == "true"
    assert found.zero3_init_flag == "false"


def test_zero3_without_deepspeed_is_refused() -> None:
    with pytest.raises(RequestError, match=r"launch=zero3.*pip install deepspeed"):
        command(recipe("launch=zero3"), {})


SLURM = {"SLURM_NODEID": "1", "MASTER_ADDR": "node-7", "MASTER_PORT": "29777"}


@pytest.mark.parametrize("name", ["ddp", "fsdp", "zero3"])
def test_several_machines_share_the_processes(name: str, deepspeed: None) -> None:
    words = (f"launch={name}", "launch.machines=2", "launch.processes=8")
    found = parsed(*words, environment=SLURM)
    assert (found.num_machines, found.machine_rank, found.num_processes) == (2, 1, 8)
    assert (found.main_process_ip, found.main_process_port) == ("node-7", 29777)
    if name == "fsdp":
        prepare_multi_gpu_env(found)
        assert (found.nproc_per_node, found.nnodes, found.node_rank) == ("4", "2", 1)


def test_several_machines_on_cpus() -> None:
    words = recipe("launch=cpu", "launch.machines=2", "launch.processes=4")
    found = command(words, SLURM)
    assert found[:3] == [sys.executable, "-m", "torch.distributed.run"]
    arguments = get_args_parser().parse_args([*found[3:], "train.py"])
    assert (arguments.nnodes, arguments.node_rank, arguments.nproc_per_node) == ("2", 1, "2")
    assert (arguments.master_addr, arguments.master_port) == ("node-7", 29777)
    with pytest.raises(RequestError, match="SLURM_NODEID"):
        command(words, {})
    with pytest.raises(RequestError, match=r"launch\.processes=3 can't be shared"):
        command(recipe("launch=cpu", "launch.machines=2", "launch.processes=3"), SLURM)


def state(kind: DistributedType, device: str = "cuda", processes: int = 2) -> Any:
    return SimpleNamespace(
        distributed_type=kind, device=torch.device(device), num_processes=processes
    )


@pytest.mark.parametrize(
    ("words", "flags", "found", "real"),
    [
        (["launch=auto"], [], state(DistributedType.NO, "cpu", 1), "NO"),
        (["launch=auto"], [], state(DistributedType.MULTI_CPU, "cpu"), "MULTI_CPU"),
        (["launch=ddp"], [], state(DistributedType.MULTI_GPU), "MULTI_GPU"),
        (["launch=fsdp"], ["ACCELERATE_USE_FSDP"], state(DistributedType.MULTI_GPU), "FSDP"),
        (["launch=auto"], ["ACCELERATE_USE_FSDP"], state(DistributedType.MULTI_GPU), "FSDP"),
        (["launch=zero3"], ["ACCELERATE_USE_DEEPSPEED"], state(DistributedType.DEEPSPEED),
         "DEEPSPEED"),
    ],
)  # fmt: skip
def test_the_strategy_asked_for_is_taken(
    words: list[str], flags: list[str], found: Any, real: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flag in flags:
        monkeypatch.setenv(flag, "true")
    assert check_strategy(recipe(*words), found) == real


@pytest.mark.parametrize(
    ("words", "flags", "found", "said"),
    [
        (["launch=fsdp"], [], state(DistributedType.MULTI_CPU, "cpu"), "asks for FSDP.*MULTI_CPU"),
        (["launch=auto"], ["ACCELERATE_USE_FSDP"], state(DistributedType.MULTI_CPU, "cpu"),
         "the launcher asks for FSDP.*MULTI_CPU of 2 processes on cpu; launch=cpu"),
        (["launch=ddp"], [], state(DistributedType.MULTI_CPU, "cpu"), "MULTI_GPU.*MULTI_CPU"),
        (["launch=fsdp"], [], state(DistributedType.MULTI_GPU), "asks for FSDP.*launch=ddp"),
        (["launch=fsdp"], ["ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING"],
         state(DistributedType.MULTI_GPU), "random weights"),
    ],
)  # fmt: skip
def test_another_strategy_than_asked_for_is_refused(
    words: list[str], flags: list[str], found: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flag in flags:
        monkeypatch.setenv(flag, "true")
    with pytest.raises(RequestError, match=said):
        check_strategy(recipe(*words), found)


def test_accelerate_s_own_state_has_these_names() -> None:
    assert check_strategy(recipe(), PartialState(cpu=True)) in ("NO", "MULTI_CPU")


def test_a_launcher_that_dies_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when the system kills a process for want of memory: no line of its own was left."""
    monkeypatch.setattr("mitigate.launching.command", lambda recipe, environment: ["sh", "-c",
                        "kill -9 $$"])  # fmt: skip
    assert launch(recipe("launch=cpu", "run.dir=runs/mine"), []) != 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert "ended from outside" in said
    assert "what is done is in runs/mine" in said


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)


def _sharded(rank: int, folder: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2
    )
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    model = Small()
    fully_shard(model.inside, mesh=mesh)
    fully_shard(model, mesh=mesh)
    found = whole_state(model)
    assert found is not None
    torch.save({key: tensor.clone() for key, tensor in found.items()}, folder / f"{rank}.pt")


def test_sharded_weights_are_gathered_to_be_saved(tmp_path: Path) -> None:
    """Two processes, FSDP2's own shards; the first one gets what there was before."""
    assert whole_state(Small()) is None
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
                _sharded(rank, tmp_path)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert not second
    for key, tensor in Small().state_dict().items():
        torch.testing.assert_close(first[key], tensor, atol=0, rtol=0)


@pytest.mark.long
def test_fsdp_without_a_gpu_is_refused_in_one_line(tiny_masked: Path, tmp_path: Path) -> None:
    """The real command: accelerate starts two processes and would train them by DDP."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = subprocess.run(
        [str(MITIGATE), "train", *QUICK, f"model.path={tiny_masked}", f"run.dir={tmp_path / 'r'}",
         "launch=fsdp"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    # By version and by what is in the environment it makes DDP of it, or two that don't meet.
    last = done.stderr.splitlines()[-1]
    assert re.search("asks for FSDP, and accelerate makes (MULTI_CPU of 2|NO of 1) process", last)
    assert not (tmp_path / "r").exists()


def _free_port() -> str:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return str(some.getsockname()[1])


@pytest.mark.long
def test_two_machines_are_stopped_by_sigterm_and_go_on(tiny_masked: Path, tmp_path: Path) -> None:
    """Two launchers that meet over a port, as Slurm starts them; the signal goes to both."""
    folder = tmp_path / "run"
    words = [str(MITIGATE), "train", *QUICK, f"model.path={tiny_masked}", f"run.dir={folder}"]
    words += ["launch=cpu", "launch.machines=2", "launch.processes=2", "method.epochs=3"]

    def start() -> list[subprocess.Popen[str]]:
        port = _free_port()
        return [
            subprocess.Popen(
                words,
                env={**os.environ, "SLURM_NODEID": str(node), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port},
                stderr=subprocess.PIPE, text=True,
            )
            for node in range(2)
        ]  # fmt: skip

    def manifest() -> dict[str, Any]:
        return json.loads((folder / "manifest.json").read_text("utf-8"))

    machines = start()
    while not list(folder.glob("checkpoints/checkpoint-*/trainer_state.json")):
        assert all(machine.poll() is None for machine in machines), machines[0].communicate()[1]
        time.sleep(0.05)
    for machine in machines:
        machine.send_signal(signal.SIGTERM)
    said = [machine.communicate(timeout=200)[1] for machine in machines]
    assert machines[0].returncode == 1, said[0]
    last = said[0].splitlines()[-1]
    assert "stopped by SIGTERM, step" in last
    assert last.endswith(f"the same command with run.dir={folder} goes on")
    assert manifest()["status"] == "stopped"

    alone = subprocess.run(
        [*words[:-4], "method.epochs=3"], capture_output=True, text=True, check=False
    )
    assert alone.returncode == 2
    assert "written by 2 processes, and now there is 1" in alone.stderr.splitlines()[-1]

    machines = start()
    said = [machine.communicate(timeout=300)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said[0]
    assert manifest()["status"] == "finished"
    assert manifest()["strategy"] == manifest()["training"]["strategy"] == "MULTI_CPU"
    assert [process["rank"] for process in manifest()["processes"]] == [0, 1]
