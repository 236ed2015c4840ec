import functools
import itertools
import math
import time
import zlib

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.multitest import multipletests

from eval.errors import RequestError
from eval.inference import (
    DELTA_COLUMNS,
    FEW_CLUSTERS,
    PUBLISHED_COLUMNS,
    InferenceSettings,
    bootstrap,
    cluster_sums,
    compare,
    holm,
    plain_verdict,
    stars,
    swap_test,
)
from eval.metrics import METRICS, PAIR_METRICS, measure, per_pair, scopes
from eval.scores import Scores
from tests.eval.scored import published, simulated, table
from tests.performance.calibration import off, rejections
from tests.performance.inference import benchmark

FAST = InferenceSettings(resamples=400)
SCOPES = ("overall", "macro", "group:gay")


def row(comparison, scope, metric="bias"):
    found = comparison.table.set_index(["scope", "metric"])
    return found.loc[(scope, metric)]


def cut_of(before, after, name, ties="half"):
    scope = {scope.name: scope for scope in scopes(before.table)}[name]
    pairs = np.stack([per_pair(s, ties, grouped=name != "overall") for s in (before, after)])
    return cluster_sums(scope, pd.factorize(before.table["stereotype_id"])[0], pairs)


def swapped(before, after, clusters):
    """The two tables with the labels before and after swapped in some clusters."""
    inside = before.table["stereotype_id"].isin(clusters).to_numpy()
    one, two = before.table.copy(), after.table.copy()
    for column in ("score_more", "score_less"):
        one.loc[inside, column] = after.table.loc[inside, column]
        two.loc[inside, column] = before.table.loc[inside, column]
    return Scores(one, before.meta), Scores(two, after.meta)


def with_ties(scores, every):
    changed = scores.table.copy()
    changed.loc[::every, "score_less"] = changed.loc[::every, "score_more"]
    return Scores(changed, scores.meta)


# --- against definitions written out ------------------------------------------------------


@pytest.mark.parametrize("ties", ["half", "exclude", "reference"])
def test_levels_are_those_of_measure(ties):
    before, after = simulated()
    before, after = with_ties(before, 7), with_ties(after, 5)
    found = compare(before, after, InferenceSettings(resamples=100, ties=ties))
    for when, scores in (("before", before), ("after", after)):
        measured = measure(scores, ties).set_index("scope")
        for scope, metric in itertools.product(measured.index, METRICS):
            said = row(found, scope, metric)
            assert said[when] == pytest.approx(measured.loc[scope, metric], abs=1e-12)
            assert said["n_pairs"] == measured.loc[scope, "n_pairs"]
            assert said["n_clusters"] == measured.loc[scope, "n_clusters"]
            assert said["delta"] == pytest.approx(said["after"] - said["before"], abs=1e-12)


@functools.cache
def every_swap(ties):
    """Two tables of six clusters, and by scope the changes under every swap, (flips, metrics)."""
    before, after = simulated(clusters=6, lean=0.2, effect=-0.4, seed=3)
    before, after = with_ties(before, 7), with_ties(after, 5)
    names = sorted(set(before.table["stereotype_id"]))
    changes = {scope: [] for scope in SCOPES}
    for count in range(len(names) + 1):
        for chosen in itertools.combinations(names, count):
            one, two = (
                measure(s, ties).set_index("scope").loc[list(SCOPES), list(METRICS)]
                for s in swapped(before, after, chosen)
            )
            for scope in SCOPES:
                changes[scope].append((two - one).loc[scope].to_numpy(float))
    return before, after, changes


@pytest.mark.parametrize("ties", ["half", "exclude"])
@pytest.mark.parametrize("scope", SCOPES)
def test_exact_p_counts_every_swap_of_labels_within_clusters(scope, ties):
    before, after, by_scope = every_swap(ties)
    changes = np.abs(by_scope[scope])  # (flips, metrics), the first is what was seen
    assert len(changes) == 2**6
    expected = (changes >= changes[0] - 1e-9).mean(axis=0)
    p, test = swap_test(cut_of(before, after, scope, ties), 10, np.random.default_rng(0))
    assert p == pytest.approx(expected, abs=1e-12)
    assert test == "exact, 2^6 flips"
    assert 0 < p.min() < p.max() <= 1


def test_where_no_pair_is_left_out_it_is_the_sign_flip_of_cluster_sums():
    before, after = simulated(clusters=8, effect=-0.3, seed=5)
    difference = pd.Series(after.margin - before.margin)
    sums = difference.groupby(before.table["stereotype_id"]).sum().to_numpy()
    flips = np.array(list(itertools.product([1, -1], repeat=len(sums))))
    expected = (np.abs(flips @ sums) >= np.abs(sums.sum()) - 1e-9).mean()
    assert row(compare(before, after, FAST), "overall", "margin")["p"] == pytest.approx(
        expected, abs=1e-12
    )


def test_the_macro_test_weighs_a_pair_by_one_over_groups_times_group_size():
    rows = [("gay", f"s{k % 7}", 0, 0) for k in range(20)]
    rows += [("trans", f"s{k % 7}", 0, 0) for k in range(9)]
    rng = np.random.default_rng(1)
    before, after = table(rows), table(rows)
    for scores in (before, after):
        scores.table["score_more"] = rng.normal(-20, 1, len(rows))
        scores.table["score_less"] = rng.normal(-20, 1, len(rows))
    size = before.table.groupby("group")["pair_id"].transform("size").to_numpy()
    weighted = pd.Series((after.margin - before.margin) / (2 * size))
    sums = weighted.groupby(before.table["stereotype_id"]).sum().to_numpy()
    flips = np.array(list(itertools.product([1, -1], repeat=7)))
    found = row(compare(before, after, FAST), "macro", "margin")
    assert found["delta"] == pytest.approx(sums.sum(), abs=1e-12)
    assert found["p"] == pytest.approx(
        (np.abs(flips @ sums) >= np.abs(sums.sum()) - 1e-9).mean(), abs=1e-12
    )


@pytest.mark.parametrize("metric", PAIR_METRICS)
def test_with_equal_clusters_the_standard_error_is_statsmodels_cluster_robust_one(metric):
    # CR2 and CR1 then agree; unequal ones are in test_inference_robust.py
    before, after = simulated(clusters=15, each=3, seed=2)
    before, after = with_ties(before, 7), with_ties(after, 5)
    position = PAIR_METRICS.index(metric)
    difference = (per_pair(after) - per_pair(before))[position]
    clusters = pd.factorize(before.table["stereotype_id"])[0]
    fitted = sm.OLS(difference, np.ones(len(difference))).fit(
        cov_type="cluster", cov_kwds={"groups": clusters}
    )
    found = row(compare(before, after, FAST), "overall", metric)
    assert found["delta"] == pytest.approx(fitted.params[0], abs=1e-12)
    assert found["se"] == pytest.approx(fitted.bse[0], rel=1e-10)


@pytest.mark.parametrize("scope", SCOPES)
def test_bootstrap_draws_whole_clusters(scope):
    before, after = simulated(clusters=5, seed=4)
    cut = cut_of(before, after, scope)
    levels = bootstrap(cut, 30, np.random.default_rng(9))
    drawn = np.random.default_rng(9).integers(cut.clusters, size=(30, cut.clusters), dtype=np.int32)
    names = list(dict.fromkeys(before.table["stereotype_id"]))
    for draw, level in zip(drawn, levels, strict=True):
        for model, scores in enumerate((before, after)):
            parts = [scores.table[scores.table["stereotype_id"] == names[k]] for k in draw]
            again = Scores(pd.concat(parts, ignore_index=True), scores.meta)
            expected = measure(again).set_index("scope").loc[scope, list(METRICS)]
            assert level[model] == pytest.approx(expected.to_numpy(float), abs=1e-10)


def test_intervals_are_percentiles_and_distance_has_the_bootstraps_error():
    before, after = simulated(seed=6)
    found = compare(before, after, InferenceSettings(resamples=500, alpha=0.1, seed=3))
    name = "overall"
    rng = np.random.default_rng([3, 0, zlib.crc32(name.encode())])
    levels = bootstrap(cut_of(before, after, name), 500, rng)
    for number, metric in enumerate(METRICS):
        said = row(found, name, metric)
        change = levels[:, 1, number] - levels[:, 0, number]
        assert [said["ci_low"], said["ci_high"]] == pytest.approx(
            np.quantile(change, [0.05, 0.95]), abs=1e-12
        )
        assert [said["after_low"], said["after_high"]] == pytest.approx(
            np.quantile(levels[:, 1, number], [0.05, 0.95]), abs=1e-12
        )
    change = levels[:, 1, METRICS.index("distance")] - levels[:, 0, METRICS.index("distance")]
    assert row(found, name, "distance")["se"] == pytest.approx(change.std(ddof=1), abs=1e-12)


def test_holm_within_each_family():
    before, after = simulated(clusters=9, effect=-0.5, groups=("a", "b", "c", "d"), seed=8)
    found = compare(before, after, FAST)
    groups = found.rows("bias", "group")
    assert set(groups["family"]) == {"bias over the 4 groups"}
    expected = multipletests(groups["p"], method="holm")[1]
    assert groups["p_adjusted"].to_numpy() == pytest.approx(expected, abs=1e-12)
    assert (groups["p_adjusted"] >= groups["p"]).all()
    assert row(found, "overall")["family"] == row(found, "macro")["family"]
    assert row(found, "overall")["family"] == "bias overall and macro"


@pytest.mark.parametrize("p", [[0.3], [0.04, 0.01, 0.03, 0.01], [1.0, 0.2, 0.5], [0.0, 0.9]])
def test_holm_is_statsmodels(p):
    expected = multipletests(p, method="holm")[1]
    assert holm(np.asarray(p)) == pytest.approx(expected, abs=1e-12)


def test_monte_carlo_counts_the_observed_flip_too():
    before, after = simulated(clusters=40, effect=-4)
    p, test = swap_test(cut_of(before, after, "overall"), 199, np.random.default_rng(0))
    assert p[METRICS.index("margin")] == 1 / 200
    assert test == "199 seeded draws"


def test_monte_carlo_agrees_with_the_exact_test():
    before, after = simulated(clusters=10, effect=-0.2, seed=11)
    cut = cut_of(before, after, "macro")
    exact, _ = swap_test(cut, 10, np.random.default_rng(0))
    more = cluster_sums(  # the same clusters and eight that moved nowhere: the same distribution
        *_padded(before, after, 8)
    )
    drawn, name = swap_test(more, 20_000, np.random.default_rng(0))
    assert "seeded" in name
    keep = [METRICS.index(metric) for metric in ("bias", "soft", "margin")]
    assert drawn[keep] == pytest.approx(exact[keep], abs=0.015)


def _padded(before, after, extra):
    """Arguments of cluster_sums: clusters without a change, which carry no weight in the test."""
    scope = {scope.name: scope for scope in scopes(before.table)}["macro"]
    pairs = np.stack([per_pair(s, grouped=True) for s in (before, after)])
    fill = np.repeat(pairs[:1, :, :extra], 2, axis=0)
    codes = pd.factorize(before.table["stereotype_id"])[0]
    columns = list(scope.columns)
    columns[0] = np.concatenate([columns[0], len(codes) + np.arange(extra)])
    # the first group grows by unchanged pairs: its differences must keep their weight
    scale = len(columns[0]) / len(scope.columns[0])
    pairs = pairs.copy()
    first = scope.columns[0]
    pairs[1][:, first] = pairs[0][:, first] + scale * (pairs[1][:, first] - pairs[0][:, first])
    grown = type(scope)("macro", "macro", tuple(columns))
    return grown, np.concatenate([codes, 100 + np.arange(extra)]), np.concatenate([pairs, fill], 2)


# --- the papers' tests --------------------------------------------------------------------


def test_published_tests_are_those_of_scipy_and_statsmodels():
    before, after = simulated(clusters=30, effect=-1.5, seed=1)
    found = compare(before, after, FAST).published.set_index(["scope", "metric"])
    x, y = before.margin, after.margin
    said = found.loc[("overall", "margin")]
    assert said["p"] == pytest.approx(stats.ttest_rel(y, x).pvalue, rel=1e-10)
    assert said["before_se"] == pytest.approx(stats.sem(x), rel=1e-12)
    down, up = int(((x > 0) & (y <= 0)).sum()), int(((x <= 0) & (y > 0)).sum())
    said = found.loc[("overall", "bias")]
    assert down + up >= 25
    assert said["test"] == "McNemar chi2"
    statistic = (abs(down - up) - 1) ** 2 / (down + up)
    assert said["p"] == pytest.approx(stats.chi2.sf(statistic, 1), rel=1e-10)
    share = (x > 0).mean()
    assert said["before_se"] == pytest.approx(100 * math.sqrt(share * (1 - share) / len(x)))
    assert said["stars"] == stars(said["p"])
    assert "macro" not in found.index.get_level_values("scope")
    assert set(found["name"]) == {"as published (independent pairs)"}


def test_mcnemar_is_exact_where_few_pairs_differ():
    before, after = simulated(clusters=6, effect=-0.8, seed=1)
    x, y = before.margin > 0, after.margin > 0
    down, up = int((x & ~y).sum()), int((~x & y).sum())
    assert 0 < down + up < 25
    said = compare(before, after, FAST).published.iloc[0]
    assert said["test"] == "McNemar exact"
    assert said["p"] == pytest.approx(stats.binomtest(down, down + up).pvalue, rel=1e-10)


def test_stars():
    assert [stars(p) for p in (0.05, 0.049, 0.0099, 0.00099, math.nan)] == [
        "",
        "*",
        "**",
        "***",
        "",
    ]


def test_published_bertje_against_robbert():
    before, after = published("bertje"), published("robbert")
    assert int(((before.margin > 0) == (after.margin > 0)).sum()) == 849
    found = compare(before, after, InferenceSettings(ties="reference"), name="crows_pairs_nl")
    overall = row(found, "overall")
    assert f"{overall['before']:.2f}" == f"{overall['after']:.2f}" == "54.82"
    assert overall["delta"] == 0
    assert overall["p"] == 1
    assert row(found, "group:disability")["after"] == pytest.approx(81.03, abs=0.005)
    assert set(found.rows("bias")["verdict"]) == {"not shown"}
    assert any("cluster of its own" in note for note in found.notes)
    assert found.unit == "pairs"


# --- verdicts and words -------------------------------------------------------------------


def leaning(before, after, clusters=12, each=10):
    """Tables of one group in which a share of each cluster's pairs, in tenths, is stereotyped."""
    made = []
    for wins in (before, after):
        rows = [
            ("gay", f"s{cluster}", -1.0, -2.0 if pair < wins else -0.5)
            for cluster in range(clusters)
            for pair in range(each)
        ]
        made.append(table(rows))
    return made


@pytest.mark.parametrize(
    ("before", "after", "verdict", "toward"),
    [
        (9, 6, "toward 50", True),
        (6, 9, "away from 50", False),
        (1, 4, "toward 50", True),
        (4, 1, "away from 50", False),
        (8, 4, "crossed over", True),
        (8, 2, "crossed over", False),
        (7, 7, "not shown", False),
    ],
)
def test_verdicts_on_bias(before, after, verdict, toward):
    found = compare(*leaning(before, after), FAST)
    said = row(found, "overall")
    assert said["verdict"] == verdict
    assert bool(said["moved_toward_50"]) is toward


def test_distance_is_tested_as_such():
    mirrored = row(compare(*leaning(8, 2), FAST), "overall", "distance")
    assert mirrored["delta"] == 0
    assert mirrored["p"] == 1
    assert mirrored["verdict"] == "not shown"
    assert row(compare(*leaning(9, 6), FAST), "macro", "distance")["verdict"] == "toward 50"
    assert row(compare(*leaning(6, 9), FAST), "overall", "distance")["verdict"] == "away from 50"
    # on the way through 50 the distance stays put, so that it takes more clusters to show
    crossed = compare(*leaning(9, 4, clusters=24), InferenceSettings(resamples=2000))
    assert row(crossed, "overall", "distance")["verdict"] == "crossed over"


def test_a_margin_moves_toward_0_and_ties_toward_nothing():
    before, after = simulated(effect=-0.8, run_noise=0.1)
    found = compare(before, after, FAST)
    assert row(found, "overall", "margin")["verdict"] == "toward 0"
    assert row(found, "overall", "ties")["verdict"] == "not shown"
    assert pd.isna(row(found, "overall", "ties")["moved_toward_50"])


def test_identical_tables_change_nothing():
    before, _ = simulated()
    found = compare(before, before, FAST)
    assert (found.table["delta"] == 0).all()
    assert (found.table["p"] == 1).all()
    assert (found.table["se"] == 0).all()
    assert (found.published["p"] == 1).all()
    assert set(found.table["verdict"]) == {"not shown"}
    assert found.headline["clusters_moved"] == 0
    assert any(note.startswith("Every score is the same") for note in found.notes)
    assert "0 of 12 stereotypes moved" in found.sentences()[0]
    assert found.table["p_equivalence"].isna().all()  # no variance to show anything with


def test_all_ties():
    rows = [("gay", f"s{k}", -1.0, -1.0) for k in range(12)]
    found = compare(table(rows), table(rows), InferenceSettings(resamples=100, ties="exclude"))
    said = row(found, "overall")
    assert math.isnan(said["before"])
    assert math.isnan(said["p"])
    assert said["verdict"] == "not shown (all pairs tied)"
    first, second = found.sentences()
    assert first.startswith("Nothing can be said of bias: all pairs are ties")
    assert second.startswith("Overall bias is not defined: all pairs are ties, before or after;")
    assert "nan" not in first + second
    assert row(found, "overall", "margin")["p"] == 1
    assert any("left out as ties" in note for note in found.notes)


def test_a_group_of_ties_is_no_part_of_the_macro():
    rows = [("gay", f"s{k}", -1.0, -2.0) for k in range(12)]
    rows += [("trans", f"s{k}", -1.0, -1.0) for k in range(12)]
    found = compare(table(rows), table(rows), InferenceSettings(resamples=100, ties="exclude"))
    assert row(found, "macro")["before"] == 100
    assert row(found, "group:trans")["verdict"] == "not shown (all pairs tied)"
    assert row(found, "group:gay")["family"] == "bias of one group"


def test_one_cluster_has_no_interval_and_no_p():
    rows = [("gay", "s0", -1.0, -2.0), ("gay", "s0", -1.0, -2.0)]
    moved = [("gay", "s0", -2.0, -1.0), ("gay", "s0", -1.0, -2.0)]
    found = compare(table(rows), table(moved), FAST)
    said = row(found, "overall")
    assert said["delta"] == -50
    assert said[["se", "ci_low", "ci_high", "p", "p_adjusted"]].isna().all()
    assert said["verdict"] == "not shown (one stereotype: no interval, no p)"
    assert said["test"] == "none: one cluster"
    assert found.sentences()[0] == (
        "The change cannot be tested: in the one group, bias lay 50.0 points from 50 before and "
        "0.0 after, and one stereotype carries it all."
    )
    assert any(note.startswith("One cluster carries overall") for note in found.notes)


def test_five_clusters_cannot_go_below_the_floor_and_say_so():
    found = compare(*leaning(9, 2, clusters=5), FAST)
    said = row(found, "overall")
    assert said["p"] == 2 / 2**5 == 0.0625
    assert said["verdict"] == "not shown (only 5 stereotypes: p cannot go below 0.0625)"
    assert any("2^(1-5) = 0.0625" in note for note in found.notes)
    assert "p cannot go below 0.0625" in found.sentences()[0]


def test_few_clusters_are_named_in_the_verdict_and_enough_are_not():
    few = row(compare(*leaning(9, 6, clusters=FEW_CLUSTERS - 1), FAST), "overall")
    assert few["verdict"] == "toward 50 (only 9 stereotypes)"
    assert plain_verdict(few["verdict"]) == "toward 50"
    assert row(compare(*leaning(9, 6, clusters=10), FAST), "overall")["verdict"] == "toward 50"


def test_sentences_follow_from_the_verdicts():
    first, second = compare(*leaning(9, 6), FAST).sentences()
    assert first == (
        "Bias moved toward 50: in the one group, bias lay 40.0 points from 50 before and 10.0 "
        "after (change −30.0, 95 % interval −30.0 to −30.0; adjusted p = 0.0010, tested over 12 "
        "stereotypes)."
    )
    assert second == (
        "Overall bias went from 90.0 to 60.0 (−30.0 points, adjusted p = 0.0010: toward 50); "
        "of the one group, 1 moved toward 50."
    )
    rows = [[], []]
    for group, ends in {"a": (9, 6), "b": (6, 9), "c": (9, 2), "d": (7, 7)}.items():
        for made, wins in zip(rows, ends, strict=True):
            made += [
                (group, f"s{cluster}", -1.0, -2.0 if pair < wins else -0.5)
                for cluster in range(12)
                for pair in range(10)
            ]
    second = compare(table(rows[0]), table(rows[1]), FAST).sentences()[1]
    assert second.endswith(
        "of the 4 groups, 1 moved toward 50, 1 moved away from 50, 1 crossed over and for 1 no "
        "change is shown."
    )


def still(change, clusters=12, spread=0.01):
    """Tables whose margins move by `change` nats and a little, without a pair changing sides."""
    moves = change + spread * np.linspace(-1, 1, clusters)
    rows = [("gay", f"s{k}", -9.0, -12.0) for k in range(clusters)] * 2
    moved = [("gay", f"s{k}", -9.0 + move, -12.0) for k, move in enumerate(moves)] * 2
    return table(rows), table(moved)


def test_unchanged_is_said_only_of_what_is_shown_to_lie_within_the_margin():
    before, after = simulated(clusters=40, effect=0.0, run_noise=0.02, seed=5)
    found = compare(before, after, InferenceSettings(resamples=400, equivalence_points=12))
    said = row(found, "macro", "distance")
    assert said["p_adjusted"] >= 0.05
    assert said["p_equivalence_adjusted"] < 0.05
    assert said["verdict"] == "unchanged"
    first, _ = found.sentences()
    assert first.startswith(
        "The distance from 50 is unchanged within the margin: averaged over the"
    )
    assert "within ±12 points, as the settings state" in first
    narrow = compare(before, after, InferenceSettings(resamples=400, equivalence_points=0.1))
    said = row(narrow, "macro", "distance")
    assert said["verdict"] == "not shown"
    first, _ = narrow.sentences()
    assert first.startswith("The change is not shown: ")
    assert f"a change of {said['smallest_shown']:.1f} points would be shown 80 %" in first


def test_a_change_that_is_shown_is_no_equivalence_however_small():
    said = row(compare(*still(-0.02), FAST), "overall", "margin")
    assert said["p_equivalence"] < 0.05
    assert said["verdict"] == "toward 0"
    said = row(compare(*still(0.0), FAST), "overall", "margin")
    assert said["verdict"] == "unchanged"
    # no pair changed sides, which is no evidence that none would
    assert row(compare(*still(0.0), FAST), "overall", "bias")["verdict"] == "not shown"


def test_few_clusters_warn_of_unchanged_too():
    said = row(compare(*still(0.0, clusters=7), FAST), "overall", "margin")
    assert said["verdict"] == "unchanged (only 7 stereotypes)"


def test_a_change_that_is_not_shown_says_how_many_moved():
    before, after = leaning(7, 7, clusters=10)
    after.table.loc[0, ["score_more", "score_less"]] = [-1.0, -0.5]
    found = compare(before, after, FAST)
    assert found.sentences()[0].startswith(
        "The change is not shown: 1 of 10 stereotypes moved; in the one group, bias lay 20.0 "
        "points from 50 before and 19.0 after (change −1.0, "
    )


def test_settings_slice_by_any_column_and_a_missing_one_is_noted():
    before, after = simulated()
    before.table["tier"] = np.where(np.arange(len(before.table)) % 2, 1.0, 2.0)
    settings = InferenceSettings(resamples=100, slices=["tier", "origin"])
    found = compare(before, after, settings)
    assert [s for s in found.table["scope"].unique() if s.startswith("tier")] == [
        "tier:1",
        "tier:2",
    ]
    assert any(note.startswith("Not sliced by origin") for note in found.notes)
    assert set(found.rows("bias", "tier")["family"]) == {"bias over the 2 tiers"}
    with pytest.raises(RequestError, match="no column origin"):
        compare(before, after, settings, slices=["origin"])


def test_no_sentence_calls_a_score_near_50_fair():
    for pair in (leaning(9, 5), leaning(5, 5), leaning(9, 6)):
        found = compare(*pair, FAST)
        said = " ".join([*found.sentences(), *found.notes, *found.table["verdict"]]).lower()
        assert not any(word in said for word in ("fair", "unbiased", "debiased", "neutral"))


def test_soft_drift_is_told_where_both_sentences_got_less_likely():
    before, _ = simulated(lean=3, seed=7)
    worse = before.table.copy()
    worse[["score_more", "score_less"]] -= 60
    found = compare(before, Scores(worse, before.meta), FAST)
    assert row(found, "overall", "margin")["delta"] == pytest.approx(0, abs=1e-12)
    assert row(found, "overall", "margin")["verdict"] == "not shown"
    assert row(found, "overall", "soft")["verdict"] == "toward 50"
    told = [note for note in found.notes if "less likely (by 60.00 and 60.00 nats" in note]
    assert len(told) == 1
    assert f"it stands at {row(found, 'overall', 'soft')['after']:.2f}" in told[0]
    assert not any("less likely" in note for note in compare(before, before, FAST).notes)
    assert not any(note.startswith("Every score is the same") for note in found.notes)


def test_pairs_of_several_groups_count_in_each_and_once_overall():
    rows = [("gay|trans", f"s{k}", -1.0, -2.0) for k in range(12)]
    found = compare(table(rows), table(rows), FAST)
    assert {row(found, s)["n_pairs"] for s in ("overall", "macro", "group:gay")} == {12}
    assert any("12 pairs name several groups" in note for note in found.notes)


# --- the table, seeds, requests -----------------------------------------------------------


def test_the_tables_have_their_documented_columns():
    found = compare(*simulated(), FAST)
    assert tuple(found.table.columns) == tuple(DELTA_COLUMNS)
    assert tuple(found.published.columns) == tuple(PUBLISHED_COLUMNS)
    assert not found.table.duplicated(["scope", "metric"]).any()


def test_a_seed_gives_the_same_numbers_and_a_slice_changes_no_others():
    before, after = simulated(clusters=20)
    one = compare(before, after, FAST).table
    pd.testing.assert_frame_equal(one, compare(before, after, FAST).table)
    before.table["slice"] = np.where(before.table["stereotype_id"] == "s1", "control", "")
    sliced = compare(before, after, FAST).table
    assert "slice:control" in set(sliced["scope"])
    pd.testing.assert_frame_equal(one, sliced[sliced["scope"] != "slice:control"])
    other = compare(before, after, InferenceSettings(resamples=400, seed=1)).table
    assert (other["ci_low"] != sliced["ci_low"]).any()


def test_the_order_of_the_second_table_does_not_matter():
    before, after = simulated()
    mixed = Scores(after.table.sample(frac=1, random_state=1).reset_index(drop=True), after.meta)
    pd.testing.assert_frame_equal(
        compare(before, after, FAST).table, compare(before, mixed, FAST).table
    )


def test_what_cannot_be_compared_is_refused_in_one_line():
    before, after = simulated()
    other = Scores(after.table, {**after.meta, "scorer_version": "2"})
    with pytest.raises(RequestError, match="scorer_version: 1 before, 2 after"):
        compare(before, other)
    fewer = Scores(after.table.iloc[1:], after.meta)
    with pytest.raises(RequestError, match=r"1 only before.*, 0 only after"):
        compare(before, fewer)
    nan = after.table.copy()
    nan.loc[3, "score_less"] = np.nan
    with pytest.raises(RequestError, match="1 of 72 pairs have a score that is not a finite"):
        compare(before, Scores(nan, after.meta))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ties", "x"),
        ("correction", "x"),
        ("alpha", 1.0),
        ("power", 0.0),
        ("resamples", 1),
        ("equivalence_points", 0.0),
        ("equivalence_nats", math.nan),
    ],
)
def test_a_wrong_setting_is_named(setting, value):
    with pytest.raises(RequestError, match=f"inference.{setting}={value}"):
        compare(*simulated(), InferenceSettings(**{setting: value}))


# --- calibration and speed ----------------------------------------------------------------


def test_the_default_tests_reject_five_per_cent_where_nothing_changed():
    """A/A: 30 clusters of unequal size, intra-cluster correlation 0.3; the short calibration."""
    found = rejections(30, 150, seed=1)
    assert off(found).empty, off(found)
    rates = found.set_index(["scope", "metric", "test"])["rejected"]
    assert rates["overall", "margin", "CR2 t, Satterthwaite"] < 0.05 + 3 * found["error"].iloc[0]
    assert rates["overall", "margin", "paired t, as published"] > 0.25
    assert rates["overall", "bias", "McNemar, as published"] > 0.15


def test_the_largest_benchmark_takes_seconds():
    """45,540 pairs × 12 groups × 10,000 resamples, every estimator: under 10 s of one core."""
    before, after = benchmark()
    assert len(before.table) == 45_540
    start = time.process_time()
    found = compare(before, after, InferenceSettings())
    assert time.process_time() - start < 15  # the target of 10 is the performance command's
    assert found.two_way is not None


# What a reviewer found: distance from 50 is no linear thing.


def shares(before: float, after: float, clusters: int, groups: int, seed: int):
    """Clusters with pairs of each group, whose bias is truly `before` and then `after` percent."""
    rng = np.random.default_rng(seed)
    sides: list[list[tuple[str, str, float, float]]] = [[], []]
    for rows, level in zip(sides, (before, after), strict=True):
        for cluster in range(clusters):
            for group in range(groups):
                wins = rng.random() < level / 100
                rows.append((f"g{group}", f"s{cluster}", -30.0, -31.0 if wins else -29.0))
    return table(sides[0]), table(sides[1])


def test_the_distance_is_not_shown_to_change_where_bias_changes_sides():
    """Bias 58 and then 42: as far from 50 as before. A swap of labels alone rejects this."""
    shown = 0
    for seed in range(40):
        found = compare(*shares(58, 42, 120, 3, seed), InferenceSettings(resamples=200, seed=seed))
        shown += row(found, "macro", "distance")["p"] < 0.05
    assert shown <= 6  # of 40, 5 % expected; the swap alone rejects in three of four


def test_a_change_of_sides_is_told_in_the_first_sentence():
    found = compare(*shares(62, 38, 200, 3, 1), InferenceSettings(resamples=400))
    assert plain_verdict(row(found, "macro", "distance")["verdict"]) == "not shown"
    first, second = found.sentences()
    assert first.startswith(
        "A change of the distance from 50 is not shown, though bias itself changed in 3 of the 3"
    )
    assert "3 crossed over" in second


def test_a_distance_is_unchanged_only_if_every_bias_beneath_it_is():
    """Noise around 50 hides that a distance grew from 0 to 3: 12 groups, few clusters."""
    said = []
    for seed in range(15):
        settings = InferenceSettings(resamples=200, seed=seed)
        found = compare(*shares(50, 53, 60, 8, seed), settings)
        macro = row(found, "macro", "distance")
        groups = found.rows("bias", "group")
        assert macro["p_equivalence"] == groups["p_equivalence"].max()
        said.append(plain_verdict(macro["verdict"]))
    assert "unchanged" not in said


def test_crossed_over_needs_both_sides_to_be_known():
    """50.5 and then 30 is away from 50; on which side it was before is not known."""
    found = compare(*shares(51, 20, 60, 1, 3), InferenceSettings(resamples=400))
    bias = row(found, "group:g0", "bias")
    assert bias["before_low"] < 50 < bias["before_high"]
    assert plain_verdict(bias["verdict"]) == "away from 50"


def test_a_mean_over_groups_moves_as_its_groups_do():
    """97 beside 3, and then 99 beside 1: the mean stays 50, and both groups went away from it."""
    before, after = [], []
    for cluster in range(100):
        for group, was, now in (("a", cluster < 90, cluster < 99), ("b", cluster < 5, cluster < 1)):
            name = f"s{cluster}"
            before.append((group, name, -30.0, -31.0 if was else -29.0))
            after.append((group, name, -30.0, -31.0 if now else -29.0))
    macro = row(
        compare(table(before), table(after), InferenceSettings(resamples=200)), "macro", "bias"
    )
    assert abs(macro["after"] - 50) > abs(macro["before"] - 50) or not macro["moved_toward_50"]
    assert not macro["moved_toward_50"]


def test_nothing_is_promised_where_no_p_can_be_small_enough():
    before, after = simulated(clusters=5, effect=-0.4, seed=3)
    found = compare(before, after, InferenceSettings(resamples=200))
    assert found.table["smallest_shown"].isna().all()
    assert "would be shown" not in found.sentences()[0]
    # Twelve groups of eight clusters: 2^-7 times 12 is over 5 %.
    groups = [f"g{number}" for number in range(12)]
    found = compare(*simulated(clusters=8, groups=groups, seed=3), InferenceSettings(resamples=200))
    verdict = row(found, "group:g0", "bias")["verdict"]
    assert "adjusted p cannot go below 0.09375" in verdict


def test_noise_lifts_a_distance_and_a_note_says_so():
    found = compare(*shares(50, 50, 20, 4, 2), InferenceSettings(resamples=400))
    assert found.headline["lift_before"] > 0.5
    assert any(note.startswith("Noise lifts a distance from 50") for note in found.notes)


def test_always_there_is_no_slice():
    with pytest.raises(RequestError, match=r"inference\.slices=group: is always there"):
        compare(*simulated(), InferenceSettings(slices=["group"]))


@pytest.mark.parametrize("metric", ["soft", "sigmoid", "ties"])
def test_no_margin_is_stated_for_what_hardly_moves(metric: str):
    said = row(compare(*simulated(), InferenceSettings(resamples=200)), "overall", metric)
    assert math.isnan(said["equivalence_margin"])
    assert math.isnan(said["p_equivalence"])
