"""As published: the papers' tests, which take pairs for independent observations."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.stats import binom, rankdata, ttest_rel, wilcoxon
from statsmodels.stats.contingency_tables import mcnemar

from eval.metrics import Scope, soft_score
from eval.scores import Scores

PUBLISHED_TEST = "as published (independent pairs)"
#: Below so many discordant pairs McNemar's test is the exact one.
MCNEMAR_EXACT_BELOW = 25
PUBLISHED_COLUMNS = {
    "scope": "overall, group:<name>, slice:<name>",
    "metric": "bias (I(s1 > s2), a tie counts 0), soft (%), margin (nats)",
    "n_pairs": "pairs, taken as independent observations",
    "before": "level before",
    "before_se": "its standard error: bias sqrt(p(1 - p)/n), else s/sqrt(n)",
    "after": "level after",
    "after_se": "its standard error",
    "delta": "after minus before",
    "test": "McNemar exact or chi2 (bias), paired t (soft, margin)",
    "p": "two-sided p, unadjusted",
    "stars": "* p<.05, ** p<.01, *** p<.001",
    "second_test": "McNemar mid-p (bias), Wilcoxon signed rank (soft, margin)",
    "second_p": "two-sided p of the second test, unadjusted",
    "name": "under which name these tests stand",
}
_ALL_SIGNS = 13  # pairs: 8,192 ways to give them signs
_Test = Callable[[np.ndarray, np.ndarray], tuple[float, str]]


def as_published(before: Scores, after: Scores, cut: list[Scope]) -> pd.DataFrame:
    """The papers' tests of each scope that is one average, with PUBLISHED_COLUMNS.

    Bias: share of I(s1 > s2), standard error sqrt(p(1 - p)/n), McNemar's test, exact under 25
    discordant pairs, else chi2 with continuity correction; its mid-p beside it. Soft score and
    margin: paired t, and Wilcoxon's signed rank beside it. The German paper prints stars and
    does not name its test. (2608.30884, Tables 4-7)
    """
    scored = [
        (s.table["score_more"].to_numpy(float), s.table["score_less"].to_numpy(float))
        for s in (before, after)
    ]
    values: dict[str, list[np.ndarray]] = {
        "bias": [100.0 * (more > less) for more, less in scored],
        "soft": [soft_score(more, less) for more, less in scored],
        "margin": [more - less for more, less in scored],
    }
    tests: dict[str, tuple[_Test, _Test]] = {
        "bias": (mcnemar_test, mcnemar_mid_p),
        "soft": (paired_t, signed_rank),
        "margin": (paired_t, signed_rank),
    }
    rows = []
    for scope in cut:
        for metric, (all_before, all_after) in values.items():
            x, y = all_before[scope.rows], all_after[scope.rows]
            first, second = tests[metric]
            p, test = first(x, y)
            second_p, second_test = second(x, y)
            rows.append(
                {
                    "scope": scope.name,
                    "metric": metric,
                    "n_pairs": len(x),
                    "before": x.mean(),
                    "before_se": _independent_se(x, metric),
                    "after": y.mean(),
                    "after_se": _independent_se(y, metric),
                    "delta": y.mean() - x.mean(),
                    "test": test,
                    "p": p,
                    "stars": stars(p),
                    "second_test": second_test,
                    "second_p": second_p,
                    "name": PUBLISHED_TEST,
                }
            )
    return pd.DataFrame(rows)[list(PUBLISHED_COLUMNS)]


def stars(p: float) -> str:
    """The German paper's stars: * p<.05, ** p<.01, *** p<.001."""
    return "*" * sum(p < level for level in (0.05, 0.01, 0.001))


def mcnemar_test(x: np.ndarray, y: np.ndarray) -> tuple[float, str]:
    """McNemar's test of two binary series, exact under 25 discordant pairs, and its name."""
    down, up = _discordant(x, y)
    if down + up == 0:
        return 1.0, "McNemar, no discordant pair"
    same = [int(((x > 0) & (y > 0)).sum()), int(((x == 0) & (y == 0)).sum())]
    exact = down + up < MCNEMAR_EXACT_BELOW
    result = mcnemar([[same[0], down], [up, same[1]]], exact=exact, correction=True)
    return float(result.pvalue), "McNemar exact" if exact else "McNemar chi2"


def mcnemar_mid_p(x: np.ndarray, y: np.ndarray) -> tuple[float, str]:
    """McNemar's mid-p: what is more extreme, and half of what is as extreme (Fagerland 2013)."""
    down, up = _discordant(x, y)
    if down + up == 0:
        return 1.0, "McNemar, no discordant pair"
    fewer, total = min(down, up), down + up
    as_extreme = binom.pmf(fewer, total, 0.5)
    if down == up:
        return float(1 - as_extreme / 2), "McNemar mid-p"
    return float(2 * binom.cdf(fewer, total, 0.5) - as_extreme), "McNemar mid-p"


def paired_t(x: np.ndarray, y: np.ndarray) -> tuple[float, str]:
    """The paired t test and its name; the name says why where there is none."""
    difference = y - x
    if len(x) < 2:
        return float("nan"), "none: one pair"
    if np.ptp(difference) == 0:  # t is 0/0, or infinite
        return (
            (1.0, "paired t, no difference")
            if difference[0] == 0
            else (0.0, "paired t, all differences equal")
        )
    return float(ttest_rel(y, x).pvalue), "paired t"


def signed_rank(x: np.ndarray, y: np.ndarray) -> tuple[float, str]:
    """Wilcoxon's signed rank test (1945), pairs without a difference left out, and its name.

    Over all signs for few pairs, ties among them or not; else scipy's, which is exact up to 50
    pairs without ties. scipy too takes all signs for few tied pairs, in seconds each.
    """
    difference = (y - x)[y != x]
    if len(x) < 2:
        return float("nan"), "none: one pair"
    if len(difference) == 0:
        return 1.0, "Wilcoxon, no difference"
    count = len(difference)
    if count <= _ALL_SIGNS:
        ranks = rankdata(np.abs(difference))
        signs = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        rarer = min(ranks[difference > 0].sum(), ranks[difference < 0].sum())
        p = min(1.0, 2 * float((signs @ ranks <= rarer).mean()))  # ranks are halves: no rounding
    else:
        p = float(wilcoxon(difference).pvalue)
    return p, "Wilcoxon signed rank"


def _discordant(x: np.ndarray, y: np.ndarray) -> tuple[int, int]:
    return int(((x > 0) & (y == 0)).sum()), int(((x == 0) & (y > 0)).sum())


def _independent_se(values: np.ndarray, metric: str) -> float:
    if metric == "bias":
        share = values.mean() / 100
        return float(100 * np.sqrt(share * (1 - share) / len(values)))
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
