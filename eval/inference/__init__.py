"""Paired inference: what changed between two Score tables of one benchmark, and how sure we are.

The unit of inference is the stereotype (the cluster): pairs that fill one stereotype into many
templates and names are one observation. Everything below is computed from sums over clusters,
which `ClusterSums` cuts once for every estimator:

- a *level* is the mean over pairs, for the macro scope the mean over groups of their means;
- *distance* is |bias - 50|, for the macro scope the mean over groups of it;
- the *test* swaps the labels before and after within whole clusters and recomputes the change;
  where no pair is left out that is the sign-flip test on the clusters' summed differences
  (Fisher 1935; Canay, Romano and Shaikh 2017). It is exact while 2^clusters <= 100,000, else
  seeded draws with p = (1 + hits) / (1 + draws) (Phipson and Smyth 2010);
- the *standard error* is the linearised cluster-robust one, sqrt(C/(C-1) · sum of squared
  cluster influences) (Liang and Zeger 1986, CR1); for distance, which has a kink at 50, the
  standard deviation over the bootstrap;
- the *interval* is the percentile interval of the cluster bootstrap (Davison and Hinkley 1997).

The test speaks of these two models. A claim about a *method* needs several training runs and
placebo runs beside them: a run's noise is shared by all its clusters.
"""

import warnings
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel
from statsmodels.stats.contingency_tables import mcnemar

from eval.errors import RequestError
from eval.metrics import (
    METRICS,
    NEUTRAL,
    PAIR_METRICS,
    TIES,
    Scope,
    groups_of,
    headline,
    mean,
    measure,
    per_pair,
    scopes,
    soft_score,
)
from eval.pairs import GROUP_SEPARATOR
from eval.scores import Scores, align

CORRECTIONS = ("holm",)
#: The sign-flip test enumerates every flip up to so many, and draws beyond.
EXACT_FLIPS = 100_000
#: With fewer clusters the verdict itself carries a warning.
FEW_CLUSTERS = 10
PUBLISHED_TEST = "as published (independent pairs)"
#: Below so many discordant pairs McNemar's test is the exact one.
MCNEMAR_EXACT_BELOW = 25
#: A drift of the soft score is told from here on: what shows at two decimals.
SOFT_DRIFT = 0.005
_CHUNK = 4_000_000  # numbers of a resampling block: 32 MB
_BIAS = PAIR_METRICS.index("bias")

#: The Delta table's columns and what they mean; the order is the table's.
DELTA_COLUMNS = {
    "scope": "overall, macro (mean over groups), group:<name>, slice:<name>",
    "metric": "bias, soft (%), margin (nats), distance (|bias - 50|, points), ties (% of pairs)",
    "n_pairs": "pairs in the scope",
    "n_clusters": "clusters (stereotypes) in the scope, the unit of inference",
    "before": "level before",
    "after": "level after",
    "delta": "after minus before: percentage points, for margin nats",
    "se": "cluster-robust standard error of delta; for distance the bootstrap's",
    "ci_low": "lower end of the cluster bootstrap interval of delta",
    "ci_high": "upper end of it",
    "before_low": "lower end of the interval of the level before",
    "before_high": "upper end of it",
    "after_low": "lower end of the interval of the level after",
    "after_high": "upper end of it",
    "p": "two-sided p of the cluster test",
    "p_adjusted": "p adjusted within the family",
    "family": "the tests that the adjustment covers, in words",
    "test": "the test and its number of flips",
    "moved_toward_50": "nearer the neutral point than before (50; for margin 0); empty for ties",
    "verdict": "toward 50, away from 50, crossed over, not shown; for margin the point is 0",
}
PUBLISHED_COLUMNS = {
    "scope": "overall, group:<name>, slice:<name>",
    "metric": "bias (I(s1 > s2), a tie counts 0), soft (%), margin (nats)",
    "n_pairs": "pairs, taken as independent observations",
    "before": "level before",
    "before_se": "its standard error: bias sqrt(p(1 - p)/n), else s/sqrt(n)",
    "after": "level after",
    "after_se": "its standard error",
    "delta": "after minus before",
    "test": "McNemar exact or chi2 (bias), paired t (soft, margin)",
    "p": "two-sided p, unadjusted",
    "stars": "* p<.05, ** p<.01, *** p<.001",
    "name": "under which name these tests stand",
}


@dataclass
class InferenceSettings:
    """How a change is tested."""

    seed: int = 0
    resamples: int = 10_000  # of the bootstrap, and of the test where it isn't exact
    alpha: float = 0.05
    correction: str = "holm"  # within a family
    ties: str = "half"  # half, exclude, reference: see eval.metrics.TIES


@dataclass(frozen=True)
class Comparison:
    """What changed on one benchmark.

    `table` has DELTA_COLUMNS, `published` PUBLISHED_COLUMNS. `headline`: the mean over groups
    of |bias - 50| and the spread between groups, before and after, with the test of the first.
    """

    benchmark: str
    table: pd.DataFrame
    published: pd.DataFrame
    headline: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    settings: InferenceSettings = field(default_factory=InferenceSettings)
    unit: str = "stereotypes"  # what a cluster is here: stereotypes, or pairs

    def rows(self, metric: str = "bias", kind: str | None = None) -> pd.DataFrame:
        """The Delta table's rows of one metric, of all scopes or of one kind (group, slice)."""
        rows = self.table[self.table["metric"] == metric]
        return rows if kind is None else rows[rows["scope"].str.startswith(f"{kind}:")]

    def sentences(self) -> tuple[str, str]:
        """The finding in two plain sentences, which follow from the verdicts."""
        return _first_sentence(self), _second_sentence(self)


@dataclass(frozen=True)
class ClusterSums:
    """A scope's sums over clusters, which every estimator is computed from.

    `sums`: (clusters, columns, models, parts, pair metrics); models are before and after,
    parts the sum of values and the number of pairs that have one.
    """

    sums: np.ndarray
    n_pairs: int

    @property
    def clusters(self) -> int:
        return self.sums.shape[0]

    @property
    def levels(self) -> np.ndarray:
        """Levels before and after, (models, metrics)."""
        return _levels(self.sums.sum(axis=0))

    @property
    def moved(self) -> int:
        """How many clusters' bias changed at all; the others weigh nothing in its test."""
        bias = self.sums[..., _BIAS]  # (clusters, columns, models, parts)
        return int((bias[:, :, 0] != bias[:, :, 1]).any(axis=(1, 2)).sum())


def compare(
    before: Scores,
    after: Scores,
    settings: InferenceSettings | None = None,
    *,
    slices: Sequence[str] | None = None,
    name: str | None = None,
) -> Comparison:
    """Compare two Score tables of one benchmark, pair by pair, tested by cluster.

    `after` is brought into the order of `before`; groups and clusters are those of `before`.
    `slices` as in `eval.metrics.scopes`; `name` is the benchmark's where the metadata has none.

    Raises:
        RequestError: the two aren't comparable, a score is not finite, or a setting is wrong.
    """
    settings = settings or InferenceSettings()
    _check(settings)
    before, after = align(before, after)
    table = before.table
    pairs = {  # (models, pair metrics, pairs)
        grouped: np.stack([per_pair(s, settings.ties, grouped=grouped) for s in (before, after)])
        for grouped in (False, True)
    }
    codes, _ = pd.factorize(table["stereotype_id"])
    cut = scopes(table, slices)
    sums = {scope.name: cluster_sums(scope, codes, pairs[scope.kind != "overall"]) for scope in cut}
    unit = "pairs" if sums["overall"].clusters == len(table) else "stereotypes"
    rows = [row for scope in cut for row in _rows(scope, sums[scope.name], settings)]
    deltas = _finish(pd.DataFrame(rows), cut, settings, unit)
    comparison = Comparison(
        benchmark=name or str(before.meta.get("benchmark") or table["benchmark"].iloc[0]),
        table=deltas[list(DELTA_COLUMNS)],
        published=_published(before, after, [scope for scope in cut if scope.kind != "macro"]),
        headline=_headline(before, after, deltas, sums, settings),
        settings=settings,
        unit=unit,
    )
    comparison.notes.extend(_notes(comparison, before, after, sums))
    return comparison


def cluster_sums(scope: Scope, clusters: np.ndarray, pairs: np.ndarray) -> ClusterSums:
    """Sum a scope's pairs over clusters.

    Args:
        scope: whose pairs.
        clusters: the cluster's number of each pair, (pairs,)
        pairs: what each pair contributes, NaN where left out, (models, pair metrics, pairs)
    """
    inside = scope.rows
    present, _ = pd.factorize(clusters[inside])
    number = np.zeros(len(clusters), dtype=int)  # of the cluster within the scope
    number[inside] = present
    there = ~np.isnan(pairs)
    parts = np.stack([np.where(there, pairs, 0.0), there])  # (parts, models, metrics, pairs)
    size = int(present.max()) + 1
    sums = np.zeros((size, len(scope.columns), 2, 2, len(PAIR_METRICS)))
    for column, rows in enumerate(scope.columns):
        for part in range(2):
            for model in range(2):
                for metric in range(len(PAIR_METRICS)):
                    weights = parts[part, model, metric, rows]
                    sums[:, column, model, part, metric] = np.bincount(
                        number[rows], weights, minlength=size
                    )
    return ClusterSums(sums, len(inside))


def standard_errors(cut: ClusterSums) -> np.ndarray:
    """Cluster-robust standard errors of the changes of PAIR_METRICS, (pair metrics,).

    A cluster's influence on a ratio of sums N/D is (n_c - N/D · d_c)/D; on the change it is
    the difference of the two, averaged over the scope's columns. NaN for one cluster.
    """
    if cut.clusters < 2:
        return np.full(len(PAIR_METRICS), np.nan)
    values, counts = cut.sums[:, :, :, 0], cut.sums[:, :, :, 1]  # (clusters, columns, models, m)
    totals = counts.sum(axis=0)
    ratio = _ratio(values.sum(axis=0), totals)
    influence = _ratio(values - ratio * counts, totals)
    influence = mean(influence[:, :, 1] - influence[:, :, 0], axis=1)  # (clusters, metrics)
    factor = cut.clusters / (cut.clusters - 1)
    return np.sqrt(factor * (influence**2).sum(axis=0))


def bootstrap(cut: ClusterSums, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Levels of the cluster bootstrap, (resamples, models, metrics).

    Clusters are drawn with replacement, as many as the scope has, the same for both models.
    """
    size = cut.clusters

    def draw(rows: int) -> np.ndarray:
        drawn = rng.integers(size, size=(rows, size), dtype=np.int32)
        drawn += np.arange(rows, dtype=np.int32)[:, None] * size
        return np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)

    return np.concatenate(
        [_levels(_weighted(draw(rows), cut.sums)) for rows in _blocks(resamples, size)]
    )


def swap_test(cut: ClusterSums, resamples: int, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Two-sided p of each metric's change under swapped labels, (metrics,), and the test's name.

    Before and after are exchangeable within a cluster if nothing changed. A draw in which a
    level is undefined (all its pairs left out) counts as a hit, which is the cautious side.
    """
    size = cut.clusters
    if size < 2:
        return np.full(len(METRICS), np.nan), "none: one cluster"
    exact = 2**size <= EXACT_FLIPS
    flips = 2**size if exact else resamples
    total = cut.sums.sum(axis=(0, 2))  # (columns, parts, metrics), over both models
    change = cut.sums[:, :, 1] - cut.sums[:, :, 0]  # (clusters, columns, parts, metrics)
    observed = np.abs(np.subtract(*cut.levels[::-1]))
    tolerance = _tolerance(cut)
    hits = np.zeros(len(METRICS))
    start = 0
    for rows in _blocks(flips, size):
        if exact:
            numbers = np.arange(start, start + rows)[:, None]
            signs = 1.0 - 2.0 * ((numbers >> np.arange(size)) & 1)
        else:
            bits = np.frombuffer(rng.bytes(rows * ((size + 7) // 8)), np.uint8)
            bits = np.unpackbits(bits.reshape(rows, -1), axis=1, count=size)
            signs = 1.0 - 2.0 * bits
        start += rows
        swapped = _weighted(signs, change)  # (rows, columns, parts, metrics)
        levels = _levels(np.stack([total - swapped, total + swapped], axis=2) / 2)
        size_of_change = np.abs(levels[:, 1] - levels[:, 0])  # (rows, metrics)
        hits += (~(size_of_change < observed - tolerance)).sum(axis=0)
    p = hits / flips if exact else (1 + hits) / (1 + flips)
    p = np.where(np.isnan(observed), np.nan, p)
    return p, f"exact, 2^{size} flips" if exact else f"{flips:,} seeded draws"


def _levels(totals: np.ndarray) -> np.ndarray:
    """Turn sums into levels: (…, columns, models, parts, pair metrics) → (…, models, metrics).

    A column without a value in either model is no part of the mean over columns.
    """
    ratio = _ratio(totals[..., 0, :], totals[..., 1, :])  # (…, columns, models, pair metrics)
    both = ~np.isnan(ratio).any(axis=-2, keepdims=True)
    ratio = np.where(both, ratio, np.nan)
    means = mean(ratio, axis=-3)
    distance = mean(np.abs(ratio[..., _BIAS] - NEUTRAL), axis=-2)
    by_name = {name: means[..., number] for number, name in enumerate(PAIR_METRICS)}
    by_name["distance"] = distance
    return np.stack([by_name[name] for name in METRICS], axis=-1)


def _weighted(weights: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Sum over clusters with weights: (rows, clusters), (clusters, columns, …) → (rows, columns, …)

    Column by column over the clusters it holds: where each group has its own clusters that
    saves a factor of as many groups.
    """
    flat = sums.reshape(*sums.shape[:2], -1)
    out = np.empty((len(weights), *flat.shape[1:]))
    for column in range(flat.shape[1]):
        held = flat[:, column].any(axis=1)
        used = weights if held.all() else weights[:, held]
        out[:, column] = used.astype(float) @ flat[held, column]
    return out.reshape(len(weights), *sums.shape[1:])


def _tolerance(cut: ClusterSums) -> np.ndarray:
    """Below which two changes are the same number but for rounding, (metrics,)."""
    values = np.abs(cut.sums[:, :, :, 0]).sum(axis=(0, 2))  # (columns, pair metrics)
    counts = cut.sums[:, :, :, 1].sum(axis=(0, 2))
    scale = 1e-12 * np.nan_to_num(mean(_ratio(values, counts), axis=0))
    by_name = dict(zip(PAIR_METRICS, scale, strict=True))
    by_name["distance"] = 1e-12 * NEUTRAL
    return np.asarray([by_name[name] for name in METRICS])


def _ratio(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """values / counts, NaN where there is nothing to divide by."""
    return np.where(counts > 0, values / np.where(counts > 0, counts, 1.0), np.nan)


def _blocks(total: int, width: int) -> Iterator[int]:
    """Cut `total` rows of `width` numbers into blocks that fit into memory."""
    rows = max(1, _CHUNK // width)
    for start in range(0, total, rows):
        yield min(rows, total - start)


def _check(settings: InferenceSettings) -> None:
    if settings.ties not in TIES:
        raise RequestError(f"inference.ties={settings.ties}: must be one of {', '.join(TIES)}")
    if settings.correction not in CORRECTIONS:
        raise RequestError(
            f"inference.correction={settings.correction}: must be {', '.join(CORRECTIONS)}"
        )
    if not 0 < settings.alpha < 1:
        raise RequestError(f"inference.alpha={settings.alpha}: must lie between 0 and 1")
    if settings.resamples < 100:
        raise RequestError(f"inference.resamples={settings.resamples}: must be at least 100")


def _rng(settings: InferenceSettings, scope: str, purpose: int) -> np.random.Generator:
    """A scope's own stream: adding a scope changes no other scope's numbers."""
    return np.random.default_rng([settings.seed, purpose, zlib.crc32(scope.encode())])


def _rows(scope: Scope, cut: ClusterSums, settings: InferenceSettings) -> Iterator[dict[str, Any]]:
    """The Delta table's rows of one scope, before adjustment and verdicts."""
    levels = cut.levels
    ends = np.full((2, 3, len(METRICS)), np.nan)  # low and high of before, after, delta
    errors = dict(zip(PAIR_METRICS, standard_errors(cut), strict=True))
    errors["distance"] = np.nan
    if cut.clusters > 1:
        drawn = bootstrap(cut, settings.resamples, _rng(settings, scope.name, 0))
        drawn = np.concatenate([drawn, drawn[:, 1:] - drawn[:, :1]], axis=1)
        shares = [settings.alpha / 2, 1 - settings.alpha / 2]
        with warnings.catch_warnings():  # of a metric that no draw defines: NaN is the answer
            warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
            ends = np.nanquantile(drawn, shares, axis=0)
        changes = drawn[:, 2, METRICS.index("distance")]
        changes = changes[~np.isnan(changes)]
        errors["distance"] = changes.std(ddof=1) if len(changes) > 1 else np.nan
    p, test = swap_test(cut, settings.resamples, _rng(settings, scope.name, 1))
    for number, metric in enumerate(METRICS):
        kind = "label swap" if metric == "distance" else "sign-flip"
        before, after = levels[:, number]
        yield {
            "scope": scope.name,
            "metric": metric,
            "n_pairs": cut.n_pairs,
            "n_clusters": cut.clusters,
            "before": before,
            "after": after,
            "delta": after - before,
            "se": errors[metric],
            "ci_low": ends[0, 2, number],
            "ci_high": ends[1, 2, number],
            "before_low": ends[0, 0, number],
            "before_high": ends[1, 0, number],
            "after_low": ends[0, 1, number],
            "after_high": ends[1, 1, number],
            "p": p[number],
            "test": test if test.startswith("none") else f"cluster {kind}, {test}",
        }


def _finish(
    table: pd.DataFrame, cut: list[Scope], settings: InferenceSettings, unit: str
) -> pd.DataFrame:
    """Add families, adjusted p, direction and verdict."""
    kinds = {scope.name: scope.kind for scope in cut}
    kind = table["scope"].map(kinds)
    whole = kind.isin(["overall", "macro"])
    table["p_adjusted"] = np.nan
    table["family"] = ""
    for _, rows in table.groupby([table["metric"], kind.mask(whole, "")], sort=False):
        tested = rows.index[rows["p"].notna()]
        if len(tested) == 0:
            continue
        metric, first = rows["metric"].iloc[0], kind[rows.index[0]]
        table.loc[tested, "p_adjusted"] = holm(table.loc[tested, "p"].to_numpy())
        over = {"overall": "overall and macro" if len(tested) > 1 else "overall"}
        table.loc[tested, "family"] = f"{metric} " + over.get(
            first, f"over the {len(tested)} {first}s" if len(tested) > 1 else f"of one {first}"
        )
    target = table["metric"].map({"margin": 0.0, "distance": 0.0}).fillna(NEUTRAL)
    nearer = (table["after"] - target).abs() < (table["before"] - target).abs()
    nearer = nearer.astype("boolean").mask(table["delta"].isna() | (table["metric"] == "ties"))
    table["moved_toward_50"] = nearer
    bias = table[table["metric"] == "bias"].set_index("scope")
    table["verdict"] = [
        _verdict(row, bias.loc[row["scope"]], kinds[row["scope"]], settings, unit)
        for row in table.to_dict("records")
    ]
    return table


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's adjusted p of a family (Holm 1979), in the order given. (tests,)

    statsmodels' `multipletests` gives the same, which a test pins, but collects garbage at
    every call: nine tenths of a comparison's time.
    """
    order = np.argsort(p, kind="stable")
    steps = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


def _verdict(
    row: dict[Hashable, Any], bias: pd.Series, kind: str, settings: InferenceSettings, unit: str
) -> str:
    """The verdict on one change, with a warning in it where few clusters carry it."""
    one = unit.removesuffix("s")
    if np.isnan(row["delta"]):
        return "not shown (all pairs tied)"
    if row["n_clusters"] == 1:
        return f"not shown (one {one}: no interval, no p)"
    shown = row["p_adjusted"] < settings.alpha
    metric = row["metric"]
    if not shown:
        verdict = "not shown"
    elif metric == "ties":
        verdict = "more ties" if row["delta"] > 0 else "fewer ties"
    else:
        # |bias - 50| itself cannot cross; whether the bias beneath it did is known for one
        # average, not for a mean over groups that went different ways
        point = 0 if metric == "margin" else 50
        level = bias if metric == "distance" else row
        crossed = (level["before"] - point) * (level["after"] - point) < 0
        if crossed and not (metric == "distance" and kind == "macro"):
            verdict = "crossed over"
        else:
            verdict = f"toward {point}" if row["moved_toward_50"] else f"away from {point}"
    n = row["n_clusters"]
    if n >= FEW_CLUSTERS:
        return verdict
    floor = 2.0 ** (1 - n)
    if floor >= settings.alpha:
        return f"{verdict} (only {n} {unit}: p cannot go below {floor:.4g})"
    return f"{verdict} (only {n} {unit})"


def plain_verdict(verdict: str) -> str:
    """A verdict without its warning."""
    return verdict.partition(" (")[0]


def _published(before: Scores, after: Scores, cut: list[Scope]) -> pd.DataFrame:
    """The papers' tests, which take pairs for independent observations.

    Bias: share of I(s1 > s2), standard error sqrt(p(1 - p)/n), McNemar's test, exact under 25
    discordant pairs, else chi2 with continuity correction. Soft score and margin: paired t.
    The German paper prints stars and does not name its test. (2608.30884, Tables 4-7)
    """
    scored = [
        (s.table["score_more"].to_numpy(float), s.table["score_less"].to_numpy(float))
        for s in (before, after)
    ]
    values: dict[str, list[np.ndarray]] = {
        "bias": [100.0 * (more > less) for more, less in scored],
        "soft": [soft_score(more, less) for more, less in scored],
        "margin": [more - less for more, less in scored],
    }
    tests: dict[str, Callable[[np.ndarray, np.ndarray], tuple[float, str]]] = {
        "bias": _mcnemar,
        "soft": _paired_t,
        "margin": _paired_t,
    }
    rows = []
    for scope in cut:
        for metric, (all_before, all_after) in values.items():
            x, y = all_before[scope.rows], all_after[scope.rows]
            p, test = tests[metric](x, y)
            rows.append(
                {
                    "scope": scope.name,
                    "metric": metric,
                    "n_pairs": len(x),
                    "before": x.mean(),
                    "before_se": _independent_se(x, metric),
                    "after": y.mean(),
                    "after_se": _independent_se(y, metric),
                    "delta": y.mean() - x.mean(),
                    "test": test,
                    "p": p,
                    "stars": stars(p),
                    "name": PUBLISHED_TEST,
                }
            )
    return pd.DataFrame(rows)[list(PUBLISHED_COLUMNS)]


def stars(p: float) -> str:
    """The German paper's stars: * p<.05, ** p<.01, *** p<.001."""
    return "*" * sum(p < level for level in (0.05, 0.01, 0.001))


def _independent_se(values: np.ndarray, metric: str) -> float:
    if metric == "bias":
        share = values.mean() / 100
        return float(100 * np.sqrt(share * (1 - share) / len(values)))
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _mcnemar(x: np.ndarray, y: np.ndarray) -> tuple[float, str]:
    down, up = int(((x > 0) & (y == 0)).sum()), int(((x == 0) & (y > 0)).sum())
    if down + up == 0:
        return 1.0, "McNemar, no discordant pair"
    same = [int(((x > 0) & (y > 0)).sum()), int(((x == 0) & (y == 0)).sum())]
    exact = down + up < MCNEMAR_EXACT_BELOW
    result = mcnemar([[same[0], down], [up, same[1]]], exact=exact, correction=True)
    return float(result.pvalue), "McNemar exact" if exact else "McNemar chi2"


def _paired_t(x: np.ndarray, y: np.ndarray) -> tuple[float, str]:
    difference = y - x
    if len(x) < 2:
        return float("nan"), "none: one pair"
    if np.ptp(difference) == 0:  # t is 0/0, or infinite
        return (
            (1.0, "paired t, no difference")
            if difference[0] == 0
            else (0.0, "paired t, all differences equal")
        )
    return float(ttest_rel(y, x).pvalue), "paired t"


def _headline(
    before: Scores,
    after: Scores,
    deltas: pd.DataFrame,
    sums: dict[str, ClusterSums],
    settings: InferenceSettings,
) -> dict[str, Any]:
    """The headline: distance from 50 over groups, spread between them, before and after."""
    scope = "macro" if "macro" in sums else "overall"
    row = deltas[(deltas["scope"] == scope) & (deltas["metric"] == "distance")].iloc[0]
    taken = ("before", "after", "delta", "ci_low", "ci_high", "p", "p_adjusted", "verdict")
    found: dict[str, Any] = {
        "scope": scope,
        "what": "mean over groups of |bias - 50|" if scope == "macro" else "|bias - 50|",
        **{key: row[key] if key == "verdict" else float(row[key]) for key in taken},
        "n_groups": sum(name.startswith("group:") for name in sums),
        "n_pairs": sums[scope].n_pairs,
        "n_clusters": sums[scope].clusters,
        "clusters_moved": sums[scope].moved,
    }
    for when, scores in (("before", before), ("after", after)):
        for key, value in headline(measure(scores, settings.ties, slices=[])).items():
            if key != "distance":
                found[f"{key}_{when}"] = value
    return found


def _notes(
    comparison: Comparison, before: Scores, after: Scores, sums: dict[str, ClusterSums]
) -> list[str]:
    """What a reader must know beside the numbers."""
    table, unit, ties = comparison.table, comparison.unit, comparison.settings.ties
    overall = table[table["scope"] == "overall"].set_index("metric")
    notes = []
    if unit == "pairs":
        notes.append(
            "Each pair is taken for a cluster of its own: the table names no stereotype that "
            "several pairs share."
        )
    bias = comparison.rows("bias")
    few = bias[bias["n_clusters"] < FEW_CLUSTERS]
    for n in sorted(set(few["n_clusters"].tolist())):
        where = ", ".join(few.loc[few["n_clusters"] == n, "scope"])
        if n == 1:
            notes.append(f"One cluster carries {where}: no interval and no p can be had from it.")
        else:
            notes.append(
                f"{n} clusters carry {where}: whatever the data, p cannot go below 2^(1-{n}) = "
                f"{2.0 ** (1 - n):.4g}, and the interval is too narrow."
            )
    counted = {
        "half": "count as half a win",
        "exclude": "are left out of every share",
        "reference": "(after rounding to three decimals) count as unbiased overall and are left "
        "out of the shares by group",
    }[ties]
    tied = overall.loc["ties", ["before", "after"]]
    if tied.any():
        notes.append(
            f"Ties: {tied['before']:.2f} % of pairs before, {tied['after']:.2f} % after; "
            f"they {counted}."
        )
    several = (
        before.table["group"].fillna("").astype(str).str.contains(GROUP_SEPARATOR, regex=False)
    )
    if several.any():
        notes.append(
            f"{int(several.sum())} pairs name several groups: each counts in all of them, and "
            "once overall."
        )
    grouped = np.unique(np.concatenate([np.empty(0, int), *groups_of(before.table).values()]))
    if 0 < len(grouped) < len(before.table):
        notes.append(
            f"{len(before.table) - len(grouped)} pairs name no group: they count overall only."
        )
    undefined = bias.loc[bias["delta"].isna(), "scope"].tolist()
    if undefined:
        notes.append(f"All pairs of {', '.join(undefined)} are left out as ties: no bias there.")
    flat = bias[
        ((bias["before_low"] == bias["before_high"]) | (bias["after_low"] == bias["after_high"]))
        & (bias["n_clusters"] > 1)
    ]["scope"].tolist()
    if flat:
        notes.append(
            f"A level's interval has no width in {', '.join(flat)}: there all {unit} went the "
            "same way, which a bootstrap takes for certainty; it is not."
        )
    drift = _soft_drift(before, after)
    if drift:
        notes.append(drift)
    return notes


def _soft_drift(before: Scores, after: Scores) -> str:
    """Tell how much of the soft score's change comes from both sentences getting less likely.

    The ratio is recomputed with the margins of before and the total likelihoods of after: what
    it moves by has nothing to do with which sentence of a pair is preferred.
    """
    more, less = (
        np.stack([s.table[column].to_numpy(float) for s in (before, after)])
        for column in ("score_more", "score_less")
    )
    fall = [float(x[1].mean() - x[0].mean()) for x in (more, less)]
    if max(fall) >= 0:
        return ""
    total, margin = more[1] + less[1], more[0] - less[0]
    unchanged = soft_score((total + margin) / 2, (total - margin) / 2).mean()
    was, now = (soft_score(more[model], less[model]).mean() for model in range(2))
    drift = unchanged - was
    if abs(drift) < SOFT_DRIFT or abs(unchanged - NEUTRAL) >= abs(was - NEUTRAL):
        return ""
    return (
        f"Both sentences of a pair became less likely (by {-fall[0]:.2f} and {-fall[1]:.2f} nats "
        f"on average). That alone, with every margin unchanged, moves the soft score toward 50, "
        f"from {was:.2f} to {unchanged:.2f}; it stands at {now:.2f}. Read the margin instead."
    )


def format_p(p: float) -> str:
    """p as it stands in a sentence."""
    if np.isnan(p):
        return "no p"
    return "p < 0.0001" if p < 0.00005 else f"p = {p:.4f}"


def signed(value: float, digits: int = 1) -> str:
    """A change with its sign, the minus as print has it; a dash where there is none."""
    return "–" if np.isnan(value) else f"{value:+.{digits}f}".replace("-", "−")


def _first_sentence(comparison: Comparison) -> str:
    """The headline and its verdict."""
    found = comparison.headline
    groups, unit = found["n_groups"], comparison.unit
    if np.isnan(found["delta"]):
        return "Nothing can be said of bias: all pairs are ties, before or after."
    where = {0: "overall bias", 1: "in the one group, bias"}.get(
        groups, f"averaged over the {groups} groups, bias"
    )
    levels = f"lay {found['before']:.1f} points from 50 before and {found['after']:.1f} after"
    if found["n_clusters"] == 1:
        one = unit.removesuffix("s")
        return f"The change cannot be tested: {where} {levels}, and one {one} carries it all."
    change = (
        f"{where} {levels} (change {signed(found['delta'])}, "
        f"{100 * (1 - comparison.settings.alpha):g} % interval {signed(found['ci_low'])} to "
        f"{signed(found['ci_high'])}; {format_p(found['p_adjusted'])}, tested over "
        f"{found['n_clusters']:,} {unit})"
    )
    plain, _, warning = str(found["verdict"]).partition(" (")
    warning = f"; {warning.removesuffix(')')}" if warning else ""
    if plain == "not shown":
        return (
            f"The change is not shown: {change}; bias moved in {found['clusters_moved']:,} of "
            f"{found['n_clusters']:,} {unit}{warning}."
        )
    opening = {
        "toward 50": "Bias moved toward 50",
        "away from 50": "Bias moved away from 50",
        "crossed over": "Bias crossed over to the other side of 50",
    }[plain]
    return f"{opening}: {change}{warning}."


def _second_sentence(comparison: Comparison) -> str:
    """Overall bias, and how many groups went which way."""
    rows = comparison.rows("bias")
    row = rows[rows["scope"] == "overall"].iloc[0]
    overall = (
        f"Overall bias went from {row['before']:.1f} to {row['after']:.1f} "
        f"({signed(row['delta'])} points, {format_p(row['p_adjusted'])}: "
        f"{plain_verdict(row['verdict'])})"
    )
    groups = comparison.rows("bias", "group")
    if groups.empty:
        return f"{overall}."
    plain = groups["verdict"].map(plain_verdict)
    ways = {
        "toward 50": "moved toward 50",
        "away from 50": "moved away from 50",
        "crossed over": "crossed over",
    }
    counts = {words: int((plain == verdict).sum()) for verdict, words in ways.items()}
    parts = [f"{count} {words}" for words, count in counts.items() if count]
    total, unshown = len(groups), int((plain == "not shown").sum())
    if not parts:
        none = f"in none of the {total} groups is a change shown"
        return f"{overall}; {none if total > 1 else 'in the one group no change is shown'}."
    if unshown:
        parts.append(f"for {unshown} no change is shown")
    of = f"of the {total} groups" if total > 1 else "of the one group"
    listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)
    return f"{overall}; {of}, {listed}."
