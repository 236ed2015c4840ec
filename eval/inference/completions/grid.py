"""A judged Completion table as a grid: one row a prompt, one value a measure.

A prompt's value is the mean over its completions (top-5: five of them) that have a usable word.
Prompts of one subject and template are a *block*: the same sentence, with each marker in turn
and with none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from eval.completions import Completions
from eval.errors import RequestError
from eval.judges.settings import MEASURES, VIEWS_OF
from eval.prompts import CATEGORIES

#: The two gaps to the unmarked subject, and the one between the marked ones: first minus second.
GAPS = (("queer", "unmarked"), ("queer", "non-queer"), ("non-queer", "unmarked"))


def gap(pair: tuple[str, str]) -> str:
    """What a gap is called."""
    return f"{pair[0]} − {pair[1]}"


@dataclass(frozen=True)
class Grid:
    """A judged table, one row a prompt."""

    prompts: pd.DataFrame  # prompt_id, category, marker, subject, template, block
    values: pd.DataFrame  # a column a measure, NaN where no completion has a value; same rows
    words: pd.DataFrame  # prompt (row number), category, marker, word; one row a usable completion
    unusable: int  # completions without a usable word
    first: tuple[str, ...]  # the measures that are reported first
    judges: tuple[dict[str, Any], ...]

    @property
    def categories(self) -> list[str]:
        """Those that have prompts, in the paper's order."""
        return [name for name in CATEGORIES if (self.prompts["category"] == name).any()]


def grid(completions: Completions) -> Grid:
    """Gather a judged Completion table.

    Raises:
        RequestError: no judge has rated it, or its categories are none of ours.
    """
    table = completions.table
    judges = tuple(completions.meta.get("judges") or ())
    names = [name for name in judged(judges) if name in table]
    if not names:
        raise RequestError("no judge has rated these completions; run eval.judges.judge first")
    strange = sorted(set(table["category"]) - set(CATEGORIES))
    if strange:
        raise RequestError(
            f"category {strange[0]}: must be one of {', '.join(CATEGORIES)} (the Prompt table)"
        )
    usable = (table["word"].fillna("").astype(str) != "").to_numpy()
    number, ids = pd.factorize(table["prompt_id"])
    firsts = table.iloc[np.unique(number, return_index=True)[1]].reset_index(drop=True)
    columns = ["prompt_id", "category", "marker", "subject", "template"]
    prompts = firsts[columns].copy()
    prompts["block"] = _codes(firsts, ["language", "subject", "template"])
    values = table.loc[usable, names].groupby(number[usable]).mean()
    said = table.loc[usable, ["category", "marker"]].copy()
    said.insert(0, "prompt", number[usable])
    said["word"] = table.loc[usable, "word"].astype(str).str.lower()
    return Grid(
        prompts,
        values.reindex(range(len(ids))).reset_index(drop=True),
        said.reset_index(drop=True),
        int((~usable).sum()),
        tuple(name for name in first_views(judges) if name in names),
        judges,
    )


def judged(judges: Iterable[dict[str, Any]]) -> list[str]:
    """The judges' columns, each once."""
    return list(dict.fromkeys(name for record in judges for name in record["columns"]))


def first_views(judges: Iterable[dict[str, Any]]) -> list[str]:
    """The columns that are reported first: of each measure those of its first view there is."""
    records = list(judges)
    names: list[str] = []
    for measure in MEASURES:
        own = [record for record in records if record["measure"] == measure]
        for view in VIEWS_OF[measure]:
            found = [name for each in own if each["view"] == view for name in each["columns"]]
            if found:
                names += dict.fromkeys(found)
                break
    return names


def _codes(table: pd.DataFrame, columns: list[str]) -> np.ndarray:
    codes: np.ndarray = pd.MultiIndex.from_frame(table[columns].astype(str)).factorize()[0]
    return codes
