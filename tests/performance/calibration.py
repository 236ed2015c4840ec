"""How often does a test reject where nothing changed? `python -m tests.performance.calibration`

A/A data: before and after are drawn alike, so that a test at 5 % may reject in 5 % of the runs
and no more. Pairs of one cluster share a part of both margins (intra-cluster correlation 0.3),
clusters differ in size, pairs belong to four groups. Two designs, 30 clusters (the fewest of the
benchmarks with sentences made from templates) and 167 (WinoQueer-NL). Beside the default tests
stand the papers', which take pairs for independent. Written to tests/performance/CALIBRATION.md;
the exit status is 1 if a default test is further from 5 % than three Monte Carlo errors.
About five minutes on one core.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from eval.inference import cluster_sums, swap_test
from eval.inference.published import mcnemar_test, paired_t
from eval.inference.robust import robust, t_test
from eval.metrics import METRICS, PAIR_METRICS, scopes

CORRELATION = 0.3
LEVEL = 0.05
DRAWS = 999
GROUPS = ("gay", "lesbian", "queer", "transgender")
SHARES = (0.55, 0.25, 0.15, 0.05)
#: The tests that a verdict rests on; the others are printed beside them.
DEFAULT = "cluster sign-flip"


def design(clusters: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Clusters and groups of pairs: sizes from 2 to 150, skewed, as in templates × names."""
    sizes = np.clip(np.exp(rng.normal(2.8, 0.8, clusters)), 2, 150).astype(int)
    codes = np.repeat(np.arange(clusters), sizes)
    return codes, rng.choice(GROUPS, size=len(codes), p=SHARES)


def nothing_changed(codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Margins before and after, exchangeable, (models, pairs)."""
    clusters = int(codes.max()) + 1
    level = 0.4 + rng.normal(0, 0.5, clusters)[codes] + rng.normal(0, 0.8, len(codes))
    shared = rng.normal(0, math.sqrt(CORRELATION), (2, clusters))[:, codes]
    return level + shared + rng.normal(0, math.sqrt(1 - CORRELATION), (2, len(codes)))


def tests_of(
    codes: np.ndarray, groups: np.ndarray, margins: np.ndarray, rng: np.random.Generator
) -> Iterator[tuple[str, str, str, float]]:
    """Scope, metric, test and p of every test on one draw."""
    pairs = np.zeros((2, len(PAIR_METRICS), len(codes)))
    wins = np.where(margins > 0, 100.0, 0.0)
    pairs[:, PAIR_METRICS.index("margin")], pairs[:, PAIR_METRICS.index("bias")] = margins, wins
    for scope in scopes(pd.DataFrame({"group": groups}))[:2]:
        cut = cluster_sums(scope, codes, pairs)
        p, _ = swap_test(cut, DRAWS, rng)
        for metric in ("margin", "bias", "distance"):
            yield scope.name, metric, DEFAULT, p[METRICS.index(metric)]
        se, df = robust(cut)
        for metric in ("margin", "bias"):
            number, level = PAIR_METRICS.index(metric), METRICS.index(metric)
            delta = cut.levels[1, level] - cut.levels[0, level]
            yield scope.name, metric, "CR2 t, Satterthwaite", t_test(delta, se[number], df[number])
    yield "overall", "margin", "paired t, as published", paired_t(*margins)[0]
    yield "overall", "bias", "McNemar, as published", mcnemar_test(*wins)[0]


def rejections(clusters: int, runs: int, seed: int) -> pd.DataFrame:
    """Share of runs in which each test rejects at 5 %, with its Monte Carlo error.

    Columns: clusters, scope, metric, test, rejected, error (of a share that is truly 5 %).
    """
    rng = np.random.default_rng([seed, clusters])
    codes, groups = design(clusters, rng)
    seen = [
        (*names, p < LEVEL)
        for _ in range(runs)
        for *names, p in tests_of(codes, groups, nothing_changed(codes, rng), rng)
    ]
    found = pd.DataFrame(seen, columns=["scope", "metric", "test", "rejected"])
    found = found.groupby(["scope", "metric", "test"], sort=False, as_index=False).mean()
    found.insert(0, "clusters", clusters)
    found["error"] = math.sqrt(LEVEL * (1 - LEVEL) / runs)
    return found


def off(found: pd.DataFrame) -> pd.DataFrame:
    """The default tests whose share is further from 5 % than three Monte Carlo errors."""
    default = found[found["test"] == DEFAULT]
    return default[(default["rejected"] - LEVEL).abs() > 3 * default["error"]]


def main(runs: int = 2000, seed: int = 2026) -> int:
    """Run both designs, write CALIBRATION.md; 1 if a default test is off."""
    found = pd.concat([rejections(clusters, runs, seed) for clusters in (30, 167)])
    lines = [
        "# Rejections where nothing changed",
        "",
        "Written by `python -m tests.performance.calibration`.",
        "",
        f"{runs:,} runs of A/A data a design, tests at 5 %, intra-cluster correlation "
        f"{CORRELATION}, unequal clusters, four groups of {', '.join(f'{s:.0%}' for s in SHARES)} "
        "of the pairs; unadjusted p; Monte Carlo standard error of a true 5 %: "
        f"{100 * found['error'].iloc[0]:.2f} points. The sign-flip test is the one the verdicts "
        "rest on; of a distance they ask for a t test too, and so reject less often than here.",
        "",
        "| clusters | scope | metric | test | rejected |",
        "|---:|---|---|---|---:|",
        *(
            f"| {row.clusters} | {row.scope} | {row.metric} | {row.test} | {row.rejected:.1%} |"
            for row in found.itertuples()
        ),
    ]
    wrong = off(found)
    text = "\n".join(lines) + "\n"
    Path(__file__).with_name("CALIBRATION.md").write_text(text, encoding="utf-8")
    print(text)
    for row in wrong.itertuples():
        print(f"off: {row.clusters} clusters, {row.scope} {row.metric}: {row.rejected:.1%}")
    return int(len(wrong) > 0)


if __name__ == "__main__":
    sys.exit(main())
