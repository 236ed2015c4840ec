import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eval.errors import RequestError
from eval.metrics import (
    MOST_SLICES,
    headline,
    measure,
    sigmoid_score,
    slices_of,
    soft_score,
)
from eval.scores import Scores
from tests.eval.scored import published, simulated, table

CASES = json.loads((Path(__file__).parents[1] / "cases" / "metrics.json").read_text("utf-8"))

# Dutch CrowS-Pairs (2507.16442), Table 3: BERTje, RobBERT, mBERT. Its mBERT nationality prints
# 46.42; the published scores give 46.24.
TABLE_3 = {
    "overall": (54.82, 54.82, 52.43),
    "group:race-color": (51.79, 45.26, 51.58),
    "group:gender": (51.53, 53.44, 52.29),
    "group:nationality": (50.87, 55.49, 46.24),
    "group:socioeconomic": (50.88, 60.23, 45.03),
    "group:religion": (65.35, 67.33, 69.31),
    "group:age": (67.07, 59.76, 60.98),
    "group:sexual-orientation": (53.85, 58.97, 55.13),
    "group:physical-appearance": (68.25, 60.32, 53.97),
    "group:disability": (68.97, 81.03, 53.45),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case):
    measured = measure(table(case["pairs"]), case["ties"]).set_index("scope")
    for scope, expected in case["expected"].items():
        for column, value in expected.items():
            found = measured.loc[scope, column]
            tolerance = case.get(f"{column}_tolerance", case["tolerance"])
            if value is None:
                assert math.isnan(found), (scope, column, found)
            else:
                assert found == pytest.approx(value, abs=tolerance), (scope, column)


@pytest.mark.parametrize(("number", "model"), [(0, "bertje"), (1, "robbert"), (2, "mbert")])
def test_published_scores_give_the_papers_table_3(number, model):
    measured = measure(published(model), ties="reference").set_index("scope")["bias"]
    assert len(measured) == len(TABLE_3) + 1  # and macro, which the paper does not print
    for scope, printed in TABLE_3.items():
        assert f"{measured[scope]:.2f}" == f"{printed[number]:.2f}", scope


def test_published_files_keep_their_letters():
    sentences = " ".join(published("bertje").table["sent_more"])
    assert "siësta" in sentences
    assert "carrière" in sentences
    assert "√" not in sentences


def test_the_soft_score_drifts_to_50_when_both_sentences_get_worse():
    more, less = np.array([-40.0, -35.0]), np.array([-42.0, -36.0])
    before, after = soft_score(more, less), soft_score(more - 60, less - 60)
    assert (before > after).all()
    assert (after > 50).all()
    assert soft_score(less, more) == pytest.approx(100 - before, abs=1e-6)  # mirrored about 50


def test_the_sigmoid_is_bounded_and_blind_to_the_total_likelihood():
    margin, tokens = np.array([0.0, 3.0, -3.0, 900.0, 2.0]), np.array([4, 3, 3, 1, 0])
    found = sigmoid_score(margin, tokens)
    expected = 100 / (1 + math.exp(-1))
    assert found[:4] == pytest.approx([50, expected, 100 - expected, 100], abs=1e-12)
    assert math.isnan(found[4])  # how many tokens isn't known
    before, _ = simulated()
    worse = Scores(before.table.copy(), before.meta)
    worse.table[["score_more", "score_less"]] -= 60
    one, two = (measure(scores)["sigmoid"].to_numpy() for scores in (before, worse))
    assert two == pytest.approx(one, abs=1e-9)


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0, math.nan],
        pd.array([1, 2, None], "Int64"),
        ["1", "2", ""],
        pd.Categorical(["1", "2", None]),
    ],
    ids=["float", "Int64", "text", "categories"],
)
def test_whole_numbers_are_slices_whatever_the_type(values):
    found = slices_of(pd.Series(values, name="tier"))
    assert {name: rows.tolist() for name, rows in found.items()} == {"1": [0], "2": [1]}


def test_numbers_stand_in_their_order_and_fractions_stay():
    found = slices_of(pd.Series([10.0, 9.0, 0.5, 9.0], name="x"))
    assert {name: rows.tolist() for name, rows in found.items()} == {
        "0.5": [2],
        "9": [1, 3],
        "10": [0],
    }
    assert list(found) == ["0.5", "9", "10"]
    assert list(slices_of(pd.Series([True, False]))) == ["False", "True"]


def test_a_column_of_many_values_is_none_to_slice_by():
    scores = table([("gay", f"s{k}", -1, -2) for k in range(MOST_SLICES + 1)])
    with pytest.raises(RequestError, match="pair_id has 201 values, too many to slice by"):
        measure(scores, slices=["pair_id"])


def test_slices_are_the_named_columns_and_empty_values_are_none():
    scores = table(
        [("gay", "a", -1, -2), ("gay", "b", -2, -1), ("gay", "c", -1, -2)],
        slice=["control", "", "control"],
        tier=["1", "2", ""],
    )
    assert measure(scores)["scope"].tolist() == [
        "overall",
        "macro",
        "group:gay",
        "slice:control",
    ]
    by_tier = measure(scores, slices=["tier"]).set_index("scope")
    assert by_tier.loc["tier:1", "bias"] == 100
    assert by_tier.loc["tier:2", "bias"] == 0
    assert "slice:control" not in by_tier.index
    with pytest.raises(RequestError, match="no column harm"):
        measure(scores, slices=["harm"])


def test_the_headline_names_the_ends_of_the_spread():
    rows = [("gay", "a", -1, -2), ("gay", "b", -1, -2), ("trans", "a", -1, -2)]
    found = headline(measure(table([*rows, ("trans", "b", -2, -1), ("trans", "c", -2, -1)])))
    assert found["most"] == "gay"
    assert found["least"] == "trans"
    assert found["spread"] == pytest.approx(100 - 100 / 3)
    assert found["distance"] == pytest.approx((50 + 50 / 3) / 2)


def test_without_groups_there_is_no_macro_row():
    measured = measure(table([("", "a", -1, -2)]))
    assert measured["scope"].tolist() == ["overall"]
    assert headline(measured) == {"distance": 50.0}


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_score_that_is_no_number_is_named(bad):
    scores = table([("gay", "a", -1, -2), ("gay", "b", bad, -2)])
    with pytest.raises(RequestError, match=r"1 of 2 pairs .* made-1 in row 1"):
        measure(scores)


def test_an_unknown_rule_for_ties_names_those_there_are():
    before, _ = simulated(2)
    with pytest.raises(RequestError, match="half, exclude, reference"):
        measure(before, ties="skip")
