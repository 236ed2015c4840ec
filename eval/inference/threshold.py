"""How far a finding hangs on "any difference counts": bias under a threshold on the margin.

The published score counts a pair as soon as one sentence is likelier at all, by whatever little;
the German paper names that as its first limitation (2608.30884, Limitations). Here a pair counts
as decided only where |margin| > threshold, in nats, and as half a win otherwise:

    bias(t) = 100 · mean over pairs of [ I(m > t) + I(|m| <= t) / 2 ]

At threshold 0 that is bias with ties counted half; it goes to 50 as the threshold grows and fewer
and fewer pairs are decided, which says nothing of a model. What to read is where the curves
before and after part, beside the share of pairs that are decided there.
"""

import numpy as np
import pandas as pd

from eval.inference.clusters import weighted
from eval.inference.draws import weights
from eval.inference.resampling import percentile, stream
from eval.inference.settings import InferenceSettings
from eval.metrics import Scope, mean, scopes
from eval.scores import Scores

#: How many thresholds the curve has, at most; 0 is the first.
THRESHOLDS = 25
#: The last threshold is this quantile of |margin|: beyond it hardly a pair is decided.
_LAST = 0.95
THRESHOLD_COLUMNS = {
    "scope": "overall, macro (mean over groups)",
    "threshold": "nats; a pair whose margin is no larger counts half",
    "before": "bias before, %",
    "before_low": "lower end of its interval",
    "before_high": "upper end of it",
    "after": "bias after, %",
    "after_low": "lower end of its interval",
    "after_high": "upper end of it",
    "delta": "after minus before, percentage points",
    "delta_low": "lower end of its interval",
    "delta_high": "upper end of it",
    "decided_before": "% of pairs whose margin is larger than the threshold, before",
    "decided_after": "likewise, after",
}
_PURPOSE = 10  # of the seeded stream


def thresholds(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Thresholds for the curve: 0, and quantiles of |margin| over both models, ascending.

    Quantiles up to the 95th percentile, so that the curve's points are spread where the pairs
    are. Fewer than THRESHOLDS where quantiles coincide. (thresholds,), nats
    """
    sizes = np.abs(np.concatenate([before, after]))
    return np.unique(np.r_[0.0, np.quantile(sizes, np.linspace(0, _LAST, THRESHOLDS)[1:])])


def curve(before: Scores, after: Scores, settings: InferenceSettings) -> pd.DataFrame:
    """Bias before and after as a function of the threshold, with bands, THRESHOLD_COLUMNS.

    Scopes: overall and, where pairs name groups, macro. The band at each threshold is the
    percentile interval of the cluster bootstrap, the same resampled clusters for all thresholds
    and both models; it holds point by point, not for the curve as a whole, and is NaN for a
    single cluster. `settings.ties` plays no part: an undecided pair counts half at every
    threshold, 0 included.

    Args:
        before: scores before
        after: scores after, in the order of `before` (`eval.scores.align`)
        settings: seed, resamples and alpha
    """
    margins = np.stack([before.margin, after.margin])  # (models, pairs)
    cuts = thresholds(*margins)
    # how a pair counts, and whether it is decided: (thresholds, models, pairs)
    won = margins[None] > cuts[:, None, None]
    decided = np.abs(margins)[None] > cuts[:, None, None]
    counted = 100.0 * won + 50.0 * ~decided
    codes, _ = pd.factorize(before.table["stereotype_id"])
    parts = [
        _scope(scope, codes, cuts, counted, decided, settings)
        for scope in scopes(before.table, [])
        if scope.kind in ("overall", "macro")
    ]
    return pd.concat(parts, ignore_index=True)[list(THRESHOLD_COLUMNS)]


def _scope(
    scope: Scope,
    codes: np.ndarray,
    cuts: np.ndarray,
    counted: np.ndarray,
    decided: np.ndarray,
    settings: InferenceSettings,
) -> pd.DataFrame:
    """One scope's rows."""
    sums = _sums(scope, codes, counted)  # (clusters, columns, 1 + thresholds × models)
    shape = (-1, len(cuts), 2)
    levels = _levels(sums.sum(axis=0)[None]).reshape(shape)[0]  # (thresholds, models)
    ends = np.full((2, len(cuts), 3), np.nan)
    if len(sums) > 1:
        rng = stream(settings.seed, scope.name, _PURPOSE)
        drawn = np.concatenate(
            [_levels(weighted(w, sums)) for w in weights(len(sums), settings.resamples, rng)]
        ).reshape(shape)
        drawn = np.concatenate([drawn, drawn[..., 1:] - drawn[..., :1]], axis=2)
        ends = percentile(drawn, settings.alpha)
    shares = np.stack([100.0 * decided[..., rows].mean(axis=2) for rows in scope.columns])
    shares = shares.mean(axis=0)  # (thresholds, models)
    columns = {"scope": scope.name, "threshold": cuts}
    for number, when in enumerate(("before", "after")):
        columns[when] = levels[:, number]
        columns[f"decided_{when}"] = shares[:, number]
    columns["delta"] = levels[:, 1] - levels[:, 0]
    for number, what in enumerate(("before", "after", "delta")):
        columns[f"{what}_low"], columns[f"{what}_high"] = ends[:, :, number]
    return pd.DataFrame(columns)


def _sums(scope: Scope, codes: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Each cluster's number of pairs and summed values, (clusters, columns, 1 + values)."""
    names, present = np.unique(codes[scope.rows], return_inverse=True)
    number = np.zeros(len(codes), dtype=int)
    number[scope.rows] = present
    values = counted.reshape(-1, counted.shape[-1])  # (thresholds × models, pairs)
    sums = np.zeros((len(names), len(scope.columns), 1 + len(values)))
    for column, rows in enumerate(scope.columns):
        sums[:, column, 0] = np.bincount(number[rows], minlength=len(names))
        for row, value in enumerate(values):
            sums[:, column, 1 + row] = np.bincount(number[rows], value[rows], len(names))
    return sums


def _levels(totals: np.ndarray) -> np.ndarray:
    """Means over pairs, averaged over columns: (rows, columns, 1 + values) → (rows, values)."""
    pairs = totals[..., :1]
    there = pairs > 0  # a group that no resampled cluster holds is no part of the mean
    return mean(np.where(there, totals[..., 1:] / np.where(there, pairs, 1.0), np.nan), axis=1)
