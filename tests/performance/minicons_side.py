"""The other side of a measurement: minicons, in an environment of its own.

Reads {"model", "texts", "turns"} from standard input; prints the median seconds for scoring all
tokens of the texts, masked one at a time, for one sentence a call and for sixteen.
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


def run(batch: int, texts: list[str]) -> tuple[float, int]:
    tokens = 0
    begun = time.perf_counter()
    for start in range(0, len(texts), batch):
        for found in model.token_score(texts[start : start + batch]):
            tokens += len(found)
    return time.perf_counter() - begun, tokens


run(4, given["texts"][:8])
seconds, requests = {}, 0
for size in (1, 16):
    taken = [run(size, given["texts"]) for _ in range(given["turns"])]
    seconds[size] = statistics.median(each for each, _ in taken)
    requests = taken[0][1]
print(json.dumps({"seconds": seconds, "requests": requests, "version": version("minicons")}))
