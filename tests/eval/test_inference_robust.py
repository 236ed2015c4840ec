"""CR2, its degrees of freedom, t tests, equivalence and two-way clusters, against definitions."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.sandwich_covariance import cov_cluster_2groups
from statsmodels.stats.weightstats import ttost_paired

from eval.inference import InferenceSettings, cluster_sums, compare, standard_errors
from eval.inference.robust import (
    distance_df,
    equivalence_test,
    robust,
    smallest_shown,
    t_test,
)
from eval.inference.two_way import combined, one_way_variance
from eval.metrics import PAIR_METRICS, scopes
from tests.eval.scored import simulated, table

CASES = Path(__file__).parents[1] / "cases"
ROBUST = json.loads((CASES / "robust.json").read_text("utf-8"))
TWO_WAY = json.loads((CASES / "two_way.json").read_text("utf-8"))
MARGIN = PAIR_METRICS.index("margin")
BIAS = PAIR_METRICS.index("bias")
FAST = InferenceSettings(resamples=200)


def sums_of(case, metric=MARGIN):
    """The sums of a case's pairs, (group, cluster, before, after), null where left out."""
    groups, clusters, before, after = zip(*case["pairs"], strict=True)
    values = np.asarray([before, after], float)  # None becomes NaN
    pairs = np.zeros((2, len(PAIR_METRICS), len(groups)))
    pairs[:, metric] = values
    cut = {scope.name: scope for scope in scopes(pd.DataFrame({"group": groups}))}
    return cluster_sums(cut[case["scope"]], pd.factorize(np.asarray(clusters))[0], pairs)


def by_matrices(case, side=None):
    """CR2 and Satterthwaite as they are defined: one row a pair, model and group; no closed form.

    Bell and McCaffrey 2002; Pustejovsky and Tipton 2018, with an identity working matrix.
    """
    groups, clusters, before, after = zip(*case["pairs"], strict=True)
    columns = (
        [("all", range(len(groups)))]
        if case["scope"] == "overall"
        else [
            (name, [row for row, of in enumerate(groups) if name in of.split("|")])
            for name in sorted({part for of in groups for part in of.split("|")})
        ]
    )
    rows = [
        (f"{name}/{model}", clusters[pair], values[pair])
        for name, inside in columns
        for model, values in enumerate((before, after))
        for pair in inside
        if values[pair] is not None
    ]
    cells = sorted({cell for cell, _, _ in rows})
    x = np.asarray([[cell == of for of in cells] for cell, _, _ in rows], float)
    y = np.asarray([value for _, _, value in rows], float)
    cluster = np.asarray([name for _, name, _ in rows])
    inverse = np.linalg.inv(x.T @ x)
    hat = x @ inverse @ x.T
    both = {name for name, _ in columns if {f"{name}/0", f"{name}/1"} <= set(cells)}
    sign = {"0": -1.0, "1": 1.0}
    contrast = np.asarray(
        [sign[cell[-1]] / len(both) if cell.rpartition("/")[0] in both else 0.0 for cell in cells]
    )
    coefficients = inverse @ x.T @ y
    if side is not None:
        contrast = contrast * np.where(coefficients >= side, 1.0, -1.0)
    residual = y - hat @ y
    left = np.eye(len(y)) - hat
    variance, vectors = 0.0, []
    for name in dict.fromkeys(cluster):
        inside = cluster == name
        values, basis = np.linalg.eigh(left[np.ix_(inside, inside)])
        root = np.where(values > 1e-10, 1 / np.sqrt(np.maximum(values, 1e-10)), 0.0)
        adjust = basis @ np.diag(root) @ basis.T  # Moore-Penrose inverse of the root
        score = adjust @ x[inside] @ inverse @ contrast
        variance += float(score @ residual[inside]) ** 2
        vectors.append(left[:, inside] @ score)
    products = np.asarray(vectors) @ np.asarray(vectors).T
    df = np.trace(products) ** 2 / (products**2).sum()
    return contrast @ coefficients, math.sqrt(variance), df


@pytest.mark.parametrize("case", ROBUST, ids=lambda case: case["name"])
def test_cr2_and_its_degrees_of_freedom_are_those_of_the_matrices(case):
    cut = sums_of(case)
    se, df = robust(cut)
    delta, explicit_se, explicit_df = by_matrices(case)
    assert cut.levels[1, 2] - cut.levels[0, 2] == pytest.approx(delta, abs=1e-10)
    assert se[MARGIN] == pytest.approx(explicit_se, abs=1e-10)
    assert df[MARGIN] == pytest.approx(explicit_df, abs=1e-10)
    assert se[MARGIN] == pytest.approx(case["expected"]["se"], abs=1e-10)
    assert df[MARGIN] == pytest.approx(case["expected"]["df"], abs=1e-10)
    assert standard_errors(cut)[MARGIN] == se[MARGIN]


@pytest.mark.parametrize("case", ROBUST, ids=lambda case: case["name"])
def test_the_degrees_of_freedom_of_distance_take_each_mean_on_its_side(case):
    cut = sums_of(case, BIAS)
    assert distance_df(cut) == pytest.approx(by_matrices(case, side=50)[2], abs=1e-10)


def test_single_pairs_for_clusters_give_the_paired_t_test():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=15), rng.normal(size=15)
    case = {"scope": "overall", "pairs": [["", k, x[k], y[k]] for k in range(15)]}
    se, df = robust(sums_of(case))
    assert se[MARGIN] == pytest.approx(stats.sem(y - x), abs=1e-12)
    assert df[MARGIN] == pytest.approx(14, abs=1e-10)
    p = t_test((y - x).mean(), se[MARGIN], df[MARGIN])
    assert p == pytest.approx(stats.ttest_rel(y, x).pvalue, abs=1e-10)
    p = equivalence_test((y - x).mean(), se[MARGIN], df[MARGIN], 0.7)
    assert p == pytest.approx(ttost_paired(y, x, -0.7, 0.7)[0], abs=1e-10)


def test_equal_clusters_have_one_degree_of_freedom_less_than_there_are():
    case = {"scope": "overall", "pairs": [["", k % 6, 0.0, float(k * k % 7)] for k in range(24)]}
    assert robust(sums_of(case))[1][MARGIN] == pytest.approx(5, abs=1e-10)


def test_unequal_clusters_have_fewer_and_cr1_is_that_of_statsmodels():
    rng = np.random.default_rng(3)
    codes = np.repeat(np.arange(8), [30, 20, 2, 2, 3, 1, 4, 2])
    case = {"scope": "overall", "pairs": [["", k, 0.0, v] for k, v in zip(
        codes.tolist(), rng.normal(size=len(codes)), strict=True)]}  # fmt: skip
    cut = sums_of(case)
    assert 1 < robust(cut)[1][MARGIN] < 7
    fitted = sm.OLS([row[3] for row in case["pairs"]], np.ones(len(codes))).fit(
        cov_type="cluster", cov_kwds={"groups": codes}
    )
    assert math.sqrt(one_way_variance(cut)[MARGIN]) == pytest.approx(fitted.bse[0], abs=1e-12)


def test_the_power_of_the_smallest_change_is_the_one_asked_for():
    """Its formula, and what it promises: drawn t tests at that change reject 80 % of the time."""
    size = float(smallest_shown(np.asarray(1.0), np.asarray(9.0), 0.05, 0.8))
    assert size == pytest.approx(stats.t.ppf(0.975, 9) + stats.t.ppf(0.8, 9), abs=1e-12)
    noncentral = stats.nct.sf(stats.t.ppf(0.975, 9), 9, size)
    assert noncentral == pytest.approx(0.8, abs=0.03)
    assert math.isnan(float(smallest_shown(np.asarray(0.0), np.asarray(9.0), 0.05, 0.8)))


def test_no_variance_is_no_evidence():
    delta, se, df = np.asarray([0.0, -3.0, 0.0]), np.asarray([0.0, 0.0, 1.0]), np.full(3, 9.0)
    assert t_test(delta, se, df)[[0, 2]] == pytest.approx([1, 1])
    assert math.isnan(t_test(delta, se, df)[1])
    assert np.isnan(equivalence_test(delta, se, df, np.full(3, 2.0))[:2]).all()


# --- in the comparison --------------------------------------------------------------------


def test_the_table_carries_them():
    before, after = simulated(clusters=14, effect=-0.4, seed=3)
    found = compare(before, after, InferenceSettings(resamples=200, alpha=0.1, power=0.9))
    rows = found.table[found.table["metric"].isin(["bias", "margin", "distance"])]
    for row in rows.to_dict("records"):
        t = abs(row["delta"]) / row["se"]
        assert row["p_t"] == pytest.approx(2 * stats.t.sf(t, row["df"]), abs=1e-12)
        margin = 0.05 if row["metric"] == "margin" else 2.0
        assert row["equivalence_margin"] == margin
        low = stats.t.sf((row["delta"] + margin) / row["se"], row["df"])
        high = stats.t.cdf((row["delta"] - margin) / row["se"], row["df"])
        if row["metric"] != "distance":  # there it is that of the biases beneath
            assert row["p_equivalence"] == pytest.approx(max(low, high), abs=1e-12)
        tests = int((found.table["family"] == row["family"]).sum())  # Holm's first step
        needed = stats.t.ppf(1 - 0.05 / tests, row["df"]) + stats.t.ppf(0.9, row["df"])
        assert row["smallest_shown"] == pytest.approx(needed * row["se"], abs=1e-12)
        assert row["p_floor"] == 2.0**-13


# --- two-way ------------------------------------------------------------------------------


def crossed(case):
    """Scores of a case's pairs, (stereotype, name, difference), and the differences."""
    stereotypes, names, differences = zip(*case["pairs"], strict=True)
    rows = [("gay", stereotype, -9.0, -9.0) for stereotype in stereotypes]
    before = table(rows)
    after = table(
        [("gay", s, -9.0 + d, -9.0) for s, d in zip(stereotypes, differences, strict=True)]
    )
    before.table["name"] = list(names)
    return before, after, np.asarray(differences)


def two_way_by_sums(case):
    """V1 + V2 - V12 by the definition: residual products of pairs that share a cluster."""
    stereotypes, names, differences = zip(*case["pairs"], strict=True)
    residual = np.asarray(differences) - np.mean(differences)
    n = len(residual)

    def variance(labels):
        shared = np.asarray([[a == b for b in labels] for a in labels])
        count = len(set(labels))
        return count / (count - 1) * float(residual @ shared @ residual) / n**2

    alone = [name or f"alone {row}" for row, name in enumerate(names)]
    return [
        variance(stereotypes),
        variance(alone),
        variance(list(zip(stereotypes, alone, strict=True))),
    ]


@pytest.mark.parametrize("case", TWO_WAY, ids=lambda case: case["name"])
def test_two_way_variance(case):
    before, after, differences = crossed(case)
    found = compare(before, after, FAST)
    first, second, cells = two_way_by_sums(case)
    expected = first + second - cells
    fell_back = expected <= 1e-12 * cells
    if fell_back:
        expected = cells
    row = found.two_way.set_index(["scope", "metric"]).loc[("overall", "margin")]
    assert row["se"] == pytest.approx(math.sqrt(expected), abs=1e-10)
    assert row["se"] == pytest.approx(case["expected"]["se"], abs=1e-10)
    assert row["df"] == case["expected"]["df"]
    assert row["delta"] == pytest.approx(differences.mean(), abs=1e-12)
    reach = stats.t.ppf(0.975, row["df"]) * row["se"]
    assert [row["ci_low"], row["ci_high"]] == pytest.approx(
        [row["delta"] - reach, row["delta"] + reach], abs=1e-12
    )
    assert row["p"] == pytest.approx(
        2 * stats.t.sf(abs(row["delta"]) / row["se"], row["df"]), abs=1e-12
    )
    assert fell_back is any("two-way variance" in note for note in found.notes)
    assert fell_back == case["expected"]["fell_back"]


def test_two_way_is_statsmodels_two_groups():
    case = TWO_WAY[0]
    stereotypes, names, differences = zip(*case["pairs"], strict=True)
    fitted = sm.OLS(differences, np.ones(len(differences))).fit()
    codes = [pd.factorize(np.asarray(labels))[0] for labels in (stereotypes, names)]
    expected = cov_cluster_2groups(fitted, codes[0], codes[1])[0]
    found = compare(*crossed(case)[:2], FAST).two_way.set_index(["scope", "metric"])
    assert found.loc[("overall", "margin"), "se"] == pytest.approx(
        math.sqrt(np.squeeze(expected)), abs=1e-10
    )


def test_where_nothing_moved_nothing_falls_back():
    zero = np.zeros(2)
    variance, bad = combined(zero, zero, zero)
    assert not bad.any()
    assert (variance == 0).all()


def test_there_is_no_second_kind_of_cluster_without_a_column_of_two_values():
    before, after = simulated()
    assert compare(before, after, FAST).two_way is None
    before.table["name"] = "Kim"
    assert compare(before, after, FAST).two_way is None
    before.table["name"] = np.where(np.arange(len(before.table)) % 2, "Kim", "Robin")
    assert set(compare(before, after, FAST).two_way["second"]) == {"name"}
    off = InferenceSettings(resamples=200, second_cluster="none")
    assert compare(before, after, off).two_way is None
    by = InferenceSettings(resamples=200, second_cluster="group")
    found = compare(before, after, by).two_way
    assert set(found["second"]) == {"group"}
    assert "group:gay" not in set(found["scope"])  # one value there: nothing to cross with
