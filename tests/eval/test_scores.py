"""The Score table: written whole, read back the same, compared only with its like."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from eval.errors import RequestError
from eval.pairs import build
from eval.scores import SCORE_COLUMNS, Scores, align, check_comparable, read, write

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
    with pytest.raises(RequestError, match="no score file"):
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
    with pytest.raises(RequestError, match="1 only before, 0 only after"):
        align(scores(), fewer)
    missing = scores().table["pair_id"].iloc[2]
    with pytest.raises(RequestError, match=missing):
        align(fewer, scores())
    other = replace(scores(), table=scores().table.assign(pair_id=["x", "y", "z"]))
    with pytest.raises(RequestError, match=r"no pair in common \(3 and 3\)"):
        align(scores(), other)


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
