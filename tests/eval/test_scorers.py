"""Scores against the published scripts' (golden), against the definition, and against themselves.

The definition is written out below, one forward pass a token, as slow as it is obvious.
"""

import difflib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    ByT5Tokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMConfig,
    XLMWithLMHeadModel,
)

from eval import scores as score_table
from eval.errors import RequestError
from eval.pairs import Pairs, build
from eval.scorers import ScoreSettings, ScoringError, score
from eval.scorers.masked import CHECKED
from eval.scorers.model import LanguageModel
from tests.eval.test_spans import word_pieces

REFERENCE = Path(__file__).parents[2] / ".." / "shared" / "reference"
MODELS = {
    "bert-cased": "masked",
    "bert-uncased": "masked",
    "distilbert": "masked",
    "roberta": "masked",
    "xlm-roberta": "masked",
    "gpt2": "causal",
    "llama": "causal",
}
WORDS = ["wij", "jij", "zijn", "is", "queer", "homo", "hetero", "trans", "cis"]
WORDS += ["gek", "ziek", "en", "niet", "bang"]
TOKENIZER = word_pieces(*WORDS, "##s", ".")


def masked(tokenizer=TOKENIZER, **changed) -> LanguageModel:
    """A tiny random BERT."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(tokenizer), intermediate_size=32, initializer_range=0.5, **sizes | changed
    )
    return LanguageModel("bert", "masked", BertForMaskedLM(config).eval(), tokenizer, "w", "t")


def causal(tokenizer=TOKENIZER, **changed) -> LanguageModel:
    """A tiny random GPT-2; its config names no BOS unless told."""
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    config = GPT2Config(
        vocab_size=len(tokenizer),
        initializer_range=0.5,
        **sizes | {"bos_token_id": None, "eos_token_id": None} | changed,
    )
    return LanguageModel("gpt2", "causal", GPT2LMHeadModel(config).eval(), tokenizer, "w", "t")


def pairs_of(*sentences: tuple[str, str]) -> Pairs:
    return build(
        pd.DataFrame(sentences, columns=["sent_more", "sent_less"]), name="test", language="nl"
    )


PAIRS = pairs_of(
    ("wij zijn queer en gek .", "wij zijn hetero en gek ."),
    ("wij zijn trans en gek .", "wij zijn cis en gek ."),
    ("queer is ziek", "hetero is ziek"),
    ("homos zijn niet bang en niet gek", "cis zijn niet bang en niet ziek"),
    ("wij zijn queer en gek .", "wij zijn cis en gek ."),
    ("jij is en is homo", "jij is en is hetero"),
)


def define(lm: LanguageModel, more: str, less: str) -> tuple[float, float, int]:
    """The definition of both scores, and the number of shared tokens."""
    sequences, scored = [], []
    for sentence in (more, less):
        ids = lm.tokenizer(sentence, add_special_tokens=False)["input_ids"]
        if lm.kind == "masked":
            around = lm.tokenizer.cls_token_id, lm.tokenizer.sep_token_id
            sequences.append([around[0], *ids, around[1]])
            scored.append(range(1, len(ids) + 1))
        else:
            bos = lm.tokenizer.bos_token_id
            bos = lm.model.config.bos_token_id if bos is None else bos
            sequences.append(ids if bos is None else [bos, *ids])
            scored.append(range(1, len(sequences[-1])))
    matcher = difflib.SequenceMatcher(None, *sequences, autojunk=False)
    places = [
        (block.a + step, block.b + step)
        for block in matcher.get_matching_blocks()
        for step in range(block.size)
        if block.a + step in scored[0] and block.b + step in scored[1]
    ]
    sums = []
    for side, ids in enumerate(sequences):
        total = 0.0
        for place in (pair[side] for pair in places):
            seen = list(ids)
            if lm.kind == "masked":
                seen[place], read_at = lm.tokenizer.mask_token_id, place
            else:
                seen, read_at = seen[:place], place - 1
            with torch.no_grad():
                logits = lm.model(**lm.inputs(torch.tensor([seen]))).logits[0, read_at]
            total += torch.log_softmax(logits.double(), -1)[ids[place]].item()
        sums.append(total)
    return sums[0], sums[1], len(places)


def of(lm: LanguageModel, pairs: Pairs = PAIRS, **settings_) -> np.ndarray:
    """The scores of a model. (pairs, 2)"""
    table = score(lm, pairs, ScoreSettings(**settings_)).table
    return table[["score_more", "score_less"]].to_numpy()


@pytest.fixture(scope="module")
def golden() -> pd.DataFrame:
    path = REFERENCE / "golden_scores.csv"
    if not path.is_file():
        pytest.skip(f"no reference data at {path}")
    return pd.read_csv(path)


@pytest.mark.parametrize("name", MODELS)
def test_meets_the_published_scripts(golden, name):
    folder, kind = REFERENCE / "models" / name, MODELS[name]
    loader = AutoModelForMaskedLM if kind == "masked" else AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    lm = LanguageModel(name, kind, model, AutoTokenizer.from_pretrained(folder), "w", "t")
    rows = golden[golden["model"] == name].rename(
        columns={"sent_x": "sent_more", "sent_y": "sent_less"}
    )
    assert len(rows) == 240
    table = score(lm, build(rows, name="golden", language="nl"), ScoreSettings()).table
    assert len(table) == 240
    np.testing.assert_allclose(table["score_more"], table["score_x"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(table["score_less"], table["score_y"], atol=1e-4, rtol=0)


SENTENCES = st.lists(st.sampled_from([*WORDS, "homos", "onbekend"]), min_size=1, max_size=9)
CAUSAL_BOS, CAUSAL_NO_BOS = causal(bos_token_id=2), causal()
MASKED = masked()


@pytest.mark.parametrize("lm", [MASKED, CAUSAL_BOS, CAUSAL_NO_BOS], ids=["masked", "bos", "no bos"])
@settings(max_examples=15, deadline=None)
@given(drawn=st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=4))
def test_is_the_definition(lm, drawn):
    sentences = [(" ".join(more), " ".join(less)) for more, less in drawn if more != less]
    expected = [values for values in (define(lm, *pair) for pair in sentences) if values[2]]
    if not expected:
        return
    table = score(lm, pairs_of(*sentences), ScoreSettings()).table
    found = table[["score_more", "score_less", "shared_tokens"]].to_numpy(float)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("lm", [MASKED, CAUSAL_BOS], ids=["masked", "causal"])
def test_batch_size_changes_nothing(lm):
    alone = of(lm, batch_tokens=1)
    for size in (7, 40, 100_000):
        np.testing.assert_allclose(of(lm, batch_tokens=size), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("lm", [MASKED, CAUSAL_BOS], ids=["masked", "causal"])
def test_order_changes_nothing(lm):
    turned = replace(PAIRS, table=PAIRS.table.iloc[::-1].reset_index(drop=True))
    np.testing.assert_allclose(of(lm, turned)[::-1], of(lm), atol=1e-5, rtol=0)


def test_every_distinct_request_is_computed_once():
    seen: list[tuple[int, int]] = []
    rows = []
    inner = MASKED.model.forward

    def counting(*args, **given):
        rows.extend(map(tuple, given["input_ids"].tolist()))
        return inner(*args, **given)

    MASKED.model.forward = counting
    try:
        score(MASKED, PAIRS, ScoreSettings(terms=False), report=lambda *counts: seen.append(counts))
    finally:
        MASKED.model.forward = inner
    # Twice for those alone on which the output head is checked before anything is scored.
    assert len(rows) - len(set(rows)) <= 2 * CHECKED
    assert seen[-1][0] == seen[-1][1] >= len(set(rows))
    # Pairs 1 and 5 share a sentence; scored apart, they ask for more.
    sentences = PAIRS.table[["sent_more", "sent_less"]].to_numpy()
    apart = sum(2 * define(MASKED, *pair)[2] for pair in sentences)
    assert len(set(rows)) <= seen[-1][1] < apart


def test_two_processes_get_what_one_gets(tmp_path):
    torch.multiprocessing.spawn(_one_of_two, args=(tmp_path,), nprocs=2)
    for lm in (MASKED, CAUSAL_BOS):
        both = [score_table.read(tmp_path / f"{lm.name}-{rank}.parquet") for rank in (0, 1)]
        pd.testing.assert_frame_equal(both[0].table, both[1].table)
        found = both[0].table[["score_more", "score_less"]].to_numpy()
        np.testing.assert_allclose(found, of(lm), atol=1e-5, rtol=0)
        # Neither had done it all.
        counts = [int((tmp_path / f"{lm.name}-{rank}.txt").read_text()) for rank in (0, 1)]
        assert min(counts) > 0
        totals: list[int] = []
        score(lm, PAIRS, ScoreSettings(), report=lambda done, total, to=totals: to.append(total))
        assert sum(counts) == totals[-1]


def _one_of_two(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    for lm in (masked(), causal(bos_token_id=2)):
        done: list[int] = []
        found = score(lm, PAIRS, ScoreSettings(), report=lambda count, _, to=done: to.append(count))
        score_table.write(found, folder / f"{lm.name}-{rank}.parquet")
        (folder / f"{lm.name}-{rank}.txt").write_text(str(done[-1]))
    torch.distributed.destroy_process_group()


def test_bos_is_there_exactly_once():
    bare = word_pieces(*WORDS, "##s", ".")
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", special_tokens=[]
    )
    bare.bos_token = "[CLS]"
    adds = word_pieces(*WORDS, "##s", ".")
    adds.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    adds.bos_token = "[CLS]"
    lone = score(causal(bare), PAIRS, ScoreSettings())
    added = score(causal(adds), PAIRS, ScoreSettings())
    named = score(causal(bos_token_id=2), PAIRS, ScoreSettings())  # by the config alone
    for other in (added, named):
        np.testing.assert_allclose(lone.table["score_more"], other.table["score_more"], atol=1e-6)
    assert lone.meta["bos_policy"] == added.meta["bos_policy"] == "tokenizer BOS [CLS]"
    assert named.meta["bos_policy"] == "config BOS id 2"
    assert (lone.table["length_more"] == added.table["length_more"]).all()


def test_without_bos_the_first_token_is_not_scored():
    found = score(CAUSAL_NO_BOS, PAIRS, ScoreSettings())
    with_bos = score(CAUSAL_BOS, PAIRS, ScoreSettings())
    assert found.meta["bos_policy"] == "no BOS: the first token is not scored"
    fewer = with_bos.table["shared_tokens"] - found.table["shared_tokens"]
    starts_with_identity = PAIRS.table["sent_more"].str.match("queer|homo")
    assert fewer.tolist() == (~starts_with_identity).astype(int).tolist()


def test_tokenizers_without_offsets_score_too():
    tokenizer = ByT5Tokenizer()
    lm = causal(tokenizer)
    pairs = pairs_of(("ab cd", "ax cd"))
    assert of(lm, pairs)[0] == pytest.approx(define(lm, "ab cd", "ax cd")[:2], abs=1e-5)
    with pytest.raises(RequestError, match="offsets"):
        of(lm, pairs, alignment="words")


def test_words_change_the_measure_and_are_named():
    pairs = pairs_of(("wij zijn homos .", "wij zijn transs ."))
    tokens = score(MASKED, pairs, ScoreSettings())
    words = score(MASKED, pairs, ScoreSettings(alignment="words"))
    assert tokens.table["shared_tokens"].item() == words.table["shared_tokens"].item() + 1
    assert (tokens.meta["alignment"], words.meta["alignment"]) == ("tokens", "words")
    with pytest.raises(RequestError, match="alignment: tokens before, words after"):
        score_table.check_comparable(tokens, words)


def test_lowercase_true_is_scoring_lowercased_sentences():
    upper = pairs_of(("Wij zijn Queer .", "Wij zijn Hetero ."))
    small = pairs_of(("wij zijn queer .", "wij zijn hetero ."))
    assert of(MASKED, upper, lowercase="true") == pytest.approx(of(MASKED, small))
    assert of(MASKED, upper) != pytest.approx(of(MASKED, small))
    assert score(MASKED, upper, ScoreSettings(lowercase="true")).meta["lowercase"] == "true"


def test_the_metadata_says_how_it_was_made(tmp_path):
    made = score(MASKED, PAIRS, ScoreSettings())
    assert made.meta["benchmark_hash"] == PAIRS.hash
    assert made.meta["rows_used"] == len(PAIRS)
    assert made.meta["rows_left_out"] == {}
    expected = {"model": "bert", "model_fingerprint": "w", "tokenizer_fingerprint": "t"}
    expected |= {"kind": "masked", "dtype": "float32", "benchmark": "test", "lowercase": "auto"}
    assert expected.items() <= made.meta.items()
    assert made.meta["scorer"]
    assert made.meta["scorer_version"]
    assert made.meta["bos_policy"]
    assert made.meta["versions"]["torch"] == str(torch.__version__)
    assert made.meta["versions"].keys() >= {"torch", "transformers", "tokenizers"}
    score_table.write(made, tmp_path / "made.parquet")
    back = score_table.read(tmp_path / "made.parquet")
    assert back.meta == made.meta
    pd.testing.assert_frame_equal(back.table, made.table)
    assert made.table["score_more"].dtype == "float64"


def test_pairs_without_a_shared_token_are_left_out_and_counted():
    pairs = pairs_of(("queer .", "hetero ."), ("queer", "hetero"), ("", "hetero"))
    found = score(MASKED, pairs, ScoreSettings())
    assert found.table["sent_more"].tolist() == ["queer ."]
    assert found.meta["rows_used"] == 1
    assert found.meta["rows_left_out"] == {"no shared token": 1, "empty sentence": 1}
    with pytest.raises(RequestError, match="shared token"):
        score(MASKED, pairs_of(("queer", "hetero")), ScoreSettings())


def test_overlong_sentences():
    lm = causal(n_positions=6, bos_token_id=2)
    fits, over = "queer is gek", "queer is gek en gek en ziek"
    pairs = pairs_of((fits, "cis is gek"), (over, "cis is gek en gek en ziek"))
    with pytest.raises(RequestError, match=r"2 sentences .* 6 tokens .* longest 8.*overlong=skip"):
        score(lm, pairs, ScoreSettings())
    skipped = score(lm, pairs, ScoreSettings(overlong="skip"))
    assert skipped.table["sent_more"].tolist() == [fits]
    assert skipped.meta["rows_left_out"] == {"over the model's length": 1}
    truncated = score(lm, pairs, ScoreSettings(overlong="truncate"))
    assert truncated.table["shared_tokens"].tolist() == [2, 4]
    short = "queer is gek en gek", "cis is gek en gek"  # what the model reads of it
    last = truncated.table[["score_more", "score_less"]].to_numpy()[1]
    assert last == pytest.approx(define(lm, *short)[:2], abs=1e-5)
    assert truncated.meta["overlong"] == "truncate"


def test_a_shared_token_that_truncation_takes_from_one_side_is_scored_on_neither():
    lm = causal(n_positions=6, bos_token_id=2)
    longer = pairs_of(("homos is gek en ziek", "cis is gek en ziek"))  # 7 tokens and 6
    found = score(lm, longer, ScoreSettings(overlong="truncate")).table.iloc[0]
    expected = define(lm, "homos is gek en", "cis is gek en")
    assert found["shared_tokens"] == expected[2] == 3
    assert [found["score_more"], found["score_less"]] == pytest.approx(expected[:2], abs=1e-5)


def test_truncation_keeps_the_closing_special_token():
    lm = masked(max_position_embeddings=6)
    over = pairs_of(("queer is gek en ziek en bang", "cis is gek en ziek en bang"))
    found = score(lm, over, ScoreSettings(overlong="truncate")).table.iloc[0]
    expected = define(lm, "queer is gek en", "cis is gek en")  # and [SEP]
    assert [found["score_more"], found["score_less"]] == pytest.approx(expected[:2], abs=1e-5)


def test_roberta_reads_fewer_tokens_than_it_has_positions():
    config = RobertaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=10,
        pad_token_id=1,
    )
    lm = replace(MASKED, model=RobertaForMaskedLM(config).eval())
    eight = pairs_of(("queer is gek en gek .", "cis is gek en gek ."))
    assert math.isfinite(of(lm, eight)[0, 0])
    nine = pairs_of(("queer is niet gek en gek .", "cis is niet gek en gek ."))
    with pytest.raises(RequestError, match="8 tokens"):
        of(lm, nine)


def test_a_model_that_gives_nan_fails_and_names_the_pair():
    lm = masked()
    words = lm.model.bert.embeddings.word_embeddings.weight
    lm.model.cls.predictions.decoder.weight = torch.nn.Parameter(words.clone())  # untied
    with torch.no_grad():
        words[TOKENIZER.convert_tokens_to_ids("trans")] = float("nan")
    with pytest.raises(ScoringError, match=PAIRS.table["pair_id"].iloc[1]) as caught:
        of(lm)
    assert not isinstance(caught.value, RequestError)


def test_a_masked_scorer_needs_a_mask_token():
    bare = word_pieces(*WORDS)
    bare.mask_token = None
    with pytest.raises(RequestError, match="mask token"):
        of(masked(bare))


def test_words_that_the_tokenizer_makes_one_are_said(recwarn):
    pairs = pairs_of(("queer möchte gek", "hetero möchte gek"), ("queer mochte", "hetero mochte"))
    folding = word_pieces("queer", "hetero", "gek", "mochte", uncased=True)
    with pytest.warns(UserWarning, match="mochte/möchte"):
        of(masked(folding), pairs)
    recwarn.clear()
    of(masked(word_pieces("queer", "hetero", "gek", "mochte", "möchte")), pairs)
    assert not [caught for caught in recwarn if "apart" in str(caught.message)]


@pytest.mark.parametrize("reads_left_to_right", [False, True])
def test_xlm_is_told_its_language(reads_left_to_right):
    torch.manual_seed(0)
    config = XLMConfig(
        vocab_size=len(TOKENIZER),
        emb_dim=16,
        n_layers=2,
        n_heads=2,
        n_langs=2,
        causal=reads_left_to_right,
        asm=False,
        bos_index=2,
        bos_token_id=2,
        embed_init_std=0.5,
    )
    kind = "causal" if reads_left_to_right else "masked"
    model = XLMWithLMHeadModel(config).eval()
    lm = LanguageModel("xlm", kind, model, TOKENIZER, "w", "t", language_id=1)
    sentences = PAIRS.table[["sent_more", "sent_less"]].to_numpy()
    expected = [define(lm, *pair)[:2] for pair in sentences]
    np.testing.assert_allclose(of(lm), expected, atol=1e-5, rtol=0)
    other = replace(lm, language_id=0)
    assert not np.allclose(of(other), expected, atol=1e-2)
    assert score(lm, PAIRS, ScoreSettings()).meta["language_id"] == 1
