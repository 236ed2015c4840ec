"""The Score table: written whole, read back the same, compared only with its like."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from eval.errors import RequestError
from eval.pairs import build
from eval.scores import (
    SCORE_COLUMNS,
    Scores,
    align,
    check_comparable,
    common,
    differing,
    read,
    write,
)

REFERENCE = Path(__file__).parents[2] / ".." / "shared" / "reference" / "dutch_crows_pairs"


def scores(**meta: object) -> Scores:
    rows = pd.DataFrame({"sent_more": ["a", "b", "ü"], "sent_less": ["x", "y", "z"]})
    table = build(rows, name="b", language="nl").table
    table["score_more"] = [-1.0, -2.0 - 1e-12, -3.0]
    table["score_less"] = [-1.5, -1.0, -3.0]
    for column in SCORE_COLUMNS[2:]:
        table[column] = 4
    known = {"scorer": "pll", "scorer_version": "1", "benchmark_hash": "h", "alignment": "tokens"}
    return Scores(table, {**known, **meta})


def test_margins():
    assert scores().margin.tolist() == pytest.approx([0.5, -1.0, 0.0])


def test_what_is_written_is_read_back_to_the_last_digit(tmp_path):
    written = scores(versions={"torch": "2"})
    path = tmp_path / "new" / "before.parquet"
    write(written, path)
    back = read(path)
    pd.testing.assert_frame_equal(back.table, written.table, check_exact=True)
    assert back.meta == written.meta
    assert [item.name for item in path.parent.iterdir()] == ["before.parquet"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "before.parquet"
    write(scores(), path)
    with pytest.raises(TypeError):
        write(scores(versions=object()), path)  # no JSON
    assert read(path).meta == scores().meta
    broken = scores()
    broken.table["score_more"] = [object()] * 3
    with pytest.raises(pa.ArrowInvalid, match="object"):
        write(broken, path)
    assert read(path).meta == scores().meta
    assert [item.name for item in tmp_path.iterdir()] == ["before.parquet"]


def test_what_is_no_score_table_is_refused(tmp_path):
    with pytest.raises(RequestError, match="no Score table"):
        read(tmp_path / "absent.parquet")
    (tmp_path / "a.parquet").write_text("not Parquet")
    with pytest.raises(RequestError, match="not a Parquet file"):
        read(tmp_path / "a.parquet")
    scores().table.to_parquet(tmp_path / "b.parquet")
    with pytest.raises(RequestError, match="not a Score table"):
        read(tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("sent_more,sent_less\na,b\n")
    with pytest.raises(RequestError, match=r"no column sent_more_score.*there are: sent_more"):
        read(tmp_path / "c.csv")


@pytest.mark.parametrize("key", ["scorer", "scorer_version", "benchmark_hash", "alignment"])
def test_what_differs_is_named(key):
    with pytest.raises(RequestError, match=rf"{key}: \S+ before, other after"):
        check_comparable(scores(), scores(**{key: "other"}))


def test_what_may_differ_may():
    check_comparable(scores(model_fingerprint="1"), scores(model_fingerprint="2"))


def test_align_brings_both_into_one_order():
    before, turned = scores(), scores()
    after = Scores(turned.table.iloc[::-1].reset_index(drop=True), turned.meta)
    first, second = align(before, after)
    assert first.table["pair_id"].tolist() == second.table["pair_id"].tolist()
    pd.testing.assert_frame_equal(second.table, before.table)


def test_align_refuses_other_pairs():
    fewer = replace(scores(), table=scores().table.iloc[:2])
    with pytest.raises(
        RequestError, match=r"1 only before \(\w{16}\), 0 only after.*pairs=common for the 2"
    ):
        align(scores(), fewer)
    missing = scores().table["pair_id"].iloc[2]
    with pytest.raises(RequestError, match=missing):
        align(fewer, scores())
    other = replace(scores(), table=scores().table.assign(pair_id=["x", "y", "z"]))
    with pytest.raises(RequestError, match=r"no pair in common \(3 and 3\)"):
        align(scores(), other)


def test_a_group_of_other_pairs_or_with_another_name_is_told():
    grouped = scores().table.assign(group=["gay", "gay|lesbian", "old"])
    whole, fewer = (replace(scores(), table=some) for some in (grouped, grouped.iloc[:2]))
    found = differing(whole, fewer)
    assert (found.shared, len(found.before), found.groups_before) == (2, 1, ["old"])
    with pytest.raises(RequestError, match="all of old only before"):
        align(whole, fewer)
    other = replace(scores(), table=grouped.assign(group=["gay", "lesbian", "old"]))
    second = grouped["pair_id"].iloc[1]
    said = rf"1 pairs are of another group.*{second}: gay\|lesbian before, lesbian after"
    with pytest.raises(RequestError, match=said):
        align(whole, other)


def test_a_pair_that_stands_twice_is_told():
    twice = replace(scores(), table=scores().table.iloc[[0, 1, 1]])
    with pytest.raises(
        RequestError, match=r"after \(None\) holds a pair twice: \w{16} is the first"
    ):
        align(scores(), twice)


def test_common_keeps_the_shared_pairs_in_the_order_of_before():
    first, last = scores().table.iloc[[2, 1]], scores().table.iloc[[0, 1, 2]].iloc[::-1]
    before = Scores(first.reset_index(drop=True), scores(benchmark_hash="one").meta)
    after = Scores(last.reset_index(drop=True), scores(benchmark_hash="two").meta)
    left, right, found = common(before, after)
    assert left.table["pair_id"].tolist() == first["pair_id"].tolist()
    align(left, right)
    assert len(found.after) == 1
    assert not found.before
    assert right.meta["pairs_left_out"] == 1
    other = replace(before, meta={**before.meta, "scorer_version": "2"})
    with pytest.raises(RequestError, match="scorer_version: 2 before, 1 after"):
        common(other, after)
    with pytest.raises(RequestError, match="no pair in common"):
        common(replace(before, table=first.assign(pair_id=["x", "y"])), after)


PUBLISHED = "id,sent_more,sent_less,sent_more_score,sent_less_score,bias_type\n"


def published(path: Path, rows: list[str], head: str = PUBLISHED) -> Scores:
    path.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    return read(path)


def test_published_rows_go_by_their_id_in_any_order(tmp_path):
    rows = [f"{number},m{number},l{number},-{number}.5,-2.0,age" for number in (10, 11, 12)]
    one = published(tmp_path / "one.csv", rows)
    two = published(tmp_path / "two.csv", [rows[2], rows[0], rows[1]])
    assert one.table["id"].tolist() == ["10", "11", "12"]
    pd.testing.assert_frame_equal(align(one, two)[1].table, one.table)
    three = published(tmp_path / "three.csv", rows[1:])
    with pytest.raises(RequestError, match=r"3 before, 2 after; 1 only before \(10\), 0 only"):
        align(one, three)
    # Without ids a pair is its row.
    head = PUBLISHED.removeprefix("id,")
    bare = published(tmp_path / "four.csv", [row.partition(",")[2] for row in rows], head)
    assert bare.table["id"].tolist() == ["0", "1", "2"]
    # Other sentences under the same ids are other pairs.
    assert not set(one.table["pair_id"]) & set(bare.table["pair_id"])


@pytest.mark.parametrize("wrong", ["", "-1,5", "n/a"])
def test_published_scores_that_are_no_numbers_are_told(wrong, tmp_path):
    rows = ["0,m,l,-1.0,-2.0,age", f'1,m,l,"{wrong}",-2.0,age']
    with pytest.raises(RequestError, match=r"sent_more_score is no number in 1 of 2 rows.* 1 "):
        published(tmp_path / "a.csv", rows)
    with pytest.raises(RequestError, match="without a row"):
        published(tmp_path / "b.csv", [])


@pytest.mark.parametrize("model", ["bertje", "robbert", "mbert"])
def test_published_scores_are_read(model):
    path = REFERENCE / f"results_{model}.csv"
    if not path.is_file():
        pytest.skip(f"no reference data at {path}")
    published = read(path)
    assert len(published.table) == 1463
    assert published.meta["model"] == model
    assert published.table["pair_id"].is_unique
    assert (published.margin != 0).any()
    text = " ".join(published.table["sent_more"])
    assert "siësta" in text
    assert "√" not in text
