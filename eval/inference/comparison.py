"""What a comparison holds: its tables, and what their columns mean."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from eval.inference.positions import by_position
from eval.inference.sentences import first_sentence, second_sentence
from eval.inference.settings import InferenceSettings

#: The Delta table's columns and what they mean; the order is the table's.
DELTA_COLUMNS = {
    "scope": "overall, macro (mean over groups), group:<name>, slice:<name>, <column>:<value>",
    "metric": "bias, soft (%), margin (nats), sigmoid (of the margin a token, %), distance "
    "(|bias - 50|, points), ties (% of pairs)",
    "n_pairs": "pairs in the scope",
    "n_clusters": "clusters (stereotypes) in the scope, the unit of inference",
    "before": "level before",
    "after": "level after",
    "delta": "after minus before: percentage points, for margin nats",
    "se": "cluster-robust standard error of delta (CR2); for distance the bootstrap's",
    "ci_low": "lower end of the cluster bootstrap interval of delta (percentile)",
    "ci_high": "upper end of it",
    "before_low": "lower end of the interval of the level before",
    "before_high": "upper end of it",
    "after_low": "lower end of the interval of the level after",
    "after_high": "upper end of it",
    "p": "two-sided p of the cluster test; for distance the larger of that of swapped labels and "
    "p_t",
    "p_adjusted": "p adjusted within the family",
    "family": "the tests that the adjustment covers, in words",
    "test": "the test and its number of flips",
    "df": "Satterthwaite degrees of freedom of se",
    "p_t": "two-sided p of the t test with se and df, unadjusted; empty where nothing varies",
    "bca_low": "lower end of the bias-corrected and accelerated bootstrap interval of delta",
    "bca_high": "upper end of it; empty where the draws do not allow one",
    "p_floor": "the smallest p that so many clusters allow",
    "equivalence_margin": "within how much delta counts as none, as the settings state; empty for "
    "soft, sigmoid and ties",
    "p_equivalence": "p of the two one-sided t tests that delta lies within that margin; for "
    "distance the largest of the biases beneath it",
    "p_equivalence_adjusted": "that p adjusted within the family",
    "smallest_shown": "the change that a t test with se and df would show, with the power set, at "
    "the family's first step; empty where no p could be small enough",
    "moved_toward_50": "nearer the neutral point than before (50; for margin 0); empty for ties",
    "verdict": "toward 50, away from 50, crossed over (for margin the point is 0), unchanged "
    "(within the margin), not shown; with a warning where few clusters carry it",
}


@dataclass(frozen=True)
class Comparison:
    """What changed on one benchmark.

    `table` has DELTA_COLUMNS, `published` PUBLISHED_COLUMNS, `two_way` TWO_WAY_COLUMNS.
    `headline`: the mean over groups of |bias - 50| and the spread between groups, before and
    after, with the test of the first. `threshold`, `harm`, `erasure` and `positions` are those of
    the modules of these names. A table is None where the pairs don't carry what it needs.
    """

    benchmark: str
    table: pd.DataFrame
    published: pd.DataFrame
    headline: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    settings: InferenceSettings = field(default_factory=InferenceSettings)
    unit: str = "stereotypes"  # what a cluster is here: stereotypes, or pairs
    two_way: pd.DataFrame | None = None
    threshold: pd.DataFrame | None = None
    harm: pd.DataFrame | None = None
    erasure: pd.DataFrame | None = None
    positions: pd.DataFrame | None = None

    def rows(self, metric: str = "bias", kind: str | None = None) -> pd.DataFrame:
        """The Delta table's rows of one metric, of all scopes or of one kind (group, slice)."""
        rows = self.table[self.table["metric"] == metric]
        return rows if kind is None else rows[rows["scope"].str.startswith(f"{kind}:")]

    def sentences(self) -> tuple[str, str]:
        """The finding in two plain sentences, which follow from the verdicts.

        Where a model that was asked to choose answers by position, the first says that too: it
        lies near 50 whatever it thinks of the sentences.
        """
        first = first_sentence(self.headline, self.settings, self.unit)
        found = self.positions
        when = [] if found is None else [at for at in ("before", "after") if by_position(found, at)]
        if when:
            first += (
                f" But {' and '.join(when)} the model answers by position, so that nearness to 50 "
                "says nothing of the sentences."
            )
        return first, second_sentence(self.rows("bias"))
