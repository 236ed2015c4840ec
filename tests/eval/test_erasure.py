"""Change of the identity words' own likelihood, against its definition pair by pair."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from eval.inference import InferenceSettings, erasure, holm
from eval.metrics import groups_of
from eval.scores import Scores
from tests.eval.scored import simulated

FAST = InferenceSettings(resamples=400)


def scored(clusters=12, fall=-1.0, seed=0, keep=None):
    """Tables whose identity words fall by `fall` nats and whose counterparts stay put."""
    rng = np.random.default_rng(seed)
    before, after = simulated(clusters=clusters, each=3, seed=seed)
    codes, _ = pd.factorize(before.table["stereotype_id"])
    n = len(codes)
    first = {c: rng.normal(-8, 1, n) for c in (erasure.IDENTITY, erasure.COUNTERPART)}
    own = rng.normal(0, 0.3, clusters)[codes]
    second = {
        erasure.IDENTITY: first[erasure.IDENTITY] + fall + own + rng.normal(0, 0.2, n),
        erasure.COUNTERPART: first[erasure.COUNTERPART] + own + rng.normal(0, 0.2, n),
    }
    rows = np.arange(n) % 5 != 0 if keep is None else keep(before.table)  # unequal clusters
    return tuple(
        Scores(s.table.assign(**columns)[rows].reset_index(drop=True), s.meta)
        for s, columns in ((before, first), (after, second))
    )


def terms(scores):
    identity, other = (scores.table[c].to_numpy() for c in (erasure.IDENTITY, erasure.COUNTERPART))
    return {"identity": identity, "counterpart": other, "difference": identity - other}


def cut(table, scope):
    """A scope's rows, one array an average."""
    groups = groups_of(table)
    if scope == "overall":
        return [np.arange(len(table))]
    return list(groups.values()) if scope == "macro" else [groups[scope.removeprefix("group:")]]


def test_levels_as_defined():
    before, after = scored()
    found = erasure.changes(before, after, FAST)
    assert tuple(found.columns) == tuple(erasure.ERASURE_COLUMNS)
    assert found["scope"].nunique() == 5
    for row in found.to_dict("records"):
        parts = cut(before.table, row["scope"])
        for when, scores in (("before", before), ("after", after)):
            level = np.mean([terms(scores)[row["term"]][rows].mean() for rows in parts])
            assert row[when] == pytest.approx(level, abs=1e-10)
        assert row["delta"] == pytest.approx(row["after"] - row["before"], abs=1e-10)
        assert row["n_pairs"] == len(np.unique(np.concatenate(parts)))
        assert row["ci_low"] < row["delta"] < row["ci_high"]


def test_the_sign_flip_test_is_exact_over_few_stereotypes():
    before, after = scored(clusters=6, fall=-0.2)
    found = erasure.changes(before, after, FAST)
    codes, names = pd.factorize(before.table["stereotype_id"])
    for row in found[found["scope"].isin(["macro", "overall"])].to_dict("records"):
        difference = terms(after)[row["term"]] - terms(before)[row["term"]]
        sizes = []
        for signs in product([1, -1], repeat=len(names)):
            flipped = difference * np.asarray(signs)[codes]
            sizes.append(abs(np.mean([flipped[r].mean() for r in cut(before.table, row["scope"])])))
        hits = np.asarray(sizes) >= abs(row["delta"]) - 1e-12
        assert row["p"] == hits.mean()


def test_the_standard_error_is_cr2_by_matrices():
    """(I - H)^(-1/2) computed as such, on the regression of the change on dummies of groups."""
    before, after = scored()
    found = erasure.changes(before, after, FAST).set_index(["scope", "term"])
    codes, names = pd.factorize(before.table["stereotype_id"])
    for scope in ("overall", "macro", "group:gay"):
        parts = cut(before.table, scope)
        rows = np.concatenate(parts)
        x = np.concatenate([np.eye(len(parts))[[k] * len(r)] for k, r in enumerate(parts)])
        y = (terms(after)["identity"] - terms(before)["identity"])[rows]
        bread = np.linalg.inv(x.T @ x)
        residual = sm.OLS(y, x).fit().resid
        variance = 0.0
        for cluster in range(len(names)):
            inside = codes[rows] == cluster
            left = np.eye(inside.sum()) - x[inside] @ bread @ x[inside].T
            values, vectors = np.linalg.eigh(left)
            root = vectors @ np.diag(values**-0.5) @ vectors.T
            score = x[inside].T @ root @ residual[inside]
            variance += (np.full(len(parts), 1 / len(parts)) @ bread @ score) ** 2
        assert found.loc[(scope, "identity"), "se"] == pytest.approx(variance**0.5, rel=1e-9)


def test_the_interval_is_that_of_stereotypes_drawn_one_by_one():
    before, after = scored()
    found = erasure.changes(before, after, InferenceSettings(resamples=4000))
    row = found[(found["scope"] == "macro") & (found["term"] == "difference")].iloc[0]
    difference = terms(after)["difference"] - terms(before)["difference"]
    ids, groups = (before.table[c].to_numpy(str) for c in ("stereotype_id", "group"))
    rows_of = [np.flatnonzero(ids == name) for name in np.unique(ids)]
    rng = np.random.default_rng(8)
    drawn = []
    for _ in range(2000):
        rows = np.concatenate([rows_of[k] for k in rng.integers(len(rows_of), size=len(rows_of))])
        drawn.append(
            np.mean([difference[rows[groups[rows] == g]].mean() for g in np.unique(groups)])
        )
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert row["ci_low"] == pytest.approx(low, abs=0.02)
    assert row["ci_high"] == pytest.approx(high, abs=0.02)


def test_a_fall_of_the_identity_words_is_found_and_adjusted_over_groups():
    found = erasure.changes(*scored(clusters=14, fall=-1.0), FAST)
    overall = found[found["scope"] == "overall"].set_index("term")
    assert overall.loc["identity", "delta"] == pytest.approx(-1, abs=0.3)
    assert overall.loc["identity", "p_adjusted"] < 0.01
    assert overall.loc["difference", "p_adjusted"] < 0.01
    assert overall.loc["counterpart", "p_adjusted"] > 0.01
    groups = found[found["scope"].str.startswith("group:")]
    for _, rows in groups.groupby("term"):
        assert len(rows) == 3
        assert rows["p_adjusted"].tolist() == holm(rows["p"].to_numpy()).tolist()
    whole = found[found["scope"].isin(["overall", "macro"]) & (found["term"] == "counterpart")]
    assert whole["p_adjusted"].tolist() == holm(whole["p"].to_numpy()).tolist()


def test_without_the_columns_there_is_nothing_to_say():
    before, after = scored()
    plain = Scores(after.table.drop(columns=erasure.COUNTERPART), after.meta)
    assert erasure.changes(before, plain, FAST) is None
    assert erasure.changes(plain, after, FAST) is None
    nothing = Scores(before.table.assign(**{erasure.IDENTITY: np.nan}), before.meta)
    assert erasure.changes(nothing, after, FAST) is None


def test_pairs_with_a_term_that_is_no_number_are_left_out_on_both_sides():
    before, after = scored()
    holed = before.table.copy()
    holed.loc[[0, 7], erasure.IDENTITY] = np.nan
    found = erasure.changes(Scores(holed, before.meta), after, FAST)
    rows = np.setdiff1d(np.arange(len(holed)), [0, 7])
    kept = [Scores(s.table.iloc[rows].reset_index(drop=True), s.meta) for s in (before, after)]
    pd.testing.assert_frame_equal(found, erasure.changes(*kept, FAST))
    assert found["n_pairs"].iloc[0] == len(holed) - 2


def test_one_stereotype_and_nothing_changed():
    before, after = scored(keep=lambda table: (table["stereotype_id"] == "s0").to_numpy())
    found = erasure.changes(before, after, FAST)
    assert found[["se", "ci_low", "ci_high", "p", "p_adjusted"]].isna().all().all()
    before, _ = scored()
    found = erasure.changes(before, before, FAST)
    assert (found[["delta", "se", "ci_low", "ci_high"]] == 0).all().all()
    assert (found["p"] == 1).all()


def test_a_seed_gives_the_same_numbers():
    before, after = scored(clusters=24)
    one = erasure.changes(before, after, FAST)
    pd.testing.assert_frame_equal(one, erasure.changes(before, after, FAST))
    other = erasure.changes(before, after, InferenceSettings(resamples=400, seed=1))
    assert (one["ci_low"] != other["ci_low"]).any()
