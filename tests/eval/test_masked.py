"""Masked models' log-probabilities against the definition: one input, one forward pass, a request.

The output head on chosen positions is tested here too, on every architecture that users have.
"""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model

from eval.scorers import head, masked
from eval.scorers.batching import Effort, TokenBudget, Tokens
from eval.scorers.head import Head, head_selects, selected_logits
from eval.scorers.model import LanguageModel

VOCAB, MASK = 40, 4
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 320,
    "initializer_range": 0.4,
}
XLM = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "embed_init_std": 0.4, "init_std": 0.4}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
LLAMA = {**SHAPE, "num_key_value_heads": 1, "head_dim": 8}
#: Each architecture: class and shape.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", SHAPE),
    "roberta": ("RobertaForMaskedLM", SHAPE),
    "xlm-roberta": ("XLMRobertaForMaskedLM", SHAPE),
    "camembert": ("CamembertForMaskedLM", SHAPE),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "initializer_range": 0.4},
    ),
    "albert": ("AlbertForMaskedLM", {**SHAPE, "embedding_size": 8}),
    "electra": ("ElectraForMaskedLM", {**SHAPE, "embedding_size": 8}),
    "mpnet": ("MPNetForMaskedLM", SHAPE),
    "deberta-v2": ("DebertaV2ForMaskedLM", {**SHAPE, **DEBERTA}),
    "deberta-v3": ("DebertaV2ForMaskedLM", {**SHAPE, **DEBERTA, "legacy": False}),
    "modernbert": (
        "ModernBertForMaskedLM",
        {**SHAPE, "initializer_cutoff_factor": 2.0, "local_attention": 8},
    ),
    "flaubert": ("FlaubertWithLMHeadModel", XLM),
    "xlm": (
        "XLMWithLMHeadModel",
        {**XLM, "n_langs": 2, "lang2id": {"de": 1, "en": 0}, "id2lang": {0: "en", 1: "de"}},
    ),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 2}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "qwen3": ("Qwen3ForCausalLM", LLAMA),
    "phi3": ("Phi3ForCausalLM", SHAPE),
    "gemma3": ("Gemma3ForCausalLM", {**LLAMA, "final_logit_softcapping": 5.0}),
    "granite": ("GraniteForCausalLM", {**LLAMA, "logits_scaling": 4.0}),
    "bloom": ("BloomForCausalLM", {"hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "opt": (
        "OPTForCausalLM",
        {
            # As opt-350m: embeddings narrower than the layers, the norm after them.
            "hidden_size": 16,
            "word_embed_proj_dim": 8,
            "do_layer_norm_before": False,
            "ffn_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        },
    ),
}
CAUSAL = {"gpt2", "llama", "qwen3", "phi3", "gemma3", "granite", "bloom", "opt"}
MASKED = [name for name in ARCHITECTURES if name not in CAUSAL]


def language_model(architecture: str = "bert", **changed: Any) -> LanguageModel:
    """A tiny random model."""
    name, shape = ARCHITECTURES[architecture]
    klass = getattr(transformers, name)
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    torch.manual_seed(0)
    model = klass(klass.config_class(vocab_size=VOCAB, **tokens, **shape, **changed)).eval()
    return wrapped(model, architecture)


def wrapped(model: torch.nn.Module, architecture: str = "bert") -> LanguageModel:
    tokenizer: Any = SimpleNamespace(mask_token_id=MASK)
    kind = "causal" if architecture in CAUSAL else "masked"
    language = 1 if architecture == "xlm" else None
    return LanguageModel("tiny", kind, model, tokenizer, "w", "t", language)  # type: ignore[arg-type]


BERT = language_model()


def define(lm: LanguageModel, ids: np.ndarray, place: int, until: int | None = None) -> float:
    """log P(token at place), the positions place … until - 1 masked. As slow as it is obvious."""
    seen = torch.tensor(ids.tolist())
    seen[place : place + 1 if until is None else until] = MASK
    with torch.no_grad():
        logits = lm.model(**lm.inputs(seen[None])).logits[0, place]
    return torch.log_softmax(logits.double(), -1)[ids[place]].item()


def computed(
    lm: LanguageModel,
    tokens: Tokens,
    rows: np.ndarray,
    places: np.ndarray,
    *,
    until: np.ndarray | None = None,
    budget: int = 1000,
    effort: Effort | None = None,
) -> np.ndarray:
    found = masked.log_probs(
        lm,
        tokens,
        rows,
        places,
        until=until,
        budget=TokenBudget(budget),
        effort=effort or Effort(),
    )
    return gathered(found, len(rows))


def gathered(found: Any, requests: int) -> np.ndarray:
    """Every request's value; each must come exactly once."""
    values, seen = np.full(requests, np.nan), np.zeros(requests, int)
    for numbers, value in found:
        assert value.dtype == np.float64
        values[numbers] = value
        np.add.at(seen, numbers, 1)
    assert (seen == 1).all()
    return values


def everything(sentences: list[list[int]]) -> tuple[Tokens, np.ndarray, np.ndarray]:
    """Requests for every token but the first and the last of every sentence."""
    tokens = Tokens.of([[2, *sentence, 3] for sentence in sentences])
    inner = tokens.lengths - 2
    rows = np.repeat(np.arange(len(tokens)), inner)
    places = np.concatenate([1 + np.arange(count) for count in inner])
    return tokens, rows, places


TEXT = [[5, 6, 7, 8], [5, 6, 7, 9], [9], [7, 7, 7], [10, 11, 12, 13, 14, 15], [8], [5, 6, 30, 9]]
# Few words, so that they repeat and sentences differ in one.
SENTENCES = st.lists(
    st.lists(st.integers(5, 9), min_size=1, max_size=7), min_size=1, max_size=6, unique_by=tuple
)


@settings(max_examples=25, deadline=None)
@given(sentences=SENTENCES, budget=st.integers(1, 60), seed=st.integers(0, 99), words=st.booleans())
def test_is_the_definition_whatever_the_budget_and_the_order(sentences, budget, seed, words):
    tokens, rows, places = everything(sentences)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    rows, places = rows[order], places[order]
    until = None
    if words:
        until = np.minimum(places + rng.integers(0, 3, len(rows)), tokens.lengths[rows])
    found = computed(BERT, tokens, rows, places, until=until, budget=budget)
    ends = [None] * len(rows) if until is None else until.tolist()
    expected = [
        define(BERT, tokens[row], place, end)
        for row, place, end in zip(rows, places, ends, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_long_sentences_beside_short_ones():
    rng = np.random.default_rng(0)
    tokens = Tokens.of([rng.integers(5, VOCAB, 300), rng.integers(5, VOCAB, 3)])
    rows, places = np.array([0, 1, 0, 0]), np.array([299, 1, 0, 150])
    expected = [define(BERT, tokens[row], place) for row, place in zip(rows, places, strict=True)]
    for budget in (10, 700):
        found = computed(BERT, tokens, rows, places, budget=budget)
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_no_request_is_no_work():
    none = np.zeros(0, np.int64)
    effort = Effort()
    assert computed(BERT, Tokens.of([[2, 5, 3]]), none, none, effort=effort).shape == (0,)
    assert effort == Effort()


@pytest.mark.parametrize("architecture", MASKED)
def test_every_architecture(architecture):
    lm = language_model(architecture)
    tokens, rows, places = everything(TEXT)
    effort = Effort()
    found = computed(lm, tokens, rows, places, effort=effort)
    expected = [define(lm, tokens[row], place) for row, place in zip(rows, places, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert np.ptp(found) > 0.1
    assert effort.arrangement == "equal lengths, only wanted positions through the output head"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_selected_logits(architecture, monkeypatch):
    lm = language_model(architecture)
    ids = torch.randint(5, VOCAB, (3, 6))
    rows, places = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([4, 1, 3, 0, 5])
    inputs = lm.inputs(ids)
    with torch.inference_mode():
        expected = lm.model(**inputs).logits[rows, places]
        whole = selected_logits(lm, inputs, rows, places)
        monkeypatch.setattr(head, "logit_rows", lambda lm: 2)
        parts = selected_logits(lm, inputs, rows, places)
        after = lm.model(**inputs).logits[rows, places]
    for found in (whole, parts, after):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert head_selects(lm, inputs, rows, places)


@pytest.mark.parametrize("architecture", ["bert", "xlm", "llama"])
def test_selected_logits_through_an_adapter(architecture):
    plain = language_model(architecture)
    targets = {"bert": "query", "xlm": "q_lin", "llama": "q_proj"}[architecture]
    config = LoraConfig(r=2, target_modules=[targets], init_lora_weights=False)
    lm = wrapped(get_peft_model(plain.model, config).eval(), architecture)
    inputs = lm.inputs(torch.randint(5, VOCAB, (2, 5)))
    rows, places = torch.tensor([0, 1]), torch.tensor([3, 1])
    assert head_selects(lm, inputs, rows, places)
    with torch.inference_mode():
        expected = lm.model(**inputs).logits[rows, places]
        torch.testing.assert_close(selected_logits(lm, inputs, rows, places), expected)
        lm.model.disable_adapter_layers()
        assert not torch.allclose(lm.model(**inputs).logits[rows, places], expected, atol=1e-3)


def test_large_vocabularies_never_have_all_their_logits_at_once(monkeypatch):
    tokens, rows, places = everything(TEXT)
    expected = computed(BERT, tokens, rows, places)
    sizes = []
    hook = BERT.model.get_output_embeddings().register_forward_hook(
        lambda module, args, output: sizes.append(output.shape[:-1].numel())
    )
    monkeypatch.setattr(head, "logit_rows", lambda lm: 2)
    effort, trunk = Effort(), []
    spy = BERT.model.bert.embeddings.register_forward_hook(
        lambda module, args, output: trunk.append(output.shape[:-1].numel())
    )
    monkeypatch.setattr(masked, "_checked_head", lambda lm, plan: Head(lm))
    try:
        found = computed(BERT, tokens, rows, places, effort=effort)
    finally:
        hook.remove()
        spy.remove()
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert max(sizes) == 2
    assert sum(sizes) == effort.head_rows
    assert sum(trunk) == effort.tokens  # which is not computed anew for each block


class Mixing(torch.nn.Module):
    """A head that looks at its neighbours."""

    def __init__(self, inner: torch.nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden + hidden.roll(1, dims=1))


class Fixed(Mixing):
    """A head that can't do with fewer positions."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden.view(-1, 6, hidden.shape[-1]))


@pytest.mark.parametrize(("kind", "why"), [(Mixing, "its logits differ"), (Fixed, "it raises")])
def test_a_head_that_needs_all_positions_gets_them(kind, why, monkeypatch):
    lm = language_model()
    decoder = lm.model.get_output_embeddings()
    lm.model.cls = kind(lm.model.cls)
    monkeypatch.setattr(lm.model, "get_output_embeddings", lambda: decoder)
    tokens, rows, places = everything([TEXT[0], TEXT[1], [7, 8, 8, 9]])
    expected = [define(lm, tokens[row], place) for row, place in zip(rows, places, strict=True)]
    for most in (10**6, 1):  # logits at once
        monkeypatch.setattr(head, "logit_rows", lambda lm, most=most: most)
        effort = Effort()
        found = computed(lm, tokens, rows, places, effort=effort)
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
        assert f"every position through the output head: {why}" in effort.arrangement
        assert effort.head_rows == effort.tokens
    inputs = lm.inputs(torch.from_numpy(tokens.block(np.arange(3))))
    assert not head_selects(lm, inputs, torch.tensor([0]), torch.tensor([2]))


def test_a_model_without_a_base_gets_all_positions():
    class Bare(torch.nn.Module):
        device, dtype = BERT.model.device, BERT.model.dtype
        get_output_embeddings = BERT.model.get_output_embeddings

        def forward(self, **given: torch.Tensor) -> Any:
            return BERT.model(**given)

    tokens, rows, places = everything(TEXT)
    effort = Effort()
    found = computed(wrapped(Bare()), tokens, rows, places, effort=effort)
    np.testing.assert_allclose(found, computed(BERT, tokens, rows, places), atol=1e-5, rtol=0)
    assert "the model names no base model" in effort.arrangement


def test_not_a_number_comes_out_as_it_is():
    lm = language_model()
    with torch.no_grad():
        lm.model.bert.embeddings.word_embeddings.weight[9] = float("nan")
    tokens, rows, places = everything(TEXT)
    effort = Effort()
    found = computed(lm, tokens, rows, places, effort=effort)
    with_nan = np.array([9 in np.delete(tokens[r], p) for r, p in zip(rows, places, strict=True)])
    assert np.isnan(found[with_nan]).all()
    assert "only wanted" in effort.arrangement


class Spy:
    """Notes the inputs of every forward pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lm: LanguageModel):
        self.passes: list[dict[str, torch.Tensor]] = []
        inner = lm.model.forward

        def forward(**given: Any) -> Any:
            self.passes.append(given)
            return inner(**given)

        monkeypatch.setattr(lm.model, "forward", forward)


def test_nothing_is_padded_and_no_input_is_computed_twice(monkeypatch):
    tokens, rows, places = everything(TEXT)
    monkeypatch.setattr(masked, "_checked_head", lambda lm, plan: Head(lm))
    spy, effort = Spy(monkeypatch, BERT), Effort()
    computed(BERT, tokens, rows, places, effort=effort)
    inputs = []
    for seen in spy.passes:
        assert (seen["attention_mask"] == 1).all()
        inputs += [tuple(row) for row in seen["input_ids"].tolist()]
    wanted = set()
    for row, place in zip(rows, places, strict=True):
        ids = tokens[row].tolist()
        ids[place] = MASK
        wanted.add(tuple(ids))
    assert len(inputs) == len(wanted) < len(rows)
    assert set(inputs) == wanted
    assert effort.head_rows == len(wanted)
    assert effort.passes == len(spy.passes) == len(set(tokens.lengths))
    assert effort.tokens == sum(map(len, inputs))


def test_sentences_that_hold_a_mask_of_their_own():
    tokens = Tokens.of([[2, MASK, 6, 3], [2, 6, MASK, 3], [2, MASK, MASK, 3]])
    rows, places = np.array([0, 1, 0, 1, 2]), np.array([2, 1, 1, 2, 2])
    expected = [define(BERT, tokens[row], place) for row, place in zip(rows, places, strict=True)]
    found = computed(BERT, tokens, rows, places)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_colliding_hashes_cost_passes_not_digits(monkeypatch):
    tokens, rows, places = everything(TEXT)
    expected = computed(BERT, tokens, rows, places)
    monkeypatch.setattr(masked, "_sums", lambda values: np.zeros(len(values) + 1, np.uint64))
    monkeypatch.setattr(masked, "CHUNK", 12)  # several chunks for one length
    effort = Effort()
    found = computed(BERT, tokens, rows, places, effort=effort)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_unmasked_needs_one_pass_a_sentence(monkeypatch):
    tokens, rows, places = everything(TEXT)
    monkeypatch.setattr(masked, "_checked_head", lambda lm, plan: Head(lm))
    spy, effort = Spy(monkeypatch, BERT), Effort()
    found = masked.unmasked_log_probs(
        BERT, tokens, rows, places, budget=TokenBudget(1), effort=effort
    )
    values = gathered(found, len(rows))
    assert len(spy.passes) == len(TEXT)
    assert effort.head_rows == len(rows)
    expected = [
        define(BERT, tokens[row], place, place) for row, place in zip(rows, places, strict=True)
    ]
    np.testing.assert_allclose(values, expected, atol=1e-5, rtol=0)


@settings(max_examples=25, deadline=None)
@given(sentences=SENTENCES, world=st.integers(1, 5))
def test_every_request_is_on_one_process(sentences, world):
    tokens, rows, places = everything(sentences)
    shares = [masked.share(tokens, rows, places, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(shares)) == list(range(len(rows)))
    again = masked.share(tokens, rows, places, 0, world)
    np.testing.assert_array_equal(again, shares[0])
    for mine in shares:  # whole sentences
        assert np.isin(rows, rows[mine]).sum() == len(mine)


def test_shares_cost_the_same_and_give_the_same():
    rng = np.random.default_rng(0)
    sentences = [rng.integers(5, VOCAB, rng.integers(1, 9)).tolist() for _ in range(400)]
    tokens, rows, places = everything(sentences)
    shares = [masked.share(tokens, rows, places, rank, 3) for rank in range(3)]
    costs = [tokens.lengths[rows[mine]].sum() for mine in shares]
    assert max(costs) < 1.05 * min(costs)
    whole = computed(BERT, tokens, rows, places)
    for mine in shares:
        part = computed(BERT, tokens, rows[mine], places[mine])
        np.testing.assert_allclose(part, whole[mine], atol=1e-5, rtol=0)


@pytest.mark.parametrize("most", [1, 5])
def test_out_of_memory_halves_the_budget_for_good(monkeypatch, most):
    tokens, rows, places = everything(TEXT)
    expected = computed(BERT, tokens, rows, places)
    inner, sizes = BERT.model.bert.forward, []

    def forward(input_ids: torch.Tensor, **given: Any) -> Any:
        sizes.append(len(input_ids))
        if len(input_ids) > most:
            raise torch.OutOfMemoryError("too large")
        return inner(input_ids, **given)

    monkeypatch.setattr(BERT.model.bert, "forward", forward)
    budget, effort = TokenBudget(1000), Effort()
    found = masked.log_probs(BERT, tokens, rows, places, budget=budget, effort=effort)
    np.testing.assert_allclose(gathered(found, len(rows)), expected, atol=1e-5, rtol=0)
    assert budget.halved > 0
    assert budget.tokens < (most + 1) * tokens.lengths.max()
    failed = [size > most for size in sizes]
    assert sum(failed) < budget.halved + 4
    # What failed is not counted.
    clean = Effort()
    computed(BERT, tokens, rows, places, budget=budget.tokens, effort=clean)
    assert effort.head_rows == clean.head_rows


def test_other_errors_go_through(monkeypatch):
    def forward(*args: Any, **given: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(BERT.model.bert, "forward", forward)
    tokens, rows, places = everything(TEXT)
    budget = TokenBudget(1000)
    with pytest.raises(RuntimeError, match="mat1"):
        list(masked.log_probs(BERT, tokens, rows, places, budget=budget, effort=Effort()))
    assert budget.halved == 0


def test_planning_half_a_million_requests_takes_little_memory():
    rng = np.random.default_rng(0)
    sentences = 50_000
    tokens = Tokens(rng.integers(5, 30_000, 12 * sentences), np.arange(0, 12 * sentences + 1, 12))
    rows, places = np.repeat(np.arange(sentences), 10), np.tile(np.arange(1, 11), sentences)
    tracemalloc.start()
    plan = masked._plan(tokens, rows, places, places + 1, MASK)
    masked.share(tokens, rows, places, 1, 4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan.first) == 500_000
    assert peak < 150 * 2**20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_selects_too(dtype):
    lm = language_model()
    lm = wrapped(lm.model.to(dtype))
    tokens, rows, places = everything(TEXT)
    effort = Effort()
    found = computed(lm, tokens, rows, places, effort=effort)
    assert "only wanted" in effort.arrangement
    expected = [define(lm, tokens[row], place) for row, place in zip(rows, places, strict=True)]
    np.testing.assert_allclose(found, expected, atol=0.1, rtol=0)
