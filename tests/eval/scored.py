"""Score tables for the tests of measures, inference and reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from eval.pairs import benchmark_hash
from eval.scores import Scores, read

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"


def table(
    rows: Sequence[tuple[str, str, float, float]], name: str = "made", **columns: Any
) -> Scores:
    """Scores of (group, stereotype, score_more, score_less) rows, and further columns."""
    groups, stereotypes, more, less = zip(*rows, strict=True)
    ids = [f"{name}-{row}" for row in range(len(rows))]
    found = pd.DataFrame(
        {
            "pair_id": ids,
            "benchmark": name,
            "language": "de",
            "group": groups,
            "group_label": groups,
            "counterfactual": "",
            "stereotype_id": stereotypes,
            "template": "",
            "sent_more": [f"more {row}" for row in range(len(rows))],
            "sent_less": [f"less {row}" for row in range(len(rows))],
            "score_more": np.asarray(more, float),
            "score_less": np.asarray(less, float),
            "shared_tokens": 5,
            "length_more": 7,
            "length_less": 7,
            **columns,
        }
    )
    meta = {
        "benchmark": name,
        "benchmark_hash": benchmark_hash(found["pair_id"]),
        "scorer": "test",
        "scorer_version": "1",
        "model": "made",
    }
    return Scores(found, meta)


def simulated(
    clusters: int = 12,
    groups: Sequence[str] = ("gay", "lesbian", "transgender"),
    each: int = 2,
    *,
    lean: float = 1.0,
    effect: float = -1.0,
    run_noise: float = 0.5,
    seed: int = 0,
) -> tuple[Scores, Scores]:
    """Before and after: margins lean by `lean`, and move by `effect` and a noise by cluster."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[str, str, float, float]] = []
    moved: list[tuple[str, str, float, float]] = []
    for cluster in range(clusters):
        own, shift = rng.normal(0, 0.8), effect + rng.normal(0, run_noise)
        for group in groups:
            for _ in range(each):
                level = rng.normal(-30, 3)
                margin = lean + own + rng.normal(0, 0.7)
                later = margin + shift + rng.normal(0, 0.4)
                rows.append((group, f"s{cluster}", level + margin / 2, level - margin / 2))
                moved.append((group, f"s{cluster}", level + later / 2, level - later / 2))
    return table(rows), table(moved)


def published(model: str) -> Scores:
    """The published per-pair scores of Dutch CrowS-Pairs, or a skip that says what is missing."""
    path = REFERENCE / "dutch_crows_pairs" / f"results_{model}.csv"
    if not path.is_file():
        pytest.skip("no reference data at ../shared/reference")
    return read(path)
