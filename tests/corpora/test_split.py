"""The split: authors whole, then the newest days, else a hash of the text."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora import RequestError
from corpora.documents import Document
from corpora.split import split
from corpora.steps import Kept


def item(number: int, author: str = "", date: str = "", given: str = "") -> Kept:
    document = Document("", author=author, date=date, split=given)
    return Kept(f"Text Nummer {number}", document, (), "", 0.0)


@given(
    st.lists(st.sampled_from(["", "a", "b", "c", "d", "e"]), min_size=2, max_size=60),
    st.floats(0.01, 0.9),
    st.integers(0, 5),
)
def test_an_author_is_on_one_side_and_both_sides_have_some(
    authors: list[str], share: float, seed: int
) -> None:
    items = [item(number, author) for number, author in enumerate(authors)]
    held_out, by = split(items, share, seed, "name")
    sides = defaultdict(set)
    for author, out in zip(authors, held_out, strict=True):
        if author:
            sides[author].add(out)
    if by == "author":
        assert all(len(side) == 1 for side in sides.values())
    else:
        assert not any(authors) or len(set(authors)) == 1
    assert 0 < sum(held_out) < len(items)


def test_authors_of_one_name_on_two_hosts_are_two() -> None:
    items = [
        Kept(f"{host} {number}", Document("", author="alex", host=host), (), "", 0.0)
        for host in ("a.example", "b.example")
        for number in range(5)
    ]
    held_out, by = split(items, 0.5, 0, "name")
    assert by == "author"
    assert sorted([set(held_out[:5]) == {True}, set(held_out[5:]) == {True}]) == [False, True]


def test_who_wrote_more_than_the_share_is_trained_on() -> None:
    items = [item(number, "dpa" if number % 2 else f"a{number}") for number in range(400)]
    for seed in range(20):
        held_out, _ = split(items, 0.1, seed, "name")
        assert not any(
            out for one, out in zip(items, held_out, strict=True) if "dpa" in one.document.author
        )
        assert 0.02 < sum(held_out) / 400 < 0.1


def test_the_newest_days_are_held_out_whole() -> None:
    items = [item(number, date=f"2024-01-{1 + number % 20:02}T12:00") for number in range(200)]
    items += [item(number) for number in range(200, 220)]  # without a date: trained on
    held_out, by = split(items, 0.1, 0, "name")
    assert by == "date"
    out = {one.document.date[:10] for one, gone in zip(items, held_out, strict=True) if gone}
    assert out == {"2024-01-19", "2024-01-20"}
    assert sum(held_out) == 20
    few = [item(number, date="2024" if number < 50 else "2023") for number in range(60)]
    assert sum(split(few, 0.1, 0, "name")[0]) == 50  # a year is not cut
    assert split([item(n, date="2024") for n in range(9)], 0.1, 0, "name")[1] == "text"


def test_a_given_split_is_kept_and_one_document_is_no_corpus() -> None:
    items = [item(0, "a", given="train"), item(1, "a", given="valid"), item(2, given="train")]
    assert split(items, 0.1, 0, "name") == ([False, True, False], "given")
    with pytest.raises(RequestError, match=r"one single document .* corpus\.valid_share=0"):
        split(items[:1] and [item(0)], 0.1, 0, "name")
    assert split([item(0)], 0, 0, "name") == ([False], "nothing")
