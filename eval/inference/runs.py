"""Runs as wholes: what can be claimed about a method, beyond one trained model.

A test within a run speaks of that model: all its stereotypes share the run's own noise (seed,
order of the data, masks), which no number of pairs averages out. So a *method* is compared run
by run with a *placebo*: the same training (model, tokens, years, settings) on other text. The
placebo's change is the effect of any further training, together with noise; it need not be
nought. What a method does beyond it is the difference in differences over runs,

    D = mean over the method's runs of (after - before) - mean over the placebo's runs of it

tested by Welch's t over runs, each run one observation (Welch 1947): it generalises to other
seeds, on these stereotypes. For other stereotypes too, runs and stereotypes are taken as crossed
random effects, each run's change being d_rc = effect + run_r + stereotype_c + rest. With S²
between R runs, and s² the mean over runs of the squared cluster-robust standard error,

    Var(mean change) <= S²/R + s²          (at most: s² holds a share of the rest twice)

with Satterthwaite's degrees of freedom from R - 1 and C - 1. That is deliberately not the
meta-analysis of DerSimonian and Laird (1986), nor Hartung and Knapp's (2001): those take the
runs' errors for independent and would divide s² by R, but all runs share their stereotypes, and
five seeds on one benchmark aren't five benchmarks. For equal weights Hartung and Knapp's
standard error is S/sqrt(R), the one over runs. For D, S²/R and s² of both sides add up, which
errs on the wide side as long as a stereotype moves alike in the method's and the placebo's runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from eval.errors import RequestError
from eval.inference.corrections import holm
from eval.inference.sentences import confidence, format_p, signed

#: What `claims` takes: one row a run, benchmark, scope and metric. `model` may stand beside.
RUN_COLUMNS = (
    *("recipe", "seed", "placebo", "benchmark", "scope", "metric"),
    *("before", "after", "delta", "se", "n_clusters"),
)
#: What a placebo must share with its method, each a column of the rows where it is known.
MATCHED = ("tokens", "years", "settings")
#: Tokens of training text may differ by this share: texts don't end where a count does.
TOKENS_WITHIN = 0.01
#: One base model's score may differ so much between machines, in points or nats.
BEFORE_WITHIN = 0.01
#: With fewer runs on either side the verdict itself carries a warning.
FEW_RUNS = 5
CLAIM_COLUMNS = {
    "model": "the base model; empty where the rows don't say",
    "recipe": "the method",
    "benchmark": "the benchmark",
    "scope": "as in the Delta table",
    "metric": "as in the Delta table",
    "n_runs": "runs (seeds) of the method",
    "n_placebo": "runs of its placebo",
    "after": "mean level after, over the method's runs",
    "placebo_after": "mean level after, over the placebo runs",
    "delta": "mean change over the method's runs: points, for margin nats",
    "sd": "standard deviation of it between runs",
    "placebo_delta": "mean change over the placebo runs",
    "placebo_sd": "standard deviation of it between runs",
    "placebo_low": "smallest change of a placebo run",
    "placebo_high": "largest change of one",
    "difference": "difference in differences: delta minus placebo_delta",
    "se": "its standard error over runs",
    "df": "Welch's degrees of freedom",
    "ci_low": "lower end of its t interval over runs, on these stereotypes",
    "ci_high": "upper end of it",
    "p": "two-sided p of Welch's t over runs",
    "p_adjusted": "Holm's, within the family",
    "family": "the tests that the adjustment covers, in words",
    "wide_se": "standard error over runs and stereotypes",
    "wide_low": "lower end of the t interval over runs and stereotypes",
    "wide_high": "upper end of it",
    "differing": "in what the placebo runs differ from the method's besides the text",
    "verdict": "nearer 50 / farther from 50 / other side of 50 / higher / lower than placebo, "
    "not shown, or no claim (why)",
}
SPREAD_COLUMNS = {
    "model": "the base model; empty where the rows don't say",
    "recipe": "method or placebo",
    "placebo": "whether it is a placebo",
    "benchmark": "the benchmark",
    "scope": "as in the Delta table",
    "metric": "as in the Delta table",
    "n_runs": "runs (seeds)",
    "n_clusters": "clusters (stereotypes), which all runs share",
    "before": "mean level before",
    "after": "mean level after",
    "delta": "mean change: points, for margin nats",
    "sd": "standard deviation of the change between runs",
    "low": "smallest change of a run",
    "high": "largest change of one",
    "within_se": "root mean square of the runs' cluster-robust standard errors",
    "se": "standard error of delta over runs and stereotypes",
    "df": "its degrees of freedom (Satterthwaite)",
    "ci_low": "lower end of the t interval over runs and stereotypes",
    "ci_high": "upper end of it",
}
PLACEBO_NOTE = (
    "What the placebo runs changed by is what further training of that length on other text "
    "does, together with a run's own noise. That is an effect too; a method's own is only what "
    "it changes beyond it."
)
ADVICE = (
    "A claim about a method takes several seeds of it and several of a matched placebo: the same "
    "model, tokens, years and settings, other text."
)
SEEDS_NOTE = (
    "The difference from placebo is tested over runs, so that it speaks of other seeds on these "
    "stereotypes; the wide interval speaks of other stereotypes too."
)
#: What the sentences speak of: the first of these that the rows have.
_PRIMARY = {
    ("macro", "distance"): "the mean over groups of |bias − 50|",
    ("overall", "distance"): "|bias − 50| overall",
    ("overall", "margin"): "the mean margin",
    ("overall", "bias"): "overall bias",
}
_CELL = ["benchmark", "scope", "metric"]


@dataclass(frozen=True)
class Claims:
    """What runs as wholes say.

    `table` has CLAIM_COLUMNS, a row per model, method, benchmark, scope and metric; `spread`
    SPREAD_COLUMNS, placebo runs too; `sentences` one per model, method and benchmark, which
    follow from the verdicts; `notes` what a reader must know beside them.
    """

    table: pd.DataFrame
    spread: pd.DataFrame
    sentences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def claims(rows: pd.DataFrame, *, matched: Sequence[str] = MATCHED, alpha: float = 0.05) -> Claims:
    """Compare methods with their placebo, run by run.

    A method's placebo runs are those of the same base model, on the same benchmark, that agree
    with it in `before` and every column of `matched`; where none does, all of that model's
    placebo runs are shown beside it, what differs is named, and nothing is claimed. p is
    adjusted by Holm over all methods and models, for each benchmark and metric, with overall
    and macro in one family and the groups (or a slice's values) in another.

    Args:
        rows: RUN_COLUMNS, one row a run, benchmark, scope and metric; `se` and `n_clusters` may
            be NaN, the intervals over stereotypes then are. Further columns: `model` (the base
            model), and those of `matched`.
        matched: columns in which a placebo must agree. One that the rows lack, or know of no
            run, is named as not checked.
        alpha: for intervals and verdicts

    Raises:
        RequestError: a column is missing, there is no run, or a change isn't a number.
    """
    rows, notes = _checked(rows)
    known = [column for column in matched if column in rows and rows[column].notna().any()]
    found = []
    methods = rows[~rows["placebo"]]
    placebos = dict(iter(rows[rows["placebo"]].groupby(["model", *_CELL], sort=False)))
    for key, runs in methods.groupby(["model", "recipe", *_CELL], sort=False):
        of = dict(zip(["model", "recipe", *_CELL], key, strict=True))
        placebo = placebos.get((of["model"], *(of[name] for name in _CELL)), rows.head(0))
        found.append(_claim(of, runs, placebo, known, alpha))
    table = pd.DataFrame(found, columns=[name for name in CLAIM_COLUMNS if name != "family"])
    table = _adjusted(table)
    table["verdict"] = pd.Series(
        [_verdict(row, alpha) for row in table.to_dict("records")], table.index, dtype=str
    )
    spread = [
        _spread(key, runs, alpha)
        for key, runs in rows.groupby(["model", "recipe", "placebo", *_CELL], sort=False)
    ]
    unknown = [column for column in matched if column not in known]
    if rows["placebo"].any():
        notes.append(PLACEBO_NOTE)
        if unknown and len(methods):
            notes.append(
                f"Whether the placebo runs had the same {', '.join(unknown)} as the methods' "
                "is not checked: the runs don't say."
            )
    if table["p"].notna().any():
        notes.append(SEEDS_NOTE)
    if table["verdict"].str.startswith("no claim").any():
        notes.append(ADVICE)
    return Claims(
        table=table[list(CLAIM_COLUMNS)],
        spread=pd.DataFrame(spread, columns=list(SPREAD_COLUMNS)),
        sentences=_sentences(table, alpha),
        notes=notes,
    )


def _checked(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows with their defaults, each seed of a recipe once, and what that changed."""
    missing = [column for column in RUN_COLUMNS if column not in rows]
    if missing:
        raise RequestError(
            f"runs: no column {', '.join(missing)}; there are: {', '.join(map(str, rows.columns))}"
        )
    if rows.empty:
        raise RequestError("runs: there is no run to speak of")
    bad = rows[~np.isfinite(rows["delta"].astype(float))]
    if len(bad):
        of = bad.iloc[0]
        raise RequestError(
            f"runs: the change of {of['metric']} ({of['scope']}) in {of['recipe']}, seed "
            f"{of['seed']}, on {of['benchmark']} isn't a number; leave that scope or run out"
        )
    rows = rows.assign(
        model=rows["model"].fillna("").astype(str) if "model" in rows else "",
        placebo=rows["placebo"].astype(bool),
    )
    again = rows.duplicated(["model", "recipe", "seed", "placebo", *_CELL])
    notes = [
        f"{recipe} with seed {seed} was given more than once, and counts once: a seed run again "
        "is no second run."
        for recipe, seed in rows.loc[again, ["recipe", "seed"]].drop_duplicates().to_numpy()
    ]
    return rows[~again], notes


def _claim(
    of: dict[str, Any], runs: pd.DataFrame, placebo: pd.DataFrame, known: list[str], alpha: float
) -> dict[str, Any]:
    """One row of the table, before adjustment and verdict."""
    agree = _agree(runs, placebo, known)
    differing = [str(column) for column in agree if not agree[column].all()]
    if agree.all(axis=1).any():
        placebo, differing = placebo[agree.all(axis=1)], []
    words = [f"{column}: {_said(runs, column)} against {_said(placebo, column)}"
             for column in differing]  # fmt: skip
    mixed = [column for column in known if not _one_value(runs[column], column)]
    words += [f"{column} of its own runs: {_said(runs, column)}" for column in mixed]
    x, y = runs["delta"].to_numpy(float), placebo["delta"].to_numpy(float)
    row: dict[str, Any] = {
        **of,
        "n_runs": len(x),
        "n_placebo": len(y),
        "after": runs["after"].mean(),
        "placebo_after": placebo["after"].mean(),
        "delta": x.mean(),
        "sd": x.std(ddof=1) if len(x) > 1 else np.nan,
        "placebo_delta": y.mean() if len(y) else np.nan,
        "placebo_sd": y.std(ddof=1) if len(y) > 1 else np.nan,
        "placebo_low": y.min() if len(y) else np.nan,
        "placebo_high": y.max() if len(y) else np.nan,
        "difference": x.mean() - y.mean() if len(y) else np.nan,
        "differing": "; ".join(words),
    }
    row.update(dict.fromkeys(("se", "df", "ci_low", "ci_high", "p"), np.nan))
    row.update(dict.fromkeys(("wide_se", "wide_low", "wide_high"), np.nan))
    if words or min(len(x), len(y)) < 2 or row["sd"] + row["placebo_sd"] == 0:
        return row
    between = [(row["sd"] ** 2 / len(x), len(x) - 1), (row["placebo_sd"] ** 2 / len(y), len(y) - 1)]
    se, df = _combined(between)
    reach = student.ppf(1 - alpha / 2, df) * se
    row.update(
        se=se,
        df=df,
        ci_low=row["difference"] - reach,
        ci_high=row["difference"] + reach,
        p=2 * student.sf(abs(row["difference"]) / se, df),
    )
    wide, wide_df = _combined(between + [_within(side) for side in (runs, placebo)])
    reach = student.ppf(1 - alpha / 2, wide_df) * wide
    row.update(
        wide_se=wide,
        wide_low=row["difference"] - reach,
        wide_high=row["difference"] + reach,
    )
    return row


def _agree(runs: pd.DataFrame, placebo: pd.DataFrame, known: list[str]) -> pd.DataFrame:
    """Which placebo runs agree with the method's, by column. (placebo runs, columns), bool"""
    agree = pd.DataFrame(index=placebo.index)
    for column in ("before", *known):
        theirs, ours = placebo[column], runs[column]
        if column == "before":
            agree[column] = (theirs - ours.mean()).abs() <= BEFORE_WITHIN
        elif column == "tokens":
            agree[column] = (theirs - ours.mean()).abs() <= TOKENS_WITHIN * ours.mean()
        else:
            agree[column] = theirs.isin(ours.tolist())
    return agree


def _one_value(values: pd.Series, column: str) -> bool:
    """Whether a method's own runs agree in a column."""
    if column == "tokens":
        return bool(((values - values.mean()).abs() <= TOKENS_WITHIN * values.mean()).all())
    return values.nunique(dropna=False) == 1


def _said(runs: pd.DataFrame, column: str) -> str:
    """A column's values, in words."""
    values = runs[column].drop_duplicates()
    if column == "before":
        return f"{values.mean():.2f}"
    return " and ".join("unknown" if pd.isna(v) else f"{v:,}" if column == "tokens" else str(v)
                        for v in values)  # fmt: skip


def _within(runs: pd.DataFrame) -> tuple[float, float]:
    """Variance that the runs share through their stereotypes, and its degrees of freedom."""
    variance = float((runs["se"].astype(float) ** 2).mean(skipna=False))
    return variance, float(runs["n_clusters"].astype(float).mean(skipna=False)) - 1


def _combined(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of variances (Satterthwaite 1946)."""
    variance, df = np.asarray(parts, float).T
    total = variance.sum()
    if not total > 0 or (df <= 0).any():
        return float("nan"), float("nan")
    return float(np.sqrt(total)), float(total**2 / (variance**2 / df).sum())


def _spread(key: tuple[Any, ...], runs: pd.DataFrame, alpha: float) -> dict[str, Any]:
    """One row of the spread between runs."""
    change = runs["delta"].to_numpy(float)
    within, within_df = _within(runs)
    sd = change.std(ddof=1) if len(change) > 1 else np.nan
    se = df = np.nan
    if len(change) > 1:
        se, df = _combined([(sd**2 / len(change), len(change) - 1), (within, within_df)])
    reach = student.ppf(1 - alpha / 2, df) * se
    return {
        **dict(zip(["model", "recipe", "placebo", *_CELL], key, strict=True)),
        "n_runs": len(change),
        "n_clusters": within_df + 1,
        "before": runs["before"].mean(),
        "after": runs["after"].mean(),
        "delta": change.mean(),
        "sd": sd,
        "low": change.min(),
        "high": change.max(),
        "within_se": np.sqrt(within),
        "se": se,
        "df": df,
        "ci_low": change.mean() - reach,
        "ci_high": change.mean() + reach,
    }


def _adjusted(table: pd.DataFrame) -> pd.DataFrame:
    """Add Holm's p and the families' names."""
    table = table.assign(p_adjusted=np.nan, family="")
    kind = table["scope"].map(lambda scope: scope.partition(":")[0].replace("macro", "overall"))
    for (benchmark, metric, _), rows in table.groupby(
        [table["benchmark"], table["metric"], kind], sort=False
    ):
        tested = rows[rows["p"].notna()]
        if tested.empty:
            continue
        table.loc[tested.index, "p_adjusted"] = holm(tested["p"].to_numpy(float))
        counts = {
            "method": tested["recipe"].nunique(),
            "model": tested["model"].nunique(),
            "scope": tested["scope"].nunique(),
        }
        of = ", ".join(f"{n} {name}{'s' * (n != 1)}" for name, n in counts.items())
        tests = f"{len(tested)} test{'s' * (len(tested) != 1)}"
        table.loc[tested.index, "family"] = f"{metric} on {benchmark}, {tests}: {of}"
    return table


def _verdict(row: dict[Any, Any], alpha: float) -> str:
    """What may be claimed; the words in brackets say why not, or how few runs carry it."""
    runs, placebo = row["n_runs"], row["n_placebo"]
    if placebo == 0:
        return "no claim (no placebo run)"
    if runs == 1:
        return "no claim (one run)"
    if placebo == 1:
        return "no claim (one placebo run)"
    if row["differing"]:
        return "no claim (placebo not matched)"
    if np.isnan(row["p"]):
        return "no claim (runs do not differ)"
    few = f" (only {runs} runs, {placebo} placebo runs)" if min(runs, placebo) < FEW_RUNS else ""
    return (_direction(row) if row["p_adjusted"] < alpha else "not shown") + few


def _direction(row: dict[Any, Any]) -> str:
    """Where the method's runs ended, as against the placebo's."""
    metric = row["metric"]
    if metric == "distance":
        return "nearer 50 than placebo" if row["difference"] < 0 else "farther from 50 than placebo"
    if metric in ("bias", "soft", "sigmoid", "margin"):
        point = 0 if metric == "margin" else 50
        ours, theirs = row["after"] - point, row["placebo_after"] - point
        if ours * theirs < 0:
            return f"other side of {point} than placebo"
        nearer = abs(ours) < abs(theirs)
        return f"{'nearer' if nearer else 'farther from'} {point} than placebo"
    return "higher than placebo" if row["difference"] > 0 else "lower than placebo"


def _sentences(table: pd.DataFrame, alpha: float) -> list[str]:
    """A sentence for each model, method and benchmark, on the first measure of _PRIMARY."""
    said = []
    for _, rows in table.groupby(["model", "recipe", "benchmark"], sort=False):
        cells = {(row["scope"], row["metric"]): row for row in rows.to_dict("records")}
        for cell, what in _PRIMARY.items():
            if cell in cells:
                said.append(_sentence(cells[cell], what, alpha))
                break
    return said


def _sentence(row: dict[Any, Any], what: str, alpha: float) -> str:
    """What may be claimed of one method, or why nothing may."""
    nats = row["metric"] == "margin"
    unit, digits = ("nats", 3) if nats else ("points", 1)

    def by(value: float) -> str:
        return f"{signed(value, digits)} {unit}"

    runs, placebo = row["n_runs"], row["n_placebo"]
    who = row["recipe"] + (f" on {row['model']}" if row["model"] else "") + f", {row['benchmark']}"
    ours = f"{what} changed by {by(row['delta'])}"
    ours += " in its one run" if runs == 1 else f" on average over {runs} runs"
    theirs = ""
    if placebo == 1:
        theirs = f", in the one placebo run by {by(row['placebo_delta'])}"
    elif placebo:
        ends = f"{signed(row['placebo_low'], digits)} to {signed(row['placebo_high'], digits)}"
        theirs = f", over {placebo} placebo runs by {by(row['placebo_delta'])} ({ends})"
    verdict, _, why = str(row["verdict"]).partition(" (")
    why = why.removesuffix(")")
    if verdict == "no claim":
        reason = {
            "no placebo run": "no placebo run shows what training on other text would have done",
            "one run": "one run cannot tell a method's effect from the run's own noise",
            "one placebo run": "one placebo run cannot tell its effect from the run's own noise",
            "placebo not matched": f"the runs differ in more than their text ({row['differing']})",
            "runs do not differ": "the runs do not differ among themselves at all, as runs of "
            "other seeds would",
        }[why]
        return f"{who}: {ours}{theirs}. Nothing can be claimed about the method: {reason}."
    few = f"; {why}" if why else ""
    level = f"{confidence(alpha)} interval"
    ends = f"{signed(row['ci_low'], digits)} to {signed(row['ci_high'], digits)}"
    test = (
        f"{by(row['difference'])}, {level} {ends}, {format_p(row['p_adjusted'])}, Welch's t over "
        f"runs with {row['df']:.1f} degrees of freedom{few}"
    )
    if verdict == "not shown":
        return (
            f"{who}: {ours}{theirs}. That the method does anything beyond further training on "
            f"other text is not shown (difference {test})."
        )
    return f"{who}: {ours}{theirs}. Beyond placebo: {verdict} ({test})."
