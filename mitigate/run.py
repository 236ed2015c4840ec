"""A run's folder: made once for all processes, locked while in use, resumed when unfinished."""

import datetime
import fcntl
import json
import os
import platform
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed

from eval.errors import RequestError
from eval.files import replacing
from mitigate import settings as recipes
from mitigate.checkpoints import check_processes
from mitigate.console import rank, world_size
from mitigate.settings import Recipe

PACKAGES = (
    "torch", "transformers", "peft", "accelerate", "trl", "datasets", "tokenizers",
    "pandas", "pyarrow", "scipy", "statsmodels", "wandb", "hydra-core",
)  # fmt: skip
#: Keys that may differ when a run goes on: they change where and how, not what.
FREE_TO_CHANGE = (
    "run.", "launch.", "tracking.", "hub.", "model.device", "score.batch_tokens", "score.reuse",
)  # fmt: skip
#: What a run's folder holds under a hidden name and may keep when it goes on.
KEPT_HIDDEN = (".lock",)


_current: Path | None = None


def current_folder() -> Path | None:
    """The folder of the run that this process has open; None before there is one."""
    return _current


class Run:
    """The folder of one run and what is known about it."""

    def __init__(self, folder: Path, recipe: Recipe, lock: IO[str] | None):
        self.folder = folder
        self.recipe = recipe
        self.manifest: dict[str, Any] = {}
        self._lock = lock

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return rank() == 0

    def path(self, *parts: str) -> Path:
        return self.folder.joinpath(*parts)

    def write_text(self, name: str, text: str) -> None:
        """Write a file beside its place and move it in, on the main process only."""
        if self.main:
            write_text(self.path(name), text)

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest and write it."""
        self.manifest.update(facts)
        self.write_text("manifest.json", json.dumps(self.manifest, indent=2, default=str))

    def log(self, values: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, on the main process only."""
        if self.main:
            with self.path("metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": time.time(), **values}) + "\n")

    @contextmanager
    def timed(self, what: str) -> Any:
        """Record how many seconds a stage took."""
        begun = time.monotonic()
        yield
        seconds = self.manifest.get("seconds", {})
        self.note(seconds={**seconds, what: round(time.monotonic() - begun, 2)})

    def finish(self) -> None:
        """Mark the run finished: from now on its folder is never written over."""
        # Linux counts kilobytes, macOS bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        self.note(
            status="finished",
            finished=_now(),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
            peak_gpu_bytes=torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
        )

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def check_folder(recipe: Recipe) -> None:
    """Refuse a folder that can't be used, before anything is loaded.

    Raises:
        RequestError: the folder holds a finished run, another recipe's, one whose checkpoint was
            written by another number of processes, or something else.
    """
    if recipe.run.dir is None:
        return
    folder = Path(recipe.run.dir)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RequestError(f"run.dir={folder}: is a file")
    if not any(path for path in folder.iterdir() if not path.name.startswith(".")):
        return  # a kill may have come before the first file was in its place
    stored = folder / "recipe.yaml"
    manifest = folder / "manifest.json"
    if not stored.is_file():
        raise RequestError(
            f"run.dir={folder}: holds something that is not a run; name a new folder"
        )
    status = json.loads(manifest.read_text("utf-8")).get("status") if manifest.is_file() else ""
    if status == "finished":
        raise RequestError(
            f"run.dir={folder}: this run is finished; name a new folder "
            f"(mitigate report {folder} shows it)"
        )
    theirs = recipes.from_yaml(stored.read_text("utf-8"))
    differing = recipes.differing_keys(recipe, theirs, ignore=FREE_TO_CHANGE)
    if differing:
        raise RequestError(
            f"run.dir={folder}: the run in it has another recipe ({', '.join(differing[:4])} "
            "differ); name a new folder, or go on with the same recipe"
        )
    if not any((folder / name).is_dir() for name in ("adapter", "model")):  # it is still trained
        check_processes(folder / "checkpoints", recipe.launch.processes or world_size())


def open_run(recipe: Recipe, command: str) -> Run:
    """Make or reopen the run's folder; the main process decides, the others are told.

    Raises:
        RequestError: the folder can't be used, or another run is using it.
    """
    decided: list[Any] = [None, None]
    lock = None
    if rank() == 0:
        try:
            folder, lock = _claim(recipe)
            decided = [str(folder), None]
        except RequestError as error:
            decided = [None, str(error)]
    if torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(decided)
    if decided[1] is not None:
        raise RequestError(decided[1])
    folder = Path(decided[0])
    resumed = (folder / "manifest.json").is_file()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    global _current
    _current = folder
    run = Run(folder, recipe, lock)
    if resumed:
        run.manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    run.write_text("recipe.yaml", recipes.resolved_yaml(recipe))
    run.note(
        status="running",
        recipe=recipe.name,
        placebo=recipe.placebo,
        command=command,
        started=run.manifest.get("started", _now()),
        resumed=[*run.manifest.get("resumed", []), *([_now()] if resumed else [])],
        seed=recipe.seed,
        versions={"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        git_commit=_git_commit(),
        processes=_processes(),
        machine={"system": platform.platform(), "cpus": os.cpu_count()},
    )
    return run


def write_text(path: Path, text: str) -> None:
    """Write a whole file beside its place, then move it in."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def _claim(recipe: Recipe) -> tuple[Path, IO[str]]:
    check_folder(recipe)
    if recipe.run.dir is not None:
        folder = Path(recipe.run.dir)
    else:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = Path(recipe.run.root) / f"{recipe.name}-{stamp}-{secrets.token_hex(2)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise RequestError(f"{folder}: can't be written: {error.strerror}") from error
    try:
        # Held by the process, so that even a killed run leaves no stale lock.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RequestError(f"run.dir={folder}: another run is using this folder") from error
    _clear_up(folder)
    return folder, lock


def _clear_up(folder: Path) -> None:
    """Take away what a killed run left half written: staged files, and a log's torn last line."""
    for place in (folder, folder / "figures"):
        for left in place.glob(".*"):
            if left.name in KEPT_HIDDEN:
                continue
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()
    for log in folder.glob("*.jsonl"):
        # Else the next line would be glued to it, and both be lost.
        text = log.read_bytes()
        if text and not text.endswith(b"\n"):
            os.truncate(log, text.rfind(b"\n") + 1)


def _processes() -> list[dict[str, Any]]:
    """Every process of the run: its rank, machine, pid and device, gathered."""
    mine = {"rank": rank(), "host": socket.gethostname(), "pid": os.getpid()}
    if not torch.distributed.is_initialized():
        return [mine]
    everyone: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(everyone, mine)
    return everyone


def _git_commit() -> str | None:
    """The commit of the project's own checkout; None for an installed package."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    found = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
