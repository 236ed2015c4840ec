"""One judged Completion table: what its categories are, how they differ, and how sure that is."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import f_oneway

from eval.completions import Completions
from eval.errors import RequestError
from eval.inference.completions import mixed, multiway, permutation, words
from eval.inference.completions.grid import GAPS, Grid, gap, grid
from eval.inference.corrections import adjust
from eval.inference.resampling import stream
from eval.inference.sentences import format_p, signed
from eval.inference.settings import InferenceSettings, check
from eval.judges.settings import REGARD
from eval.plain import records

LEVEL_COLUMNS = {
    "measure": "a judge's column",
    "first": "whether it is reported first, or is another view of the same",
    "category": "of the subject",
    "n": "prompts with a value",
    "mean": "over prompts",
    "ci_low": "lower end of its interval, what differs between sentences taken out",
    "ci_high": "upper end",
}
ANOVA_COLUMNS = {
    "measure": "a judge's column",
    "f": "one-way analysis of variance over the categories, as in the paper's Table 4",
    "df_between": "categories less one",
    "df_within": "prompts less categories",
    "p": "of F, prompts taken for independent",
    "eta_squared": "share of all variance that lies between categories",
    "p_blocked": "that marking does nothing at all: labels permuted within sentences",
}
GAP_COLUMNS = {
    "measure": "a judge's column",
    "gap": "first category minus second",
    "value": "the gap within sentences",
    "se": "robust to markers, subjects and templates",
    "df": "fewest clusters less one",
    "ci_low": "lower end of the t interval",
    "ci_high": "upper end",
    "p_t": "of the t test",
    "p_markers": "labels permuted over whole markers; none for gaps to the unmarked subject",
    "p": "the larger of both: shown only where both show it",
    "p_adjusted": "within the family",
    "family": "the tests that are adjusted together",
    "test": "how p_markers was had",
    "verdict": "higher, lower or not shown",
}
RELABELLED = 1000  # permutations at most where each one goes through the whole table


@dataclass(frozen=True)
class Study:
    """What one judged Completion table shows."""

    levels: pd.DataFrame  # LEVEL_COLUMNS
    anova: pd.DataFrame  # ANOVA_COLUMNS
    gaps: pd.DataFrame  # GAP_COLUMNS
    mixed: pd.DataFrame  # eval.inference.completions.mixed.COLUMNS; the first measures
    regard: pd.DataFrame  # category, view, negative, neutral, positive: shares that sum to 1
    markers: (
        pd.DataFrame
    )  # measure, category, marker, n, mean, gap (to the same sentences unmarked)
    templates: pd.DataFrame  # measure, template, category, n, mean
    diversity: pd.DataFrame  # words.DIVERSITY_COLUMNS
    divergence: pd.DataFrame  # words.DIVERGENCE_COLUMNS
    frequent: pd.DataFrame  # category, place, word, n, percent
    telling: pd.DataFrame  # category, place, word, tf_idf, n
    judges: tuple[dict[str, Any], ...]
    notes: list[str] = field(default_factory=list)
    alpha: float = 0.05

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by its name. `frequent` and `telling` hold what a model said: may hurt."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if isinstance(getattr(self, each.name), pd.DataFrame)
        }

    def as_json(self) -> dict[str, Any]:
        """All tables as lists of rows, NaN as None; what `json.dumps` takes."""
        return {
            **{name: records(table) for name, table in self.tables().items()},
            "judges": list(self.judges),
            "notes": self.notes,
        }

    def sentences(self) -> list[str]:
        """The first measures in words, one sentence each."""
        found = []
        first = self.levels[self.levels["first"]]
        for measure, rows in first.groupby("measure", sort=False):
            means = ", ".join(
                f"{row['category']} {signed(row['mean'], 3)}" for row in rows.to_dict("records")
            )
            own = self.gaps[self.gaps["measure"] == measure].to_dict("records")
            told = "; ".join(
                f"{row['gap']} {signed(row['value'], 3)} ({interval(row)}, adjusted "
                f"{format_p(row['p_adjusted'])}): {row['verdict']}"
                for row in own
                if not np.isnan(row["p_adjusted"])
            )
            found.append(f"{said(str(measure)).capitalize()}: {means}. {told or 'Not testable'}.")
        return found


def study(
    completions: Completions, settings: InferenceSettings | None = None, *, with_mixed: bool = True
) -> Study:
    """Take the paper's statistics of a judged table, and those its design asks for.

    `with_mixed`: fit mixed models too, some seconds for each of the first measures.

    Raises:
        RequestError: no judge has rated the table, or a setting means nothing.
    """
    settings = settings or InferenceSettings()
    check(settings)
    found = grid(completions)
    if found.words.empty:
        raise RequestError("no completion has a usable word: nothing to take statistics of")
    value = {str(name): found.values[name].to_numpy(float) for name in found.values}
    gaps = _gaps(found, value, settings)
    fits = (
        [mixed.fit(value[name], found.prompts, name) for name in found.first] if with_mixed else []
    )
    fits = [fit for fit in fits if len(fit)]
    return Study(
        levels=_levels(found, value, settings),
        anova=_anova(found, value, settings),
        gaps=gaps,
        mixed=pd.concat(fits or [pd.DataFrame(columns=list(mixed.COLUMNS))], ignore_index=True),
        regard=_regard(found),
        markers=_markers(found, value),
        templates=_templates(found, value),
        diversity=words.diversity(found),
        divergence=words.divergence(
            found, min(settings.resamples, RELABELLED), stream(settings.seed, "words", 12)
        ),
        frequent=words.frequent(found),
        telling=words.telling(found),
        judges=found.judges,
        notes=_notes(found, value, gaps),
        alpha=settings.alpha,
    )


def one_way(values: np.ndarray, category: np.ndarray) -> dict[str, float]:
    """F, its degrees of freedom, p and eta² of a one-way analysis of variance (appendix B.3).

    NaN values are left out; everything NaN where fewer than two categories have two values, or
    nothing varies.
    """
    known = ~np.isnan(values)
    groups = [values[known & (category == name)] for name in pd.unique(category[known])]
    groups = [each for each in groups if len(each)]
    n = sum(map(len, groups))
    between, within = len(groups) - 1, n - len(groups)
    nothing = {"f": np.nan, "df_between": between, "df_within": within, "p": np.nan,
               "eta_squared": np.nan}  # fmt: skip
    if between < 1 or within < 1 or np.ptp(np.concatenate(groups)) == 0:
        return nothing
    f, p = f_oneway(*groups)
    share = f * between / (f * between + within) if np.isfinite(f) else 1.0
    return {**nothing, "f": float(f), "p": float(p), "eta_squared": float(share)}


def interval(row: Any) -> str:
    """An interval of a row with ci_low and ci_high."""
    return f"{signed(row['ci_low'], 3)} to {signed(row['ci_high'], 3)}"


_SAID = {
    "sentiment": "sentiment",
    "regard_negative": "negative regard",
    "regard_neutral": "neutral regard",
    "regard_positive": "positive regard",
    "toxicity": "toxicity",
}
_OF = {"word": "of the word", "sentence": "of the sentence", "masked": "identity masked"}


def said(measure: str) -> str:
    """A judge's column in words."""
    what, _, view = measure.rpartition("_")
    return f"{_SAID[what]}, {_OF[view]}"


def _levels(found: Grid, value: dict[str, np.ndarray], settings: InferenceSettings) -> pd.DataFrame:
    rows = []
    block = found.prompts["block"].to_numpy()
    for measure, y in value.items():
        inside = np.full(len(y), np.nan)
        known = ~np.isnan(y)
        inside[known] = multiway.centred(y[known], block[known])
        spread = multiway.means(inside, found.prompts)
        for category in found.categories:
            own = y[known & (found.prompts["category"] == category).to_numpy()]
            low, high = spread[category].interval(settings.alpha)
            shift = own.mean() - spread[category].value if len(own) else np.nan
            rows.append(
                {
                    "measure": measure,
                    "first": measure in found.first,
                    "category": category,
                    "n": len(own),
                    "mean": own.mean() if len(own) else np.nan,
                    "ci_low": low + shift,
                    "ci_high": high + shift,
                }
            )
    return pd.DataFrame(rows, columns=list(LEVEL_COLUMNS))


def _anova(found: Grid, value: dict[str, np.ndarray], settings: InferenceSettings) -> pd.DataFrame:
    category = found.prompts["category"].to_numpy()
    blocked = permutation.blocked(
        np.column_stack(list(value.values())),
        found.prompts,
        min(settings.resamples, RELABELLED),
        stream(settings.seed, "blocked", 10),
    )
    rows = [
        {"measure": measure, **one_way(y, category), "p_blocked": p}
        for (measure, y), p in zip(value.items(), blocked, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(ANOVA_COLUMNS))


def _gaps(found: Grid, value: dict[str, np.ndarray], settings: InferenceSettings) -> pd.DataFrame:
    rows = []
    for measure, y in value.items():
        estimates = multiway.gaps(y, found.prompts)
        for pair in GAPS:
            if not set(pair) <= set(found.categories):
                continue
            rows.append(
                {
                    "measure": measure,
                    "gap": gap(pair),
                    **tested(y, found.prompts, pair, estimates[pair], measure, settings),
                    "family": family(measure, found.first, "gaps between categories"),
                }
            )
    table = pd.DataFrame(rows, columns=list(GAP_COLUMNS))
    return judged_by(table, settings, lambda row: "higher" if row["value"] > 0 else "lower")


def tested(
    y: np.ndarray,
    prompts: pd.DataFrame,
    pair: tuple[str, str],
    estimate: multiway.Estimate,
    measure: str,
    settings: InferenceSettings,
) -> dict[str, Any]:
    """A gap with its interval and tests, as GAP_COLUMNS has them."""
    low, high = estimate.interval(settings.alpha)
    p_markers, how = np.nan, "none: the unmarked subject has no markers to exchange"
    if set(pair) == set(permutation.MARKED):
        drawn = stream(settings.seed, measure, 11)
        p_markers, how = permutation.between_markers(y, prompts, settings.resamples, drawn)
    return {
        "value": estimate.value,
        "se": estimate.se,
        "df": estimate.df,
        "ci_low": low,
        "ci_high": high,
        "p_t": estimate.p,
        "p_markers": p_markers,
        "p": both(estimate.p, p_markers),
        "test": how,
    }


def both(p_t: float, p_markers: float) -> float:
    """The larger p: what is claimed of other sentences and of other markers needs both."""
    if np.isnan(p_t):
        return np.nan  # a permutation of markers alone says nothing of other sentences
    return float(np.nanmax([p_t, p_markers]))


def family(measure: str, first: tuple[str, ...], what: str) -> str:
    """Which tests a test is adjusted with: first views and further ones apart."""
    return what if measure in first else f"{what}, other views"


def judged_by(table: pd.DataFrame, settings: InferenceSettings, verdict: Any) -> pd.DataFrame:
    """Adjust p within each family, and say what is shown; `verdict` names a shown row."""
    table = table.assign(p_adjusted=np.nan)
    for name in table["family"].unique():
        own = (table["family"] == name) & table["p"].notna()
        if own.any():
            table.loc[own, "p_adjusted"] = adjust(
                table.loc[own, "p"].to_numpy(float), settings.correction
            )
    table["verdict"] = [
        "not testable"
        if np.isnan(row["p_adjusted"])
        else verdict(row)
        if row["p_adjusted"] < settings.alpha
        else "not shown"
        for row in table.to_dict("records")
    ]
    return table


def _regard(found: Grid) -> pd.DataFrame:
    """Regard averaged over each category's sentences, then scaled to sum to 1 (§4.4, eq. 2)."""
    rows = []
    for view in ("masked", "sentence"):
        names = [f"regard_{part}_{view}" for part in REGARD]
        if not set(names) <= set(found.values):
            continue
        for category in found.categories:
            own = (found.prompts["category"] == category).to_numpy()
            mean = found.values.loc[own, names].mean().to_numpy(float)
            rows.append((category, view, *(mean / mean.sum())))
    return pd.DataFrame(rows, columns=["category", "view", *REGARD])


def _markers(found: Grid, value: dict[str, np.ndarray]) -> pd.DataFrame:
    """Each marker's mean, and how far it lies from the same sentences unmarked."""
    prompts = found.prompts
    parts = []
    bare = (prompts["category"] == "unmarked").to_numpy()
    for measure, y in value.items():
        base = pd.Series(y[bare]).groupby(prompts.loc[bare, "block"].to_numpy()).mean()
        table = prompts.assign(y=y, gap=y - prompts["block"].map(base).to_numpy(float))
        marked = table[~bare & ~np.isnan(y)]
        own = marked.groupby(["category", "marker"], sort=False).agg(
            n=("y", "size"), mean=("y", "mean"), gap=("gap", "mean")
        )
        parts.append(own.reset_index().assign(measure=measure))
    columns = ["measure", "category", "marker", "n", "mean", "gap"]
    return pd.concat(parts, ignore_index=True)[columns]


def _templates(found: Grid, value: dict[str, np.ndarray]) -> pd.DataFrame:
    parts = []
    for measure, y in value.items():
        table = found.prompts.assign(y=y)[~np.isnan(y)]
        own = table.groupby(["template", "category"], sort=False)["y"].agg(["size", "mean"])
        parts.append(own.reset_index().rename(columns={"size": "n"}).assign(measure=measure))
    return pd.concat(parts, ignore_index=True)[["measure", "template", "category", "n", "mean"]]


def _notes(found: Grid, value: dict[str, np.ndarray], gaps: pd.DataFrame) -> list[str]:
    notes = []
    if found.unusable:
        notes.append(
            f"{found.unusable:,} completions without a usable word are left out of everything."
        )
    flat = [said(name) for name, y in value.items() if np.nanmax(y) == np.nanmin(y)]
    if flat:
        notes.append(f"Every completion got the same value: {'; '.join(flat)}.")
    df = gaps["df"].min()
    if df < 5:
        notes.append(
            f"Gaps rest on {int(df) + 1} clusters of one kind at the fewest: their intervals and "
            "tests are rough."
        )
    notes.append(
        "Gaps to the unmarked subject are tested by cluster-robust t tests alone: it has no "
        "markers that could be exchanged for others."
    )
    seen = sorted({each["id"] for each in found.judges if not each["masked"]})
    if seen:
        notes.append(
            f"Where the identity is not masked, {', '.join(seen)} saw it: a gap there is the "
            "judge's reaction to the word as much as the model's."
        )
    return notes
