"""How much of an accelerator scoring uses: `python -m tests.performance.gpu [--device cuda]`

XLM-R-large and Llama-1B shapes with random weights, float32 and bfloat16, 40,000 pairs in
WinoQueer-NL's form; each configuration gets so many seconds, longest batches first. Prints tokens a
second and the share of the device's own rate of matrix products, measured in the same run.
"""

import argparse
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from eval.pairs import Pairs
from eval.scorers import work
from eval.scorers.batching import Effort, TokenBudget, default_budget
from tests.performance.scoring import planned
from tests.performance.shapes import cost, grown_pairs, matmul_rate, random_model

TINY = {
    "xlmr-large": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                   "intermediate_size": 64, "vocab_size": 2_000},
    "llama-1b": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 2_000,
                 "head_dim": 32},
}  # fmt: skip


class TimeIsUpError(Exception):
    """The configuration has had its seconds."""


def measure(
    name: str, dtype: torch.dtype, device: str, pairs: Pairs, limit_s: float, tiny: bool
) -> str:
    """One line on one model in one precision."""
    lm = random_model(name, device=device, dtype=dtype, **(TINY[name] if tiny else {}))
    begun = time.perf_counter()
    requests = planned(lm, pairs).requests
    planning = time.perf_counter() - begun
    budget, effort = TokenBudget(default_budget(lm)), Effort()
    state = {"done": 0, "begun": 0.0, "tokens": 0, "head_rows": 0}

    def report(done: int, total: int) -> None:
        if device != "cpu":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if not state["begun"]:  # the first batches warm up
            state.update(begun=now, tokens=effort.tokens, head_rows=effort.head_rows)
        elif now - state["begun"] > limit_s:
            raise TimeIsUpError
        state["done"] = done

    try:
        work.log_probs(lm, requests, budget=budget, effort=effort, report=report)
        ended = "all of them"
    except TimeIsUpError:
        ended = "then time was up"
    taken = time.perf_counter() - state["begun"]
    tokens = effort.tokens - int(state["tokens"])
    heads = effort.head_rows - int(state["head_rows"])
    flops = cost(lm).flops(tokens, heads, 0)  # attention apart: it is a few percent here
    rate = matmul_rate(device, dtype, 8192 if device != "cpu" else 512)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0
    return (
        f"{name:<11} {str(dtype).removeprefix('torch.'):<9} {tokens / taken:>12,.0f} tokens/s  "
        f"{flops / taken / 1e12:7.2f} TFLOP/s = {100 * flops / taken / rate:5.1f} % of matmul's "
        f"{rate / 1e12:.1f}; {state['done']:,} of {len(requests):,} requests, {ended}; planned in "
        f"{planning:.1f} s; {peak:.1f} GiB; {effort.arrangement}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=60, help="for each configuration")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script")
    given = parser.parse_args()
    if given.device == "cpu" and not given.tiny:
        raise SystemExit("no GPU here: nothing was measured (--tiny tries the script on the CPU)")
    # As the product runs: float32 products in full precision, no TF32.
    torch.backends.cuda.matmul.allow_tf32 = False
    if given.device != "cpu":
        print(torch.cuda.get_device_name(), f"torch {torch.__version__}", flush=True)
    pairs = grown_pairs(given.pairs)
    for name in ("xlmr-large", "llama-1b"):
        for dtype in (torch.float32, torch.bfloat16):
            print(measure(name, dtype, given.device, pairs, given.seconds, given.tiny), flush=True)
            if given.device != "cpu":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
