"""How small a change could have been shown, before a GPU hour is spent.

Planned from what a pilot or an earlier run measured: the cluster-robust standard error of its
change, and that error's degrees of freedom. The change delta is found whose two-sided t test
rejects with the wanted probability,

    P(|T| > t(1 - alpha/2, df)) = power,   T noncentral t with df and delta / se

(Cohen 1988, §2; Liu and Liang 1997 for clusters). With other numbers of clusters the standard
error goes with sqrt(clusters / planned clusters) and the degrees of freedom with
(planned clusters - 1) / (clusters - 1): more stereotypes of the same kind. More templates or
names for the same stereotypes buy next to nothing, which is why they aren't planned here.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import nct
from scipy.stats import t as student

from eval.errors import RequestError

if TYPE_CHECKING:
    from eval.inference import Comparison

#: Numbers of stereotypes that a plan shows where none are asked for; 167 is WinoQueer-NL's.
CLUSTERS = (10, 20, 30, 50, 100, 167)
UNITS = {"margin": "nats"}
_POINTS = "percentage points"
#: The table's columns and what they mean; the order is the table's.
POWER_COLUMNS = {
    "scope": "overall, macro (mean over groups), group:<name>, slice:<name>",
    "metric": "as in the Delta table",
    "planned": "planned clusters (stereotypes) of the benchmark as a whole",
    "n_clusters": "clusters of them in the scope, which keeps its share",
    "se": "expected standard error of the change",
    "df": "expected degrees of freedom of it",
    "smallest_change": "smallest change, either way, that would be shown; inf where no change "
    "could be, because so few clusters can't give a p below alpha",
    "unit": "of se and smallest_change",
}
_STEPS = 60  # of the bisection: beyond float64's precision


def smallest_change(
    se: np.ndarray | float,
    df: np.ndarray | float,
    alpha: float = 0.05,
    power: float = 0.8,
) -> np.ndarray:
    """The change that a two-sided t test at `alpha` shows with probability `power`.

    `se` and `df` broadcast; NaN in either, or df <= 0, gives NaN. In the units of `se`.

    Raises:
        RequestError: alpha or power don't lie between 0 and 1, or power isn't above alpha.
    """
    _check(alpha, power)
    se, df = np.broadcast_arrays(np.asarray(se, float), np.asarray(df, float))
    known = np.isfinite(se) & (df > 0)
    sizes, which = np.unique(df[known], return_inverse=True)
    found = np.full(se.shape, np.nan)
    found[known] = se[known] * _noncentrality(sizes, alpha, power)[which]
    return found


def _noncentrality(df: np.ndarray, alpha: float, power: float) -> np.ndarray:
    """delta / se at which the test has its power, by bisection. (degrees of freedom,)"""
    critical = student.ppf(1 - alpha / 2, df)
    low = np.zeros_like(df)
    # a quantile of t is enough: T leaves the critical value behind it with more than `power`
    high = 2 * (critical + np.abs(student.ppf(power, df))) + 1
    for _ in range(_STEPS):
        middle = (low + high) / 2
        reached = nct.sf(critical, df, middle) + nct.cdf(-critical, df, middle)
        low, high = np.where(reached < power, middle, low), np.where(reached < power, high, middle)
    return (low + high) / 2


def needed(
    earlier: "Comparison | pd.DataFrame",
    clusters: Sequence[int] = CLUSTERS,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
) -> pd.DataFrame:
    """The smallest change that could be shown, for planned numbers of clusters.

    Args:
        earlier: a pilot's or an earlier run's Comparison on the benchmark, or its Delta table
            (what deltas.csv holds).
        clusters: planned numbers of stereotypes of the whole benchmark; a group or slice keeps
            the share of them that it has in `earlier`, at least two.
        alpha: of one test. Where a family of m tests is planned and Holm corrects them,
            alpha / m is what the first of them must pass.
        power: the probability of showing the change.

    A standard error without degrees of freedom (that of distance is the bootstrap's) counts with
    n_clusters - 1. Where 2^(1 - n_clusters), the smallest p of the cluster test, isn't below
    alpha, no change can be shown: inf.

    Returns: a table with POWER_COLUMNS, a row for each scope, metric and planned number; scopes
    with a single cluster say nothing of variance and are left out.

    Raises:
        RequestError: fewer than two clusters are planned, a share is no share, or `earlier` has
            no standard error to plan from.
    """
    _check(alpha, power)
    wrong = [number for number in clusters if number < 2]
    if wrong or not clusters:
        raise RequestError(
            f"power: clusters={','.join(map(str, wrong or clusters)) or 'none'}: plan for two or "
            "more stereotypes"
        )
    table = earlier if isinstance(earlier, pd.DataFrame) else earlier.table
    missing = [name for name in ("scope", "metric", "n_clusters", "se", "df") if name not in table]
    if missing:
        raise RequestError(
            f"power: the table of the earlier run has no column {', '.join(missing)}; give a "
            "deltas.csv that this version wrote, or two score files"
        )
    whole = table.loc[table["scope"] == "overall", "n_clusters"]
    rows = table[table["se"].notna() & (table["n_clusters"] > 1)]
    if rows.empty or whole.empty:
        raise RequestError(
            "power: the earlier run has no standard error to plan from (one stereotype only); a "
            "pilot needs two stereotypes or more"
        )
    had = rows["n_clusters"].to_numpy(float)
    df = rows["df"].fillna(rows["n_clusters"] - 1).to_numpy(float)
    parts = []
    for planned in clusters:
        n = np.maximum(2, np.rint(planned * had / float(whole.iloc[0])))
        se = rows["se"].to_numpy(float) * np.sqrt(had / n)
        scaled = df * (n - 1) / (had - 1)
        change = smallest_change(se, scaled, alpha, power)
        change = np.where(2.0 ** (1 - n) < alpha, change, np.inf)
        parts.append(
            pd.DataFrame(
                {
                    "scope": rows["scope"].to_numpy(),
                    "metric": rows["metric"].to_numpy(),
                    "planned": planned,
                    "n_clusters": n.astype(int),
                    "se": se,
                    "df": scaled,
                    "smallest_change": change,
                    "unit": rows["metric"].map(UNITS).fillna(_POINTS).to_numpy(),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)[list(POWER_COLUMNS)]


def sentence(table: pd.DataFrame, *, alpha: float = 0.05, power: float = 0.8) -> str:
    """Say in a sentence what `needed` found for the mean over groups, or overall bias."""
    for scope, metric, what in (
        ("macro", "distance", "the mean over groups of |bias − 50|"),
        ("overall", "bias", "overall bias"),
    ):
        rows = table[(table["scope"] == scope) & (table["metric"] == metric)]
        if not rows.empty:
            break
    else:
        return "Nothing is planned: there is neither overall bias nor a mean over groups."
    parts = []
    for planned, change in zip(rows["planned"], rows["smallest_change"], strict=True):
        size = f"{change:.1f} points" if np.isfinite(change) else "no change at all"
        parts.append(f"{size} with {planned}")
    return (
        f"The smallest change of {what} that a test at {100 * alpha:g} % would show with "
        f"{100 * power:g} % power, by the number of stereotypes: {', '.join(parts)}."
    )


def _check(alpha: float, power: float) -> None:
    for name, value in (("alpha", alpha), ("power", power)):
        if not 0 < value < 1:
            raise RequestError(f"inference.{name}={value}: must lie between 0 and 1")
    if power <= alpha:
        raise RequestError(
            f"inference.power={power}: must be above alpha ({alpha}), which a test reaches with "
            "no change at all"
        )
