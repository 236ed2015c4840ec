"""How work becomes batches."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eval.scorers.batching import (
    LOGITS,
    TokenBudget,
    Tokens,
    default_budget,
    equal_lengths,
    logit_rows,
    out_of_memory,
)
from tests.eval.test_masked import BERT, VOCAB

SEQUENCES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=12)


@given(SEQUENCES)
def test_tokens_are_the_sequences(sequences):
    tokens = Tokens.of(sequences)
    assert [tokens[row].tolist() for row in range(len(tokens))] == sequences
    assert tokens.lengths.tolist() == [len(sequence) for sequence in sequences]
    alike = np.flatnonzero(tokens.lengths == len(sequences[-1]))[::-1]
    assert tokens.block(alike).tolist() == [sequences[row] for row in alike]


def batches(
    lengths: list[int], tokens: int, most: int = 100, memory: int | None = None
) -> tuple[list[list[int]], TokenBudget]:
    """The batches of items, longest first, on a machine that holds `memory` tokens."""
    budget, sizes = TokenBudget(tokens), np.array(lengths)

    def forward(items: np.ndarray) -> np.ndarray:
        if memory is not None and sizes[items].sum() > memory:
            raise torch.OutOfMemoryError("too large")
        return items * 2.0

    order = np.argsort(-sizes, kind="stable")
    made = []
    for items, values in equal_lengths(order, sizes, budget, most, forward):
        np.testing.assert_array_equal(values, items * 2.0)
        made.append(items.tolist())
    return made, budget


@given(
    lengths=st.lists(st.integers(1, 6), max_size=30),
    tokens=st.integers(1, 40),
    most=st.integers(1, 9),
    memory=st.none() | st.integers(6, 40),
)
def test_batches_hold_one_length_within_the_budget(lengths, tokens, most, memory):
    made, _ = batches(lengths, tokens, most, memory)
    assert sorted(item for batch in made for item in batch) == list(range(len(lengths)))
    for batch in made:
        assert len({lengths[item] for item in batch}) == 1
        assert len(batch) <= most
        assert len(batch) == 1 or sum(lengths[item] for item in batch) <= tokens


def test_batches_are_as_large_as_the_budget_allows():
    made, _ = batches([3, 5, 3, 3, 5, 3, 3], 10)
    assert made == [[1, 4], [0, 2, 3], [5, 6]]


def test_a_halved_budget_stays_halved():
    made, budget = batches([4] * 32, 128, memory=20)
    assert [len(batch) for batch in made] == [4] * 8
    assert (budget.tokens, budget.halved) == (16, 3)


def test_one_item_that_is_too_large_is_an_error():
    with pytest.raises(torch.OutOfMemoryError):
        batches([4, 30], 128, memory=20)


def test_a_failed_pass_lets_go_of_its_tensors():
    """What an error's frames hold is memory that the next try needs."""
    alive: list[bool] = []

    class Large:
        def __init__(self) -> None:
            alive.append(True)

        def __del__(self) -> None:
            alive.pop()

    def fail() -> None:
        held = Large()
        raise torch.OutOfMemoryError(str(held))

    budget = TokenBudget(8)
    try:
        fail()
    except torch.OutOfMemoryError as error:
        assert alive
        budget.halve(error)
        assert not alive


def test_which_errors_are_about_memory():
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**50)
    assert out_of_memory(real.value)
    assert not out_of_memory(RuntimeError("shapes cannot be multiplied"))


def test_budgets_of_a_model():
    assert logit_rows(BERT) == LOGITS // VOCAB
    assert default_budget(BERT) == 1024 * torch.get_num_threads()
