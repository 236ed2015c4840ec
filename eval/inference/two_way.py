"""Clusters of two kinds at once: the stereotype, and the name that fills its template.

Pairs of one stereotype depend on each other, and so may pairs that carry one name, whatever
their stereotype. The variance of Cameron, Gelbach and Miller (2011) adds the two one-way
variances and takes off that of the cells where both agree: V1 + V2 - V12, each with its own
factor C/(C - 1). The t distribution has one degree of freedom less than the fewer of the two
kinds of cluster. In small samples the sum can come out at or below zero; V12, which is then the
largest of the three, stands in its place, and a note says so.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from eval.inference.clusters import ClusterSums, cluster_sums
from eval.inference.robust import influences, t_test
from eval.inference.settings import InferenceSettings
from eval.metrics import METRICS, PAIR_METRICS, Scope

_AUTO = "name"
TWO_WAY_COLUMNS = {
    "scope": "as in the Delta table",
    "metric": "bias, soft, sigmoid, ties (points), margin (nats)",
    "first": "the first kind of cluster: stereotype_id",
    "second": "the second kind: a column",
    "n_first": "clusters of the first kind",
    "n_second": "clusters of the second kind; pairs where it is empty share none",
    "delta": "after minus before",
    "se": "two-way cluster-robust standard error, V1 + V2 - V12",
    "df": "degrees of freedom: the fewer of the two kinds, less one",
    "ci_low": "lower end of the t interval",
    "ci_high": "upper end of it",
    "p": "two-sided p of the t test, unadjusted",
}


def second_column(table: pd.DataFrame, settings: InferenceSettings) -> str | None:
    """The column of the second kind of cluster; None where the table has none with two values."""
    if settings.second_cluster == "none":
        return None
    column = _AUTO if settings.second_cluster == "auto" else settings.second_cluster
    if column not in table or column == "stereotype_id":
        return None
    return column if pd.Series(_texts(table[column])).replace("", None).nunique() > 1 else None


def two_way(
    table: pd.DataFrame,
    cut: list[Scope],
    pairs: Mapping[bool, np.ndarray],
    sums: Mapping[str, ClusterSums],
    settings: InferenceSettings,
) -> tuple[pd.DataFrame | None, list[str]]:
    """Test each change with two kinds of clusters, with TWO_WAY_COLUMNS, and what to note.

    None where the table has no second kind. Scopes with fewer than two clusters of either kind
    are left out.

    Args:
        table: the Score table that scopes and clusters are taken from
        cut: the scopes
        pairs: what each pair contributes, by whether the scope is one of grouped shares
            (models, pair metrics, pairs)
        sums: the scopes' sums over stereotypes, by scope
        settings: for alpha and the column
    """
    column = second_column(table, settings)
    if column is None:
        return None, []
    names = _texts(table[column])
    empty = names == ""
    first, _ = pd.factorize(table["stereotype_id"])
    second, _ = pd.factorize(names)
    second = np.where(empty, second.max() + 1 + np.arange(len(table)), second)
    both = first * (int(second.max()) + 1) + second
    rows: list[dict[str, Any]] = []
    replaced: list[str] = []
    for scope in cut:
        inside = scope.rows
        n_second = len(np.unique(second[inside][~empty[inside]]))
        one = sums[scope.name]
        if min(one.clusters, n_second) < 2:
            continue
        kinds = [one, *(cluster_sums(scope, codes, pairs[scope.kind != "overall"])
                        for codes in (second, both))]  # fmt: skip
        variance, fell_back = combined(*(one_way_variance(kind) for kind in kinds))
        if fell_back.any():
            replaced.append(scope.name)
        df = np.full(len(PAIR_METRICS), min(one.clusters, n_second) - 1.0)
        se = np.sqrt(variance)
        level = one.levels[:, [METRICS.index(metric) for metric in PAIR_METRICS]]
        delta = level[1] - level[0]
        p = t_test(delta, se, df)
        reach = student.ppf(1 - settings.alpha / 2, df) * se
        rows += [
            {
                "scope": scope.name,
                "metric": metric,
                "first": "stereotype_id",
                "second": column,
                "n_first": one.clusters,
                "n_second": n_second,
                "delta": delta[number],
                "se": se[number],
                "df": df[number],
                "ci_low": delta[number] - reach[number],
                "ci_high": delta[number] + reach[number],
                "p": p[number],
            }
            for number, metric in enumerate(PAIR_METRICS)
        ]
    if not rows:
        return None, []
    notes = []
    if replaced:
        notes.append(
            f"The two-way variance (stereotype × {column}) of a change came out at or below zero "
            f"in {', '.join(replaced)}; that of the cells, the largest of the three, stands there."
        )
    return pd.DataFrame(rows)[list(TWO_WAY_COLUMNS)], notes


def one_way_variance(cut: ClusterSums) -> np.ndarray:
    """CR1 variance of the changes of PAIR_METRICS: C/(C - 1) times the sum of squares."""
    return cut.clusters / (cut.clusters - 1) * (influences(cut) ** 2).sum(axis=0)


def combined(
    first: np.ndarray, second: np.ndarray, cells: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """V1 + V2 - V12, and where V12 stands instead, each (metrics,)."""
    variance = first + second - cells
    bad = (variance <= 1e-12 * cells) & (cells > 0)
    return np.where(bad, cells, variance), bad


def _texts(column: pd.Series) -> np.ndarray:
    values = column.astype(object)
    return values.where(values.notna(), "").astype(str).str.strip().to_numpy(dtype=str)
