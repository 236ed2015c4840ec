"""Retention: perplexity's interval, grammar, divergence, each against its definition."""

import numpy as np
import pytest
import torch

from eval import grammar, retention
from eval.errors import RequestError
from tests.eval.test_scorers import causal, masked

TEXTS = ["wij zijn queer en gek .", "jij is bang", "wij zijn niet ziek en niet bang ."]


@pytest.mark.parametrize("make", [masked, causal], ids=["masked", "causal"])
def test_losses_are_by_text(make):
    lm = make()
    whole = retention.perplexity(lm, TEXTS, max_tokens=64)
    alone = [retention.perplexity(lm, [text], max_tokens=64) for text in TEXTS]
    np.testing.assert_allclose(whole.losses, [of.losses[0] for of in alone], atol=1e-4)
    assert whole.counts.tolist() == [of.tokens for of in alone]
    assert whole.value == pytest.approx(np.exp(whole.losses.sum() / whole.counts.sum()))


def test_change_is_the_ratio_of_perplexities_and_its_interval_that_of_a_loop():
    rng = np.random.default_rng(1)
    counts = rng.integers(3, 30, 40)
    before = counts * rng.normal(3, 0.5, 40)
    after = before + counts * rng.normal(0.1, 0.1, 40)
    found = retention.change(before, after, counts, resamples=4000, seed=3)
    ratio = np.exp(after.sum() / counts.sum()) / np.exp(before.sum() / counts.sum())
    assert found["change_percent"] == pytest.approx(100 * (ratio - 1), rel=1e-10)
    loop = []
    for _ in range(4000):
        rows = rng.integers(40, size=40)
        loop.append(100 * np.expm1((after - before)[rows].sum() / counts[rows].sum()))
    np.testing.assert_allclose(
        [found["ci_low"], found["ci_high"]], np.quantile(loop, [0.025, 0.975]), atol=0.5
    )
    assert found == retention.change(before, after, counts, resamples=4000, seed=3)


def test_one_text_has_no_interval():
    found = retention.change(np.array([3.0]), np.array([4.0]), np.array([2]))
    assert np.isnan(found["ci_low"])
    assert found["change_percent"] == pytest.approx(100 * np.expm1(0.5))


@pytest.mark.parametrize("make", [masked, causal], ids=["masked", "causal"])
def test_grammar_scores_take_every_token(make):
    lm = make()
    found = retention.grammar_scores(lm, "nl")
    assert len(found.table) == len(grammar.load("nl"))
    assert found.meta["scorer"] == ("pll_all" if lm.kind == "masked" else "full")
    # of "De deur …" the article, in which the two differ, counts too
    first = 1 if lm.kind == "causal" and lm.model.config.bos_token_id is None else 0
    assert (
        found.table["shared_tokens"]
        == found.table[["length_more", "length_less"]].min(axis=1) - first
    ).all()


def test_no_minimal_pairs_of_a_language():
    with pytest.raises(RequestError, match="de, en, nl"):
        retention.grammar_scores(masked(), "fr")


@pytest.mark.parametrize("make", [masked, causal], ids=["masked", "causal"])
def test_divergence(make):
    lm, other = make(), make()
    same = retention.predictions(lm, TEXTS, places=5)
    assert same.shape == (5, len(lm.tokenizer))
    np.testing.assert_allclose(np.exp(same).sum(axis=1), 1, atol=1e-5)
    assert retention.divergence(same, retention.predictions(lm, TEXTS, places=5)) == 0
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    moved = retention.predictions(other, TEXTS, places=5)
    wanted = np.mean(
        [
            torch.nn.functional.kl_div(
                torch.tensor(b), torch.tensor(a), reduction="sum", log_target=True
            )
            for a, b in zip(same, moved, strict=True)
        ]
    )
    assert retention.divergence(same, moved) == pytest.approx(wanted, rel=1e-4)
    assert wanted > 0
    with pytest.raises(ValueError, match="shapes"):
        retention.divergence(same, moved[:2])
