"""Prompted choice on the page: what position does, and what personas do."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from eval.inference import Comparison, InferenceSettings, confidence, personas
from eval.inference.positions import STATISTICS
from eval.report import tables
from eval.report.page import cells

_NAMES = {
    "first": "stereotype stands first",
    "second": "stereotype stands second",
    "balanced": "balanced score",
    "effect": "position effect",
    "agreement": "both orders agree",
    "place 1": "first one, both times",
    "place 2": "second one, both times",
}


def section(
    comparisons: Mapping[str, Comparison], effects: Mapping[str, pd.DataFrame]
) -> dict[str, Any] | None:
    """The section's parts, each with a title, words and a table; None where nobody was asked.

    `effects`: by benchmark, tables of `eval.inference.personas` with a column `when`.
    """
    orders = [
        _order(name, comparison, comparison.positions)
        for name, comparison in comparisons.items()
        if comparison.positions is not None
    ]
    if not orders and not effects:
        return None
    settings = next(iter(comparisons.values())).settings
    return {
        "orders": orders,
        "personas": [_persona(name, found, settings) for name, found in effects.items()],
    }


def _order(name: str, comparison: Comparison, found: pd.DataFrame) -> dict[str, Any]:
    level = f"{confidence(comparison.settings.alpha)} interval"
    rows = [
        [
            cells.text(tables.scope_label(row["scope"])),
            cells.text(_NAMES[row["statistic"]]),
            cells.count(row["n_pairs"]),
            cells.count(row["n_clusters"]),
            cells.level(row["before"], 2),
            cells.levels(row["before_low"], row["before_high"], 1),
            cells.level(row["after"], 2),
            cells.levels(row["after_low"], row["after_high"], 1),
            cells.change(row["delta"], 2),
            cells.span(row["ci_low"], row["ci_high"], 1),
            cells.p_value(row["p"]),
            cells.p_value(row["p_adjusted"]),
        ]
        for row in found.to_dict("records")
    ]
    table = cells.table(
        f"Both orders, {name}",
        "Per cent of pairs, the position effect in points. Balanced: the mean of the two orders. "
        "Intervals by the cluster bootstrap, p by the signs of whole clusters, adjusted over the "
        "groups of one statistic.",
        [
            *("scope", "statistic", "pairs", comparison.unit, "before", f"{level}, before"),
            *("after", f"{level}, after", "Δ", f"{level} of Δ", "p", "p adj."),
        ],
        rows,
        whole=len(STATISTICS),
    )
    return {
        "title": name,
        "said": [note for note in comparison.notes if note.startswith(("Before: ", "After: "))],
        "table": table,
        "folded": f"Both orders of {name}: {len(rows):,} rows",
    }


def _persona(name: str, found: pd.DataFrame, settings: InferenceSettings) -> dict[str, Any]:
    level = f"{confidence(settings.alpha)} interval"
    rows = [
        [
            cells.text(tables.scope_label(row["scope"])),
            cells.text(row["persona"]),
            cells.text(row["when"]),
            cells.count(row["n_clusters"]),
            cells.level(row["base"], 2),
            cells.level(row["level"], 2),
            cells.change(row["delta"], 2),
            cells.span(row["ci_low"], row["ci_high"], 1),
            cells.p_value(row["p"]),
            cells.p_value(row["p_adjusted"]),
            cells.p_value(row["published_p"], "no such test"),
        ]
        for row in found.to_dict("records")
    ]
    table = cells.table(
        f"Personas, {name}",
        "Share choosing the stereotyped sentence, per cent, with no persona and with one; the "
        "same pairs, so that the effect is paired. p by the signs of whole clusters; McNemar's "
        "test, as published, takes answers for independent.",
        [
            *("scope", "persona", "when", "clusters", "none", "with it", "effect", level),
            *("p", "p adj.", "McNemar's p"),
        ],
        rows,
    )
    said = [
        f"{str(when).capitalize()}: {line}"
        for when, some in found.groupby("when", sort=False)
        for line in personas.sentences(some)
    ]
    return {
        "title": name,
        "said": said,
        "table": table,
        "folded": f"Every persona of {name}: {len(rows):,} rows",
    }
