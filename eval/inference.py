"""Paired inference on two Score tables: deltas, intervals, tests, corrections.

The unit of inference is the stereotype (cluster): pairs that fill one predicate into many
templates and names rise and fall together.
"""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass
class InferenceSettings:
    """How sure we are, and by which rules."""

    seed: int = 0
    resamples: int = 10_000  # of the bootstrap, and of the sign-flip where it isn't exact
    alpha: float = 0.05
    correction: str = "holm"
    ties: str = "half"  # half, exclude, reference


#: Columns of the Delta table, one row per scope and metric.
DELTA_COLUMNS = (
    "scope",  # overall, macro, group:<name>, <column>:<value> for a slice
    "metric",  # bias, soft, distance (percentage points), margin (nats), ties (percent)
    "n_pairs",
    "n_clusters",
    "before",
    "before_low",
    "before_high",
    "after",
    "after_low",
    "after_high",
    "delta",
    "se",
    "ci_low",
    "ci_high",
    "p",
    "p_adjusted",
    "family",  # of the correction, in words
    "test",
    "moved_toward_50",
    "verdict",  # toward 50, away from 50, crossed over, not shown (with a warning if need be)
)


@dataclass(frozen=True)
class Comparison:
    """What changed between two Score tables, and how sure we are."""

    benchmark: str
    table: pd.DataFrame  # the Delta table, DELTA_COLUMNS
    published: pd.DataFrame  # scope, test, statistic, p, stars, se_before, se_after: *as published*
    headline: dict[str, float]  # distance_macro_before/_after, spread_before/_after, …
    notes: list[str] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)  # before, after: the tables' own metadata
    sentences: tuple[str, str] = ("", "")  # what it means, in words
