"""The other side of a measurement: minicons, in an environment of its own.

Reads {"model", "texts", "turns"} from standard input; prints the median seconds for scoring all
tokens of the texts, masked one at a time, at the best of a few batch sizes.
"""

import json
import statistics
import sys
import time
from importlib.metadata import version

import torch
from minicons import scorer

given = json.load(sys.stdin)
torch.set_num_threads(1)
model = scorer.MaskedLMScorer(given["model"], "cpu")


def run(batch: int) -> tuple[float, int]:
    tokens = 0
    begun = time.perf_counter()
    for start in range(0, len(given["texts"]), batch):
        for found in model.token_score(given["texts"][start : start + batch]):
            tokens += len(found)
    return time.perf_counter() - begun, tokens


run(4)
best = min((run(batch)[0], batch) for batch in (1, 4, 16))[1]
taken = [run(best) for _ in range(given["turns"])]
print(
    json.dumps(
        {
            "seconds": statistics.median(seconds for seconds, _ in taken),
            "requests": taken[0][1],
            "batch": best,
            "version": version("minicons"),
        }
    )
)
