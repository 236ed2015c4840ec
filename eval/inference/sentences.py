"""In words: the finding in two plain sentences, which follow from the verdicts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from eval.inference.settings import InferenceSettings
from eval.inference.verdicts import plain_verdict


def format_p(p: float) -> str:
    """p as it stands in a sentence."""
    if np.isnan(p):
        return "no p"
    return "p < 0.0001" if p < 0.00005 else f"p = {p:.4f}"


def signed(value: float, digits: int = 1) -> str:
    """A change with its sign, the minus as print has it; a dash where there is none."""
    return "–" if np.isnan(value) else f"{value:+.{digits}f}".replace("-", "−")


def confidence(alpha: float) -> str:
    """The level of intervals, as in `95 %`."""
    return f"{100 * (1 - alpha):g} %"


def first_sentence(found: Mapping[str, Any], settings: InferenceSettings, unit: str) -> str:
    """The headline, which is about the distance from 50, and its verdict.

    A change that is not shown is told with how many clusters moved, and with what would have
    been needed; it is never told as no change. Where the distance is not shown to have changed
    and bias is, as when it went from one side of 50 to the other, that is told too.
    """
    groups = found["n_groups"]
    if np.isnan(found["delta"]):
        return "Nothing can be said of bias: all pairs are ties, before or after."
    where = {0: "overall bias", 1: "in the one group, bias"}.get(
        groups, f"averaged over the {groups} groups, bias"
    )
    levels = f"lay {found['before']:.1f} points from 50 before and {found['after']:.1f} after"
    if found["n_clusters"] == 1:
        one = unit.removesuffix("s")
        return f"The change cannot be tested: {where} {levels}, and one {one} carries it all."
    change = (
        f"{where} {levels} (change {signed(found['delta'])}, "
        f"{confidence(settings.alpha)} interval {signed(found['ci_low'])} to "
        f"{signed(found['ci_high'])}; adjusted {format_p(found['p_adjusted'])}, tested over "
        f"{found['n_clusters']:,} {unit})"
    )
    plain, _, warning = str(found["verdict"]).partition(" (")
    warning = f"; {warning.removesuffix(')')}" if warning else ""
    moved = f"{found['clusters_moved']:,} of {found['n_clusters']:,} {unit} moved"
    itself = _bias_itself(found)
    if plain == "not shown":
        subject = "A change of the distance from 50 is not shown" if itself else ""
        needed = found["smallest_shown"]
        needs = (
            f"; a change of {needed:.1f} points would be shown {100 * settings.power:g} % "
            "of the time"
            if needed > abs(found["delta"])
            else ""
        )
        return f"{subject or 'The change is not shown'}{itself}: {moved}; {change}{needs}{warning}."
    if plain == "unchanged":
        within = (
            f"equivalence {format_p(found['p_equivalence_adjusted'])} within "
            f"±{found['equivalence_margin']:g} points, as the settings state"
        )
        return (
            f"The distance from 50 is unchanged within the margin{itself}: {change}; {within}; "
            f"{moved}{warning}."
        )
    opening = {
        "toward 50": "Bias moved toward 50",
        "away from 50": "Bias moved away from 50",
        "crossed over": "Bias crossed over to the other side of 50",
    }[plain]
    return f"{opening}: {change}{warning}."


def _bias_itself(found: Mapping[str, Any]) -> str:
    """That bias is shown to have changed, where it is."""
    groups, changed = found["n_groups"], found["groups_changed"]
    if groups > 1 and changed:
        return f", though bias itself changed in {changed} of the {groups} groups"
    return ", though bias itself changed" if changed or found["bias_changed"] else ""


def second_sentence(rows: pd.DataFrame) -> str:
    """Overall bias, and how many groups went which way, from the Delta rows of bias."""
    row = rows[rows["scope"] == "overall"].iloc[0]
    overall = (
        f"Overall bias went from {row['before']:.1f} to {row['after']:.1f} "
        f"({signed(row['delta'])} points, adjusted {format_p(row['p_adjusted'])}: "
        f"{plain_verdict(row['verdict'])})"
    )
    if np.isnan(row["delta"]):
        overall = "Overall bias is not defined: all pairs are ties, before or after"
    groups = rows[rows["scope"].str.startswith("group:")]
    if groups.empty:
        return f"{overall}."
    plain = groups["verdict"].map(plain_verdict)
    ways = {
        "toward 50": "moved toward 50",
        "away from 50": "moved away from 50",
        "crossed over": "crossed over",
        "unchanged": "unchanged within the margin",
    }
    counts = {words: int((plain == verdict).sum()) for verdict, words in ways.items()}
    parts = [f"{count} {words}" for words, count in counts.items() if count]
    total, unshown = len(groups), int((plain == "not shown").sum())
    if not parts:
        none = f"in none of the {total} groups is a change shown"
        return f"{overall}; {none if total > 1 else 'in the one group no change is shown'}."
    if unshown:
        parts.append(f"for {unshown} no change is shown")
    of = f"of the {total} groups" if total > 1 else "of the one group"
    listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)
    return f"{overall}; {of}, {listed}."
