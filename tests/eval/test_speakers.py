"""A local speaker on real architectures, against the definition: one prompt, one token a pass."""

from functools import cache

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from eval.errors import RequestError
from eval.scorers.model import LanguageModel
from eval.speakers import Ask
from eval.speakers.local import LocalSpeaker, TooLongError
from mitigate.sample_models import causal_tokenizer
from tests.eval.test_causal import CONFIGS

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
#: A template without a system turn, and with a blank before the answer, as Mistral's.
INST = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ raise_exception('no system turn') }}"
    "{% elif m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}</s>{% endif %}{% endfor %}"
)
#: A template that opens the model's thinking, as DeepSeek's.
THINKS = CHATML.replace("<|assistant|>{% endif", "<|assistant|><think>\n{% endif")
ARCHITECTURES = ("gpt2", "llama", "mistral, window 8", "gemma3", "opt", "bloom", "xlm")
PROMPTS = [
    "Kies een van de twee.",
    "Kies een van de twee. Zin A: kort.",
    "Choose.",
    "Kies een van de drie.",
    "Choose one of these two sentences, please:",
]


def tokenizer(template: str | None = None) -> PreTrainedTokenizerBase:
    made = causal_tokenizer(["twee zinnen, kies een van de twee"])
    made.model_max_length = 200
    made.chat_template = template
    return made


@cache
def speaker(name: str = "llama", template: str | None = CHATML, tokens: int = 256) -> LocalSpeaker:
    of = tokenizer(template)
    config, changes = CONFIGS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(
            getattr(transformers, config)(**{**changes, "vocab_size": len(of)})
        ).eval()
    lm = LanguageModel(name, "causal", model, of, "weights", "tokenizer")
    return LocalSpeaker(lm, batch_tokens=tokens)


def by_definition(of: LocalSpeaker, text: str, option: str, bos: bool) -> float:
    """log P of the option's tokens after the text, each from a full pass of its own."""
    encode = of.lm.tokenizer
    prompt = encode(text, add_special_tokens=False)["input_ids"]
    whole = encode(text + option, add_special_tokens=False)["input_ids"]
    total, first = 0.0, [1] if bos else []
    for place in range(len(prompt), len(whole)):
        with torch.inference_mode():
            logits = of.lm.model(torch.tensor([first + whole[:place]])).logits[0, -1]
        total += float(logits.double().log_softmax(-1)[whole[place]])
    return total


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_options_in_batches_are_options_one_at_a_time(name: str) -> None:
    of = speaker(name)
    asks = [Ask(text, system) for text in PROMPTS for system in ("", "Je bent goed.")]
    asks += [Ask(text, chat=False) for text in PROMPTS]
    found = of.log_probs(asks, ["1", "2", "geen"])
    assert found.shape == (15, 3)
    for row, ask in enumerate(asks):
        for column, option in enumerate(("1", "2", "geen")):
            said = option if ask.chat else f" {option}"
            expected = by_definition(of, of.prompt(ask), said, bos=not ask.chat)
            assert found[row, column] == pytest.approx(expected, abs=1e-4)
    alone = np.concatenate([of.log_probs([ask], ["1", "2", "geen"]) for ask in asks])
    np.testing.assert_allclose(found, alone, atol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_writing_in_batches_is_writing_one_at_a_time(name: str) -> None:
    of = speaker(name)
    asks = [Ask(text) for text in PROMPTS]
    greedy = of.write(asks, tokens=5)
    for ask, said in zip(asks, greedy, strict=True):
        ids = of.lm.tokenizer(of.prompt(ask), add_special_tokens=False)["input_ids"]
        new: list[int] = []
        while len(new) < 5 and 2 not in new:
            with torch.inference_mode():
                logits = of.lm.model(torch.tensor([ids + new])).logits[0, -1]
            new.append(int(logits.argmax()))
        expected = of.lm.tokenizer.decode(new, skip_special_tokens=True)
        assert said == [expected]
    drawn = of.write(asks, tokens=5, samples=3, greedy=False, seed=1)
    assert drawn == [of.write([ask], tokens=5, samples=3, greedy=False, seed=1)[0] for ask in asks]
    assert drawn != of.write(asks, tokens=5, samples=3, greedy=False, seed=2)
    assert len({said for of_one in drawn for said in of_one}) > len(asks)


def test_draws_follow_the_models_own_temperature() -> None:
    of = speaker("bloom")
    ask = Ask("Choose.")
    ids = of.lm.tokenizer(of.prompt(ask), add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = of.lm.model(torch.tensor([ids])).logits[0, -1].double()
    texts = np.array([of._text([token]) for token in range(len(logits))])  # bytes may look alike
    own = of.lm.model.generation_config.temperature
    try:
        for temperature in (1.0, 0.3):
            of.lm.model.generation_config.temperature = temperature
            shares = (logits / temperature).softmax(-1).numpy()
            said = np.array(of.write([ask], tokens=1, samples=4000, greedy=False)[0])
            common = [text for text in np.unique(texts) if shares[texts == text].sum() > 0.01]
            kinds = [(np.isin(texts, some), np.isin(said, some)) for some in common]
            kinds.append((~np.isin(texts, common), ~np.isin(said, common)))  # all rare ones
            for could, did in kinds:
                expected = shares[could].sum()
                spread = np.sqrt(expected * (1 - expected) / len(said))
                assert abs(did.mean() - expected) < 5 * spread + 1e-9
            assert len(np.unique(said)) > 2
    finally:
        of.lm.model.generation_config.temperature = own


def test_a_persona_takes_the_system_turn_or_stands_before_the_users() -> None:
    ask = Ask("Kies.", "Je bent goed.")
    assert speaker().prompt(ask) == "<|system|>Je bent goed.</s><|user|>Kies.</s><|assistant|>"
    assert speaker(template=INST).prompt(ask) == "<s>[INST] Je bent goed.\n\nKies. [/INST]"
    plain = Ask("Kies.", "Je bent goed.", chat=False)
    assert speaker(template=None).prompt(plain) == "Je bent goed.\nKies."


def test_options_stand_as_the_template_begins_an_answer() -> None:
    of = speaker(template=INST)
    found = of.log_probs([Ask("Kies.")], ["1"])[0, 0]
    assert found == pytest.approx(by_definition(of, of.prompt(Ask("Kies.")), " 1", bos=False))
    # Plain text that ends in a line break of its own needs no blank.
    of = speaker(template=None)
    found = of.log_probs([Ask("Kies:\n", chat=False)], ["1"])[0, 0]
    assert found == pytest.approx(by_definition(of, "Kies:\n", "1", bos=True))


def test_thinking_that_the_template_opens_is_closed() -> None:
    assert speaker(template=THINKS).prompt(Ask("Kies.")).endswith("<think>\n\n</think>\n\n")


def test_budgets_change_nothing_and_every_prompt_is_counted() -> None:
    asks = [Ask(text) for text in PROMPTS] * 2
    counted: list[tuple[int, int]] = []
    found = speaker().write(asks, tokens=3, report=lambda *at: counted.append(at))
    assert found == speaker(tokens=1).write(asks, tokens=3)
    assert counted[-1] == (5, 5)  # the same prompt twice is asked once
    np.testing.assert_allclose(
        speaker().log_probs(asks, ["1", "2"]), speaker(tokens=1).log_probs(asks, ["1", "2"])
    )


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(RequestError, match="no chat template; ask in plain text"):
        speaker(template=None).log_probs([Ask("Kies.")], ["1"])
    with pytest.raises(RequestError, match=r"option '1' has no token of its own.*another option"):
        speaker().log_probs([Ask("Kies.")], ["1", "10"])
    with pytest.raises(RequestError, match="runs into the prompt's end"):
        speaker().log_probs([Ask("Kies.")], ["1", ""])
    with pytest.raises(TooLongError, match="1 prompts are longer than the 200 tokens") as caught:
        speaker().log_probs([Ask("Kies."), Ask("lang " * 200)], ["1"])
    assert caught.value.asks.tolist() == [1]
    with pytest.raises(TooLongError):
        speaker().write([Ask("Kies.")], tokens=190)
    with pytest.raises(ValueError, match="samples=2"):
        speaker().write([Ask("Kies.")], tokens=1, samples=2)
    lm = speaker().lm
    masked = LanguageModel("bert", "masked", lm.model, lm.tokenizer, "", "")
    with pytest.raises(RequestError, match=r"bert is masked.*score.scorer=auto"):
        LocalSpeaker(masked)
