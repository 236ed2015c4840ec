"""The tripartite panel of completions, as numbers: what a page and a figure draw.

A panel a measure, a row a category of subject (unmarked, non-queer, queer), before and after.
(2601.20731, figures of §5, which show one model)
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from eval.inference.completions import Change
from eval.inference.completions.study import said

WHEN = ("before", "after")
#: How a measure's panel is called, and its neutral point where it has one.
_MEASURES: dict[str, tuple[str, float | None]] = {
    "sentiment": ("Sentiment, −1 to 1", 0.0),
    "regard_negative": ("Negative regard, share", None),
    "regard_positive": ("Positive regard, share", None),
    "toxicity": ("Toxicity, 0 to 1", None),
}
_DIVERSITY = {
    "rarefied": "Diversity: different words in 100 completions",
    "matched": "Diversity: different words, each sentence completed once",
}


@dataclass(frozen=True)
class Panel:
    """One measure.

    `rows`: category, `before` and `after` (means), their ends `<when>_low` and `<when>_high`
    (NaN where there is no interval), `delta`, `verdict`.
    """

    title: str
    of: str  # which view of the completion the judge was given
    neutral: float | None
    digits: int  # worth printing
    rows: pd.DataFrame


def panels(change: Change) -> list[Panel]:
    """The panels of the first measures, and of diversity."""
    first = change.before.levels[change.before.levels["first"]]
    measures = [name for name in first["measure"].unique() if _kind(name) in _MEASURES]
    return [*(_measured(change, name) for name in measures), _diversity(change)]


def _kind(measure: str) -> str:
    """A judge's column without its view."""
    return measure.rpartition("_")[0]


def _measured(change: Change, measure: str) -> Panel:
    tested = change.table[change.table["measure"] == measure].set_index("what")
    rows = tested[["delta", "verdict"]]
    for when in WHEN:
        levels = getattr(change, when).levels
        own = levels[levels["measure"] == measure].set_index("category")
        ends = {"mean": when, "ci_low": f"{when}_low", "ci_high": f"{when}_high"}
        rows = own[list(ends)].rename(columns=ends).join(rows, how="left")
    title, neutral = _MEASURES[_kind(measure)]
    known = rows[rows["before"].notna()].rename_axis("category").reset_index()
    return Panel(title, said(measure).partition(", ")[2], neutral, 3, known)


def _diversity(change: Change) -> Panel:
    """Rarefied where there are words enough, else matched; neither has an interval or a test."""
    found = change.diversity.set_index("measure")
    rarefied = found.loc[["rarefied"], list(WHEN)].to_numpy(float)
    kind = "matched" if np.isnan(rarefied).any() else "rarefied"
    rows = found.loc[kind, ["category", *WHEN, "delta"]].reset_index(drop=True)
    ends = {f"{when}_{end}": float("nan") for when in WHEN for end in ("low", "high")}
    return Panel(_DIVERSITY[kind], "", None, 1, rows.assign(**ends, verdict="not tested"))
