"""Bias under a threshold on the margin, against its definition pair by pair."""

import time

import numpy as np
import pandas as pd
import pytest

from eval.inference import InferenceSettings, compare, threshold
from eval.metrics import groups_of
from eval.scores import Scores
from tests.eval.scored import simulated, table

FAST = InferenceSettings(resamples=400)


def by_hand(margins, cut):
    """Bias in percent and the share decided, one pair after the other."""
    wins = [0.5 if abs(margin) <= cut else float(margin > 0) for margin in margins]
    return 100 * sum(wins) / len(wins), 100 * sum(abs(m) > cut for m in margins) / len(margins)


def unequal(seed=0):
    """Three groups over clusters of unequal size, one group absent from most clusters."""
    before, after = simulated(clusters=9, each=3, seed=seed)
    held = (before.table["group"] != "gay") | before.table["stereotype_id"].isin(["s0", "s1", "s2"])
    keep = held & (np.arange(len(before.table)) % 7 != 0)
    return tuple(Scores(s.table[keep].reset_index(drop=True), s.meta) for s in (before, after))


@pytest.mark.parametrize("seed", [0, 1])
def test_levels_as_defined_pair_by_pair(seed):
    before, after = unequal(seed)
    found = threshold.curve(before, after, FAST)
    assert tuple(found.columns) == tuple(threshold.THRESHOLD_COLUMNS)
    for row in found.to_dict("records"):
        rows = groups_of(before.table).values() if row["scope"] == "macro" else [slice(None)]
        for when, scores in (("before", before), ("after", after)):
            each = [by_hand(scores.margin[r], row["threshold"]) for r in rows]
            bias, decided = np.mean(each, axis=0)
            assert row[when] == pytest.approx(bias, abs=1e-10)
            assert row[f"decided_{when}"] == pytest.approx(decided, abs=1e-10)
        assert row["delta"] == pytest.approx(row["after"] - row["before"], abs=1e-10)


def test_at_zero_it_is_bias_with_ties_half():
    rows = [("gay", f"s{k % 6}", -1.0, -1.0 - (k % 3)) for k in range(30)]
    before, after = table(rows), table([(g, s, less, more) for g, s, more, less in rows])
    first = threshold.curve(before, after, FAST).groupby("scope").first()
    measured = compare(before, after, FAST).rows("bias").set_index("scope")
    for scope in ("overall", "macro"):
        assert first.loc[scope, "threshold"] == 0
        for level in ("before", "after", "delta"):
            assert first.loc[scope, level] == pytest.approx(measured.loc[scope, level], abs=1e-10)


def test_the_band_is_the_percentile_interval_over_clusters_drawn_one_by_one():
    before, after = unequal()
    settings = InferenceSettings(resamples=4000)
    found = threshold.curve(before, after, settings)
    rng = np.random.default_rng(99)
    names = before.table["stereotype_id"].unique()
    rows_of = {n: np.flatnonzero(before.table["stereotype_id"] == n) for n in names}
    groups = before.table["group"].to_numpy()
    margins = np.stack([before.margin, after.margin])
    for scope in ("overall", "macro"):
        row = found[found["scope"] == scope].iloc[8]
        small = np.abs(margins) <= row["threshold"]
        wins = np.where(small, 50.0, 100.0 * (margins > 0))
        drawn = []
        for _ in range(1500):
            rows = np.concatenate([rows_of[n] for n in rng.choice(names, len(names))])
            if scope == "overall":
                levels = wins[:, rows].mean(axis=1)
            else:
                of = [rows[groups[rows] == group] for group in np.unique(groups[rows])]
                levels = np.mean([wins[:, r].mean(axis=1) for r in of], axis=0)
            drawn.append([*levels, levels[1] - levels[0]])
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        for number, what in enumerate(("before", "after", "delta")):
            assert row[f"{what}_low"] == pytest.approx(low[number], abs=2.5)
            assert row[f"{what}_high"] == pytest.approx(high[number], abs=2.5)
            assert row[f"{what}_low"] <= row[what] <= row[f"{what}_high"]


def test_thresholds_are_zero_and_quantiles_of_the_margins():
    before, after = simulated()
    cuts = threshold.thresholds(before.margin, after.margin)
    sizes = np.abs(np.r_[before.margin, after.margin])
    assert cuts[0] == 0
    assert len(cuts) == threshold.THRESHOLDS
    assert (np.diff(cuts) > 0).all()
    assert (sizes > cuts[-1]).mean() == pytest.approx(0.05, abs=0.02)
    assert list(threshold.thresholds(np.zeros(4), np.zeros(4))) == [0]


def test_decided_pairs_only_get_fewer_and_bias_goes_to_50():
    before, after = simulated(lean=2, effect=0)
    found = threshold.curve(before, after, FAST)
    for _, rows in found.groupby("scope"):
        assert (rows[["decided_before", "decided_after"]].diff().dropna() <= 0).all().all()
        assert abs(rows["before"].iloc[-1] - 50) < abs(rows["before"].iloc[0] - 50)


def test_without_groups_there_is_no_macro_and_one_cluster_has_no_band():
    rows = [("", "s0", -1.0, -2.0), ("", "s0", -3.0, -2.5)]
    found = threshold.curve(table(rows), table(rows), FAST)
    assert set(found["scope"]) == {"overall"}
    assert found.filter(regex="_(low|high)$").isna().all().all()
    assert found["before"].iloc[0] == 50


def test_a_seed_gives_the_same_band_and_the_order_of_pairs_the_same_curve():
    before, after = simulated()
    one = threshold.curve(before, after, FAST)
    pd.testing.assert_frame_equal(one, threshold.curve(before, after, FAST))
    other = threshold.curve(before, after, InferenceSettings(resamples=400, seed=1))
    assert (one["before_low"] != other["before_low"]).any()
    mixed = [
        Scores(s.table.sample(frac=1, random_state=3).reset_index(drop=True), s.meta)
        for s in (before, after)
    ]
    levels = ["scope", "threshold", "before", "after", "delta", "decided_before"]
    pd.testing.assert_frame_equal(one[levels], threshold.curve(*mixed, FAST)[levels])


def test_the_largest_benchmark_takes_a_second_or_two():
    before, after = simulated(clusters=165, groups=[f"g{k:02}" for k in range(12)], each=23)
    start = time.process_time()
    threshold.curve(before, after, InferenceSettings())
    assert time.process_time() - start < 4
