"""Mean rows, spread and languages, on the German paper's published rows and by hand."""

import numpy as np
import pandas as pd
import pytest

from eval.errors import RequestError
from eval.inference import InferenceSettings, across, compare
from tests.eval.scored import simulated

MODELS = ["bloom-560m", "german-bert", "gpt2", "mbert", "opt-350m", "xlm-clm", "xlm-mlm", "xlm-r"]
#: The German paper's overall rows, bias and soft score: before and change. (Tables 4-7)
PUBLISHED = {
    ("translated", "bias", "before"): "44.8 56.4 39.2 58.4 47.6 45.8 51.6 48.9",
    ("translated", "soft", "before"): "47.4 56.6 39.4 57.3 48.6 46.3 51.5 49.5",
    ("translated", "bias", "delta"): "-18.5 3.0 0.1 -7.5 -1.0 -1.1 17.2 -2.8",
    ("translated", "soft", "delta"): "1.8 3.3 3.8 -6.0 -5.1 1.3 6.0 1.5",
    ("survey", "bias", "before"): "56.1 83.0 64.1 56.3 53.5 62.0 45.0 30.2",
    ("survey", "soft", "before"): "51.0 61.5 53.3 49.9 52.5 54.2 48.1 46.1",
    ("survey", "bias", "delta"): "-20.4 -12.7 -22.0 -0.5 -6.7 -23.2 -5.4 14.2",
    ("survey", "soft", "delta"): "-16.5 -9.3 -4.7 -0.7 -3.1 -4.9 -1.3 -1.6",
}
#: The mean column that they print.
MEANS = {
    ("translated", "bias", "before"): 49.3,
    ("translated", "soft", "before"): 49.6,
    ("translated", "bias", "delta"): -1.3,
    ("translated", "soft", "delta"): 0.8,
    ("survey", "bias", "before"): 56.3,
    ("survey", "soft", "before"): 52.1,
    ("survey", "bias", "delta"): -9.6,
    ("survey", "soft", "delta"): -5.2,
}
#: Where the printed mean isn't that of the printed models, whatever was rounded.
SLIP = ("translated", "bias", "before")


def german():
    parts = []
    for benchmark in ("translated", "survey"):
        for metric in ("bias", "soft"):
            before, delta = (
                np.array(PUBLISHED[benchmark, metric, what].split(), float)
                for what in ("before", "delta")
            )
            part = {"model": MODELS, "language": "de", "benchmark": benchmark, "scope": "overall"}
            levels = {"metric": metric, "before": before, "after": before + delta, "delta": delta}
            parts.append(pd.DataFrame({**part, **levels}))
    return pd.concat(parts, ignore_index=True)


def test_the_german_papers_mean_rows():
    """Rounding the models to a digit moves a mean by 0.05, rounding the mean by 0.05 more."""
    found = across.means(german()).set_index(["benchmark", "metric"])
    assert (found["n_models"] == 8).all()
    for (benchmark, metric, what), printed in MEANS.items():
        mean = found.loc[(benchmark, metric), what]
        if (benchmark, metric, what) == SLIP:
            assert mean == pytest.approx(49.0875)  # and not 49.3
        else:
            assert mean == pytest.approx(printed, abs=0.1)
    # the text says −9.9 where the table says −9.6: the table is right
    assert f"{found.loc[('survey', 'bias'), 'delta']:.1f}" == "-9.6"


def test_means_count_every_model_once_and_none_that_has_no_level():
    rows = german().query("benchmark == 'survey'").reset_index(drop=True)
    rows.loc[0, ["before", "after", "delta"]] = np.nan
    found = across.means(rows).set_index("metric")
    assert tuple(across.means(rows).columns) == tuple(across.MEAN_COLUMNS)
    left = rows[rows["metric"] == "bias"].dropna()
    assert found.loc["bias", "n_models"] == 7
    assert found.loc["soft", "n_models"] == 8
    assert found.loc["bias", "delta"] == pytest.approx(left["delta"].mean())
    assert found.loc["bias", "delta_sd"] == pytest.approx(np.std(left["delta"], ddof=1))
    one = across.means(rows[rows["model"] == "gpt2"])
    assert one["delta_sd"].isna().all()


def test_from_comparisons():
    settings = InferenceSettings(resamples=100)
    found = {
        name: compare(*simulated(clusters=6, lean=lean, seed=seed), settings)
        for seed, (name, lean) in enumerate({"bert": 1.0, "gpt": 0.2}.items())
    }
    measured = [(name, "de", comparison) for name, comparison in found.items()]
    table = across.across(measured).set_index(["scope", "metric"])
    for scope in ("overall", "macro", "group:gay"):
        for metric in ("bias", "soft", "distance", "margin"):
            values = [c.rows(metric).set_index("scope").loc[scope, "delta"] for c in found.values()]
            assert table.loc[(scope, metric), "delta"] == pytest.approx(np.mean(values), abs=1e-12)
    assert set(table["benchmark"]) == {"made"}
    spread = across.spread(across.long(measured)).set_index(["model", "when"])
    for name, comparison in found.items():
        assert spread.loc[(name, "before"), "spread"] == pytest.approx(
            comparison.headline["spread_before"]
        )
        assert spread.loc[(name, "after"), "most"] == comparison.headline["most_after"]


def grouped(language, model, bias, metric="bias"):
    """Rows of one model's groups; the change is -10 wherever it stands."""
    before = np.array(list(bias.values()), float)
    return pd.DataFrame(
        {
            "model": model,
            "language": language,
            "benchmark": f"queer_{language}",
            "scope": [f"group:{name}" for name in bias],
            "metric": metric,
            "before": before,
            "after": before - 10,
            "delta": -10.0,
        }
    )


def test_spread_of_the_groups_means_is_not_the_mean_of_the_models_spreads():
    rows = pd.concat(
        [
            grouped("nl", "a", {"gay": 10, "transgender": 90, "queer": 40}),
            grouped("nl", "b", {"gay": 70, "transgender": 60, "queer": 20}),
        ]
    )
    found = across.spread(rows).set_index(["model", "when"])
    assert tuple(across.spread(rows).columns) == tuple(across.SPREAD_COLUMNS)
    assert found.loc[("a", "before"), ["most", "least", "spread"]].tolist() == [
        "transgender",
        "gay",
        80,
    ]
    assert found.loc[("b", "after"), ["most_bias", "least_bias", "spread"]].tolist() == [60, 10, 50]
    mean = found.loc[("mean", "before")]
    assert mean[["most", "most_bias", "least", "least_bias", "spread"]].tolist() == [
        "transgender",
        75,
        "queer",
        30,
        45,
    ]
    assert across.spread(german()).empty


def test_languages_are_compared_on_the_identities_that_all_have():
    rows = pd.concat(
        [
            grouped("nl", "a", {"gay": 10, "transgender": 90, "queer": 20}),
            grouped("nl", "b", {"gay": 30, "transgender": 80}),
            grouped("en", "a", {"gay": 60, "transgender": 70, "asexual": 99}),
            grouped("de", "c", {"transgender": 66, "gay": 44, "asexual": 1}),
            grouped("de", "c", {"transgender": 6, "gay": 4}, metric="ties"),
        ]
    )
    found = across.languages(rows)
    assert list(found.columns) == ["scope", "metric", "when", "nl", "en", "de", "range"]
    assert found["scope"].unique().tolist() == ["shared", "group:gay", "group:transgender"]
    assert found["when"].tolist() == ["before", "after", "delta"] * 3
    table = found.set_index(["scope", "when"])
    assert table.loc[("group:gay", "before"), ["nl", "en", "de"]].tolist() == [20, 60, 44]
    assert table.loc[("group:gay", "before"), "range"] == 40
    assert table.loc[("shared", "before"), ["nl", "en", "de"]].tolist() == [52.5, 65, 55]
    assert table.loc[("shared", "after"), ["nl", "en", "de"]].tolist() == [42.5, 55, 45]
    assert (table.loc[(slice(None), "delta"), "range"] == 0).all()


def test_languages_that_cannot_be_compared():
    dutch = grouped("nl", "a", {"gay": 10})
    with pytest.raises(RequestError, match="across: nl alone"):
        across.languages(dutch)
    with pytest.raises(RequestError, match="nl, en have no identity in common"):
        across.languages(pd.concat([dutch, grouped("en", "a", {"queer": 10})]))


def test_nothing_and_one_model_twice():
    with pytest.raises(RequestError, match="no comparison"):
        across.across([])
    comparison = compare(*simulated(clusters=3), InferenceSettings(resamples=100))
    with pytest.raises(RequestError, match="across: bert stands twice for made"):
        across.across([("bert", "de", comparison), ("bert", "de", comparison)])


def test_the_language_of_a_score_table():
    before, _ = simulated(clusters=3)
    assert across.language_of(before) == "de"
    before.table.loc[0, "language"] = "nl"
    assert across.language_of(before) == "de+nl"
    before.table["language"] = ""
    assert across.language_of(before) == ""
