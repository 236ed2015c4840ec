"""BCa against scipy, corrections against statsmodels, second published tests by counting."""

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from eval.inference import InferenceSettings, adjust, bootstrap, cluster_sums, compare
from eval.inference.published import mcnemar_mid_p, mcnemar_test, paired_t, signed_rank
from eval.inference.resampling import bca, jackknife, percentile, smallest_p, stream, swap_test
from eval.metrics import METRICS, PAIR_METRICS, measure, per_pair, scopes
from eval.scores import Scores
from tests.eval.scored import simulated

PAIRED = json.loads((Path(__file__).parents[1] / "cases" / "paired.json").read_text("utf-8"))
MARGIN = METRICS.index("margin")


def one_sample(values):
    """Sums of pairs that are a cluster each and moved by `values`, as margins."""
    pairs = np.zeros((2, len(PAIR_METRICS), len(values)))
    pairs[1, PAIR_METRICS.index("margin")] = values
    scope = scopes(pd.DataFrame({"group": [""] * len(values)}))[0]
    return cluster_sums(scope, np.arange(len(values)), pairs)


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_intervals_are_scipys_on_the_same_draws(alpha):
    values = np.random.default_rng(5).exponential(size=14)  # skewed: BCa moves
    cut = one_sample(values)
    drawn = bootstrap(cut, 3000, np.random.default_rng(8))
    changes = drawn[:, 1] - drawn[:, 0]
    ends = {}
    for method in ("BCa", "percentile"):
        seen = SimpleNamespace(bootstrap_distribution=changes[:, MARGIN])
        found = stats.bootstrap(
            (values,), np.mean, n_resamples=0, bootstrap_result=seen, method=method,
            confidence_level=1 - alpha,
        )  # fmt: skip
        ends[method] = list(found.confidence_interval)
    left_out = jackknife(cut)
    delta = cut.levels[1] - cut.levels[0]
    ours = bca(changes, delta, left_out[:, 1] - left_out[:, 0], alpha)
    assert ours[:, MARGIN] == pytest.approx(ends["BCa"], abs=1e-10)
    assert percentile(changes, alpha)[:, MARGIN] == pytest.approx(ends["percentile"], abs=1e-10)
    assert abs(ours[0, MARGIN] - ends["percentile"][0]) > 1e-3
    assert np.isnan(ours[:, METRICS.index("bias")]).all()  # nothing varies


def test_the_jackknife_leaves_whole_clusters_out():
    before, after = simulated(clusters=5, seed=4)
    scope = {scope.name: scope for scope in scopes(before.table)}["macro"]
    codes, names = pd.factorize(before.table["stereotype_id"])
    cut = cluster_sums(scope, codes, np.stack([per_pair(s, grouped=True) for s in (before, after)]))
    for name, levels in zip(names, jackknife(cut), strict=True):
        keep = (before.table["stereotype_id"] != name).to_numpy()
        for model, scores in enumerate((before, after)):
            rest = Scores(scores.table[keep].reset_index(drop=True), scores.meta)
            expected = measure(rest).set_index("scope").loc["macro", list(METRICS)]
            assert levels[model] == pytest.approx(expected.to_numpy(float), abs=1e-10)


def test_the_table_carries_bca_of_the_draws_of_its_interval():
    before, after = simulated(clusters=13, seed=6)
    found = compare(before, after, InferenceSettings(resamples=500, alpha=0.1, seed=3))
    scope = scopes(before.table)[0]
    codes, _ = pd.factorize(before.table["stereotype_id"])
    cut = cluster_sums(scope, codes, np.stack([per_pair(s) for s in (before, after)]))
    drawn = bootstrap(cut, 500, stream(3, "overall", 0))
    left_out = jackknife(cut)
    ends = bca(
        drawn[:, 1] - drawn[:, 0], cut.levels[1] - cut.levels[0], left_out[:, 1] - left_out[:, 0],
        0.1, 1e-10,
    )  # fmt: skip
    rows = found.table.set_index(["scope", "metric"]).loc["overall"].loc[list(METRICS)]
    assert rows[["bca_low", "bca_high"]].to_numpy(float) == pytest.approx(
        ends.T, abs=1e-10, nan_ok=True
    )
    assert rows.loc["margin", ["bca_low", "bca_high"]].notna().all()


@pytest.mark.parametrize(
    ("clusters", "draws", "floor"),
    [(2, 100, 0.5), (5, 100, 0.0625), (16, 100, 2.0**-15), (17, 999, 0.001)],
)
def test_the_floor_is_the_p_of_clusters_that_all_moved_one_way(clusters, draws, floor):
    p, _ = swap_test(one_sample(np.full(clusters, 1.0)), draws, np.random.default_rng(0))
    assert p[MARGIN] == pytest.approx(floor, abs=1e-12)
    assert smallest_p(clusters, draws) == pytest.approx(floor, abs=1e-12)


def test_one_cluster_has_no_floor():
    assert math.isnan(smallest_p(1, 1000))


# --- corrections --------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [("holm", "holm"), ("bh", "fdr_bh")])
@pytest.mark.parametrize("p", [[0.3], [0.04, 0.01, 0.03, 0.01], [1.0, 0.2, 0.5], [0.0, 0.9]])
def test_corrections_are_those_of_statsmodels(ours, theirs, p):
    expected = multipletests(p, method=theirs)[1]
    assert adjust(np.asarray(p), ours) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("correction", "said"),
    [("holm", ""), ("bh", ", false discovery rate"), ("none", ", not adjusted")],
)
def test_the_family_says_how_it_is_adjusted(correction, said):
    before, after = simulated(clusters=9, effect=-0.5, groups=("a", "b", "c", "d"), seed=8)
    found = compare(before, after, InferenceSettings(resamples=200, correction=correction))
    groups = found.rows("bias", "group")
    assert set(groups["family"]) == {f"bias over the 4 groups{said}"}
    for p in ("p", "p_equivalence"):
        expected = adjust(groups[p].to_numpy(), correction)
        assert groups[f"{p}_adjusted"].to_numpy() == pytest.approx(expected, abs=1e-12)
    assert (groups["p_adjusted"] >= groups["p"]).all()


# --- the papers' tests, by counting -------------------------------------------------------


def exact_mcnemar(down, up, half):
    """Two-sided p of `down` among down + up fair coins: as extreme counts whole, or half."""
    total = down + up
    counts = [math.comb(total, k) / 2**total for k in range(total + 1)]
    far = [abs(2 * k - total) for k in range(total + 1)]
    seen = abs(down - up)
    return sum(p for p, d in zip(counts, far, strict=True) if d > seen) + (
        0.5 if half else 1.0
    ) * sum(p for p, d in zip(counts, far, strict=True) if d == seen)


def exact_signed_rank(differences):
    """Two-sided p of Wilcoxon's statistic over all signs; no zeros, no ties."""
    ranks = stats.rankdata(np.abs(differences))
    seen = min(ranks[differences > 0].sum(), ranks[differences < 0].sum())
    sums = np.asarray([np.dot(s, ranks) for s in itertools.product([0, 1], repeat=len(ranks))])
    return min(1.0, 2 * (sums <= seen).mean())


@pytest.mark.parametrize("case", PAIRED, ids=lambda case: case["name"])
def test_paired_case(case):
    x, y = np.asarray(case["before"], float), np.asarray(case["after"], float)
    signs = [np.where(values > 0, 100.0, 0.0) for values in (x, y)]
    down = int(((signs[0] > 0) & (signs[1] == 0)).sum())
    up = int(((signs[0] == 0) & (signs[1] > 0)).sum())
    assert mcnemar_test(*signs)[0] == pytest.approx(exact_mcnemar(down, up, False), abs=1e-10)
    assert mcnemar_mid_p(*signs)[0] == pytest.approx(
        exact_mcnemar(down, up, True) if down + up else 1.0, abs=1e-10
    )
    difference = (y - x)[x != y]
    if len(difference):
        assert signed_rank(x, y)[0] == pytest.approx(exact_signed_rank(difference), abs=1e-10)
        t = (y - x).mean() / (np.std(y - x, ddof=1) / math.sqrt(len(x)))
        assert paired_t(x, y)[0] == pytest.approx(2 * stats.t.sf(abs(t), len(x) - 1), abs=1e-10)
    for test, p in case["expected"].items():
        of = {"mcnemar": mcnemar_test, "mid_p": mcnemar_mid_p}.get(test)
        found = of(*signs) if of else {"t": paired_t, "wilcoxon": signed_rank}[test](x, y)
        assert found[0] == pytest.approx(p, abs=1e-10), test


def test_pairs_that_say_nothing_are_named():
    one, two = np.asarray([1.0]), np.asarray([2.0])
    assert signed_rank(one, two)[1] == paired_t(one, two)[1] == "none: one pair"
    assert math.isnan(signed_rank(one, two)[0])
    same = np.asarray([1.0, 2.0])
    assert signed_rank(same, same) == (1.0, "Wilcoxon, no difference")
    assert mcnemar_mid_p(same, same) == (1.0, "McNemar, no discordant pair")


@pytest.mark.parametrize(("count", "tied"), [(4, True), (9, False), (13, False), (40, True)])
def test_the_signed_rank_test_is_scipys(count, tied):
    y = np.random.default_rng(count).normal(0.4, 1, count)
    y = np.round(2 * y) / 2 if tied else y
    assert signed_rank(np.zeros(count), y)[0] == pytest.approx(stats.wilcoxon(y).pvalue, abs=1e-12)


def test_the_published_table_names_its_second_tests():
    before, after = simulated(clusters=30, effect=-1.5, seed=1)
    found = compare(before, after, InferenceSettings(resamples=100)).published
    of = found.set_index(["scope", "metric"]).loc["overall"]
    assert of.loc["bias", "second_test"] == "McNemar mid-p"
    assert of.loc["margin", "second_test"] == "Wilcoxon signed rank"
    assert of.loc["margin", "second_p"] == pytest.approx(
        stats.wilcoxon(after.margin, before.margin).pvalue, rel=1e-10
    )
    x, y = before.margin > 0, after.margin > 0
    down, up = int((x & ~y).sum()), int((~x & y).sum())
    assert of.loc["bias", "second_p"] == pytest.approx(exact_mcnemar(down, up, True), rel=1e-9)
