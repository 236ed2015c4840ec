"""Across models and languages: the papers' mean rows, the spread between groups, languages.

The papers sum up their models in a row of means, every model counting once (2608.30884,
Tables 4-7; 2609.02651, Table 5), and tell how far the most affected group lies from the least
(2609.02651 §5.1: 42 points in Dutch, 16 in English). Neither has an interval here: the models
were picked, not drawn, so that only their standard deviation stands beside the mean.

Languages are set side by side on the identities that all of them have, by their canonical
names. Their benchmarks differ in more than language (whose stereotypes, which templates, which
models): what is seen is a difference between benchmarks, and is tested nowhere.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from eval.errors import RequestError
from eval.scores import Scores

if TYPE_CHECKING:
    from eval.inference.comparison import Comparison

#: One model measured on one benchmark: the model's name, the language, what changed.
Measured = tuple[str, str, "Comparison"]
_LEVELS = ("before", "after", "delta")
LONG_COLUMNS = ("model", "language", "benchmark", "scope", "metric", *_LEVELS)
MEAN_COLUMNS = {
    "language": "of the benchmark",
    "benchmark": "the benchmark",
    "scope": "as in the Delta table",
    "metric": "as in the Delta table: %, points, for margin nats",
    "n_models": "models that have the scope",
    "before": "mean over models of the level before",
    "after": "likewise, after",
    "delta": "likewise, of after minus before",
    "before_sd": "standard deviation between models",
    "after_sd": "likewise, after",
    "delta_sd": "likewise, of the change",
}
SPREAD_COLUMNS = {
    "model": "the model; `mean` for the groups' means over models",
    "language": "of the benchmark",
    "benchmark": "the benchmark",
    "when": "before, after",
    "n_groups": "groups",
    "most": "the group with the highest bias",
    "most_bias": "its bias, %",
    "least": "the group with the lowest bias",
    "least_bias": "its bias, %",
    "spread": "the one minus the other, points",
}
#: The row of `spread` that stands for all models.
MEAN = "mean"


def language_of(scores: Scores) -> str:
    """The language of a Score table's pairs; several are joined by `+`, none is empty."""
    found = scores.table["language"].fillna("").astype(str).unique()
    return "+".join(sorted(set(found.tolist()) - {""}))


def long(measured: Iterable[Measured]) -> pd.DataFrame:
    """One row per model, language, benchmark, scope and metric, with LONG_COLUMNS.

    Raises:
        RequestError: there is nothing, or one model stands twice for one benchmark: the mean
            would count it twice.
    """
    parts = [
        comparison.table[["scope", "metric", *_LEVELS]].assign(
            model=model, language=language, benchmark=comparison.benchmark
        )
        for model, language, comparison in measured
    ]
    if not parts:
        raise RequestError("across: there is no comparison to average")
    rows = pd.concat(parts, ignore_index=True)[list(LONG_COLUMNS)]
    again = rows[rows.duplicated(["model", "language", "benchmark", "scope", "metric"])]
    if len(again):
        of = again.iloc[0]
        raise RequestError(
            f"across: {of['model']} stands twice for {of['benchmark']}; give each of its runs a "
            "name of its own, or see what runs as wholes say"
        )
    return rows


def across(measured: Iterable[Measured]) -> pd.DataFrame:
    """The papers' mean rows of these comparisons: `means` of `long`.

    Raises:
        RequestError: see `long`
    """
    return means(long(measured))


def means(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean over models of each level and change, every model once, with MEAN_COLUMNS.

    Per language, benchmark, scope and metric; a model without a level there (NaN) isn't
    counted. Standard deviations have n - 1 below them, NaN for one model.

    Args:
        rows: LONG_COLUMNS, from `long` or published
    """
    rows = rows.dropna(subset=["before", "after", "delta"])
    by = rows.groupby(["language", "benchmark", "scope", "metric"], sort=False)
    found = by[list(_LEVELS)].mean()
    found[[f"{level}_sd" for level in _LEVELS]] = by[list(_LEVELS)].std(ddof=1)
    found["n_models"] = by.size()
    return found.reset_index()[list(MEAN_COLUMNS)]


def spread(rows: pd.DataFrame) -> pd.DataFrame:
    """Most against least affected group, before and after, with SPREAD_COLUMNS.

    For each model, and for the groups' means over models (`model` is then MEAN): the Dutch
    paper's number is the latter, and smaller than a model's own, since models differ in which
    group they hit. A benchmark without groups has no row.

    Args:
        rows: LONG_COLUMNS
    """
    rows = rows[(rows["metric"] == "bias") & rows["scope"].str.startswith("group:")]
    averaged = means(rows).assign(model=MEAN)
    found = []
    for (language, benchmark, model), groups in pd.concat([rows, averaged]).groupby(
        ["language", "benchmark", "model"], sort=False
    ):
        for when in ("before", "after"):
            bias = groups.set_index("scope")[when].dropna()
            if bias.empty:
                continue
            most, least = str(bias.idxmax()), str(bias.idxmin())
            found.append(
                {
                    "model": model,
                    "language": language,
                    "benchmark": benchmark,
                    "when": when,
                    "n_groups": len(bias),
                    "most": most.removeprefix("group:"),
                    "most_bias": bias.max(),
                    "least": least.removeprefix("group:"),
                    "least_bias": bias.min(),
                    "spread": bias.max() - bias.min(),
                }
            )
    return pd.DataFrame(found, columns=list(SPREAD_COLUMNS))


def languages(rows: pd.DataFrame, metrics: Sequence[str] = ("bias",)) -> pd.DataFrame:
    """Languages side by side on the same identities: a column each, mean over their models.

    Identities are the groups that every language has, by canonical name. Beside them the row
    `shared`, the mean over these: a `macro` of each language over its own groups would compare
    other identities. `range` is the largest minus the smallest over the languages. Several
    benchmarks of one language count in its mean, each model and benchmark once.

    Args:
        rows: LONG_COLUMNS, of two languages or more
        metrics: whose levels

    Returns: columns scope, metric, when (before, after, delta), one per language, range

    Raises:
        RequestError: there is one language only, or no identity that all have.
    """
    named = [str(name) for name in rows["language"].unique()]
    if len(named) < 2:
        raise RequestError(
            f"across: {' '.join(named) or 'no language'} alone; to set languages side by side, "
            "give comparisons of two or more"
        )
    wanted = rows[rows["metric"].isin(metrics) & rows["scope"].str.startswith("group:")]
    wanted = wanted.dropna(subset=list(_LEVELS))
    in_each = [set(wanted.loc[wanted["language"] == name, "scope"]) for name in named]
    shared = sorted(set.intersection(*in_each))
    if not shared:
        raise RequestError(
            f"across: {', '.join(named)} have no identity in common; groups are matched by their "
            "canonical names (benchmark.labels maps published ones to them)"
        )
    tidy = wanted[wanted["scope"].isin(shared)].melt(
        ["language", "scope", "metric"], list(_LEVELS), var_name="when"
    )
    table = tidy.pivot_table(
        index=["scope", "metric", "when"], columns="language", values="value", aggfunc="mean"
    )[named]
    whole = table.groupby(level=["metric", "when"]).mean()
    whole.index = pd.MultiIndex.from_tuples(
        [("shared", *key) for key in whole.index], names=table.index.names
    )
    table = pd.concat([whole, table])
    table["range"] = np.ptp(table[named].to_numpy(), axis=1)
    table.columns.name = None
    order = {key: number for number, key in enumerate([*metrics, *_LEVELS])}
    scopes = {scope: number for number, scope in enumerate(["shared", *shared])}
    return (
        table.reset_index()
        .sort_values(
            ["metric", "scope", "when"], key=lambda column: column.map({**order, **scopes})
        )
        .reset_index(drop=True)
    )
