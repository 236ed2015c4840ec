"""Completion of prompts: which words a masked model may give, and what an answer must be."""

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from eval import benchmarks, completions
from eval.benchmarks import BenchmarkSettings
from eval.errors import RequestError
from eval.instructions import CompletionSettings, first_word, instruction, only_word, wordings
from eval.prompts import Prompts
from eval.scorers import completions as scorer
from eval.scorers.answers import AnswerStore
from eval.scorers.completions import complete
from eval.scorers.model import LanguageModel
from eval.scorers.vocabulary import sign_of, words
from eval.speakers import Ask
from mitigate import models
from mitigate.settings import ModelSettings


@functools.cache
def prompts(limit: int = 31, language: str = "de") -> Prompts:
    return benchmarks.load_prompts(
        BenchmarkSettings(name="queergen", reader="queergen", language=language, limit=limit)
    )


@pytest.fixture(scope="module")
def masked(tiny_masked: Path) -> LanguageModel:
    return models.load(ModelSettings(path=str(tiny_masked)))


@pytest.fixture(scope="module")
def causal(tiny_causal: Path) -> LanguageModel:
    return models.load(ModelSettings(path=str(tiny_causal)))


class Chatting:
    """A speaker that knows turns, and answers by the number of the wording it is asked in."""

    name, fingerprint, chats = "chatting", "0123", True
    answers = ("doctor", "**Teacher**.", "a nurse", "The person is a baker.")

    def __init__(self) -> None:
        self.asked: list[Ask] = []

    def log_probs(self, asks, options, *, report=None):
        raise AssertionError("nobody asks for it")

    def write(
        self, asks: Sequence[Ask], *, tokens, samples=1, greedy=True, seed=0, report=None
    ) -> list[list[str]]:
        self.asked += asks
        said = {instruction(name, "en"): self.answers[int(name) - 1] for name in "1234"}
        begins = [next(text for text in said if ask.user.startswith(text)) for ask in asks]
        return [
            [said[text] if greedy else f"w{'abcde'[at]}" for at in range(samples)]
            for text in begins
        ]


# --- masked ------------------------------------------------------------------------------------


def test_masked_words_are_the_likeliest_whole_ones(masked):
    """Against the plain definition: every token's probability, then the rule, one by one."""
    some = prompts()
    found = complete(masked, some, CompletionSettings(top=5)).table
    assert found.groupby("prompt_id")["rank"].agg(list).map(lambda of: of == [0, 1, 2, 3, 4]).all()
    tokenizer = masked.tokenizer
    for row in some.table.head(6).to_dict("records"):
        text = f"{row['text']} {tokenizer.mask_token}{row['after']}"
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logits = masked.model(input_ids=ids).logits[0]
        at = ids[0].tolist().index(tokenizer.mask_token_id)
        nats = torch.log_softmax(logits[at].double(), -1)
        expected = []
        for id_ in nats.argsort(descending=True).tolist():
            token = tokenizer.convert_ids_to_tokens(id_)
            if token.isalpha() and not token.startswith("[") and len(expected) < 5:
                expected.append((token, float(nats[id_])))
        mine = found[found["prompt_id"] == row["prompt_id"]]
        assert mine["word"].tolist() == [word for word, _ in expected]
        assert mine["log_prob"].tolist() == pytest.approx([n for _, n in expected], abs=1e-5)
    first = complete(masked, some, CompletionSettings()).table
    assert first["word"].tolist() == found.loc[found["rank"] == 0, "word"].tolist()


def test_masked_batches_do_not_matter(masked):
    some, settings = prompts(), CompletionSettings(top=3)
    together, alone = (complete(masked, some, settings, batch_tokens=n) for n in (4096, 1))
    assert together.table["word"].equals(alone.table["word"])
    assert together.meta["usable"] == 1
    assert together.meta["decoding"]["ranks"] == {"first": [0], "several": [0, 1, 2]}
    assert together.meta["benchmark_hash"] == some.hash


def tokenizer_of(*tokens: str, special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    vocabulary = {token: number for number, token in enumerate((*special, *tokens))}
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, special[0])))
    made.add_special_tokens({"unk_token": special[0], "mask_token": special[1]})
    return made


@pytest.mark.parametrize(
    ("sign", "tokens", "expected"),
    [
        ("##", ["Arzt", "##in", "co-op", ".", "##.", "12", "[unused1]"], {"Arzt", "co-op"}),
        ("Ġ", ["Ġdoctor", "er", "Ġ.", "Ġ2", "Ġ"], {"Ġdoctor"}),
        ("▁", ["▁arts", "en", "▁,", "▁"], {"▁arts"}),
        ("</w>", ["teacher</w>", "teach", ".</w>"], {"teacher</w>"}),
        ("@@", ["nurse", "nur@@", "."], {"nurse"}),
        ("", ["nurse", ".", "x1"], {"nurse"}),
    ],
)
def test_pieces_and_punctuation_are_no_words(sign, tokens, expected, monkeypatch):
    """By the sign of each family of tokenizers; the special tokens never are."""
    tokenizer = tokenizer_of(*tokens, special=("unk", "mask"))
    decoded = {token: token.strip("Ġ▁").removesuffix("</w>") for token in tokenizer.get_vocab()}
    monkeypatch.setattr(tokenizer, "convert_tokens_to_string", lambda some: decoded[some[0]])
    assert sign_of(tokenizer) == sign
    assert set(words(tokenizer)) == {tokenizer.get_vocab()[token] for token in expected}


@pytest.mark.parametrize(
    ("name", "sign"),
    [("bert-cased", "##"), ("roberta", "Ġ"), ("xlm-roberta", "▁"), ("gpt2", "Ġ"), ("llama", "▁")],
)
def test_words_of_the_reference_tokenizers(reference, name, sign):
    tokenizer = AutoTokenizer.from_pretrained(reference / "models" / name)
    assert sign_of(tokenizer) == sign
    found = words(tokenizer)
    assert len(found) > 300
    assert all(word.replace("-", "").replace("'", "").isalpha() for word in found.values())
    # Each is one token after a blank, and reads as the word.
    for id_, word in list(found.items())[::97]:
        assert tokenizer.decode([id_]).strip() == word


def test_masks_that_cannot_be_read(masked):
    some = prompts(2)
    table = some.table.assign(text=some.table["text"] + " [MASK]")
    with pytest.raises(RequestError, match=r"holds \[MASK\] itself"):
        complete(masked, dataclasses.replace(some, table=table), CompletionSettings())
    table = some.table.assign(text="sehr " * 200)
    with pytest.raises(RequestError, match="tokens; tiny_masked reads 128"):
        complete(masked, dataclasses.replace(some, table=table), CompletionSettings())
    with pytest.raises(RequestError, match="words of its own"):
        complete(masked, some, CompletionSettings(top=100_000))


# --- causal ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("doctor", "doctor"), (" Doctor.\n", "Doctor"), ('"nurse"', "nurse"), ("**chef**!", "chef"),
        ("Ärztin", "Ärztin"), ("know-it-all", "know-it-all"),
        ("<think>\nhm\n</think>\n\ncook", "cook"),
        ("a doctor", ""), ("The person is a doctor.", ""), ("doctor, nurse", ""), ("", ""),
        ("[MASK]", ""), ("42", ""), ("Answer: doctor", ""), ("...", ""),
    ],
)  # fmt: skip
def test_only_one_word_is_an_answer(said, word):
    assert only_word(said) == word


@pytest.mark.parametrize(
    ("said", "blanks", "word"),
    [
        (" teacher. She", True, "teacher"), ("n engineer", True, ""),
        ("teacher and", False, "teacher"),
        (" 12 years", True, ""), ("\n\nHe", True, "He"), ("", True, ""), (" ", False, ""),
    ],
)  # fmt: skip
def test_first_word_of_a_continuation(said, blanks, word):
    assert first_word(said, blanks) == word


def test_wordings_are_four_in_each_language():
    for language in ("en", "nl", "de"):
        assert list(wordings(language)) == ["1", "2", "3", "4"]
        assert len({*wordings(language).values()}) == 4
        assert all(text.endswith(":") for text in wordings(language).values())
        assert ["[MASK]" in text for text in wordings(language).values()] == [True] * 3 + [False]


def test_a_chatting_model_is_asked_in_the_papers_wording():
    speaker, some = Chatting(), prompts(language="en")
    found = complete(speaker, some, CompletionSettings(trial=31))
    ask = speaker.asked[0]
    assert ask.chat
    assert ask.user.startswith("Complete the following sentence replacing the token [MASK] with")
    assert ask.user.endswith(" [MASK].")
    assert set(found.table["word"]) == {"Teacher"}
    assert set(found.table["said"]) == {"**Teacher**."}
    assert found.table["log_prob"].isna().all()
    assert found.meta["wording"] == "2"
    assert found.meta["usable"] == 1
    assert found.meta["trial"] == {"prompts": 31, "usable": {"1": 1, "2": 1, "3": 0, "4": 0}}


def test_a_trial_is_added_to_finished_answers(tmp_path):
    some, speaker = prompts(language="en"), Chatting()
    complete(speaker, some, CompletionSettings(), store=tmp_path)
    for asked in (4 * 10, 0):  # the trial alone, then nothing
        before = len(speaker.asked)
        found = complete(speaker, some, CompletionSettings(trial=10), store=tmp_path)
        assert len(speaker.asked) - before == asked
        assert found.meta["trial"]["prompts"] == 10


def test_unusable_answers_stay_with_what_was_said():
    found = complete(Chatting(), prompts(language="en"), CompletionSettings(wording="4"))
    assert set(found.table["word"]) == {""}
    assert set(found.table["said"]) == {"The person is a baker."}
    assert found.meta["usable"] == 0


def test_samples_come_after_the_greedy_answer():
    found = complete(Chatting(), prompts(language="en"), CompletionSettings(top=5))
    ranks = found.meta["decoding"]["ranks"]
    assert ranks == {"first": [0], "several": [1, 2, 3, 4, 5]}
    of = found.table.groupby("rank")["word"].unique().map(list).to_dict()
    assert of == {0: ["Teacher"], 1: ["wa"], 2: ["wb"], 3: ["wc"], 4: ["wd"], 5: ["we"]}


def test_a_base_model_goes_on_with_the_sentence(causal):
    some = prompts(8)
    found = complete(causal, some, CompletionSettings(tokens=4))
    assert found.meta["wording"] == "plain"
    for row, prompt in zip(found.table.itertuples(), some.table.itertuples(), strict=True):
        ids = [causal.tokenizer.bos_token_id]
        ids += causal.tokenizer(prompt.text, add_special_tokens=False)["input_ids"]
        written: list[int] = []
        while len(written) < 4 and causal.tokenizer.eos_token_id not in written:
            with torch.inference_mode():
                logits = causal.model(torch.tensor([ids + written])).logits
            written.append(int(logits[0, -1].argmax()))
        assert row.said == causal.tokenizer.decode(written, skip_special_tokens=True)
        assert row.word == first_word(row.said, blanks=True)


def test_samples_depend_on_seed_and_prompt_alone(causal):
    some, settings = prompts(12), CompletionSettings(top=2, tokens=3)
    found = complete(causal, some, settings)
    alone = dataclasses.replace(some, table=some.table.tail(3).reset_index(drop=True))
    few = complete(causal, alone, settings, batch_tokens=1)
    assert few.table["said"].tolist() == found.table["said"].tolist()[-9:]
    other = complete(causal, some, dataclasses.replace(settings, seed=1))
    sampled = found.table["rank"] > 0
    assert (found.table["said"] == other.table["said"])[~sampled].all()
    assert not (found.table["said"] == other.table["said"])[sampled].all()
    assert found.meta["decoding"]["temperature"] == 1.0


def test_settings_that_do_not_fit(masked, causal):
    some = prompts(2)
    for lm, settings, said in (
        (masked, CompletionSettings(wording="2"), "wording=2: is for causal models"),
        (masked, CompletionSettings(decoding="samples"), "decoding=samples: is for causal models"),
        (causal, CompletionSettings(decoding="greedy", top=5), "has one greedy answer"),
        (causal, CompletionSettings(wording="5"), "there are: plain, 1, 2, 3, 4"),
    ):
        with pytest.raises(RequestError, match=said):
            complete(lm, some, settings)
    french = dataclasses.replace(some, table=some.table.assign(language="fr"))
    with pytest.raises(RequestError, match="none in fr; plain"):
        complete(Chatting(), french, CompletionSettings())


# --- found again -------------------------------------------------------------------------------


class Counting(Chatting):
    """Ends after a number of calls, as a kill would."""

    def __init__(self, calls: int = 1_000) -> None:
        super().__init__()
        self.left = calls

    def write(self, asks, **how):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().write(asks, **how)


def test_killed_work_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(scorer, "CHUNK", 10)
    monkeypatch.setattr(scorer, "MOST", 10)
    monkeypatch.setattr("eval.scorers.answers.SAVE_EVERY", 0.0)
    some, settings = prompts(62, "en"), CompletionSettings()
    with pytest.raises(KeyboardInterrupt):
        complete(Counting(3), some, settings, store=tmp_path)
    (folder,) = tmp_path.glob("*.parts")
    (folder / "1.json").write_text('{"0": [["x"', "utf-8")  # torn by a full disk
    again = Counting()
    found = complete(again, some, settings, store=tmp_path)
    assert len(again.asked) == 32
    assert found.meta["work"]["found"] == 30
    whole = complete(Chatting(), some, settings)
    pd.testing.assert_frame_equal(found.table, whole.table)
    assert not folder.exists()
    idle = Counting(0)
    same = complete(idle, some, settings, store=tmp_path)
    pd.testing.assert_frame_equal(same.table, whole.table)
    assert same.meta["work"]["reused"]
    other = Counting()
    complete(other, some, CompletionSettings(wording="3"), store=tmp_path)
    assert len(other.asked) == 62


def test_parts_keep_nan_and_numbers(tmp_path):
    some = prompts(2)
    store = AnswerStore(tmp_path, {"a": 1}, some)
    store._saved = -math.inf
    store.add({0: [scorer.Answer("a b", "", math.nan)], 1: [scorer.Answer("c", "c", -0.1)]})
    (part,) = tmp_path.glob("*.parts/*.json")
    assert json.loads(part.read_text("utf-8"))["0"] == [["a b", "", None]]
    found = AnswerStore(tmp_path, {"a": 1}, some).read()
    assert found[1] == [scorer.Answer("c", "c", -0.1)]
    assert math.isnan(found[0][0].log_prob)


def test_table_is_read_back(masked, tmp_path):
    found = complete(masked, prompts(4), CompletionSettings(top=2))
    completions.write(found, tmp_path / "c.parquet")
    again = completions.read(tmp_path / "c.parquet")
    pd.testing.assert_frame_equal(again.table, found.table)
    assert again.meta == found.meta
