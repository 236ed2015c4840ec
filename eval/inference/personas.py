"""Prompted choice under several personas: what a persona does, pair by pair.

The same model answers the same pairs, so its personas are compared as a model before and after
training is: by cluster, and by the paper's own kind of test beside it. (2507.16442, §4.2, prints
levels and no test.)
"""

from collections.abc import Mapping

import pandas as pd

from eval.errors import RequestError
from eval.inference.sentences import format_p, signed
from eval.inference.settings import InferenceSettings
from eval.inference.whole import compare
from eval.scores import Scores, common, differing

#: The persona that the others are held against.
BASE = "none"
PERSONA_COLUMNS = {
    "persona": "who the model was asked to be",
    "scope": "overall, macro (mean over groups), group:<name>",
    "n_pairs": "answers in the scope",
    "n_clusters": "clusters, the unit of inference",
    "base": "share choosing the stereotyped sentence with no persona, %",
    "level": "the same as this persona",
    "delta": "the persona's effect, points",
    "ci_low": "lower end of its cluster bootstrap interval (percentile)",
    "ci_high": "upper end of it",
    "p": "two-sided p of the cluster sign-flip test, unadjusted",
    "p_adjusted": "p adjusted within the family",
    "published_test": "McNemar's test of independent answers, exact or chi2; none for macro",
    "published_p": "its two-sided p, unadjusted",
}


def comparable(tables: Mapping[str, Scores]) -> bool:
    """Whether there are answers with no persona, and with one."""
    return BASE in tables and len(tables) > 1


def effects(
    tables: Mapping[str, Scores], settings: InferenceSettings | None = None
) -> pd.DataFrame:
    """What each persona changes against none, with PERSONA_COLUMNS.

    `tables`: prompted Score tables of one model and benchmark, by persona. Pairs that are in one
    of two tables only (an answer could not be read) are left out.

    Raises:
        RequestError: they are not `comparable`, or two tables aren't of the same benchmark and
            model.
    """
    if not comparable(tables):
        raise RequestError(
            f"personas are compared with {BASE}; there are answers of: {', '.join(tables)}"
        )
    models = {str(scores.meta.get("model")) for scores in tables.values()}
    if len(models) > 1:
        raise RequestError(
            f"personas are compared of one model, not of {', '.join(sorted(models))}"
        )
    parts = []
    for persona, scores in tables.items():
        if persona == BASE:
            continue
        one, other = tables[BASE], scores
        if differing(one, other):
            one, other, _ = common(one, other)
        compared = compare(one, other, settings, slices=[])
        tests = compared.published[compared.published["metric"] == "bias"].set_index("scope")
        rows = compared.rows("bias").rename(columns={"before": "base", "after": "level"})
        rows = rows.assign(
            persona=persona,
            published_test=rows["scope"].map(tests["test"]).fillna("none"),
            published_p=rows["scope"].map(tests["p"]),
        )
        parts.append(rows[list(PERSONA_COLUMNS)])
    return pd.concat(parts, ignore_index=True)


def sentences(found: pd.DataFrame) -> list[str]:
    """What each persona does overall, in plain words."""
    return [
        f"As the {row['persona']} persona the stereotyped sentence is chosen in "
        f"{row['level']:.2f} % of answers, with none in {row['base']:.2f} % "
        f"({signed(row['delta'], 2)} points, {signed(row['ci_low'])} to {signed(row['ci_high'])}; "
        f"adjusted {format_p(row['p_adjusted'])} over {row['n_clusters']:,} clusters; "
        f"{row['published_test']}, as published, {format_p(row['published_p'])})."
        for row in found[found["scope"] == "overall"].to_dict("records")
    ]
