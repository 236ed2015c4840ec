"""`deltas.json`, schema `mitigate.deltas/2`, described as types: see `Deltas`.

What is not defined (no interval, no p) is null. Keys of a row stand in the order of its type.
What a column means stands in the file itself, under `columns` (of `deltas`) and
`<table>_columns`. Beside schema 1: the columns from `df` to `smallest_shown`, the metric
`sigmoid`, the verdict "unchanged", the second published test, and the tables `two_way`,
`threshold`, `harm` and `erasure`.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

import pandas as pd

from eval.inference import DELTA_COLUMNS, PUBLISHED_COLUMNS, TWO_WAY_COLUMNS, Comparison
from eval.inference.erasure import ERASURE_COLUMNS
from eval.inference.harm import HARM_COLUMNS
from eval.inference.threshold import THRESHOLD_COLUMNS
from eval.plain import plain, records

SCHEMA = "mitigate.deltas/2"


class DeltaRow(TypedDict):
    """A scope and metric; units as in eval.inference.DELTA_COLUMNS."""

    scope: str
    metric: Literal["bias", "soft", "margin", "sigmoid", "distance", "ties"]
    n_pairs: int
    n_clusters: int
    before: float | None
    after: float | None
    delta: float | None
    se: float | None
    ci_low: float | None
    ci_high: float | None
    before_low: float | None
    before_high: float | None
    after_low: float | None
    after_high: float | None
    p: float | None
    p_adjusted: float | None
    family: str
    test: str
    df: float | None
    p_t: float | None
    bca_low: float | None
    bca_high: float | None
    p_floor: float | None
    equivalence_margin: float | None
    p_equivalence: float | None
    p_equivalence_adjusted: float | None
    smallest_shown: float | None
    moved_toward_50: bool | None
    verdict: str


class PublishedRow(TypedDict):
    """A scope and metric tested as in the papers, pairs taken for independent."""

    scope: str
    metric: Literal["bias", "soft", "margin"]
    n_pairs: int
    before: float | None
    before_se: float | None
    after: float | None
    after_se: float | None
    delta: float | None
    test: str
    p: float | None
    stars: str
    second_test: str
    second_p: float | None
    name: str


class TwoWayRow(TypedDict):
    """A change with its standard error by clusters of two kinds."""

    scope: str
    metric: str
    first: str
    second: str
    n_first: int
    n_second: int
    delta: float | None
    se: float | None
    df: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None


class ThresholdRow(TypedDict):
    """Bias where only margins beyond a threshold (nats) count and all others count half; %.

    `decided_*`: share of pairs beyond the threshold, %.
    """

    scope: str
    threshold: float
    before: float | None
    before_low: float | None
    before_high: float | None
    after: float | None
    after_low: float | None
    after_high: float | None
    delta: float | None
    delta_low: float | None
    delta_high: float | None
    decided_before: float | None
    decided_after: float | None


class HarmRow(TypedDict):
    """Correlation of margins with the harm that raters saw."""

    when: Literal["before", "after", "change"]
    n_pairs: int
    n_clusters: int
    r: float | None
    p_naive: float | None
    p_cluster: float | None
    r_low: float | None
    r_high: float | None
    rho: float | None
    p_rho: float | None


class ErasureRow(TypedDict):
    """Log-likelihood of the words in which a pair's sentences differ, nats."""

    scope: str
    term: Literal["identity", "counterpart", "difference"]
    n_pairs: int
    n_clusters: int
    before: float | None
    after: float | None
    delta: float | None
    se: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_adjusted: float | None


class Headline(TypedDict):
    """The mean over groups of |bias - 50| and its test; the spread between groups, points."""

    scope: Literal["macro", "overall"]
    what: str
    before: float | None
    after: float | None
    delta: float | None
    se: float | None
    df: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_adjusted: float | None
    p_floor: float | None
    equivalence_margin: float | None
    p_equivalence: float | None
    p_equivalence_adjusted: float | None
    smallest_shown: float | None
    lift_before: float | None  # points by which noise lifts the distance (bootstrap)
    lift_after: float | None
    verdict: str
    groups_changed: int  # in how many groups bias is shown to have changed
    bias_changed: bool  # whether it is in the headline's own scope
    n_groups: int
    n_pairs: int
    n_clusters: int
    clusters_moved: int
    spread_before: NotRequired[float]  # where a group has a bias
    most_before: NotRequired[str]  # the most affected group
    least_before: NotRequired[str]
    spread_after: NotRequired[float]
    most_after: NotRequired[str]
    least_after: NotRequired[str]


class Settings(TypedDict):
    """How the change was tested: eval.inference.InferenceSettings."""

    seed: int
    resamples: int
    alpha: float
    correction: Literal["holm", "bh", "none"]
    ties: Literal["half", "exclude", "reference"]
    slices: list[str]
    second_cluster: str
    equivalence_points: float
    equivalence_nats: float
    power: float


class BenchmarkDeltas(TypedDict):
    """What changed on one benchmark; a table is null where the pairs lack what it needs."""

    headline: Headline
    sentences: list[str]  # two
    notes: list[str]
    settings: Settings
    unit: Literal["stereotypes", "pairs"]  # what a cluster is
    deltas: list[DeltaRow]
    published: list[PublishedRow]
    two_way: list[TwoWayRow] | None
    threshold: list[ThresholdRow] | None
    harm: list[HarmRow] | None
    erasure: list[ErasureRow] | None


class Deltas(TypedDict):
    """The file."""

    schema: Literal["mitigate.deltas/2"]
    columns: dict[str, str]  # of `deltas`: name and meaning
    published_columns: dict[str, str]
    two_way_columns: dict[str, str]
    threshold_columns: dict[str, str]
    harm_columns: dict[str, str]
    erasure_columns: dict[str, str]
    degraded: str  # why the run failed the gate of retention; empty if it didn't, or had none
    benchmarks: dict[str, BenchmarkDeltas]


def as_json(comparisons: Mapping[str, Comparison], degraded: str = "") -> str:
    """The Delta tables, headlines, notes and further tables as JSON: `Deltas`."""
    found = {
        "schema": SCHEMA,
        "columns": DELTA_COLUMNS,
        "published_columns": PUBLISHED_COLUMNS,
        "two_way_columns": TWO_WAY_COLUMNS,
        "threshold_columns": THRESHOLD_COLUMNS,
        "harm_columns": HARM_COLUMNS,
        "erasure_columns": ERASURE_COLUMNS,
        "degraded": degraded,
        "benchmarks": {
            name: {
                "headline": plain(comparison.headline),
                "sentences": list(comparison.sentences()),
                "notes": comparison.notes,
                "settings": plain(dataclasses.asdict(comparison.settings)),
                "unit": comparison.unit,
                "deltas": _records(comparison.table),
                "published": _records(comparison.published),
                "two_way": _records(comparison.two_way),
                "threshold": _records(comparison.threshold),
                "harm": _records(comparison.harm),
                "erasure": _records(comparison.erasure),
            }
            for name, comparison in comparisons.items()
        },
    }
    return json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _records(table: pd.DataFrame | None) -> Any:
    return None if table is None else records(table)
