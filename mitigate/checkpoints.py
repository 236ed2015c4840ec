"""Checkpoints to go on from: which of them are whole, and whether they are this run's."""

import json
import shutil
import zipfile
from pathlib import Path, PurePath

from eval.errors import RequestError
from eval.files import replacing

#: Weights as the trainer leaves them: whole, in parts, an adapter, or sharded (FSDP, DeepSpeed).
WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors",
    "pytorch_model_fsdp*", "global_step*",
)  # fmt: skip
#: Written by every process of a run on its own, so that their number is the run's.
RANDOM_STATES = "rng_state*.pth"


def last_whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; torn ones after it are removed."""
    for checkpoint in reversed(_all(folder)):
        if whole(checkpoint):
            return checkpoint
        shutil.rmtree(checkpoint)
    return None


def whole(checkpoint: Path) -> bool:
    """Whether nothing of a checkpoint is missing or cut off.

    The trainer writes `trainer_state.json` last, so after a kill a readable one is enough. After
    a power cut or on a full disk any file may be short: weights are as long as their header
    says, and what torch saves is a zip file, whose directory stands at its end.
    """
    try:
        json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    if not any(list(checkpoint.glob(name)) for name in WEIGHTS):
        return False
    if not list(checkpoint.glob(RANDOM_STATES)):
        return False
    return (
        all(_safetensors_whole(path) for path in checkpoint.rglob("*.safetensors"))
        and all(zipfile.is_zipfile(path) for path in checkpoint.glob("*.pt"))
        and all(zipfile.is_zipfile(path) for path in checkpoint.glob("*.pth"))
        and all((path / ".metadata").is_file() for path in checkpoint.glob("*_fsdp*"))
        and _parts_there(checkpoint)
    )


def find_best(checkpoint: Path) -> None:
    """Write where the best checkpoint is now into the state that training goes on from.

    The trainer keeps its path as it was given at the time. From another working directory, or in
    a run's folder that was moved, nothing is there any more, and it would go on without a best.
    """
    path = checkpoint / "trainer_state.json"
    state = json.loads(path.read_text("utf-8"))
    best = state.get("best_model_checkpoint")
    if not best:
        return
    here = checkpoint.parent / PurePath(best).name
    if str(here) != best and here.is_dir():
        with replacing(path) as temporary:
            temporary.write_text(
                json.dumps({**state, "best_model_checkpoint": str(here)}, indent=2), "utf-8"
            )


def check_processes(folder: Path, processes: int) -> None:
    """Refuse to go on with another number of processes than the checkpoint was written by.

    Each process draws from its own random stream, and sharded weights lie in as many parts.

    Raises:
        RequestError: says how many there were.
    """
    for checkpoint in reversed(_all(folder)):
        if not whole(checkpoint):
            continue
        theirs = len(list(checkpoint.glob(RANDOM_STATES)))
        if theirs != processes:
            raise RequestError(
                f"{checkpoint}: written by {theirs} process{'es' if theirs > 1 else ''}, and now "
                f"there {'are' if processes > 1 else 'is'} {processes}; go on with "
                f"launch.processes={theirs}, or name a new folder"
            )
        return


def _all(folder: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[11:]))


def _safetensors_whole(path: Path) -> bool:
    """Whether a file is as long as its header says (8 bytes of length, then JSON, then data)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 + length:
            return False
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return False
    ends = [part["data_offsets"][1] for name, part in header.items() if name != "__metadata__"]
    return size == 8 + length + max(ends, default=0)


def _parts_there(checkpoint: Path) -> bool:
    """Whether every file that an index names is there."""
    for index in checkpoint.glob("*.safetensors.index.json"):
        try:
            names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        except (ValueError, KeyError):
            return False
        if not all((checkpoint / name).is_file() for name in names):
            return False
    return True
