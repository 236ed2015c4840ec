"""A whole comparison: every estimator over every scope, from two Score tables."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from eval.inference import erasure, harm, positions, resampling, robust, threshold
from eval.inference.clusters import ClusterSums, cluster_sums, tolerance
from eval.inference.comparison import DELTA_COLUMNS, Comparison
from eval.inference.notes import notes_of
from eval.inference.published import as_published
from eval.inference.settings import InferenceSettings, check
from eval.inference.two_way import two_way
from eval.inference.verdicts import finish
from eval.metrics import METRICS, Scope, headline, per_pair, scopes
from eval.scores import PAIR_OF, Scores, align

_DISTANCE = METRICS.index("distance")


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
    `slices` as in `eval.metrics.scopes`; by default those of the settings that the table has,
    a note naming the others. `name` is the benchmark's where the metadata has none.

    Raises:
        RequestError: the two aren't comparable, a score is not finite, or a setting is wrong.
    """
    settings = settings or InferenceSettings()
    check(settings)
    before, after = align(before, after)
    table = before.table
    missing = [column for column in settings.slices if column not in table]
    if slices is None and settings.slices:
        slices = [column for column in settings.slices if column in table]
    pairs = {  # (models, pair metrics, pairs)
        grouped: np.stack([per_pair(s, settings.ties, grouped=grouped) for s in (before, after)])
        for grouped in (False, True)
    }
    codes, _ = pd.factorize(table["stereotype_id"])
    cut = scopes(table, slices)
    sums = {scope.name: cluster_sums(scope, codes, pairs[scope.kind != "overall"]) for scope in cut}
    asked = table[PAIR_OF].nunique() if PAIR_OF in table else len(table)
    unit = "pairs" if sums["overall"].clusters == asked else "stereotypes"
    rows = [row for scope in cut for row in _rows(scope, sums[scope.name], settings)]
    deltas = finish(pd.DataFrame(rows), cut, settings, unit)
    crossed, crossed_notes = two_way(table, cut, pairs, sums, settings)
    comparison = Comparison(
        benchmark=name or str(before.meta.get("benchmark") or table["benchmark"].iloc[0]),
        table=deltas[list(DELTA_COLUMNS)],
        published=as_published(before, after, [scope for scope in cut if scope.kind != "macro"]),
        headline=_headline(deltas, sums, settings),
        settings=settings,
        unit=unit,
        two_way=crossed,
        threshold=threshold.curve(before, after, settings),
        harm=harm.correlations(before, after, settings),
        erasure=erasure.changes(before, after, settings),
        positions=positions.changes(before, after, settings),
    )
    if PAIR_OF in table:
        comparison.notes.extend(positions.notes(before, after, comparison.positions))
    comparison.notes.extend(notes_of(comparison, before, after))
    comparison.notes.extend(crossed_notes)
    if missing and slices is not None:
        comparison.notes.append(
            f"Not sliced by {', '.join(missing)} (inference.slices): the pairs carry no such "
            "column."
        )
    return comparison


def _rows(scope: Scope, cut: ClusterSums, settings: InferenceSettings) -> Iterator[dict[str, Any]]:
    """The Delta table's rows of one scope, before adjustment and verdicts."""
    levels = cut.levels
    delta = levels[1] - levels[0]
    same = tolerance(cut)
    ends = np.full((2, 3, len(METRICS)), np.nan)  # low and high of before, after, delta
    accelerated = np.full((2, len(METRICS)), np.nan)
    of_pairs, df_of_pairs = robust.robust(cut)
    spread = np.nan  # the bootstrap's standard error of distance
    lift = np.full(2, np.nan)
    if cut.clusters > 1:
        stream = resampling.stream(settings.seed, scope.name, 0)
        drawn = resampling.bootstrap(cut, settings.resamples, stream)
        changes = drawn[:, 1] - drawn[:, 0]
        ends[:, :2] = resampling.percentile(drawn, settings.alpha)
        ends[:, 2] = resampling.percentile(changes, settings.alpha)
        left_out = resampling.jackknife(cut)
        accelerated = resampling.bca(
            changes, delta, left_out[:, 1] - left_out[:, 0], settings.alpha, same
        )
        known = changes[~np.isnan(changes[:, _DISTANCE]), _DISTANCE]
        if len(known):
            lift = np.nanmean(drawn[:, :, _DISTANCE], axis=0) - levels[:, _DISTANCE]
        spread = float(known.std(ddof=1)) if len(known) > 1 else np.nan
    se = robust.over_metrics(of_pairs, spread)
    se = np.where(se <= same, np.minimum(se, 0.0), se)  # rounding is no variance
    df = robust.over_metrics(df_of_pairs, robust.distance_df(cut))
    margins = np.asarray([settings.margin(metric) for metric in METRICS])
    p_t = robust.t_test(delta, se, df)
    p_equivalence = robust.equivalence_test(delta, se, df, margins)
    stream = resampling.stream(settings.seed, scope.name, 1)
    p, test = resampling.swap_test(cut, settings.resamples, stream)
    # Swapped labels ask whether anything changed. That a distance did is more: bias can go from
    # one side of 50 to the other, and be as far from it as before. So both tests must reject.
    p[_DISTANCE] = np.fmax(p[_DISTANCE], p_t[_DISTANCE])
    floor = resampling.smallest_p(cut.clusters, settings.resamples)
    for number, metric in enumerate(METRICS):
        kind = "label swap and t" if metric == "distance" else "sign-flip"
        yield {
            "scope": scope.name,
            "metric": metric,
            "n_pairs": cut.n_pairs,
            "n_clusters": cut.clusters,
            "before": levels[0, number],
            "after": levels[1, number],
            "delta": delta[number],
            "se": se[number],
            "ci_low": ends[0, 2, number],
            "ci_high": ends[1, 2, number],
            "before_low": ends[0, 0, number],
            "before_high": ends[1, 0, number],
            "after_low": ends[0, 1, number],
            "after_high": ends[1, 1, number],
            "p": p[number],
            "test": test if test.startswith("none") else f"cluster {kind}, {test}",
            "df": df[number],
            "p_t": p_t[number],
            "bca_low": accelerated[0, number],
            "bca_high": accelerated[1, number],
            "p_floor": floor,
            "equivalence_margin": margins[number],
            "p_equivalence": p_equivalence[number],
            # not of the table: by how much noise lifts a distance, told in a note
            "lift_before": lift[0] if number == _DISTANCE else np.nan,
            "lift_after": lift[1] if number == _DISTANCE else np.nan,
        }


def _headline(
    deltas: pd.DataFrame, sums: dict[str, ClusterSums], settings: InferenceSettings
) -> dict[str, Any]:
    """The headline: distance from 50 over groups, spread between them, before and after."""
    scope = "macro" if "macro" in sums else "overall"
    row = deltas[(deltas["scope"] == scope) & (deltas["metric"] == "distance")].iloc[0]
    taken = (
        *("before", "after", "delta", "se", "df", "ci_low", "ci_high", "p", "p_adjusted"),
        *("p_floor", "equivalence_margin", "p_equivalence", "p_equivalence_adjusted"),
        *("smallest_shown", "lift_before", "lift_after", "verdict"),
    )
    groups = deltas[deltas["scope"].str.startswith("group:") & (deltas["metric"] == "bias")]
    found: dict[str, Any] = {
        "scope": scope,
        "what": "mean over groups of |bias - 50|" if scope == "macro" else "|bias - 50|",
        **{key: row[key] if key == "verdict" else float(row[key]) for key in taken},
        "n_groups": sum(name.startswith("group:") for name in sums),
        "n_pairs": sums[scope].n_pairs,
        "n_clusters": sums[scope].clusters,
        "clusters_moved": sums[scope].moved,
        # whatever its distance did: whether bias itself is shown to have changed
        "groups_changed": int((groups["p_adjusted"] < settings.alpha).sum()),
        "bias_changed": bool(
            deltas.loc[
                (deltas["scope"] == scope) & (deltas["metric"] == "bias"), "p_adjusted"
            ].iloc[0]
            < settings.alpha
        ),
    }
    for when in ("before", "after"):
        levels = deltas.pivot(index="scope", columns="metric", values=when).loc[list(sums)]
        for key, value in headline(levels.reset_index()).items():
            if key != "distance":
                found[f"{key}_{when}"] = value
    return found
