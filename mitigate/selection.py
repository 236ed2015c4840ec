"""Selection apart from inference: which stereotypes choices may see, and which are for claims.

Whoever picks the best of many checkpoints or settings by a score, and then reports that score,
reports luck too. With `selection.share` a part of every benchmark's stereotypes is set aside, as
a development set is: the curve over checkpoints, sweeps and fronts see it alone, and every number
of the final table is of the others.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval.errors import RequestError
from eval.metrics import groups_of
from eval.pairs import Pairs
from mitigate.methods.splits import Cluster, translation_groups
from mitigate.settings import SelectionSettings

#: Where the part for choices is kept in a run's folder: its Score tables, and its levels.
FOLDER, LEVELS = "selection", "selection.json"


@dataclass(frozen=True)
class Parts:
    """A run's benchmarks, divided: `choose` is None where nothing was set aside."""

    choose: dict[str, Pairs] | None  # what curve, sweeps and fronts see
    claim: dict[str, Pairs]  # what every number of the final table is of
    facts: dict[str, Any]  # for the manifest


def divide(pairs: Mapping[str, Pairs], settings: SelectionSettings) -> Parts:
    """Divide every benchmark by stereotype, each group in proportion.

    A stereotype is on one side with all its pairs, in every benchmark that names it, and in every
    language: translations are one (`splits.translation_groups`), since they leak. Within
    stereotypes of the same groups the order is that of a hash of seed and name, and of the whole
    row every 1/share-th is taken (systematic sampling; Cochran 1977, ch. 8): the share is met to
    one stereotype, and in each stratum too.

    Raises:
        RequestError: a side of a benchmark would have no stereotype.
    """
    if not settings.share:
        return Parts(None, dict(pairs), {})
    called = _called(pairs)
    chosen = _chosen(pairs, called, settings)
    sides: dict[str, dict[str, Pairs]] = {"choose": {}, "claim": {}}
    facts: dict[str, Any] = {"share": settings.share, "seed": settings.seed, "benchmarks": {}}
    for name, some in pairs.items():
        of_choice = _names(name, some, called).isin(chosen)
        counted: dict[str, Any] = {}
        for side, rows in (("choose", of_choice), ("claim", ~of_choice)):
            table = some.table[rows].reset_index(drop=True)
            if table.empty:
                raise RequestError(
                    f"selection.share={settings.share:g}: of the "
                    f"{some.table['stereotype_id'].nunique()} stereotypes of {name} none is left "
                    f"to {side} by; another share, or more pairs"
                )
            source = {**some.source, "selection": side}
            sides[side][name] = dataclasses.replace(some, table=table, source=source)
            counted[side] = {
                "pairs": len(table),
                "stereotypes": int(table["stereotype_id"].nunique()),
            }
        groups = {side: set(groups_of(sides[side][name].table)) for side in sides}
        counted["groups_on_one_side"] = sorted(groups["choose"] ^ groups["claim"])
        facts["benchmarks"][name] = counted
    return Parts(sides["choose"], sides["claim"], facts)


def _called(pairs: Mapping[str, Pairs]) -> dict[Cluster, str]:
    """One name for the clusters that say the same: their first id, in alphabetical order.

    So a stereotype has the name that it would have alone, whatever it is evaluated beside.
    """
    group_of = translation_groups(pairs)
    first: dict[str, str] = {}
    for (_, name), group in group_of.items():
        first[group] = min(first.get(group, name), name)
    return {cluster: first[group] for cluster, group in group_of.items()}


def _names(benchmark: str, pairs: Pairs, called: Mapping[Cluster, str]) -> pd.Series:
    """The name of each pair's stereotype."""
    return pairs.table["stereotype_id"].map(lambda name: called[benchmark, str(name)])


def _chosen(
    pairs: Mapping[str, Pairs], called: Mapping[Cluster, str], settings: SelectionSettings
) -> set[str]:
    """The stereotypes to choose by."""
    everything = pd.concat(
        [
            pd.DataFrame({"stereotype": _names(name, some, called), "group": some.table["group"]})
            for name, some in pairs.items()
        ],
        ignore_index=True,
    )
    strata = everything.groupby("stereotype")["group"].agg(lambda of: "|".join(sorted(set(of))))

    def rank(name: str) -> int:
        text = f"selection {settings.seed}\x1f{name}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())

    order = sorted(strata.index, key=lambda name: (strata[name], rank(str(name)), name))
    start = rank("") / 2**64  # between 0 and 1: the first few are no likelier than the others
    places = np.floor(np.arange(len(order) + 1) * settings.share + start)
    return {name for name, taken in zip(order, np.diff(places), strict=True) if taken}


def note(facts: Mapping[str, Any]) -> str:
    """What a report says of it; nothing where nothing was set aside."""
    if not facts:
        return ""
    said = [
        f"{name}: {of['choose']['stereotypes']:,} stereotypes to choose by, "
        f"{of['claim']['stereotypes']:,} measured here"
        for name, of in facts["benchmarks"].items()
    ]
    lost = {name for of in facts["benchmarks"].values() for name in of["groups_on_one_side"]}
    only = f" On one side only: {', '.join(sorted(lost))}." if lost else ""
    return (
        f"Selection apart from inference (selection.share={facts['share']:g}, seed "
        f"{facts['seed']}): checkpoints, sweeps and fronts saw stereotypes of which no pair is in "
        f"these numbers ({'; '.join(said)}).{only}"
    )


def write_levels(levels: Mapping[str, Mapping[str, float]]) -> str:
    """The levels of the part to choose by, as the text of LEVELS."""
    plain = {
        name: {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in of.items()
        }
        for name, of in levels.items()
    }
    return json.dumps(plain, indent=2)


def summary(levels: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The levels by key, for a table of runs; over several benchmarks also their mean.

    `selection/after/distance_from_50` is what a sweep minimises.
    """
    found = {
        f"selection/{when}/distance_from_50/{name}": of[f"distance_{when}"]
        for name, of in levels.items()
        for when in ("before", "after")
    }
    for when in ("before", "after") if levels else ():
        every = [of[f"distance_{when}"] for of in levels.values()]
        found[f"selection/{when}/distance_from_50"] = float(np.mean(every))
    return {key: value for key, value in found.items() if not math.isnan(value)}


def read_levels(folder: Path) -> dict[str, dict[str, float]]:
    """The levels by benchmark that a run's folder holds; empty where nothing was set aside."""
    path = folder / LEVELS
    if not path.is_file():
        return {}
    return {
        name: {key: math.nan if value is None else value for key, value in of.items()}
        for name, of in json.loads(path.read_text("utf-8")).items()
    }
