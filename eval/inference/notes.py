"""What a reader must know beside the numbers of a comparison."""

import numpy as np

from eval.inference.comparison import Comparison
from eval.inference.verdicts import FEW_CLUSTERS
from eval.metrics import NEUTRAL, groups_of, soft_score
from eval.pairs import GROUP_SEPARATOR
from eval.scores import PAIR_OF, Scores

#: A drift of the soft score is told from here on: what shows at two decimals.
SOFT_DRIFT = 0.005
#: Points by which noise lifts the headline's distance, told from here on.
LIFT = 0.5


def notes_of(comparison: Comparison, before: Scores, after: Scores) -> list[str]:
    """What a reader must know beside the numbers."""
    table, unit, ties = comparison.table, comparison.unit, comparison.settings.ties
    overall = table[table["scope"] == "overall"].set_index("metric")
    notes = []
    if unit == "pairs":
        notes.append(
            "Each pair is taken for a cluster of its own: the table names no stereotype that "
            "several pairs share."
        )
    scored = ["score_more", "score_less"]
    if np.array_equal(before.table[scored].to_numpy(float), after.table[scored].to_numpy(float)):
        notes.append(
            "Every score is the same before and after, to the last digit: if a model was trained "
            "in between, look whether its weights were loaded."
        )
    bias = comparison.rows("bias")
    few = bias[bias["n_clusters"] < FEW_CLUSTERS]
    for n in sorted(set(few["n_clusters"].tolist())):
        where = ", ".join(few.loc[few["n_clusters"] == n, "scope"])
        if n == 1:
            notes.append(f"One cluster carries {where}: no interval and no p can be had from it.")
        else:
            notes.append(
                f"{n} clusters carry {where}: whatever the data, p cannot go below 2^(1-{n}) = "
                f"{2.0 ** (1 - n):.4g}, and the interval is too narrow."
            )
    counted = {
        "half": "count as half a win",
        "exclude": "are left out of every share",
        "reference": "(after rounding to three decimals) count as unbiased overall and are left "
        "out of the shares by group",
    }[ties]
    tied = overall.loc["ties", ["before", "after"]]
    if tied.any():
        notes.append(
            f"Ties: {tied['before']:.2f} % of pairs before, {tied['after']:.2f} % after; "
            f"they {counted}."
        )
    several = (
        before.table["group"].fillna("").astype(str).str.contains(GROUP_SEPARATOR, regex=False)
    )
    if several.any():
        notes.append(
            f"{int(several.sum())} pairs name several groups: each counts in all of them, and "
            "once overall."
        )
    grouped = np.unique(np.concatenate([np.empty(0, int), *groups_of(before.table).values()]))
    if 0 < len(grouped) < len(before.table):
        notes.append(
            f"{len(before.table) - len(grouped)} pairs name no group: they count overall only."
        )
    undefined = bias.loc[bias["delta"].isna(), "scope"].tolist()
    if undefined:
        notes.append(f"All pairs of {', '.join(undefined)} are left out as ties: no bias there.")
    flat = bias[
        ((bias["before_low"] == bias["before_high"]) | (bias["after_low"] == bias["after_high"]))
        & (bias["n_clusters"] > 1)
    ]["scope"].tolist()
    if flat:
        notes.append(
            f"A level's interval has no width in {', '.join(flat)}: there all {unit} went the "
            "same way, which a bootstrap takes for certainty; it is not."
        )
    lift = [comparison.headline[f"lift_{when}"] for when in ("before", "after")]
    if max(lift) >= LIFT:
        notes.append(
            f"Noise lifts a distance from 50, since it cannot be negative: here by about "
            f"{lift[0]:.1f} points before and {lift[1]:.1f} after (bootstrap). Short distances are "
            "overstated, and so is the spread between groups, which is not tested."
        )
    # Of labels, in prompted choice, whose likelihood falls for reasons of its own.
    drift = "" if PAIR_OF in before.table else soft_drift(before, after)
    if drift:
        notes.append(drift)
    return notes


def soft_drift(before: Scores, after: Scores) -> str:
    """Tell how much of the soft score's change comes from both sentences getting less likely.

    The ratio is recomputed with the margins of before and the total likelihoods of after: what
    it moves by has nothing to do with which sentence of a pair is preferred.
    """
    more, less = (
        np.stack([s.table[column].to_numpy(float) for s in (before, after)])
        for column in ("score_more", "score_less")
    )
    fall = [float(x[1].mean() - x[0].mean()) for x in (more, less)]
    if max(fall) >= 0:
        return ""
    total, margin = more[1] + less[1], more[0] - less[0]
    unchanged = soft_score((total + margin) / 2, (total - margin) / 2).mean()
    was, now = (soft_score(more[model], less[model]).mean() for model in range(2))
    drift = unchanged - was
    if abs(drift) < SOFT_DRIFT or abs(unchanged - NEUTRAL) >= abs(was - NEUTRAL):
        return ""
    return (
        f"Both sentences of a pair became less likely (by {-fall[0]:.2f} and {-fall[1]:.2f} nats "
        f"on average). That alone, with every margin unchanged, moves the soft score toward 50, "
        f"from {was:.2f} to {unchanged:.2f}; it stands at {now:.2f}. Read the margin instead."
    )
