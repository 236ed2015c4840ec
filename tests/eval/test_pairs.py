"""The Pair table: what is in it, what is left out of it, and what names it."""

import pandas as pd
import pytest

from eval.errors import RequestError
from eval.pairs import COLUMNS, benchmark_hash, build, pair_id

ROWS = pd.DataFrame(
    {
        "sent_more": ["Zij is boos.", " Wij zijn er. ", "", "Gelijk.", None, "Ik ook."],
        "sent_less": ["Hij is boos.", "Jullie zijn er.", "Hij.", "Gelijk. ", "Hij.", "Jij ook."],
        "stereotype_id": ["boos", "er", "x", "y", "z", ""],
        "tier": [1, 2, 3, 1, 2, 3],
    },
    index=[10, 11, 12, 13, 14, 15],
)


def test_the_tables_columns_come_first_and_others_after_them():
    table = build(ROWS, name="b", language="nl").table
    assert list(table.columns) == [*COLUMNS, "tier"]
    assert table.index.tolist() == [0, 1, 2]
    assert table["tier"].tolist() == [1, 2, 3]
    assert set(table["language"]) == {"nl"}
    assert set(table["benchmark"]) == {"b"}
    assert set(table["group"]) == {""}


def test_what_measures_nothing_is_left_out_and_listed_by_its_row():
    pairs = build(ROWS, name="b", language="nl")
    assert pairs.left_out[["row", "reason"]].to_numpy().tolist() == [
        [12, "empty sentence"],
        [13, "identical sentences"],
        [14, "empty sentence"],
    ]
    assert pairs.source["rows_read"] == 6
    assert pairs.table["sent_more"].tolist() == ["Zij is boos.", "Wij zijn er.", "Ik ook."]


def test_what_the_reader_left_out_is_listed_too():
    before = pd.DataFrame(
        [[3, "no predicate", "a", "b"]], columns=["row", "reason", "sent_more", "sent_less"]
    )
    pairs = build(ROWS, name="b", language="nl", left_out=before)
    assert pairs.left_out["row"].tolist() == [3, 12, 13, 14]
    assert pairs.source["rows_read"] == 7


def test_a_pair_without_stereotype_is_a_cluster_of_its_own():
    table = build(ROWS, name="b", language="nl").table
    assert table["stereotype_id"].tolist() == ["boos", "er", table["pair_id"][2]]


def test_a_pair_is_named_by_benchmark_row_and_sentences():
    first = pair_id("b", 1, "x", "y")
    others = [pair_id("c", 1, "x", "y"), pair_id("b", 2, "x", "y"), pair_id("b", 1, "y", "x")]
    assert len({first, *others}) == 4
    assert first == pair_id("b", 1, "x", "y")
    # No way of cutting the same letters gives the same name.
    assert pair_id("b", 1, "xy", "z") != pair_id("b", 1, "x", "yz")
    assert build(ROWS, name="b", language="nl").table["pair_id"][0] == pair_id(
        "b", 10, "Zij is boos.", "Hij is boos."
    )


def test_the_hash_says_which_pairs_whatever_their_order():
    pairs = build(ROWS, name="b", language="nl")
    assert pairs.hash == benchmark_hash(pairs.table["pair_id"][::-1])
    assert pairs.hash != benchmark_hash(pairs.table["pair_id"][1:])


def test_the_rows_given_are_not_changed():
    copy = ROWS.copy(deep=True)
    build(ROWS, name="b", language="nl")
    pd.testing.assert_frame_equal(copy, ROWS)


def test_a_missing_column_is_named_with_those_there_are():
    with pytest.raises(RequestError, match=r"benchmark b: no column sent_less; .* sent_more"):
        build(ROWS[["sent_more"]], name="b", language="nl")


def test_nothing_left_is_an_error():
    with pytest.raises(RequestError, match=r"no usable pair \(1 rows read\)"):
        build(ROWS.loc[[12]], name="b", language="nl")
