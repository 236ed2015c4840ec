"""The differing words' own log-likelihood, against its definition written out."""

import difflib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from eval.rules import rule_for
from eval.scorers import ScoreSettings, score
from eval.scorers.model import LanguageModel
from eval.scorers.plan import plan
from eval.scores import TERM_COLUMNS
from tests.eval.test_scorers import PAIRS, causal, masked, pairs_of

MORE = pairs_of(
    ("wij zijn queer en gek .", "wij zijn hetero s en gek ."),  # a term of one and one of two
    ("homos zijn niet bang", "cis zijn niet bang"),  # pieces, at the start
    ("jij is homo en queer", "jij is hetero en cis"),  # two runs
    ("wij zijn gek", "wij zijn niet gek"),  # one side has nothing of its own
)


def define(lm: LanguageModel, more: str, less: str) -> tuple[float, float]:
    """A run of differing tokens from left to right: those still to come masked, or not there."""
    sequences = []
    for sentence in (more, less):
        ids = lm.tokenizer(sentence, add_special_tokens=False)["input_ids"]
        if lm.kind == "masked":
            ids = [lm.tokenizer.cls_token_id, *ids, lm.tokenizer.sep_token_id]
        elif lm.model.config.bos_token_id is not None:
            ids = [lm.model.config.bos_token_id, *ids]
        sequences.append(ids)
    blocks = difflib.SequenceMatcher(None, *sequences, autojunk=False).get_matching_blocks()
    totals = []
    for side, ids in enumerate(sequences):
        inside = [block[side] + step for block in blocks for step in range(block.size)]
        own = [place for place in range(len(ids)) if place not in inside]
        total = 0.0 if own else math.nan
        for place in own:
            given = list(ids)
            if lm.kind == "masked":
                later = place
                while later in own:
                    given[later] = lm.tokenizer.mask_token_id
                    later += 1
                at = place
            else:
                at = place - 1
            with torch.inference_mode():
                logits = lm.model(torch.tensor([given])).logits[0, at].double()
            total += float(logits.log_softmax(-1)[ids[place]])
        totals.append(total)
    return totals[0], totals[1]


@pytest.mark.parametrize("pairs", [PAIRS, MORE], ids=["words", "runs"])
@pytest.mark.parametrize("make", [masked, lambda: causal(bos_token_id=2)], ids=["masked", "causal"])
def test_the_definition(make, pairs):
    lm = make()
    found = score(lm, pairs, ScoreSettings()).table
    wanted = [define(lm, *pair) for pair in pairs.table[["sent_more", "sent_less"]].to_numpy()]
    np.testing.assert_allclose(found[list(TERM_COLUMNS)], np.asarray(wanted), atol=1e-4)
    assert found[list(TERM_COLUMNS)].notna().to_numpy().any()


@pytest.mark.parametrize("make", [masked, causal], ids=["masked", "causal"])
@pytest.mark.parametrize("alignment", ["tokens", "words"])
def test_scores_are_the_same_with_and_without(make, alignment):
    lm = make()
    settings = ScoreSettings(alignment=alignment)
    with_terms, without = (
        score(lm, MORE, replace(settings, terms=terms)).table for terms in (True, False)
    )
    assert not set(TERM_COLUMNS) & set(without.columns)
    same = ["pair_id", "shared_tokens", "length_more", "length_less"]
    assert with_terms[same].equals(without[same])
    for column in ("score_more", "score_less"):
        np.testing.assert_allclose(with_terms[column], without[column], atol=1e-5)


def test_with_whole_words_a_term_has_its_whole_word():
    """homos/queers share the ending of a plural: by words it belongs to the term."""
    lm = masked()
    pairs = pairs_of(("homos zijn gek", "queers zijn gek"))
    by = {
        alignment: plan(
            lm, pairs, rule_for("auto", "masked", "")[1], ScoreSettings(alignment=alignment)
        )
        for alignment in ("tokens", "words")
    }
    assert [len(by[name].terms.what) for name in ("tokens", "words")] == [2, 4]


def test_scorers_of_all_tokens_have_none():
    assert not set(TERM_COLUMNS) & set(score(masked(), MORE, ScoreSettings(scorer="aul")).table)


def test_found_again_with_the_terms(tmp_path):
    lm = masked()
    first = score(lm, MORE, ScoreSettings(), store=tmp_path)
    again = score(lm, MORE, ScoreSettings(), store=tmp_path)
    assert again.meta["work"]["reused"]
    assert again.table[list(TERM_COLUMNS)].equals(first.table[list(TERM_COLUMNS)])
    bare = score(lm, MORE, ScoreSettings(terms=False), store=tmp_path)
    assert not set(TERM_COLUMNS) & set(bare.table)
