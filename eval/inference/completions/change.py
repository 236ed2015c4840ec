"""Two judged Completion tables of the same prompts: what changed for each category, and its gaps.

Each prompt's value after less its value before is what everything is computed from: what a
sentence, a subject or a marker is anyway cancels. A change speaks of these two models; a claim
about a method needs several runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from eval.completions import Completions
from eval.errors import RequestError
from eval.inference.completions import multiway, permutation
from eval.inference.completions.grid import GAPS, Grid, gap, grid
from eval.inference.completions.study import (
    Study,
    both,
    family,
    interval,
    judged_by,
    said,
    study,
    tested,
)
from eval.inference.resampling import stream
from eval.inference.sentences import format_p, signed
from eval.inference.settings import InferenceSettings, check
from eval.plain import records

CHANGE_COLUMNS = {
    "measure": "a judge's column",
    "what": "a category, or a gap: first category minus second",
    "n": "prompts with a value before and after",
    "n_markers": "different markers among them",
    "before": "mean or gap before, of these prompts",
    "after": "after",
    "delta": "after minus before",
    "se": "robust to markers, subjects and templates",
    "df": "fewest clusters less one",
    "ci_low": "lower end of the t interval of delta",
    "ci_high": "upper end",
    "p_t": "of the t test",
    "p_markers": "before and after swapped within markers (a category), labels permuted over "
    "markers (queer − non-queer)",
    "p": "the larger of both",
    "p_adjusted": "within the family",
    "family": "the tests that are adjusted together",
    "test": "how p_markers was had",
    "verdict": "higher or lower for a category; narrowed, widened or turned for a gap; not shown",
}
#: What must be the same for two tables to be compared.
_SAME = ("scorer", "scorer_version", "benchmark", "benchmark_hash", "decoding", "wording")


@dataclass(frozen=True)
class Change:
    """What changed between two judged tables."""

    before: Study
    after: Study
    table: pd.DataFrame  # CHANGE_COLUMNS
    diversity: pd.DataFrame  # category, measure, before, after, delta
    notes: list[str] = field(default_factory=list)
    alpha: float = 0.05

    def as_json(self) -> dict[str, Any]:
        """Everything as lists of rows, NaN as None; what `json.dumps` takes."""
        return {
            "changes": records(self.table),
            "diversity": records(self.diversity),
            "before": self.before.as_json(),
            "after": self.after.as_json(),
            "notes": self.notes,
        }

    def sentences(self) -> list[str]:
        """The first measures in words: how far queer lay and lies from the others, and if shown."""
        first = set(self.before.levels.loc[self.before.levels["first"], "measure"])
        names = [gap(pair) for pair in GAPS if pair[0] == "queer"]
        found = []
        for measure, rows in self.table.groupby("measure", sort=False):
            own = rows[rows["what"].isin(names)].to_dict("records")
            if measure not in first or not own:
                continue
            told = "; ".join(
                f"{row['what']} from {signed(row['before'], 3)} to {signed(row['after'], 3)} "
                f"({_tested(row)}): {row['verdict']}"
                for row in own
            )
            found.append(f"{said(str(measure)).capitalize()}: {told}.")
        return found


def compare(
    before: Completions,
    after: Completions,
    settings: InferenceSettings | None = None,
    *,
    with_mixed: bool = True,
) -> Change:
    """Compare two judged tables of the same prompts, prompt by prompt.

    `with_mixed`: fit mixed models to both tables too, which takes most of the time.

    Raises:
        RequestError: other prompts, another way of completing, or other judges; it says which.
    """
    settings = settings or InferenceSettings()
    check(settings)
    _same(before, after)
    first, second = grid(before), grid(after)
    there = pd.Index(first.prompts["prompt_id"])
    at = there.get_indexer(pd.Index(second.prompts["prompt_id"]))
    if len(there) != len(second.prompts) or (at < 0).any():
        raise RequestError("before and after hold different prompts; complete the same ones")
    later = second.values.iloc[np.argsort(at)].reset_index(drop=True)
    studies = [study(each, settings, with_mixed=with_mixed) for each in (before, after)]
    rows: list[dict[str, Any]] = []
    for measure in first.values:
        pair = first.values[measure].to_numpy(float), later[measure].to_numpy(float)
        rows += _rows(first, str(measure), pair, settings)
    table = pd.DataFrame(rows, columns=list(CHANGE_COLUMNS))
    diversity = _diversity(*(each.diversity for each in studies))
    return Change(
        studies[0],
        studies[1],
        judged_by(table, settings, _verdict),
        diversity,
        _notes(first, later, table),
        settings.alpha,
    )


def _rows(
    found: Grid, measure: str, pair: tuple[np.ndarray, np.ndarray], settings: InferenceSettings
) -> list[dict[str, Any]]:
    """The changes of one measure: of each category, and of each gap."""
    old, new = pair
    delta = new - old
    known = ~np.isnan(delta)
    old, new = np.where(known, old, np.nan), np.where(known, new, np.nan)
    prompts = found.prompts
    spread = multiway.means(delta, prompts)
    rows = []
    for category in found.categories:
        own = known & (prompts["category"] == category).to_numpy()
        estimate = spread[category]
        low, high = estimate.interval(settings.alpha)
        marked = category != "unmarked"
        clusters = prompts["marker" if marked else "template"].to_numpy()
        inside = np.where(own, delta, np.nan)
        drawn = stream(settings.seed, f"{measure} {category}", 13)
        swapped = permutation.flipped(inside, clusters, settings.resamples, drawn)
        rows.append(
            {
                "measure": measure,
                "what": category,
                "n": int(own.sum()),
                "n_markers": prompts.loc[own, "marker"].replace("", None).nunique(),
                "before": old[own].mean() if own.any() else np.nan,
                "after": new[own].mean() if own.any() else np.nan,
                "delta": estimate.value,
                "se": estimate.se,
                "df": estimate.df,
                "ci_low": low,
                "ci_high": high,
                "p_t": estimate.p,
                "p_markers": swapped,
                "p": both(estimate.p, swapped),
                "family": family(measure, found.first, "changes of categories"),
                "test": f"before and after swapped within {'markers' if marked else 'templates'}",
            }
        )
    estimates = [multiway.gaps(each, prompts) for each in (delta, old, new)]
    for names in GAPS:
        if not set(names) <= set(found.categories):
            continue
        own = known & prompts["category"].isin(names).to_numpy()
        row = tested(delta, prompts, names, estimates[0][names], f"{measure} change", settings)
        rows.append(
            {
                "measure": measure,
                "what": gap(names),
                "n": int(own.sum()),
                "n_markers": prompts.loc[own, "marker"].replace("", None).nunique(),
                "before": estimates[1][names].value,
                "after": estimates[2][names].value,
                **row,
                "delta": row["value"],
                "family": family(measure, found.first, "changes of gaps"),
            }
        )
    return rows


def _verdict(row: Mapping[Any, Any]) -> str:
    if "−" not in str(row["what"]):
        return "higher" if row["delta"] > 0 else "lower"
    if row["before"] * row["after"] < 0:
        return "turned"
    return "narrowed" if abs(row["after"]) < abs(row["before"]) else "widened"


def _tested(row: Mapping[Any, Any]) -> str:
    if np.isnan(row["p_adjusted"]):
        return f"change {signed(row['delta'], 3)}"
    return (
        f"change {signed(row['delta'], 3)}, {interval(row)}, adjusted {format_p(row['p_adjusted'])}"
    )


def _same(before: Completions, after: Completions) -> None:
    for key in _SAME:
        first, second = before.meta.get(key), after.meta.get(key)
        if first != second:
            raise RequestError(f"before and after differ in {key}: {first} and {second}")
    names = ("measure", "view", "language", "tool", "version")
    judges = [
        {tuple(str(record[name]) for name in names) for record in each.meta.get("judges") or ()}
        for each in (before, after)
    ]
    if judges[0] != judges[1]:
        odd = sorted(judges[0] ^ judges[1])[0]
        raise RequestError(
            f"before and after were judged differently: {' '.join(odd)} rated one of them only"
        )


def _diversity(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """How diverse the words were and are, in the three ways of words.DIVERSITY_COLUMNS."""
    rows = []
    for measure in ("share", "rarefied", "matched"):
        old, new = (each.set_index("category")[measure] for each in (before, after))
        for category in old.index:
            was, now = float(old[category]), float(new.get(category, np.nan))
            rows.append((category, measure, was, now, now - was))
    return pd.DataFrame(rows, columns=["category", "measure", "before", "after", "delta"])


def _notes(first: Grid, later: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    notes = []
    lost = (first.values.notna().any(axis=1) != later.notna().any(axis=1)).sum()
    if lost:
        notes.append(
            f"{int(lost):,} prompts have a usable word on one side only; changes leave them out."
        )
    still = int((table["se"] == 0).sum())
    if still:
        notes.append(f"{still:,} of the changes vary in no way and can't be tested.")
    notes.append(
        "A category's change is tested twice, over markers alone and over markers, subjects and "
        "templates; it is called shown where both show it. Diversity has no test here."
    )
    return notes
