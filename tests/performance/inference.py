"""How long does a comparison take? `python -m tests.performance.inference`

The largest benchmark's shape, 45,540 pairs of 165 stereotypes, 12 groups and 23 names, with
every estimator at 10,000 resamples: under 10 s of one core and under 1 GiB, imports included.
Beside it the naive loop, which draws clusters, puts the pairs together and measures them again;
a few of its resamples are timed and their time multiplied. Written to tests/performance/
INFERENCE.md; the exit status is 1 where a target is missed.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from eval.inference import InferenceSettings, compare
from eval.metrics import measure
from eval.scores import Scores
from tests.eval.scored import simulated

SECONDS, GIB = 10.0, 1.0
NAIVE_RESAMPLES = 5


def benchmark() -> tuple[Scores, Scores]:
    """Made scores of that shape, with what the further estimators need."""
    before, after = simulated(clusters=165, groups=[f"g{k:02}" for k in range(12)], each=23)
    rng = np.random.default_rng(0)
    pairs = len(before.table)
    harm = rng.uniform(-1, 4, 165)[pd.factorize(before.table["stereotype_id"])[0]]
    for scores in (before, after):
        scores.table["name"] = np.asarray([f"name{k:02}" for k in range(23)])[np.arange(pairs) % 23]
        scores.table["harm_mean"] = harm
        for column in ("identity_more", "identity_less"):
            scores.table[column] = rng.normal(-6, 2, pairs)
    return before, after


def naive_seconds(before: Scores, after: Scores, resamples: int) -> float:
    """Time of one bootstrap resample of both models, pair by pair, in CPU seconds."""
    rng = np.random.default_rng(0)
    rows = list(before.table.groupby("stereotype_id", sort=False).indices.values())
    start = time.process_time()
    for _ in range(resamples):
        drawn = np.concatenate([rows[k] for k in rng.integers(len(rows), size=len(rows))])
        for scores in (before, after):
            measure(Scores(scores.table.iloc[drawn].reset_index(drop=True), scores.meta))
    return (time.process_time() - start) / resamples


def main() -> int:
    """Measure, write INFERENCE.md; 1 where a target is missed."""
    before, after = benchmark()
    settings = InferenceSettings()
    start, clock = time.process_time(), time.perf_counter()
    found = compare(before, after, settings)
    seconds, wall = time.process_time() - start, time.perf_counter() - clock
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # from KiB
    one = naive_seconds(before, after, NAIVE_RESAMPLES)
    loop = 2 * one * settings.resamples  # the interval's draws, and as many of the test
    parts = {"two-way": found.two_way, "threshold curve": found.threshold, "harm": found.harm}
    parts["erasure"] = found.erasure
    told = [name for name, table in parts.items() if table is not None]
    text = f"""# Time of a comparison

Written by `python -m tests.performance.inference`.

{len(before.table):,} pairs, 165 stereotypes, 12 groups, {settings.resamples:,} resamples, \
{len(found.table)} rows of changes; with {", ".join(told)}.

| | CPU seconds | target |
|---|---:|---:|
| compare | {seconds:.1f} | {SECONDS:g} |
| naive loop, from {NAIVE_RESAMPLES} of its {2 * settings.resamples:,} resamples | {loop:,.0f} | |

Peak memory of the process: {gib:.2f} GiB (target {GIB:g} GiB). Wall clock of compare: \
{wall:.1f} s. The naive loop takes {loop / seconds:,.0f} times as long.
"""
    Path(__file__).with_name("INFERENCE.md").write_text(text, encoding="utf-8")
    print(text)
    return int(seconds > SECONDS or gib > GIB)


if __name__ == "__main__":
    sys.exit(main())
