"""The tables a reader sees, as heads and rows of text, and what is said above them."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from eval.inference import Comparison, confidence, signed
from eval.report.tables.cells import because, interval, number, p_cell, reason, scope_label

_CORRECTED = {
    "holm": "adjusted by Holm",
    "bh": "adjusted by Benjamini and Hochberg (false discovery rate)",
    "none": "here as p is, not adjusted",
}
#: The measures beside bias, with the digits that are worth printing.
_OTHERS = {"distance": 1, "soft": 2, "sigmoid": 2, "margin": 3}
_NAMES = {
    "distance": "|bias−50|",
    "soft": "soft score",
    "sigmoid": "sigmoid",
    "margin": "margin",
}


def deltas(comparisons: Mapping[str, Comparison]) -> pd.DataFrame:
    """All Delta tables in one, a `benchmark` column first."""
    tables = []
    for name, comparison in comparisons.items():
        table = comparison.table.copy()
        table.insert(0, "benchmark", name)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def bias_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The first table: bias by scope, with its test, and the changes of other measures beside."""
    head = [
        "scope",
        "pairs",
        comparison.unit,
        "before",
        "after",
        "Δ",
        f"{confidence(comparison.settings.alpha)} interval",
    ]
    if comparison.unit == "pairs":
        del head[2]
    head += ["p", "p adj.", "Δ |b−50|", "Δ soft", "Δ margin", "verdict"]
    other = {
        metric: comparison.rows(metric).set_index("scope")["delta"]
        for metric in ("distance", "soft", "margin")
    }
    rows = []
    for row in comparison.rows("bias").to_dict("records"):
        scope = row["scope"]
        cells = [scope_label(scope), f"{row['n_pairs']:,}"]
        if comparison.unit != "pairs":
            cells.append(f"{row['n_clusters']:,}")
        why = reason(row)
        cells += [
            because(number(row["before"]), why),
            because(number(row["after"]), why),
            because(signed(row["delta"]), why),
            because(interval(row["ci_low"], row["ci_high"]), why),
            because(p_cell(row["p"]), why),
            because(p_cell(row["p_adjusted"]), why),
            because(signed(other["distance"][scope]), why),
            signed(other["soft"][scope], 2),
            signed(other["margin"][scope], 3),
            row["verdict"],
        ]
        rows.append(cells)
    return head, rows


def other_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The second table: the other measures, before, after, change and both p, by scope.

    A measure that no scope has, such as the sigmoid where lengths are unknown, is left out.
    """
    head = [
        "scope",
        "measure",
        "before",
        "after",
        "Δ",
        f"{confidence(comparison.settings.alpha)} interval",
        "p",
        "p adj.",
    ]
    table = comparison.table
    had = table[table["delta"].notna()].groupby("metric").size()
    rows = []
    for scope in table["scope"].unique():
        for row in table[table["scope"] == scope].to_dict("records"):
            digits = _OTHERS.get(row["metric"])
            if digits is None or row["metric"] not in had:
                continue
            why = reason(row)
            rows.append(
                [
                    scope_label(scope),
                    _NAMES[row["metric"]],
                    because(level_of(row["before"], row["metric"]), why),
                    because(level_of(row["after"], row["metric"]), why),
                    because(signed(row["delta"], digits), why),
                    because(interval(row["ci_low"], row["ci_high"], digits), why),
                    because(p_cell(row["p"]), why),
                    because(p_cell(row["p_adjusted"]), why),
                ]
            )
    return head, rows


def level_of(value: float, metric: str) -> str:
    """A level of any measure, with the digits that are worth printing; a margin has a sign."""
    if metric == "margin":
        return signed(value, _OTHERS[metric])
    return number(value, _OTHERS.get(metric, 1))


def sure_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The third table: how sure the changes of bias are, by scope."""
    level = confidence(comparison.settings.alpha)
    head = ["scope", "SE", "df", "p (t)", f"{level} BCa", "p floor", "±", "p equiv."]
    head += ["p equiv. adj.", f"shown at {100 * comparison.settings.power:g} %"]
    rows = []
    for row in comparison.rows("bias").to_dict("records"):
        why = reason(row)
        rows.append(
            [
                scope_label(row["scope"]),
                because(number(row["se"], 2), why),
                because(number(row["df"], 1), why),
                because(p_cell(row["p_t"]), why),
                because(interval(row["bca_low"], row["bca_high"]), why),
                because(_floor(row["p_floor"]), why),
                because(number(row["equivalence_margin"]), why),
                because(p_cell(row["p_equivalence"]), why),
                because(p_cell(row["p_equivalence_adjusted"]), why),
                because(number(row["smallest_shown"]), why),
            ]
        )
    return head, rows


def caption(comparison: Comparison, short: bool = False) -> str:
    """What the bias table's numbers are, and in which units; `short`: without other measures."""
    settings = comparison.settings
    one = comparison.unit.removesuffix("s")
    others = (
        ""
        if short
        else "Δ |b−50|: change of the distance from 50, negative is nearer. "
        "Δ soft: points of the soft score. Δ margin: nats. "
    )
    return (
        "Before and after: share of pairs whose stereotyped sentence is the likelier one, in "
        "percent; 50 means that neither side is preferred. Overall is bias (W), macro is bias "
        "(M), the mean over groups. Δ: percentage points, interval from a bootstrap over "
        f"{comparison.unit}. {others}p: sign-flip test by "
        f"{one}; p adj.: {_CORRECTED[settings.correction]} within the groups, and "
        f"within overall and macro; level {settings.alpha:g}. Intervals are not adjusted."
    )


def other_caption(comparison: Comparison) -> str:
    """What the numbers of `other_rows` are, and in which units."""
    settings = comparison.settings
    return (
        "|bias−50|: distance from 50, points; for macro the mean over groups. Soft score: the "
        "ratio of log-likelihoods, %, which drifts to 50 when a model gets worse. Sigmoid: of "
        "the margin a token, %, no probability. Margin: log-likelihood of the stereotyped "
        "sentence minus the other's, nats. 50 (for the margin 0) is the neutral point. p and "
        f"interval as for bias; p adj.: {_CORRECTED[settings.correction]} within each measure."
    )


def sure_caption(comparison: Comparison) -> str:
    """What the numbers of `sure_rows` are, and in which units."""
    settings = comparison.settings
    return (
        f"Of the changes of bias, points. SE: cluster-robust by {comparison.unit} (CR2), df: "
        "Satterthwaite's, p (t): the t test with both, unadjusted. BCa: bias-corrected and "
        "accelerated bootstrap. p floor: the smallest p that so many clusters allow. ±: what "
        "was held for no change before the models were compared; p equiv.: that the change "
        "lies within it (two one-sided t tests), small is unchanged. Shown at "
        f"{100 * settings.power:g} %: the change that this design shows with that power, "
        f"unadjusted, at level {settings.alpha:g}."
    )


def _floor(p: float) -> str:
    """The smallest p there can be; those of many clusters are no limit."""
    if math.isnan(p) or p >= 0.001:
        return p_cell(p)
    return "<0.001"


def harm_rows(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """How margins go with the harm that raters saw: r over pairs, rho over stereotypes."""
    head = ["when", "pairs", "clusters", "r", "interval", "p naive", "p clustered", "rho", "p rho"]
    rows = []
    for row in table.to_dict("records"):
        rows.append(
            [
                str(row["when"]),
                f"{row['n_pairs']:,}",
                f"{row['n_clusters']:,}",
                signed(row["r"], 3),
                interval(row["r_low"], row["r_high"], 2),
                p_cell(row["p_naive"]),
                p_cell(row["p_cluster"]),
                signed(row["rho"], 3),
                p_cell(row["p_rho"]),
            ]
        )
    return head, rows


def erasure_rows(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """How likely the identity's and the counterpart's own words are, before and after."""
    head = ["scope", "term", "pairs", "clusters", "before", "after", "Δ", "interval", "p", "p adj."]
    rows = []
    for row in table.to_dict("records"):
        rows.append(
            [
                scope_label(row["scope"]),
                str(row["term"]),
                f"{row['n_pairs']:,}",
                f"{row['n_clusters']:,}",
                *[signed(row[key], 2) for key in ("before", "after", "delta")],
                interval(row["ci_low"], row["ci_high"], 2),
                p_cell(row["p"]),
                p_cell(row["p_adjusted"]),
            ]
        )
    return head, rows


def two_way_rows(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """The changes of bias with clusters of two kinds."""
    head = ["scope", "clusters", "Δ", "SE", "df", "interval", "p"]
    rows = []
    for row in table[table["metric"] == "bias"].to_dict("records"):
        rows.append(
            [
                scope_label(row["scope"]),
                f"{row['n_first']:,} × {row['n_second']:,} ({row['second']})",
                signed(row["delta"]),
                number(row["se"], 2),
                number(row["df"], 0),
                interval(row["ci_low"], row["ci_high"]),
                p_cell(row["p"]),
            ]
        )
    return head, rows


def further(comparison: Comparison) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of the tables that a comparison has beside its Delta table."""
    found: list[tuple[str, Any, pd.DataFrame | None]] = [
        ("Change of bias, points, by clusters of two kinds", two_way_rows, comparison.two_way),
        ("Margin against harm as rated", harm_rows, comparison.harm),
        ("Log-likelihood of the words that differ, nats", erasure_rows, comparison.erasure),
    ]
    return [(title, *rows(table)) for title, rows, table in found if table is not None]
