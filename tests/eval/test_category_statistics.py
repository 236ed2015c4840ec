"""Statistics of judged completions, against brute force, scipy and statsmodels."""

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy.stats import t as student
from scipy.stats import ttest_ind
from statsmodels.stats.anova import anova_lm

from eval.completions import Completions
from eval.errors import RequestError
from eval.inference import InferenceSettings
from eval.inference.completions import (
    compare,
    jsd,
    multiway,
    one_way,
    permutation,
    rarefied,
    study,
    tf_idf,
    words,
)
from eval.inference.completions.grid import grid
from eval.inference.completions.mixed import fit
from tests.eval.completed import NON_QUEER, QUEER, completed, drawn_words, prompts, rated

FAST = InferenceSettings(resamples=100)


def small(seed: int = 0, effect: float = 0.0, **sizes: int) -> tuple[np.ndarray, pd.DataFrame]:
    """Values with marker, template and category effects, and their prompts with blocks."""
    table = prompts(
        [f"s{at}" for at in range(sizes.get("subjects", 3))],
        [f"t{at}" for at in range(sizes.get("templates", 4))],
        [f"q{at}" for at in range(sizes.get("queer", 4))],
        [f"n{at}" for at in range(sizes.get("non_queer", 3))],
    )
    rng = np.random.default_rng(seed)
    codes = {name: pd.factorize(table[name])[0] for name in ("marker", "template")}
    y = rng.normal(size=len(table)) + rng.normal(size=20)[codes["template"]]
    y += 0.3 * rng.normal(size=40)[codes["marker"]]
    y = y + effect * (table["category"] == "queer")
    table["block"] = pd.factorize(table["subject"] + table["template"])[0]
    return y.to_numpy(copy=True), table


def test_the_paper_s_f_and_p() -> None:
    """F and p as in Table 4, from numbers with an answer known by hand, and by statsmodels.

    Means 1, 2, 3 and three values each at distance 1: between 2·3, within 3·2, F = (6/2)/(6/6) = 3,
    p of F(2, 6) = (1 + 2·3/6)^-3 = 1/8.
    """
    values = np.asarray([0, 1, 2, 1, 2, 3, 2, 3, 4.0])
    category = np.repeat(["unmarked", "non-queer", "queer"], 3)
    found = one_way(values, category)
    assert found["f"] == pytest.approx(3, abs=1e-12)
    assert found["p"] == pytest.approx(1 / 8, abs=1e-12)
    assert (found["df_between"], found["df_within"]) == (2, 6)
    assert found["eta_squared"] == pytest.approx(0.5)
    y, table = small(effect=0.5)
    frame = table.assign(y=y)
    other = anova_lm(smf.ols("y ~ C(category)", frame).fit())
    found = one_way(y, frame["category"].to_numpy())
    assert found["f"] == pytest.approx(other.loc["C(category)", "F"], abs=1e-9)
    assert found["p"] == pytest.approx(other.loc["C(category)", "PR(>F)"], rel=1e-9)
    assert np.isnan(one_way(np.ones(9), category)["f"])


def test_the_table_of_f_and_p_from_completions() -> None:
    """The same numbers come out of a judged table, unusable words left out."""
    table = prompts(queer=QUEER[:2], non_queer=NON_QUEER[:2])
    said = drawn_words(table, {"unmarked": 0.1, "non-queer": 0.1, "queer": 0.4})
    said[7] = ""
    values = np.random.default_rng(1).normal(size=len(table))
    values[7] = np.nan
    found = study(rated(completed(table, said), sentiment_word=values), FAST, with_mixed=False)
    row = found.anova.iloc[0]
    expected = one_way(values, table["category"].to_numpy())
    assert row["f"] == expected["f"]
    assert row["df_within"] == len(table) - 1 - 3
    assert any("1 completions without a usable word" in note for note in found.notes)
    json.dumps(found.as_json(), allow_nan=False)


def test_gaps_are_differences_of_means_where_nothing_is_missing() -> None:
    y, table = small()
    means = pd.Series(y).groupby(table["category"].to_numpy()).mean()
    for pair, estimate in multiway.gaps(y, table).items():
        assert estimate.value == pytest.approx(means[pair[0]] - means[pair[1]], abs=1e-12)


def test_gaps_are_a_regression_s_with_a_dummy_for_each_block() -> None:
    """Also with missing values, whose blocks would otherwise tilt the means."""
    y, table = small(2)
    y[::5] = np.nan
    pair = ("queer", "unmarked")
    frame = table.assign(y=y)[table["category"].isin(pair)].dropna()
    model = smf.ols("y ~ C(block) + I(category == 'queer')", frame).fit()
    expected = model.params.filter(like="queer").iloc[0]
    assert multiway.gaps(y, table)[pair].value == pytest.approx(expected, abs=1e-10)


def test_errors_over_markers_alone_are_welch_s() -> None:
    """With one subject and template only markers recur: the t test of two samples of markers."""
    y, table = small(1, subjects=1, templates=1, queer=6, non_queer=5)
    found = multiway.gaps(y, table)[("queer", "non-queer")]
    queer, other = (y[(table["category"] == name).to_numpy()] for name in ("queer", "non-queer"))
    welch = ttest_ind(queer, other, equal_var=False)
    assert found.value / found.se == pytest.approx(welch.statistic, abs=1e-10)
    assert found.df == 4
    assert found.p == pytest.approx(2 * student.sf(abs(welch.statistic), 4), abs=1e-12)


def test_multiway_variance_by_brute_force() -> None:
    """Sum over seven combinations of clusters, signs by inclusion and exclusion, at the least the
    largest one-way variance (Cameron, Gelbach and Miller 2011)."""
    y, table = small(3)
    own = (table["category"] == "queer").to_numpy()
    found = multiway.means(y, table)["queer"]
    rows, values = table[own], y[own]
    influence = (values - values.mean()) / len(values)
    total, ways = 0.0, []
    for size in (1, 2, 3):
        for columns in itertools.combinations(("marker", "subject", "template"), size):
            sums: dict[tuple[str, ...], float] = {}
            for at, key in enumerate(zip(*(rows[name] for name in columns), strict=True)):
                sums[key] = sums.get(key, 0.0) + influence[at]
            part = len(sums) / (len(sums) - 1) * sum(each**2 for each in sums.values())
            total += part if size % 2 else -part
            ways += [part] if size == 1 else []
    assert found.se == pytest.approx(math.sqrt(max(total, *ways)), rel=1e-10)
    assert found.df == 2  # three subjects


def test_a_gap_to_the_unmarked_is_not_tested_by_markers_alone() -> None:
    """What is odd about the unmarked prompts is shared by all markers' differences.

    With nothing but noise, a t test over the markers' mean differences finds a gap most of the
    time; the multiway test holds its level.
    """
    naive, ours = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        _, table = small(subjects=4, templates=4, queer=12, non_queer=1)
        y = rng.normal(size=len(table))
        base = y[(table["category"] == "unmarked").to_numpy()]  # one a block, in order
        queer = table.assign(d=y - base[table["block"]])[table["category"] == "queer"]
        d = queer.groupby("marker")["d"].mean()
        naive.append(2 * student.sf(abs(d.mean() / (d.std() / math.sqrt(12))), 11) < 0.05)
        ours.append(multiway.gaps(y, table)[("queer", "unmarked")].p < 0.05)
    assert np.mean(naive) > 0.3
    assert np.mean(ours) < 0.15


def test_permuted_markers_by_brute_force() -> None:
    """Every division of the markers, gaps by regression each time; missing values too."""
    y, table = small(4, effect=0.8)
    y[1::7] = np.nan
    marked = table.assign(y=y)[table["marker"] != ""].dropna()
    names = sorted(marked["marker"].unique())
    gaps = {}
    for queer in itertools.combinations(names, 4):
        as_if = marked.assign(queer=marked["marker"].isin(queer).astype(float))
        within = as_if[["y", "queer"]] - as_if.groupby("block")[["y", "queer"]].transform("mean")
        gaps[queer] = (within["y"] * within["queer"]).sum() / (within["queer"] ** 2).sum()
    own = abs(gaps[tuple(name for name in names if name.startswith("q"))])
    expected = np.mean([abs(each) >= own - 1e-12 for each in gaps.values()])
    p, how = permutation.between_markers(y, table, 1, np.random.default_rng(0))
    assert p == pytest.approx(expected, abs=1e-12)
    assert how == "markers permuted, exact, 35 divisions"


def test_permuted_within_blocks_by_brute_force() -> None:
    """Against every permutation of a table so small that all can be listed."""
    y, table = small(5, subjects=1, templates=2, queer=2, non_queer=1)
    category = table["category"].to_numpy()
    centred = multiway.centred(y, table["block"].to_numpy())

    def between(labels: np.ndarray) -> float:
        return sum(
            centred[labels == name].sum() ** 2 / (labels == name).sum() for name in set(labels)
        )

    orders = list(itertools.permutations(range(4)))
    every = [
        between(np.concatenate([category[:4][list(one)], category[4:][list(two)]]))
        for one in orders
        for two in orders
    ]
    expected = np.mean(np.asarray(every) >= between(category) - 1e-12)
    p = permutation.blocked(y[:, None], table, 4000, np.random.default_rng(0))[0]
    assert p == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 4000))


def test_tests_hold_their_level_and_find_what_is_there() -> None:
    """Odd markers and odd templates are no gap between categories; a real gap is found."""
    found = {0.0: [], 1.5: []}  # type: dict[float, list[bool]]
    for effect, hits in found.items():
        for seed in range(40):
            y, table = small(seed, effect, subjects=4, templates=5, queer=8, non_queer=6)
            p, _ = permutation.between_markers(y, table, 199, np.random.default_rng(seed))
            hits.append(p <= 0.05)
    assert np.mean(found[0.0]) <= 0.15
    assert np.mean(found[1.5]) >= 0.9


def test_the_mixed_model_finds_what_was_put_in() -> None:
    """The gap, its error, and the variances, within what such a table allows."""
    y, table = small(6, effect=1.0, subjects=4, templates=8, queer=10, non_queer=6)
    found = fit(y, table, "sentiment_word").set_index("gap")
    assert list(found.index) == ["queer − unmarked", "queer − non-queer", "non-queer − unmarked"]
    row = found.loc["queer − non-queer"]
    plain = multiway.gaps(y, table)[("queer", "non-queer")]
    assert row["value"] == pytest.approx(plain.value, abs=1e-3)
    # balanced: the gap varies by markers' and the rest's variance alone
    expected = math.sqrt((row["var_marker"] + row["var_rest"] / 32) * (1 / 10 + 1 / 6))
    assert row["se"] == pytest.approx(expected, rel=0.02)
    assert 0.05 < row["var_template"] < 5
    assert row["var_rest"] == pytest.approx(1, abs=0.2)
    assert row["converged"]
    assert fit(np.ones(len(y)), table, "sentiment_word").empty


def test_rarefied_by_brute_force() -> None:
    """Expected different words in so many draws, over every draw there is."""
    counts = np.asarray([4, 2, 1, 1, 0])
    said = np.repeat(np.arange(5), counts)
    draws = [len(set(each)) for each in itertools.combinations(said, 3)]
    assert rarefied(counts, 3) == pytest.approx(np.mean(draws), abs=1e-12)
    assert rarefied(counts, 8) == pytest.approx(4)
    assert math.isnan(rarefied(counts, 9))


def test_diversity_does_not_fall_with_n_when_rarefied() -> None:
    """The paper's share halves where each category says the same words twice as often."""
    table = prompts(subjects=[f"s{at}" for at in range(15)])
    said = drawn_words(table, dict.fromkeys(("unmarked", "non-queer", "queer"), 0.3))
    judged = rated(completed(table, said), sentiment_word=np.zeros(len(table)))
    found = words.diversity(grid(judged)).set_index("category")
    assert found["share"]["queer"] < found["share"]["non-queer"] / 1.9
    assert abs(found["rarefied"]["queer"] - found["rarefied"]["non-queer"]) < 0.1
    assert found["matched"]["unmarked"] == found["different"]["unmarked"]


def test_matched_diversity_by_brute_force() -> None:
    """Every way to complete each sentence once."""
    table = prompts(("a", "b"), ("is",), ("q1", "q2"), ("n1",))
    said = ["x", "x", "x", "y", "z", "x", "x", "y"]
    judged = rated(completed(table, said), sentiment_word=np.zeros(8))
    ways = [len({one, two}) for one in ("x", "y") for two in ("x", "y")]
    found = words.diversity(grid(judged)).set_index("category")
    assert found["matched"]["queer"] == pytest.approx(np.mean(ways))


def test_divergence_in_bits() -> None:
    """1 where no word is shared, 0 where the shares are the same, and by its definition."""
    assert jsd(np.asarray([2, 0]), np.asarray([0, 5])) == pytest.approx(1)
    assert jsd(np.asarray([1, 3]), np.asarray([2, 6])) == pytest.approx(0, abs=1e-12)
    p, q = np.asarray([0.5, 0.5, 0]), np.asarray([0.25, 0.25, 0.5])
    m = (p + q) / 2
    expected = sum(
        0.5 * a * math.log2(a / b) for side in (p, q) for a, b in zip(side, m, strict=True) if a
    )
    assert jsd(4 * p, 8 * q) == pytest.approx(expected, abs=1e-12)


def test_divergence_is_read_against_chance() -> None:
    """Never 0 between samples: what permuted labels give is told; only a real one stands out."""
    table = prompts()
    same = dict.fromkeys(("unmarked", "non-queer", "queer"), 0.2)
    shown = []
    for bad in (same, {**same, "queer": 0.8}):
        judged = rated(
            completed(table, drawn_words(table, bad)), sentiment_word=np.zeros(len(table))
        )
        rows = words.divergence(grid(judged), 200, np.random.default_rng(0)).set_index("pair")
        assert (rows["value"] > 0).all()
        shown.append(rows.loc["queer and non-queer"])
    assert shown[0]["value"] < shown[0]["expected_high"]
    assert shown[1]["value"] > 5 * shown[1]["expected_high"]
    assert shown[1]["p"] == pytest.approx(1 / 201)
    assert shown[1]["p_markers"] < 0.05 < shown[0]["p_markers"]


def test_tf_idf_by_its_formula() -> None:
    """Counts × (ln((1 + 3)/(1 + df)) + 1), each category's vector of length 1."""
    found = pd.DataFrame(
        {"unmarked": [3, 0, 1], "non-queer": [1, 2, 0], "queer": [0, 0, 4]}, index=["a", "b", "c"]
    )
    idf = {"a": math.log(4 / 3) + 1, "b": math.log(4 / 2) + 1, "c": math.log(4 / 3) + 1}
    weights = tf_idf(found)
    for category in found:
        raw = {word: found[category][word] * idf[word] for word in found.index}
        length = math.sqrt(sum(each**2 for each in raw.values()))
        for word, value in raw.items():
            assert weights[category][word] == pytest.approx(value / length, abs=1e-12)


def test_regard_is_normalised_as_in_the_paper() -> None:
    """Means over a category's sentences, then scaled to sum to 1 (equations 2a and 2b)."""
    table = prompts(("a", "b"), ("is",), ("q1",), ("n1",))
    parts = np.random.default_rng(0).dirichlet(np.ones(4), size=len(table))
    names = ("regard_negative_masked", "regard_neutral_masked", "regard_positive_masked")
    judged = rated(completed(table, ["x"] * len(table)), **dict(zip(names, parts.T, strict=False)))
    found = study(judged, FAST, with_mixed=False).regard.set_index("category")
    for category in ("unmarked", "non-queer", "queer"):
        mean = parts[(table["category"] == category).to_numpy(), :3].mean(axis=0)
        row = found.loc[category, ["negative", "neutral", "positive"]].to_numpy(float)
        np.testing.assert_allclose(row, mean / mean.sum(), atol=1e-12)


def test_top_five_are_averaged_over_each_prompt() -> None:
    """Five words of a prompt are one value; the words themselves all count."""
    table = prompts(("a", "b"), ("is", "was"), ("q1", "q2"), ("n1", "n2"))
    ranks = [completed(table, [f"w{rank}"] * len(table), rank).table for rank in range(5)]
    both = completed(table, ["x"] * len(table))
    values = np.arange(5 * len(table), dtype=float)
    judged = rated(
        Completions(pd.concat(ranks, ignore_index=True), both.meta), sentiment_word=values
    )
    found = grid(judged)
    np.testing.assert_allclose(
        found.values["sentiment_word"], values.reshape(5, -1).mean(axis=0), atol=1e-12
    )
    assert len(found.words) == 5 * len(table)


def changed(effect: float, seed: int = 0) -> tuple[Completions, Completions, np.ndarray]:
    """Judged before and after, and the differences; queer sentences rise by `effect`."""
    table = prompts()
    rng = np.random.default_rng(seed)
    queer = (table["category"] == "queer").to_numpy()
    before = rng.normal(size=len(table)) - 0.5 * queer
    delta = 0.3 * rng.normal(size=len(table)) + effect * queer
    both = [rated(completed(table, ["x"] * len(table)), sentiment_word=each, toxicity_masked=-each)
            for each in (before, before + delta)]  # fmt: skip
    return both[0], both[1], delta


def test_a_change_is_paired_prompt_by_prompt() -> None:
    """The change is the mean of differences, whatever the order of the rows."""
    before, after, delta = changed(0.35)
    order = np.random.default_rng(1).permutation(len(delta))
    shuffled = Completions(after.table.iloc[order].reset_index(drop=True), after.meta)
    found = compare(before, shuffled, FAST, with_mixed=False)
    table = found.table[found.table["measure"] == "sentiment_word"].set_index("what")
    category = before.table["category"].to_numpy()
    mean = {name: delta[category == name].mean() for name in set(category)}
    for name, value in mean.items():
        assert table["delta"][name] == pytest.approx(value, abs=1e-12)
    gap = table.loc["queer − unmarked"]
    assert gap["delta"] == pytest.approx(mean["queer"] - mean["unmarked"], abs=1e-12)
    assert gap["after"] - gap["before"] == pytest.approx(gap["delta"], abs=1e-12)
    assert table["verdict"]["queer"] == "higher"
    assert table["verdict"]["queer − non-queer"] == "narrowed"
    assert table["verdict"]["unmarked"] == "not shown"
    assert table["n_markers"]["queer"] == len(QUEER)
    told = found.sentences()
    assert len(told) == 2
    assert told[0].startswith("Sentiment, of the word: queer − unmarked from −0.")
    json.dumps(found.as_json(), allow_nan=False)


def test_no_change_is_not_shown() -> None:
    before, after, _ = changed(0.0, seed=3)
    found = compare(before, after, FAST, with_mixed=False)
    assert set(found.table["verdict"]) == {"not shown"}
    same = compare(before, before, FAST, with_mixed=False)
    assert (same.table["delta"] == 0).all()
    assert (same.table["p"] == 1).all()


def test_holm_within_each_family() -> None:
    """Gaps and categories apart, first views and others apart; adjusted over all measures."""
    before, after, _ = changed(0.2)
    found = compare(before, after, FAST, with_mixed=False).table
    assert set(found["family"]) == {"changes of categories", "changes of gaps"}
    for _, rows in found.groupby("family"):
        smallest = rows["p"].min()
        assert rows["p_adjusted"].min() == pytest.approx(min(1, 6 * smallest))


def test_the_same_seed_gives_the_same_numbers() -> None:
    before, after, _ = changed(0.1)
    one, two = (compare(before, after, FAST, with_mixed=False) for _ in range(2))
    assert one.as_json() == two.as_json()


def test_what_can_not_be_compared() -> None:
    before, after, _ = changed(0.1)
    other = Completions(after.table, {**after.meta, "benchmark_hash": "1" * 16})
    with pytest.raises(RequestError, match="before and after differ in benchmark_hash"):
        compare(before, other, FAST)
    records = [{**each, "version": "2"} for each in after.meta["judges"]]
    with pytest.raises(RequestError, match="were judged differently: sentiment word en made 1"):
        compare(before, Completions(after.table, {**after.meta, "judges": records}), FAST)
    with pytest.raises(RequestError, match="hold different prompts"):
        compare(before, Completions(after.table.iloc[1:], after.meta), FAST)
    with pytest.raises(RequestError, match="no judge has rated these completions"):
        study(completed(prompts(), ["x"] * len(prompts())))
    table = before.table.assign(category="queer-ish")
    with pytest.raises(RequestError, match="category queer-ish: must be one of unmarked"):
        study(Completions(table, before.meta))
