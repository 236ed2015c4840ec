"""Erasure: did the model merely stop saying the words? Their own likelihood before and after.

A bias score looks only at the words that both sentences share. A model may reach 50 because it
forgot the identities, or because it forgot everything. So the log-likelihood of the words that
*differ* is compared too: the identity's in the stereotyped sentence, the counterpart's in the
other, and the difference of the two, all in nats. If the identity's words fall and the
counterpart's don't, the change is at least partly erasure. No paper of the four measures it.
"""

import numpy as np
import pandas as pd

from eval.inference.clusters import weighted
from eval.inference.corrections import adjust
from eval.inference.draws import sign_flip, weights
from eval.inference.resampling import percentile, stream
from eval.inference.robust import cr2
from eval.inference.settings import InferenceSettings
from eval.metrics import Scope, mean, scopes
from eval.scores import TERM_COLUMNS, Scores

#: The Score table's columns, in nats: the words that differ, in either sentence.
IDENTITY, COUNTERPART = TERM_COLUMNS
TERMS = ("identity", "counterpart", "difference")
ERASURE_COLUMNS = {
    "scope": "overall, macro (mean over groups), group:<name>",
    "term": "identity, counterpart, or difference: identity minus counterpart",
    "n_pairs": "pairs with both terms scored before and after",
    "n_clusters": "clusters (stereotypes) among them",
    "before": "mean log-likelihood of the words that differ, nats",
    "after": "likewise, after",
    "delta": "after minus before, nats; below 0 the words became less likely",
    "se": "CR2 cluster-robust standard error of delta",
    "ci_low": "lower end of the cluster bootstrap interval of delta",
    "ci_high": "upper end of it",
    "p": "two-sided p of the cluster sign-flip test",
    "p_adjusted": "adjusted over overall and macro, or over the groups, of one term",
}
_BOOTSTRAP, _FLIP = 30, 31  # purposes of the seeded streams


def changes(before: Scores, after: Scores, settings: InferenceSettings) -> pd.DataFrame | None:
    """Change of the log-likelihood of identity and counterpart words; ERASURE_COLUMNS.

    The level is the mean over pairs, for macro the mean over groups of it. Interval: percentile,
    stereotypes drawn with replacement. Test: the signs of whole stereotypes flipped
    (`draws.sign_flip`). Standard error: CR2 (`robust.cr2`), the cells being groups. Terms
    aren't divided by their number of tokens: both are the whole word's likelihood.

    Pairs in which a term isn't a number, before or after, are left out of all of it.

    Args:
        before: scores before
        after: scores after, in the order of `before`
        settings: seed, resamples, alpha and correction

    Returns: a row for each scope and term; None where either table lacks the columns, or no
    pair has both terms
    """
    if any(c not in s.table for s in (before, after) for c in (IDENTITY, COUNTERPART)):
        return None
    terms = np.stack(
        [[s.table[c].to_numpy(float) for c in (IDENTITY, COUNTERPART)] for s in (before, after)]
    )  # (models, 2, pairs)
    scored = np.isfinite(terms).all(axis=(0, 1))
    if not scored.any():
        return None
    terms = terms[..., scored]
    terms = np.concatenate([terms, terms[:, :1] - terms[:, 1:]], axis=1)  # (models, terms, pairs)
    table = before.table[scored].reset_index(drop=True)
    codes, _ = pd.factorize(table["stereotype_id"])
    cut = scopes(table, [])
    found = pd.concat([_scope(scope, codes, terms, settings) for scope in cut], ignore_index=True)
    kinds = found["scope"].map({scope.name: scope.kind for scope in cut})
    found["p_adjusted"] = np.nan
    for _, rows in found.groupby([found["term"], kinds == "group"], sort=False):
        tested = rows.index[rows["p"].notna()]
        if len(tested):
            p = found.loc[tested, "p"].to_numpy()
            found.loc[tested, "p_adjusted"] = adjust(p, settings.correction)
    return found[list(ERASURE_COLUMNS)]


def _scope(
    scope: Scope, codes: np.ndarray, terms: np.ndarray, settings: InferenceSettings
) -> pd.DataFrame:
    """One scope's rows."""
    names, present = np.unique(codes[scope.rows], return_inverse=True)
    number = np.zeros(len(codes), dtype=int)
    number[scope.rows] = present
    change = terms[1] - terms[0]  # (terms, pairs)
    sums = np.zeros((len(names), len(scope.columns), 1 + len(TERMS)))
    for column, rows in enumerate(scope.columns):
        sums[:, column, 0] = np.bincount(number[rows], minlength=len(names))
        for term in range(len(TERMS)):
            weight = change[term, rows]
            sums[:, column, 1 + term] = np.bincount(number[rows], weight, len(names))
    levels = np.mean([terms[..., rows].mean(axis=2) for rows in scope.columns], axis=0)
    totals = sums.sum(axis=0)  # (columns, 1 + terms)
    # a cluster's part of the change, averaged over groups: its sum is delta
    parts = (sums[..., 1:] / totals[:, :1]).mean(axis=1)  # (clusters, terms)
    counts = np.repeat(sums[..., :1], len(TERMS), axis=2)
    se, _ = cr2(sums[..., 1:], counts, np.full(counts.shape[1:], 1 / counts.shape[1]))
    ends = np.full((2, len(TERMS)), np.nan)
    if len(names) > 1:
        rng = stream(settings.seed, scope.name, _BOOTSTRAP)
        drawn = [_means(weighted(w, sums)) for w in weights(len(names), settings.resamples, rng)]
        ends = percentile(np.concatenate(drawn), settings.alpha)
    rng = stream(settings.seed, scope.name, _FLIP)
    return pd.DataFrame(
        {
            "scope": scope.name,
            "term": TERMS,
            "n_pairs": len(scope.rows),
            "n_clusters": len(names),
            "before": levels[0],
            "after": levels[1],
            "delta": parts.sum(axis=0),
            "se": se,
            "ci_low": ends[0],
            "ci_high": ends[1],
            "p": sign_flip(parts, settings.resamples, rng),
        }
    )


def _means(totals: np.ndarray) -> np.ndarray:
    """Means over pairs, averaged over groups: (rows, columns, 1 + terms) → (rows, terms)."""
    pairs = totals[..., :1]
    there = pairs > 0  # a group that no resampled cluster holds is no part of the mean
    return mean(np.where(there, totals[..., 1:] / np.where(there, pairs, 1.0), np.nan), axis=1)
