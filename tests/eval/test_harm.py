"""Correlations with harm, against scipy and permutations one by one."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from eval.inference import InferenceSettings, harm
from eval.scores import Scores
from tests.eval.scored import table

FAST = InferenceSettings(resamples=500)


def rated(clusters, slope=0.0, seed=0, drop=()):
    """Before and after over clusters of unequal size, margins that go with the rating by slope."""
    rng = np.random.default_rng(seed)
    ratings = rng.choice([-1.0, 0.5, 1.25, 2.0, 3.0, 3.5], clusters)
    ratings[:2] = [-1, 3.5]
    rows, later, harms = [], [], []
    for cluster in range(clusters):
        own = slope * ratings[cluster] + rng.normal(0, 1)
        for _ in range(rng.integers(2, 9)):
            margin, shift = own + rng.normal(), rng.normal(-0.5, 0.5)
            rows.append(("gay", f"s{cluster}", -20 + margin, -20.0))
            later.append(("gay", f"s{cluster}", -20 + margin + shift, -20.0))
            harms.append(np.nan if cluster in drop else ratings[cluster])
    return table(rows, harm_mean=harms), table(later, harm_mean=harms)


def sides(before, after):
    """Margins and ratings of the rated pairs, and the clusters' mean margins and ratings."""
    known = before.table["harm_mean"].notna().to_numpy()
    frame = before.table[known].assign(
        before=before.margin[known],
        after=after.margin[known],
        change=(after.margin - before.margin)[known],
    )
    means = frame.groupby("stereotype_id")[["before", "after", "change", "harm_mean"]].mean()
    return frame, means


@pytest.mark.parametrize(("clusters", "drop"), [(7, ()), (40, (3, 5)), (60, ())])
def test_r_and_rho_as_scipy(clusters, drop):
    before, after = rated(clusters, 0.4, drop=drop)
    found = harm.correlations(before, after, FAST)
    assert tuple(found.columns) == tuple(harm.HARM_COLUMNS)
    assert found["when"].tolist() == ["before", "after", "change"]
    frame, means = sides(before, after)
    for row in found.to_dict("records"):
        r = stats.pearsonr(frame[row["when"]], frame["harm_mean"])
        rho = stats.spearmanr(means[row["when"]], means["harm_mean"])
        assert row["r"] == pytest.approx(r.statistic, abs=1e-10)
        assert row["p_naive"] == pytest.approx(r.pvalue, rel=1e-8)
        assert row["rho"] == pytest.approx(rho.statistic, abs=1e-10)
        assert row["n_pairs"] == len(frame)
        assert row["n_clusters"] == clusters - len(drop)
        if clusters >= 40:
            assert row["p_rho"] == pytest.approx(rho.pvalue, abs=0.07)
        assert row["r_low"] < row["r"] < row["r_high"]


def test_few_stereotypes_are_permuted_exactly():
    before, after = rated(5, 0.5, seed=3)
    found = harm.correlations(before, after, FAST).set_index("when")
    frame, means = sides(before, after)
    names = list(means.index)
    drawn = {when: [[], []] for when in found.index}
    for order in permutations(means["harm_mean"]):
        mapped = frame["stereotype_id"].map(dict(zip(names, order, strict=True)))
        for when, (of_r, of_rho) in drawn.items():
            of_r.append(np.corrcoef(frame[when], mapped)[0, 1])
            of_rho.append(stats.spearmanr(means[when], order).statistic)
    for when, (of_r, of_rho) in drawn.items():
        row = found.loc[when]
        assert row["p_cluster"] == np.mean(np.abs(of_r) >= abs(row["r"]) - 1e-12)
        assert row["p_rho"] == np.mean(np.abs(of_rho) >= abs(row["rho"]) - 1e-12)


def test_many_stereotypes_are_drawn_with_the_seed():
    before, after = rated(30, 0.2)
    one = harm.correlations(before, after, FAST)
    pd.testing.assert_frame_equal(one, harm.correlations(before, after, FAST))
    other = harm.correlations(before, after, InferenceSettings(resamples=500, seed=1))
    assert (one["p_cluster"] != other["p_cluster"]).any()
    assert (one["p_cluster"] >= 1 / 501).all()
    strong = harm.correlations(*rated(30, 3.0), FAST).iloc[0]
    assert strong["p_cluster"] == 1 / 501
    assert strong["r_low"] > 0.5


def test_the_interval_is_that_of_stereotypes_drawn_one_by_one():
    before, after = rated(20, 0.5)
    found = harm.correlations(before, after, InferenceSettings(resamples=4000)).iloc[0]
    frame, _ = sides(before, after)
    groups = [part for _, part in frame.groupby("stereotype_id")]
    arrays = [(g["before"].to_numpy(), g["harm_mean"].to_numpy()) for g in groups]
    rng = np.random.default_rng(4)
    drawn = []
    for _ in range(3000):
        chosen = [arrays[k] for k in rng.integers(len(arrays), size=len(arrays))]
        x, y = (np.concatenate(side) for side in zip(*chosen, strict=True))
        drawn.append(np.corrcoef(x, y)[0, 1])
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found["r_low"] == pytest.approx(low, abs=0.03)
    assert found["r_high"] == pytest.approx(high, abs=0.03)


def test_the_naive_test_finds_what_is_not_there_and_the_clustered_one_holds():
    """Ratings that have nothing to do with margins, 120 times over 25 stereotypes."""
    naive = clustered = 0
    for seed in range(120):
        found = harm.correlations(*rated(25, 0.0, seed=seed), InferenceSettings(resamples=199))
        naive += found["p_naive"].iloc[0] < 0.05
        clustered += found["p_cluster"].iloc[0] < 0.05
    assert clustered / 120 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 120)
    assert naive / 120 > 0.15


def test_nothing_to_correlate():
    before, after = rated(6)
    plain = [Scores(s.table.drop(columns="harm_mean"), s.meta) for s in (before, after)]
    assert harm.correlations(*plain, FAST) is None
    empty = [Scores(s.table.assign(harm_mean=np.nan), s.meta) for s in (before, after)]
    assert harm.correlations(*empty, FAST) is None


def test_what_does_not_vary_has_no_correlation():
    before, after = rated(6)
    same = [Scores(s.table.assign(harm_mean=2.0), s.meta) for s in (before, after)]
    found = harm.correlations(*same, FAST)
    assert found.drop(columns=["when", "n_pairs", "n_clusters"]).isna().all().all()
    found = harm.correlations(before, before, FAST).set_index("when")
    assert found.loc["change", ["r", "p_naive", "p_cluster", "r_low", "rho", "p_rho"]].isna().all()
    assert found.loc["before", "r"] == found.loc["after", "r"]


def test_one_stereotype_and_two():
    rows = [("gay", "s0", -1.0, -2.0), ("gay", "s0", -1.0, -3.0)]
    one = harm.correlations(*[table(rows, harm_mean=[2.0, 2.0])] * 2, FAST)
    assert one["r"].isna().all()
    rows = [("gay", f"s{k % 2}", -1.0, -2.0 - k) for k in range(6)]
    two = harm.correlations(*[table(rows, harm_mean=[2.0, 3.0] * 3)] * 2, FAST)
    assert (two["p_cluster"].dropna() == 1).all()
    assert len(two["p_cluster"].dropna()) == 2


def test_several_ratings_of_one_stereotype_count_as_their_mean():
    before, after = rated(12, 0.5)
    mixed = before.table["harm_mean"] + np.where(np.arange(len(before.table)) % 2, 0.5, -0.5)
    mean = mixed.groupby(before.table["stereotype_id"]).transform("mean")
    found = [
        harm.correlations(*(Scores(s.table.assign(harm_mean=h), s.meta) for s in pair), FAST)
        for h, pair in ((mixed, (before, after)), (mean, (before, after)))
    ]
    pd.testing.assert_frame_equal(*found)
