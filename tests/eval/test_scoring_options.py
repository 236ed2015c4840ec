"""What changes the measure (scorers, half precision) and what saves work (parts, the store)."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings

import eval.scorers
from eval import scores as score_table
from eval.confounds import confounds
from eval.errors import RequestError
from eval.pairs import build
from eval.scorers import ScoreSettings, ScoringError, precision, score, work
from eval.scorers.store import ScoreStore
from eval.scorers.work import Parts
from eval.scores import Scores
from tests.eval.test_scorers import (
    CAUSAL_BOS,
    CAUSAL_NO_BOS,
    MASKED,
    PAIRS,
    SENTENCES,
    TOKENIZER,
    pairs_of,
)
from tests.eval.test_scorers import causal as random_causal
from tests.eval.test_scorers import masked as random_masked

BOTH = pytest.mark.parametrize("lm", [MASKED, CAUSAL_BOS], ids=["masked", "causal"])


def values(found: Scores) -> np.ndarray:
    return found.table[["score_more", "score_less"]].to_numpy()


def log_prob(lm, seen: list[int], read_at: int, token: int) -> float:
    with torch.no_grad():
        logits = lm.model(**lm.inputs(torch.tensor([seen]))).logits[0, read_at]
    return torch.log_softmax(logits.double(), -1)[token].item()


def aul(sentence: str) -> float:
    """All unmasked likelihood, by its definition."""
    ids = MASKED.tokenizer(sentence)["input_ids"]
    found = [log_prob(MASKED, ids, place, ids[place]) for place in range(1, len(ids) - 1)]
    return sum(found) / len(found)


def full(lm, sentence: str) -> list[float]:
    ids = lm.tokenizer(sentence, add_special_tokens=False)["input_ids"]
    front = [] if lm is CAUSAL_NO_BOS else [2]
    ids = [*front, *ids]
    return [log_prob(lm, ids[:place], place - 1, ids[place]) for place in range(1, len(ids))]


@settings(max_examples=10, deadline=None)
@given(more=SENTENCES, less=SENTENCES)
def test_aul_is_its_definition(more, less):
    more, less = " ".join(more), " ".join(less)
    if more == less:
        return
    found = score(MASKED, pairs_of((more, less)), ScoreSettings(scorer="aul"))
    np.testing.assert_allclose(values(found), [[aul(more), aul(less)]], atol=1e-5)
    assert found.meta["scorer"] == "aul"


@pytest.mark.parametrize("lm", [CAUSAL_BOS, CAUSAL_NO_BOS], ids=["bos", "no bos"])
@settings(max_examples=10, deadline=None)
@given(more=SENTENCES, less=SENTENCES)
def test_full_and_normalised_are_their_definitions(lm, more, less):
    more, less = " ".join(more), " ".join(less)
    expected = [full(lm, text) for text in (more, less)]
    if more == less or not all(expected):
        return
    pairs = pairs_of((more, less))
    found = values(score(lm, pairs, ScoreSettings(scorer="full")))
    np.testing.assert_allclose(found, [[sum(of) for of in expected]], atol=1e-5)
    found = values(score(lm, pairs, ScoreSettings(scorer="normalised")))
    np.testing.assert_allclose(found, [[sum(of) / len(of) for of in expected]], atol=1e-5)


def test_within_words_the_pieces_to_the_right_are_masked_too():
    more, less = "homos is gek", "transs is gek"  # homo ##s, trans ##s: ##s is shared
    found = score(MASKED, pairs_of((more, less)), ScoreSettings(scorer="pll_word_l2r"))
    plain = score(MASKED, pairs_of((more, less)), ScoreSettings())
    # No shared token has a piece of its word to its right here: the two rules agree.
    np.testing.assert_allclose(values(found), values(plain), atol=1e-5)
    # Here `homo` is shared and its `##s` stands to its right.
    more, less = "homos is gek", "homos is ziek"
    mask = TOKENIZER.mask_token_id
    found = score(MASKED, pairs_of((more, less)), ScoreSettings(scorer="pll_word_l2r"))
    for column, text in enumerate((more, less)):
        ids = TOKENIZER(text)["input_ids"]  # [CLS] homo ##s is X [SEP]
        expected = 0.0
        for place, hidden in ((1, (1, 2)), (2, (2,)), (3, (3,))):
            seen = [mask if at in hidden else token for at, token in enumerate(ids)]
            expected += log_prob(MASKED, seen, place, ids[place])
        assert values(found)[0, column] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("lm", "scorer", "said"),
    [
        (
            MASKED,
            "full",
            "is for causal models; bert is masked: auto, pll, pll_word_l2r, pll_all, aul",
        ),
        (CAUSAL_BOS, "aul", "is for masked models; gpt2 is causal: auto, shared, full, normalised"),
    ],
)
def test_a_scorer_for_the_other_kind_is_refused(lm, scorer, said):
    with pytest.raises(RequestError, match=said):
        score(lm, PAIRS, ScoreSettings(scorer=scorer))


def test_scores_of_two_scorers_are_not_compared():
    pll, other = (score(MASKED, PAIRS, ScoreSettings(scorer=name)) for name in ("pll", "aul"))
    with pytest.raises(RequestError, match="scorer: pll before, aul after"):
        score_table.check_comparable(pll, other)


def test_truncated_sentences_are_scored_whole_by_what_is_left():
    lm = random_causal(n_positions=6, bos_token_id=2)
    over = pairs_of(("queer is gek en gek en ziek", "cis is gek en gek en ziek"))
    found = score(lm, over, ScoreSettings(scorer="full", overlong="truncate"))
    short = pairs_of(("queer is gek en gek", "cis is gek en gek"))
    np.testing.assert_allclose(
        values(found), values(score(lm, short, ScoreSettings(scorer="full"))), atol=1e-5
    )


# Half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_says_how_many_signs_could_flip(dtype):
    lm = random_masked()
    half = replace(lm, model=copy.deepcopy(lm.model).to(dtype))
    weights = [weight.data_ptr() for weight in half.model.parameters()]
    found = score(half, PAIRS, ScoreSettings())
    noise = found.meta["noise"]
    # The same weights in float32, by another way.
    exact = score(replace(half, model=copy.deepcopy(half.model).float()), PAIRS, ScoreSettings())
    off = np.abs(found.margin - exact.margin)
    assert noise["pairs"] == len(PAIRS)
    assert 0 < noise["largest"] == pytest.approx(off.max(), rel=1e-3, abs=1e-5)
    assert noise["sign_could_flip"] == (np.abs(found.margin) <= noise["largest"]).sum()
    # It was given back as it came.
    assert [weight.data_ptr() for weight in half.model.parameters()] == weights
    assert half.model.dtype == dtype
    assert "noise" not in exact.meta


def test_the_noise_counts_margins_within_the_largest_difference():
    margins = np.array([0.5, -0.01, 0.02, -3.0])
    found = precision.noise(margins, lambda some: margins[some] + np.array([0.02, 0, 0, 0])[some])
    assert found["largest"] == pytest.approx(0.02)
    assert found["rms"] == pytest.approx(0.01)
    assert found["sign_could_flip"] == 2


# Work that isn't done twice


def counted(monkeypatch) -> list[int]:
    """Notes how many requests each call computes."""
    asked: list[int] = []
    real = work._computed

    def counting(lm, requests, *more):
        asked.append(len(requests))
        return real(lm, requests, *more)

    monkeypatch.setattr(work, "_computed", counting)
    return asked


@BOTH
def test_finished_scores_are_found_again(lm, tmp_path, monkeypatch):
    asked = counted(monkeypatch)
    first = score(lm, PAIRS, ScoreSettings(), store=tmp_path)
    again = score(lm, PAIRS, ScoreSettings(), store=tmp_path)
    assert len(asked) == 1
    pd.testing.assert_frame_equal(first.table, again.table)
    assert again.meta["work"]["reused"]
    assert first.meta.keys() == again.meta.keys()
    score(lm, PAIRS, ScoreSettings(reuse=False), store=tmp_path)
    assert len(asked) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"lm": replace(MASKED, fingerprint="other weights")},
        {"lm": replace(MASKED, tokenizer_fingerprint="other tokenizer")},
        {"settings": ScoreSettings(lowercase="true")},
        {"settings": ScoreSettings(scorer="aul")},
        {"settings": ScoreSettings(alignment="words")},
        {"pairs": pairs_of(("queer is ziek", "cis is ziek"))},
    ],
    ids=["weights", "tokenizer", "lowercase", "scorer", "alignment", "pairs"],
)
def test_what_decides_a_score_decides_what_is_found(changed, tmp_path, monkeypatch):
    asked = counted(monkeypatch)
    usual = {"lm": MASKED, "pairs": PAIRS, "settings": ScoreSettings()}
    for asks in (usual, usual | changed):
        score(asks["lm"], asks["pairs"], asks["settings"], store=tmp_path)
    assert len(asked) == 2


def test_found_scores_carry_the_groups_of_now(tmp_path):
    sentences = [("wij zijn queer", "wij zijn hetero"), ("wij zijn trans", "wij zijn cis")]
    table = pd.DataFrame(sentences, columns=["sent_more", "sent_less"])
    first, second = (
        build(table.assign(group=group), name="test", language="nl") for group in ("a", "b")
    )
    score(MASKED, first, ScoreSettings(), store=tmp_path)
    found = score(MASKED, second, ScoreSettings(), store=tmp_path)
    assert found.meta["work"]["reused"]
    assert found.table["group"].tolist() == ["b", "b"]


@BOTH
def test_killed_work_goes_on_where_it_was(lm, tmp_path, monkeypatch):
    expected = score(lm, PAIRS, ScoreSettings())
    monkeypatch.setattr(work, "SAVE_EVERY", 0.0)
    real = Parts.add
    calls = 0

    def dying(self, *found):
        nonlocal calls
        real(self, *found)
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Parts, "add", dying)
    with pytest.raises(KeyboardInterrupt):
        score(lm, PAIRS, ScoreSettings(batch_tokens=8), store=tmp_path)
    monkeypatch.setattr(Parts, "add", real)
    done = sum(len(np.load(path)["numbers"]) for path in tmp_path.glob("*.parts/*.npz"))
    assert done > 0
    asked = counted(monkeypatch)
    found = score(lm, PAIRS, ScoreSettings(batch_tokens=50), store=tmp_path)
    assert asked == [found.meta["work"]["requests"] - done]
    np.testing.assert_allclose(values(found), values(expected), atol=1e-5)
    # Nothing is left but the finished table.
    assert [path.suffix for path in tmp_path.iterdir()] == [".parquet"]


@pytest.mark.parametrize("damage", ["torn", "nonsense", "out of range"])
def test_a_damaged_part_is_computed_again_and_said(damage, tmp_path, monkeypatch):
    expected = score(MASKED, PAIRS, ScoreSettings())
    monkeypatch.setattr(work, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(Parts, "clear", lambda self: None)
    score(MASKED, PAIRS, ScoreSettings(batch_tokens=8), store=tmp_path)
    (finished,) = tmp_path.glob("*.parquet")
    finished.unlink()
    part = next(tmp_path.glob("*.parts/*.npz"))
    if damage == "torn":
        part.write_bytes(part.read_bytes()[:-30])
    elif damage == "nonsense":
        part.write_bytes(b"nonsense")
    else:
        np.savez(part, numbers=np.array([10**6]), values=np.array([0.0]))
    with pytest.warns(UserWarning, match="1 damaged part files"):
        found = score(MASKED, PAIRS, ScoreSettings(), store=tmp_path)
    np.testing.assert_allclose(values(found), values(expected), atol=1e-5)


def test_a_part_that_was_being_written_is_no_damage(tmp_path):
    parts = Parts(tmp_path)
    parts.add(np.array([0, 2]), np.array([1.0, 2.0]))
    parts.flush()
    (tmp_path / ".3-1-99.abc.npz").write_bytes(b"half")
    numbers, found = parts.read(5)
    assert numbers.tolist() == [0, 2]
    assert found.tolist() == [1.0, 2.0]
    assert parts.damaged == 0


def test_a_damaged_finished_table_is_computed_again(tmp_path, monkeypatch):
    score(MASKED, PAIRS, ScoreSettings(), store=tmp_path)
    (finished,) = tmp_path.glob("*.parquet")
    finished.write_bytes(finished.read_bytes()[:100])
    asked = counted(monkeypatch)
    score(MASKED, PAIRS, ScoreSettings(), store=tmp_path)
    assert len(asked) == 1
    assert ScoreStore(tmp_path).find(finished.stem) is not None


def test_nan_leaves_no_part_behind_that_would_be_taken_for_done(tmp_path):
    lm = random_masked()
    with torch.no_grad():
        lm.model.cls.predictions.bias[:] = float("nan")
    for _ in range(2):
        with pytest.raises(ScoringError, match="gave nan for pair"):
            score(lm, PAIRS, ScoreSettings(), store=tmp_path)


# What drives margins beside the meaning


def scored(language: str, *rows: tuple[str, str, float, int]) -> Scores:
    table = pd.DataFrame(rows, columns=["sent_more", "sent_less", "score_more", "length_more"])
    return Scores(table.assign(language=language, score_less=0.0, length_less=5))


def test_margins_that_follow_the_length_are_seen():
    rows = [("x a", "x b", -float(longer), 5 + longer) for longer in (0, 1, 2, 3)]
    assert confounds(scored("nl", *rows))["length_r"] == pytest.approx(-1)
    same = [("x a", "x b", float(number), 6) for number in range(4)]
    assert confounds(scored("nl", *same))["length_r"] is None


def test_margins_that_follow_the_frequency_are_seen():
    # From frequent to rare, against one and the same counterpart.
    words = ["the", "house", "candle", "thimble"]
    rows = [(f"I see {word}", "I see water", -float(at), 5) for at, word in enumerate(words)]
    found = confounds(scored("en", *rows))
    assert found["frequency_r"] > 0.9
    assert found["frequency_pairs"] == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unknown = confounds(scored("", *rows))
    assert unknown["frequency_r"] is None
    assert unknown["frequency_pairs"] == 0


def test_words_that_both_sentences_have_do_not_count():
    rows = [
        ("water the house", "house the candle", 1.0, 5),  # changed: water, candle
        ("thimble the house", "house the candle", 0.0, 5),
        ("the the house", "house the candle", 2.0, 5),
    ]
    # By hand, on wordfreq's Zipf scale.
    from wordfreq import zipf_frequency

    expected = [
        zipf_frequency(word, "en") - zipf_frequency("candle", "en")
        for word in ("water", "thimble", "the")
    ]
    r = np.corrcoef([1.0, 0.0, 2.0], expected)[0, 1]
    assert confounds(scored("en", *rows))["frequency_r"] == pytest.approx(r)


def test_the_scores_metadata_says_what_was_checked():
    found = score(MASKED, PAIRS, ScoreSettings())
    assert found.meta["confounds"] == confounds(found)
    assert found.meta["rule"]
    assert found.meta["scorer_version"] == eval.scorers.SCORER_VERSION
