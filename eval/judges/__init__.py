"""Judges: what completed sentences are worth, by tools that are named with version and language.

Sentiment, regard and toxicity as in QueerGen (2601.20731, §4.3 to §4.5). Tools of this kind react
to the identity word itself, so each measure is taken of the text as it is and of the text with
subject and marker masked; how they are called is `MEASURE_VIEW`, regard's parts
`regard_PART_VIEW`. What the tools miss, and whom they wrong, they miss before and after alike:
they are made for general text, not for what is said of LGBTQ+ people.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from eval.completions import Completions
from eval.errors import RequestError
from eval.judges.settings import (
    KNOWN,
    MASK,
    MEASURES,
    REGARD,
    VIEWS,
    VIEWS_OF,
    JudgeChoice,
    JudgeSettings,
    Planned,
    plan,
)
from eval.judges.texts import seen

__all__ = [
    "KNOWN",
    "MASK",
    "MEASURES",
    "REGARD",
    "VIEWS",
    "VIEWS_OF",
    "JudgeChoice",
    "JudgeSettings",
    "check",
    "judge",
    "judge_all",
    "plan",
    "seen",
]

Report = Callable[[int, int], None]


def check(settings: JudgeSettings, languages: Iterable[str]) -> None:
    """Load each judge once and let it go, so that a missing one is known before anything is said.

    Raises:
        RequestError: as `plan` does, or a judge can't be had.
    """
    for planned in plan(settings, languages):
        _load(planned, settings)


def judge(
    completions: Completions, settings: JudgeSettings, *, report: Report | None = None
) -> Completions:
    """Let the chosen judges rate a Completion table; see `judge_all`."""
    return judge_all([completions], settings, report=report)[0]


def judge_all(
    several: Sequence[Completions], settings: JudgeSettings, *, report: Report | None = None
) -> list[Completions]:
    """Let the chosen judges rate Completion tables, each distinct text of them all once.

    Adds a float64 column for each measure and view, NaN where a completion has no usable word,
    and for each judge a record to `meta["judges"]`: measure, columns, view, masked (whether it
    was kept from the identity; a word alone never shows it), tool, id, version (of the package;
    else the fingerprint of the weights or of the file), revision (on the hub), language, texts
    (distinct ones judged).

    Args:
        several: such as before and after
        settings: who judges what
        report: told how many texts are done, and of how many

    Raises:
        RequestError: as `plan` does, or a judge can't be had, or saved scores lack texts, or the
            words that are to be masked don't stand in a prompt.
    """
    tables = [each.table.copy() for each in several]
    records: list[list[dict[str, Any]]] = [[] for _ in several]
    languages = sorted({str(name) for table in tables for name in table["language"].unique()})
    jobs = []
    for planned in plan(settings, languages):
        for view in VIEWS_OF[planned.measure]:
            views = [seen(table, view).where(table["language"] == planned.language, "")
                     for table in tables]  # fmt: skip
            texts = sorted({text for given in views for text in given.unique()} - {""})
            jobs.append((planned, view, views, texts))
    told, total = 0, sum(len(texts) for *_, texts in jobs)
    tool: Any = None
    ready: Planned | None = None
    rated: set[tuple[str, str]] = set()
    for planned, view, views, texts in jobs:
        if planned is not ready:
            tool, ready = _load(planned, settings), planned
        values = _rate(tool, planned, texts, told, total, report)
        told += len(texts)
        if planned.tool == "saved" and np.isnan(values).any():
            if np.isnan(values).all():
                continue  # scores are of another view
            raise RequestError(
                f"judges.{planned.measure}.path={planned.source}: lacks "
                f"{int(np.isnan(values).sum()):,} of {len(texts):,} texts ({view})"
            )
        rated.add((planned.measure, planned.language))
        known = pd.DataFrame(values, index=pd.Index(texts, dtype=object))
        names = [f"{column}_{view}" for column in tool.columns]
        for table, given, own in zip(tables, views, records, strict=True):
            rows = (given != "").to_numpy()
            for number, name in enumerate(names):
                if name not in table:
                    table[name] = np.nan
                table.loc[rows, name] = known[number].reindex(given[rows]).to_numpy(float)
            own.append(_record(planned, view, tool, names, len(set(given[rows]))))
    for planned, *_ in jobs:
        if told and (planned.measure, planned.language) not in rated:
            raise RequestError(
                f"judges.{planned.measure}.path={planned.source}: holds none of the texts, neither "
                f"as they are nor with the identity as {MASK}"
            )
    return [
        Completions(table, {**each.meta, "judges": own})
        for table, each, own in zip(tables, several, records, strict=True)
    ]


def _load(planned: Planned, settings: JudgeSettings) -> Any:
    """The tool itself. Each is imported only where it is used: two of them take a while."""
    if planned.tool == "vader":
        from eval.judges.vader import Vader

        return Vader()
    if planned.tool == "saved":
        from eval.judges.saved import Saved

        return Saved(planned.source)
    from eval.judges.classifier import Classifier

    return Classifier(planned, settings.device, settings.batch)


def _rate(
    tool: Any,
    planned: Planned,
    texts: list[str],
    told: int,
    total: int,
    report: Report | None,
) -> np.ndarray:
    if not texts:
        return np.empty((0, len(tool.columns)))
    if planned.tool == "classifier":
        step = None if report is None else lambda done: report(told + done, total)
        values: np.ndarray = tool.rate(texts, step)
        return values
    values = tool.rate(texts)
    if report:
        report(told + len(texts), total)
    return values


def _record(planned: Planned, view: str, tool: Any, names: list[str], texts: int) -> dict[str, Any]:
    return {
        "measure": planned.measure,
        "columns": names,
        "view": view,
        "masked": view != "sentence",
        "tool": planned.tool,
        "id": planned.source,
        "version": tool.version,
        "revision": getattr(tool, "revision", None),
        "language": planned.language,
        "texts": texts,
    }
