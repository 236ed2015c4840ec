"""Methods against placebo, run by run: against scipy, by simulation, and in words."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from eval.errors import RequestError
from eval.inference import runs

DEMO = [-9.0, -8.0, -10.5, -7.0, -9.5]
CONTROL = [-5.0, -4.0, -6.5, -3.0, -5.5]


def rows(recipe, deltas, placebo=False, *, scope="macro", metric="distance", before=30.0, **more):
    """One row a run, as `mitigate report` collects them."""
    return pd.DataFrame(
        {
            "recipe": recipe,
            "seed": range(len(deltas)),
            "placebo": placebo,
            "benchmark": more.pop("benchmark", "samples_de"),
            "scope": scope,
            "metric": metric,
            "before": before,
            "after": before + np.asarray(deltas, float),
            "delta": np.asarray(deltas, float),
            "se": 1.5,
            "n_clusters": 44,
            **more,
        }
    )


def both(demo=DEMO, control=CONTROL, **more):
    return pd.concat([rows("demo", demo, **more), rows("control", control, True, **more)])


MATCHED = {"tokens": 1000, "years": "2019-2024", "settings": "a"}


def test_difference_in_differences_is_welchs_t_over_runs():
    demo, control = DEMO, [*CONTROL, -9.0]
    found = runs.claims(both(demo, control))
    assert tuple(found.table.columns) == tuple(runs.CLAIM_COLUMNS)
    assert tuple(found.spread.columns) == tuple(runs.SPREAD_COLUMNS)
    row = found.table.iloc[0]
    welch = stats.ttest_ind(demo, control, equal_var=False)
    ends = welch.confidence_interval(0.95)
    assert row["difference"] == pytest.approx(np.mean(demo) - np.mean(control), abs=1e-12)
    assert row["p"] == pytest.approx(welch.pvalue, rel=1e-10)
    assert row["df"] == pytest.approx(welch.df, rel=1e-10)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx(tuple(ends), rel=1e-10)
    assert row["p_adjusted"] == row["p"]
    assert row["family"] == "distance on samples_de, 1 test: 1 method, 1 model, 1 scope"


def test_over_runs_and_stereotypes_the_variances_add():
    found = runs.claims(both())
    spread = found.spread.set_index("recipe").loc["demo"]
    between, within = np.var(DEMO, ddof=1) / 5, 1.5**2
    assert spread["sd"] == pytest.approx(np.std(DEMO, ddof=1))
    assert spread["within_se"] == pytest.approx(1.5)
    assert spread["se"] == pytest.approx(math.sqrt(between + within))
    df = (between + within) ** 2 / (between**2 / 4 + within**2 / 43)
    assert spread["df"] == pytest.approx(df)
    reach = stats.t.ppf(0.975, df) * spread["se"]
    assert spread["ci_high"] - spread["delta"] == pytest.approx(reach)
    row = found.table.iloc[0]
    other = np.var(CONTROL, ddof=1) / 5
    assert row["wide_se"] == pytest.approx(math.sqrt(between + other + 2 * within))
    assert row["wide_low"] < row["ci_low"] < row["ci_high"] < row["wide_high"]


def crossed(rng, repeats, effect=0.0, n_runs=5, clusters=20):
    """Simulated rows: changes of runs × stereotypes, both random, the stereotypes shared."""
    stereotypes = rng.normal(0, 2, (repeats, 1, clusters))
    own = rng.normal(0, 1, (repeats, 2 * n_runs, 1))
    rest = rng.normal(0, 1, (repeats, 2 * n_runs, clusters))
    change = stereotypes + own + rest
    change[:, :n_runs] += effect
    return change


def test_in_simulated_runs_welch_holds_its_level_where_a_runs_own_test_does_not():
    rng = np.random.default_rng(1)
    change = crossed(rng, 200)
    change -= change.mean(axis=(1, 2), keepdims=True)  # stereotypes that on average don't move
    means = change.mean(axis=2)  # (repeats, runs)
    errors = change.std(axis=2, ddof=1) / math.sqrt(change.shape[2])
    own = (np.abs(means / errors) > stats.t.ppf(0.975, 19)).mean()
    tables = [both(x[:5], x[5:]).assign(benchmark=f"b{k}") for k, x in enumerate(means)]
    shown = (runs.claims(pd.concat(tables)).table["p"] < 0.05).sum()
    assert abs(shown / 200 - 0.05) < 3 * math.sqrt(0.05 * 0.95 / 200)
    assert own > 0.2


def test_in_simulated_runs_the_wide_interval_holds_for_other_stereotypes():
    """Covers the effect on all stereotypes; five runs' errors taken for independent don't."""
    rng = np.random.default_rng(2)
    tables = []
    for number, change in enumerate(crossed(rng, 150, effect=3.0)[:, :5]):
        se = change.std(axis=1, ddof=1) / math.sqrt(change.shape[1])
        table = rows("demo", change.mean(axis=1), benchmark=f"b{number}")
        tables.append(table.assign(se=se, n_clusters=change.shape[1]))
    spread = runs.claims(pd.concat(tables)).spread
    covered = ((spread["ci_low"] <= 3.0) & (spread["ci_high"] >= 3.0)).sum()
    over_runs = stats.t.ppf(0.975, 4) * spread["sd"] / math.sqrt(5)  # Hartung and Knapp's
    independent = ((spread["delta"] - 3.0).abs() <= over_runs).sum()
    assert covered / 150 > 0.95 - 3 * math.sqrt(0.05 * 0.95 / 150)
    assert independent / 150 < covered / 150


def test_one_holm_family_over_methods_and_models():
    table = pd.concat(
        [
            rows(recipe, np.asarray(DEMO) + shift, model=model)
            for model in ("bert", "gpt")
            for recipe, shift in (("lora", 3.0), ("full", 4.2))
        ]
        + [rows("control", CONTROL, True, model=model) for model in ("bert", "gpt")]
    )
    table.loc[(table["model"] == "gpt") & ~table["placebo"], "delta"] += [
        0.1 * k for k in range(5)
    ] * 2
    found = runs.claims(table).table
    assert len(found) == 4
    assert found["p_adjusted"].tolist() == pytest.approx(
        multipletests(found["p"], method="holm")[1].tolist(), rel=1e-12
    )
    assert set(found["family"]) == {"distance on samples_de, 4 tests: 2 methods, 2 models, 1 scope"}


def test_groups_are_a_family_of_their_own_and_so_is_each_metric():
    scopes = ["overall", "macro", "group:gay", "group:trans", "group:queer"]
    table = pd.concat(
        [both(scope=scope, metric=metric) for scope in scopes for metric in ("bias", "distance")]
    )
    found = runs.claims(table).table
    sizes = found.groupby("family")["scope"].apply(lambda s: sorted(s))
    assert sorted(map(len, sizes)) == [2, 2, 3, 3]
    bias = found[(found["metric"] == "bias") & found["scope"].str.startswith("group:")]
    assert bias["p_adjusted"].tolist() == pytest.approx((bias["p"] * 3).tolist())


# --- what may be claimed ------------------------------------------------------------------


def one(table, **more):
    found = runs.claims(table, **more)
    return found.table.iloc[0], found.sentences, found.notes


@pytest.mark.parametrize(
    ("metric", "before", "demo", "control", "verdict"),
    [
        ("distance", 30, -9, -5, "nearer 50 than placebo"),
        ("distance", 30, -5, -9, "farther from 50 than placebo"),
        ("bias", 80, -9, -5, "nearer 50 than placebo"),
        ("bias", 80, -5, -9, "farther from 50 than placebo"),
        ("bias", 30, 9, 5, "nearer 50 than placebo"),
        ("bias", 80, -40, -9, "other side of 50 than placebo"),
        ("margin", 1.5, -0.9, -0.5, "nearer 0 than placebo"),
        ("margin", 1.5, -2.0, -0.5, "other side of 0 than placebo"),
        ("ties", 3, 9, 5, "higher than placebo"),
        ("ties", 30, -9, -5, "lower than placebo"),
        ("bias", 80, -5, -5.01, "not shown"),
    ],
)
def test_verdicts(metric, before, demo, control, verdict):
    noise = np.array([-0.1, 0.1, 0, 0.05, -0.05])
    table = both(demo + noise, control - noise, metric=metric, before=float(before))
    assert one(table)[0]["verdict"] == verdict


@pytest.mark.parametrize(
    ("demo", "control", "why", "said"),
    [
        (DEMO[:1], CONTROL, "one run", "one run cannot tell a method's effect from the run's own"),
        (DEMO, [], "no placebo run", "no placebo run shows what training on other text would"),
        (DEMO[:1], [], "no placebo run", "no placebo run shows what training on other text would"),
        (DEMO, CONTROL[:1], "one placebo run", "one placebo run cannot tell its effect from"),
        ([-3.0] * 3, [-1.0] * 3, "runs do not differ", "the runs do not differ among themselves"),
    ],
)
def test_where_nothing_can_be_claimed_the_sentence_says_so(demo, control, why, said):
    row, sentences, notes = one(both(demo, control))
    assert row["verdict"] == f"no claim ({why})"
    assert np.isnan(row["p"])
    assert np.isnan(row["p_adjusted"])
    assert len(sentences) == 1
    assert f"Nothing can be claimed about the method: {said}" in sentences[0]
    assert runs.ADVICE in notes
    assert runs.SEEDS_NOTE not in notes


def test_sentences_follow_from_the_verdicts():
    row, sentences, notes = one(both())
    assert sentences == [
        "demo, samples_de: the mean over groups of |bias − 50| changed by −8.8 points on average "
        "over 5 runs, over 5 placebo runs by −4.8 points (−6.5 to −3.0). Beyond placebo: nearer "
        "50 than placebo (−4.0 points, 95 % interval −6.0 to −2.0, "
        f"p = {row['p_adjusted']:.4f}, Welch's t over runs with 8.0 degrees of freedom)."
    ]
    assert notes == [
        runs.PLACEBO_NOTE,
        "Whether the placebo runs had the same tokens, years, settings as the methods' is not "
        "checked: the runs don't say.",
        runs.SEEDS_NOTE,
    ]
    _, sentences, _ = one(
        both(DEMO, np.asarray(DEMO) + np.array([0.1, -0.2, 0.1, 0, 0.1]), model="bert")
    )
    assert "demo on bert, samples_de: " in sentences[0]
    assert (
        "That the method does anything beyond further training on other text is not shown "
        "(difference −0.0 points, 95 % interval"
    ) in sentences[0]
    _, sentences, _ = one(both([-1.5], [-0.9, -1.1], scope="overall", metric="margin"))
    assert sentences[0].startswith(
        "demo, samples_de: the mean margin changed by −1.500 nats in its one run, over 2 placebo "
        "runs by −1.000 nats (−1.100 to −0.900). Nothing can be claimed"
    )


def test_few_runs_are_named_in_the_verdict():
    row, sentences, _ = one(both(DEMO[:2], CONTROL[:3]))
    assert row["verdict"].endswith(" (only 2 runs, 3 placebo runs)")
    assert "; only 2 runs, 3 placebo runs)" in sentences[0]


def test_only_placebo_runs_claim_nothing_but_show_their_spread():
    found = runs.claims(rows("control", CONTROL, True))
    assert found.table.empty
    assert found.sentences == []
    assert found.spread["placebo"].tolist() == [True]
    assert found.notes == [runs.PLACEBO_NOTE]


def test_no_sentence_says_that_placebo_text_has_no_effect_or_that_50_is_fair():
    said = " ".join(
        text
        for table in (both(), both(DEMO[:1]), both(DEMO, []), both(DEMO, DEMO[::-1]))
        for text in [*one(table)[1], *one(table)[2]]
    ).lower()
    assert not re.search(r"no effect|fair|unbiased|debiased|neutral|inert|does nothing", said)
    assert "an effect too" in said


# --- whether the placebo is matched -------------------------------------------------------


def test_a_matched_placebo_is_checked_in_silence():
    table = both(**MATCHED)
    table.loc[table["placebo"], "tokens"] = 1009  # within one per cent
    row, _, notes = one(table)
    assert row["differing"] == ""
    assert not row["verdict"].startswith("no claim")
    assert not any("not checked" in note for note in notes)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("tokens", 500, "tokens: 1,000 against 500"),
        ("years", "2010-2012", "years: 2019-2024 against 2010-2012"),
        ("settings", "b", "settings: a against b"),
        ("years", None, "years: 2019-2024 against unknown"),
        ("before", 42.0, "before: 30.00 against 42.00"),
    ],
)
def test_what_differs_is_named_and_nothing_claimed(column, value, said):
    table = both(**MATCHED).reset_index(drop=True)
    table[column] = table[column].astype(object).where(~table["placebo"], value)
    if column in ("tokens", "before"):
        table[column] = table[column].astype(float if column == "before" else int)
    row, sentences, _ = one(table)
    assert row["differing"] == said
    assert row["verdict"] == "no claim (placebo not matched)"
    assert np.isnan(row["p"])
    assert row["difference"] == pytest.approx(-4.0)
    assert f"the runs differ in more than their text ({said})" in sentences[0]


def test_of_several_placebos_the_matched_ones_count():
    other = rows("other", [-20.0, -21.0], True, **{**MATCHED, "tokens": 5})
    found = runs.claims(pd.concat([both(**MATCHED), other]))
    assert found.table["n_placebo"].tolist() == [5]
    assert found.table["placebo_delta"].iloc[0] == pytest.approx(-4.8)
    assert found.spread["recipe"].tolist() == ["demo", "control", "other"]


def test_a_placebo_of_another_model_is_none():
    table = pd.concat([rows("demo", DEMO, model="bert"), rows("control", CONTROL, True, model="b")])
    assert one(table)[0]["verdict"] == "no claim (no placebo run)"


def test_runs_of_one_recipe_with_other_settings_are_no_seeds_of_one_method():
    table = both(**MATCHED).reset_index(drop=True)
    table.loc[0, "settings"] = "b"
    row, sentences, _ = one(table)
    assert row["differing"] == "settings of its own runs: b and a"
    assert "Nothing can be claimed" in sentences[0]


def test_a_seed_given_twice_counts_once():
    table = pd.concat([both(), both().head(1)])
    found = runs.claims(table)
    assert found.table["n_runs"].tolist() == [5]
    assert found.notes[0].startswith("demo with seed 0 was given more than once")


def test_without_standard_errors_only_the_wide_intervals_are_missing():
    row, _, _ = one(both().assign(se=np.nan))
    assert np.isnan(row["wide_se"])
    assert row["p"] < 0.05


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (both().drop(columns=["se", "seed"]), "runs: no column seed, se; there are: recipe"),
        (both().head(0), "runs: there is no run"),
        (
            both().assign(delta=np.nan),
            "runs: the change of distance (macro) in demo, seed 0, on samples_de isn't a number",
        ),
    ],
)
def test_a_wrong_table_is_named(table, said):
    with pytest.raises(RequestError, match=re.escape(said)):
        runs.claims(table)
