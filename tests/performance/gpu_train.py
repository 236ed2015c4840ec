"""Training on a GPU: tokens a second and the share of matmul's rate, LoRA and every weight.

bash tests/performance/gpu_train.sh   eight minutes at most; without a GPU it says so

A Llama of a billion weights' shape, drawn at random, in bfloat16, on packed texts; the product's
own training, and the figures that its manifest gives.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from mitigate.methods import Context
from mitigate.methods.continued import train
from mitigate.settings import LoraSettings, MethodSettings
from tests.performance.gpu import TINY
from tests.performance.shapes import random_model
from tests.performance.training import posts

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def measure(weights: str, given: argparse.Namespace, texts: list[str], rows: int) -> str:
    """One line on one way to train, with the activations kept or computed again."""
    shape = TINY["llama-1b"] if given.tiny else {}
    random_model.cache_clear()  # training changes it in place
    dtype = torch.bfloat16
    lm = random_model("llama-1b", device=given.device, dtype=dtype, **shape)
    settings = MethodSettings(
        name=weights, weights=weights, lora=LoraSettings(r=16) if weights == "lora" else None,
        lr=1e-5, max_steps=given.steps, batch=rows, accumulation=1, keep="last", packing=True,
        block=64 if given.tiny else 512, save_steps=given.steps, eval_steps=given.steps,
    )  # fmt: skip
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        facts = train(
            Context(
                lm=lm, train=texts, valid=[], settings=settings, lora_targets=TARGETS, seed=0,
                processes=1, checkpoints=Path(folder), log=lambda values: None,
                say=lambda line: print(line, flush=True),
            )
        ).facts  # fmt: skip
    peak = torch.cuda.max_memory_allocated() / 2**30 if given.device != "cpu" else 0
    return (
        f"llama-1b {weights:<5} bfloat16 {facts['tokens_per_second']:>10,.0f} tokens/s, "
        f"{100 * facts['share_of_matmul_rate']:5.1f} % of matmul's rate; {facts['steps']} steps of "
        f"{rows} rows, {'packed' if facts['packed'] else 'not packed'}; {peak:.1f} GiB; "
        f"{time.perf_counter() - begun:.0f} s in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script")
    given = parser.parse_args()
    if given.device == "cpu" and not given.tiny:
        raise SystemExit("no GPU here: nothing was measured (--tiny tries the script on the CPU)")
    if given.device != "cpu":
        print(torch.cuda.get_device_name(), f"torch {torch.__version__}", flush=True)
    rows = 2 if given.tiny else 32
    texts = posts(100 if given.tiny else 40_000)
    for weights in ("lora", "all"):
        print(measure(weights, given, texts, rows), flush=True)
        if given.device != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
