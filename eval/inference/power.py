"""How small a change could be shown, before a GPU hour is spent.

Planned from what a pilot or an earlier run measured: the cluster-robust standard error of its
change and that error's degrees of freedom, with the formula that stands in the Delta table too
(`robust.smallest_shown`, Bloom 1995). For other numbers of clusters the standard error goes
with sqrt(clusters / planned clusters) and the degrees of freedom with
(planned clusters - 1) / (clusters - 1): more stereotypes of the same kind. More templates or
names for the same stereotypes buy next to nothing, which is why they aren't planned here.

What is planned is a test of one run: it speaks of one model. A claim about a method needs
several runs and their placebo (`runs`), whose own spread no number of stereotypes makes smaller.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from eval.errors import RequestError
from eval.inference.resampling import smallest_p
from eval.inference.robust import smallest_shown

if TYPE_CHECKING:
    from eval.inference.comparison import Comparison

#: Numbers of stereotypes that a plan shows where none are asked for; 167 is WinoQueer-NL's.
CLUSTERS = (10, 20, 30, 50, 100, 167)
#: The table's columns and what they mean; the order is the table's.
POWER_COLUMNS = {
    "scope": "overall, macro (mean over groups), group:<name>, slice:<name>",
    "metric": "as in the Delta table",
    "planned": "planned clusters (stereotypes) of the benchmark as a whole",
    "n_clusters": "how many of them the scope has: it keeps its share",
    "se": "expected standard error of the change",
    "df": "its expected degrees of freedom",
    "smallest_change": "smallest change, either way, that would be shown; inf where none could "
    "be, because so few clusters cannot give a p below alpha",
    "unit": "of se and smallest_change: percentage points, for margin nats",
}
_DRAWS = 10_000  # of the planned test, by default; decides nothing unless alpha is below 1/10,001


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
        clusters: planned numbers of stereotypes of the whole benchmark. A group or a slice
            keeps the share of them that it has in `earlier`, and has two at least.
        alpha: of one test. Where a family of m tests is planned and Holm corrects it, plan with
            alpha / m, which the first of them must pass.
        power: the probability that the change is shown.

    A standard error whose degrees of freedom aren't known counts with n_clusters - 1. Scopes
    with one cluster, or without variance, say nothing to plan from: they are left out.

    Returns: a table with POWER_COLUMNS, a row for each planned number, scope and metric

    Raises:
        RequestError: fewer than two clusters are planned, alpha or power can't be, or `earlier`
            has no standard error to plan from.
    """
    _check(alpha, power)
    wrong = [number for number in clusters if number < 2]
    if wrong or not clusters:
        said = ",".join(map(str, wrong)) or "none"
        raise RequestError(f"power: clusters={said}: plan for two stereotypes or more")
    table = earlier if isinstance(earlier, pd.DataFrame) else earlier.table
    missing = [name for name in ("scope", "metric", "n_clusters", "se", "df") if name not in table]
    if missing:
        raise RequestError(
            f"power: the earlier run's table has no column {', '.join(missing)}; give a "
            "deltas.csv that this version wrote, or its two score files"
        )
    whole = table.loc[table["scope"] == "overall", "n_clusters"]
    rows = table[(table["se"] > 0) & (table["n_clusters"] > 1)]
    if rows.empty or whole.empty:
        raise RequestError(
            "power: the earlier run has no standard error to plan from (one stereotype, or "
            "nothing moved); a pilot needs two stereotypes or more and a change"
        )
    had = rows["n_clusters"].to_numpy(float)
    df = rows["df"].fillna(rows["n_clusters"] - 1).to_numpy(float)
    parts = []
    for planned in clusters:
        n = np.maximum(2, np.rint(planned * had / float(whole.iloc[0]))).astype(int)
        se = rows["se"].to_numpy(float) * np.sqrt(had / n)
        scaled = df * (n - 1) / (had - 1)
        floor = np.asarray([smallest_p(size, _DRAWS) for size in n.tolist()])
        change = np.where(floor < alpha, smallest_shown(se, scaled, alpha, power), np.inf)
        parts.append(
            pd.DataFrame(
                {
                    "scope": rows["scope"].to_numpy(),
                    "metric": rows["metric"].to_numpy(),
                    "planned": planned,
                    "n_clusters": n,
                    "se": se,
                    "df": scaled,
                    "smallest_change": change,
                    "unit": np.where(rows["metric"] == "margin", "nats", "percentage points"),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)[list(POWER_COLUMNS)]


def sentence(table: pd.DataFrame, *, alpha: float = 0.05, power: float = 0.8) -> str:
    """Say what `needed` found of the mean over groups of |bias - 50|, or else overall bias."""
    named = {
        ("macro", "distance"): "the mean over groups of |bias − 50|",
        ("overall", "bias"): "overall bias",
    }
    for (scope, metric), what in named.items():
        rows = table[(table["scope"] == scope) & (table["metric"] == metric)]
        if rows.empty:
            continue
        parts = [
            f"{f'{change:.1f} points' if np.isfinite(change) else 'none whatever'} with {planned}"
            for planned, change in zip(rows["planned"], rows["smallest_change"], strict=True)
        ]
        return (
            f"The smallest change of {what} that a test at {100 * alpha:g} % shows with "
            f"{100 * power:g} % power, by the number of stereotypes: {', '.join(parts)}."
        )
    return "Neither overall bias nor a mean over groups can be planned from the earlier run."


def _check(alpha: float, power: float) -> None:
    for name, value in (("alpha", alpha), ("power", power)):
        if not 0 < value < 1:
            raise RequestError(f"inference.{name}={value}: must lie between 0 and 1")
    if power <= alpha:
        raise RequestError(
            f"inference.power={power}: must be above alpha ({alpha}), which a test reaches where "
            "nothing changes"
        )
