"""Trees of prefixes against sets of prefixes, written out."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.scorers import trees
from eval.scorers.batching import Tokens

# Few different tokens, so that beginnings collide; the sentences of a draw repeat, too.
SENTENCES = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=7).map(lambda rest: [9, *rest]),
    min_size=1,
    max_size=12,
)


@st.composite
def requests(draw) -> tuple[Tokens, np.ndarray, np.ndarray]:
    """Sentences, and some of their tokens, some of them asked for twice."""
    sentences = draw(SENTENCES)
    possible = [(row, place) for row, ids in enumerate(sentences) for place in range(1, len(ids))]
    chosen = np.array(draw(st.lists(st.sampled_from(possible), min_size=1, max_size=30)))
    return Tokens.of(sentences), chosen[:, 0], chosen[:, 1]


def contexts(tokens: Tokens, rows: np.ndarray, places: np.ndarray) -> set[tuple[int, ...]]:
    """All beginnings that have to be computed: of every request's context, its own among them."""
    return {
        tuple(tokens[row][: end + 1].tolist())
        for row, place in zip(rows, places, strict=True)
        for end in range(place)
    }


@settings(deadline=None)
@given(requests())
def test_nodes_are_the_distinct_beginnings(drawn):
    made = trees.plan(*drawn)
    assert made.grown[-1] == len(contexts(*drawn))
    paths = [
        tuple(made.tokens[row][:length].tolist())
        for row, length in zip(made.rows, made.lengths, strict=True)
    ]
    assert paths == sorted(set(paths))
    assert not any(b[: len(a)] == a for a, b in itertools.pairwise(paths))


@settings(max_examples=60, deadline=None)
@given(requests(), st.integers(1, 25), st.integers(1, 4))
def test_each_node_sees_what_stands_before_the_token_asked_for(drawn, size, together):
    tokens, rows, places = drawn
    made = trees.plan(*drawn)
    packs = list(trees.packs(made, size, 0, len(made)))
    assert [first for first, _, _ in packs] == [0, *(end for _, end, _ in packs[:-1])]
    seen: list[int] = []
    for at in range(0, len(packs), together):
        batch = packs[at : at + together]
        laid = trees.lay_out(made, [first for first, _, _ in batch], batch[-1][1])
        assert (laid.depths != trees.PADDING).sum(1).tolist() == [nodes for _, _, nodes in batch]
        mask = trees.visible(torch.from_numpy(laid.depths)).numpy()
        assert (np.diff(laid.nodes) >= 0).all()
        for asked, node in zip(laid.asked, laid.nodes, strict=True):
            pack, place = divmod(node, laid.ids.shape[1])
            number = made.requests[asked]
            context = tokens[rows[number]][: places[number]]
            np.testing.assert_array_equal(laid.ids[pack][mask[pack, place]], context)
            depths = laid.depths[pack][mask[pack, place]]
            np.testing.assert_array_equal(depths, np.arange(len(context)))
            assert made.target[asked] == tokens[rows[number]][places[number]]
            seen.append(int(number))
        padding = laid.depths == trees.PADDING
        assert (mask[padding].sum(-1) == 1).all()
    assert sorted(seen) == list(range(len(rows)))
    for first, end, nodes in packs:
        assert nodes <= size or end == first + 1


@settings(deadline=None)
@given(requests())
def test_a_context_and_token_are_asked_of_one_path(drawn):
    tokens, rows, places = drawn
    made = trees.plan(*drawn)
    of: dict[tuple[int, ...], set[int]] = {}
    for number, path in zip(made.requests, made.path, strict=True):
        context = tuple(tokens[rows[number]][: places[number]].tolist())
        of.setdefault(context, set()).add(int(path))
    assert all(len(paths) == 1 for paths in of.values())


def test_sentences_are_cut_after_the_last_wanted_token():
    tokens = Tokens.of([[1, 5, 6, 7, 8], [1, 5, 9]])
    made = trees.plan(tokens, np.array([0, 1]), np.array([2, 1]))
    # One path, BOS 5: what follows is asked for or not wanted at all.
    assert made.lengths.tolist() == [2]
    assert made.target.tolist() == [5, 6]
    assert made.depth.tolist() == [0, 1]


def test_the_first_token_has_no_context():
    with pytest.raises(ValueError, match="token before"):
        trees.plan(Tokens.of([[1, 2]]), np.array([0]), np.array([0]))


def test_nothing_asked_nothing_planned():
    none = np.zeros(0, np.int64)
    made = trees.plan(Tokens.of([[1, 2]]), none, none)
    assert len(made) == 0
    assert list(trees.packs(made, 8, 0, 0)) == []


def test_order_is_by_number_not_by_its_bytes_or_digits():
    tokens = Tokens.of([[256, 1], [2, 1], [70_000, 1], [10, 1]])
    made = trees.plan(tokens, np.arange(4), np.ones(4, np.int64))
    assert made.rows.tolist() == [1, 3, 0, 2]
