"""Trees of prefixes on real architectures, against the definition: one forward pass a token."""

import difflib
from collections.abc import Iterator
from functools import cache

import numpy as np
import pandas as pd
import peft
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from eval.scorers import batching, causal, trees
from eval.scorers.batching import Effort, TokenBudget, Tokens
from eval.scorers.model import LanguageModel

VOCABULARY = 50
NAMES = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = {
    **NAMES,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.5,
}
LLAMA = {**SIZES, "intermediate_size": 32, "num_key_value_heads": 1, "max_position_embeddings": 400}
GPT2 = {**NAMES, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 400}
CONFIGS = {
    "gpt2": ("GPT2Config", {**GPT2, "initializer_range": 0.5}),
    "llama": ("LlamaConfig", LLAMA),
    "mistral": ("MistralConfig", {**LLAMA, "sliding_window": None}),
    "mistral, window 16": ("MistralConfig", {**LLAMA, "sliding_window": 16}),
    "mistral, window 8": ("MistralConfig", {**LLAMA, "sliding_window": 8}),
    "phi3": ("Phi3Config", LLAMA),
    "granite": ("GraniteConfig", {**LLAMA, "logits_scaling": 3.0}),
    "gemma3": ("Gemma3TextConfig", {**LLAMA, "head_dim": 8, "sliding_window": 64}),
    "qwen3": ("Qwen3Config", {**LLAMA, "head_dim": 8}),
    "opt": (
        "OPTConfig",
        {
            **{name: SIZES[name] for name in SIZES if name != "initializer_range"},
            "init_std": 0.5,
            "ffn_dim": 32,
            "word_embed_proj_dim": 16,
            "max_position_embeddings": 400,
        },
    ),
    "bloom": ("BloomConfig", {**NAMES, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "mpt": ("MptConfig", {**NAMES, "d_model": 16, "n_layers": 2, "n_heads": 2}),
    "xlm": (
        "XLMConfig",
        {
            **NAMES,
            "emb_dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "n_langs": 2,
            "causal": True,
            "asm": False,
            "embed_init_std": 0.5,
        },
    ),
}
for config in ("bloom", "mpt"):
    CONFIGS[config][1]["initializer_range"] = 0.5

#: How each is computed: sentences of up to 12 tokens, packs of up to 64 nodes.
EXPECTED = dict.fromkeys(CONFIGS, "trees of up to 64 nodes") | {
    "mistral, window 16": "trees of up to 16 nodes",
    "mistral, window 8": "equal lengths: 11 tokens are more than the model's attention window of 8",
    "bloom": "equal lengths: trees raise ValueError",
    "mpt": "equal lengths: trees differ by",  # ALiBi, silently wrong
    "xlm": "equal lengths: trees raise AssertionError",
}


@cache
def model(name: str, attention: str | None = None) -> LanguageModel:
    """A tiny random model."""
    config, values = CONFIGS[name]
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(
        getattr(transformers, config)(**values), attn_implementation=attention
    )
    return wrapped(made, language_id=1 if name == "xlm" else None)


def wrapped(made: PreTrainedModel, **more) -> LanguageModel:
    return LanguageModel("tiny", "causal", made.eval(), None, "w", "t", **more)


def sentences(count: int, seed: int = 0) -> list[list[int]]:
    """BOS, one of three stems or its beginning, and an ending; some of them twice."""
    draw = np.random.default_rng(seed)
    stems = draw.integers(3, VOCABULARY, (3, 6))
    return [
        [
            1,
            *stems[draw.integers(3), : draw.integers(1, 7)].tolist(),
            *draw.integers(3, VOCABULARY, draw.integers(0, 6)).tolist(),
        ]
        for _ in range(count)
    ]


def every_token(texts: list[list[int]]) -> tuple[Tokens, np.ndarray, np.ndarray]:
    """Requests for all tokens of all sentences."""
    chosen = [(row, place) for row, ids in enumerate(texts) for place in range(1, len(ids))]
    rows, places = np.array(chosen).T
    return Tokens.of(texts), rows, places


def define(lm: LanguageModel, tokens: Tokens, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The definition: a forward pass over what stands before each token."""

    @cache
    def after(context: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            logits = lm.model(**lm.inputs(torch.tensor([context]))).logits[0, -1]
        return torch.log_softmax(logits.double(), -1)

    return np.array(
        [
            after(tuple(tokens[row][:place].tolist()))[tokens[row][place]].item()
            for row, place in zip(rows, places, strict=True)
        ]
    )


def computed(
    lm: LanguageModel,
    tokens: Tokens,
    rows: np.ndarray,
    places: np.ndarray,
    budget: TokenBudget | int = 4096,
) -> tuple[np.ndarray, Effort]:
    """What the scorer gives; every request exactly once."""
    budget = TokenBudget(budget) if isinstance(budget, int) else budget
    effort, values, times = Effort(), np.full(len(rows), np.nan), np.zeros(len(rows), int)
    batches = causal.log_probs(lm, tokens, rows, places, budget=budget, effort=effort)
    for numbers, found in batches:
        assert found.dtype == np.float64
        values[numbers] = found
        times[numbers] += 1
    assert (times == 1).all()
    return values, effort


@cache
def truth(name: str) -> np.ndarray:
    """The definition of all tokens of `MANY`."""
    return define(model(name), *MANY)


@pytest.fixture
def small_packs(monkeypatch) -> None:
    monkeypatch.setattr(causal, "PACK", 64)


MANY = every_token(sentences(60))


@pytest.mark.parametrize("name", CONFIGS)
def test_architectures_are_exact_and_the_unfit_are_told(name, small_packs):
    values, effort = computed(model(name), *MANY)
    np.testing.assert_allclose(values, truth(name), atol=2e-5, rtol=0)
    assert effort.arrangement.startswith(EXPECTED[name])


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "opt"])
def test_eager_attention(name, small_packs):
    assert model(name).model.config._attn_implementation == "sdpa"
    values, effort = computed(model(name, "eager"), *MANY)
    np.testing.assert_allclose(values, truth(name), atol=2e-5, rtol=0)
    assert effort.arrangement.startswith("trees")


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(
        st.lists(st.integers(3, 5), min_size=1, max_size=9).map(lambda rest: [1, *rest]),
        min_size=1,
        max_size=30,
    ),
    budget=st.integers(1, 120),
    data=st.data(),
)
def test_is_the_definition(texts, budget, data):
    tokens, rows, places = every_token(texts)
    some = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, max_size=60))
    rows, places = rows[some], places[some]
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):  # trees, however few there are
            patch.setattr(causal._Work, "_no_use", lambda work: "")
        values, _ = computed(model("gpt2"), tokens, rows, places, budget)
    expected = define(model("gpt2"), tokens, rows, places)
    np.testing.assert_allclose(values, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("pack", "arrangement"), [(32, "equal lengths"), (400, "trees")])
def test_long_sentences_among_short_ones(pack, arrangement, monkeypatch):
    monkeypatch.setattr(causal, "PACK", pack)
    monkeypatch.setattr(causal, "_best_pack", lambda lm, made: 0)
    long = np.random.default_rng(1).integers(3, VOCABULARY, 299).tolist()
    branches = [[1, *long[:kept], 4, 4, 4] for kept in (150, 200, 250, 280)]
    tokens, rows, places = every_token([*sentences(30), [1, *long], *branches, [1, 7]])
    some = (places % 4 == 0) | (places == tokens.lengths[rows] - 1)
    drawn = tokens, rows[some], places[some]
    values, effort = computed(model("llama"), *drawn)
    assert effort.arrangement.startswith(arrangement)
    np.testing.assert_allclose(values, define(model("llama"), *drawn), atol=2e-5, rtol=0)


def test_packs_grow_with_the_model_and_its_sentences():
    short, long = every_token([[1, *range(9)]] * 2), every_token([[1, *range(99)]] * 2)
    sizes = [causal._best_pack(model("gpt2"), trees.plan(*drawn)) for drawn in (short, long)]
    assert sizes == [int((6 * 16 * length) ** 0.5) for length in (9, 99)]


def test_budget_order_and_processes_change_nothing():
    tokens, rows, places = MANY
    lm = model("gpt2")
    expected, _ = computed(lm, *MANY, budget=1)
    for budget in (7, 40, 100, 100_000):
        found, _ = computed(lm, *MANY, budget=budget)
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    shuffled = np.random.default_rng(0).permutation(len(rows))
    found, _ = computed(lm, tokens, rows[shuffled], places[shuffled], 100)
    np.testing.assert_allclose(found, expected[shuffled], atol=1e-5, rtol=0)
    for world in (1, 2, 3):
        shares = [causal.share(*MANY, rank, world) for rank in range(world)]
        assert sorted(np.concatenate(shares).tolist()) == list(range(len(rows)))
        for mine in shares:
            found, _ = computed(lm, tokens, rows[mine], places[mine], 100)
            np.testing.assert_allclose(found, expected[mine], atol=1e-5, rtol=0)


def test_shares_are_even_and_keep_prefixes_together(monkeypatch):
    monkeypatch.setattr(causal, "BLOCK", 100)
    drawn = tokens, rows, places = every_token(sentences(1500))
    whole = trees.plan(*drawn).grown[-1]
    nodes = []
    for rank in range(4):
        mine = causal.share(*drawn, rank, 4)
        np.testing.assert_array_equal(mine, causal.share(*drawn, rank, 4))
        nodes.append(trees.plan(tokens, rows[mine], places[mine]).grown[-1])
    assert max(nodes) < 1.1 * min(nodes)
    assert sum(nodes) < 1.15 * whole


def test_one_request_goes_to_one_process():
    tokens, rows, places = MANY
    rows, places = np.tile(rows, 2), np.tile(places, 2)
    halves = [causal.share(tokens, rows, places, rank, 2) for rank in (0, 1)]
    for mine in halves:
        half = len(rows) // 2
        assert set(mine[mine < half]) == set(mine[mine >= half] - half)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_meets_the_published_scripts(name, reference):
    golden = pd.read_csv(reference / "golden_scores.csv")
    golden = golden[golden["model"] == name]
    tokenizer = AutoTokenizer.from_pretrained(reference / "models" / name)
    made = AutoModelForCausalLM.from_pretrained(reference / "models" / name, dtype=torch.float32)
    texts, wanted = [], []
    for pair in golden[["sent_x", "sent_y"]].to_numpy():
        both = tokenizer(pair.tolist(), add_special_tokens=False)["input_ids"]
        both = [[tokenizer.bos_token_id, *ids] for ids in both]
        blocks = difflib.SequenceMatcher(None, *both, autojunk=False).get_matching_blocks()
        for side in (0, 1):
            starts = [(block[side], block.size) for block in blocks]
            places = [start + step for start, size in starts for step in range(size)]
            wanted += [(len(texts), place) for place in places if place]
            texts.append(both[side])
    rows, places = np.array(wanted).T
    values, effort = computed(wrapped(made), Tokens.of(texts), rows, places)
    assert effort.arrangement.startswith("trees")
    scores = np.bincount(rows, values).reshape(-1, 2)
    expected = golden[["score_x", "score_y"]].to_numpy()
    assert len(expected) == 240
    np.testing.assert_allclose(scores, expected, atol=1e-4, rtol=0)


def test_no_more_is_computed_than_must_be(small_packs):
    tokens, rows, places = MANY
    _, effort = computed(model("gpt2"), *MANY)
    made = trees.plan(*MANY)
    packs = list(trees.packs(made, 64, 0, len(made)))
    first, end, fullest = max(packs, key=lambda pack: pack[2])
    # Every pack, and the plain sentences of the one that is checked.
    assert effort.tokens == sum(pack[2] for pack in packs) + made.lengths[first:end].sum()
    distinct = {tuple(tokens[row].tolist()) for row in range(len(tokens))}
    assert effort.tokens < 0.75 * sum(map(len, distinct))
    contexts = {
        tuple(tokens[row][:place].tolist()) for row, place in zip(rows, places, strict=True)
    }
    assert effort.head_rows <= len(contexts) + 2 * fullest
    assert effort.passes <= len(packs) + 1 + len(set(made.lengths))


def test_where_little_is_shared_sentences_stay_plain():
    texts = [[1, start, 3, 4, 5] for start in range(3, VOCABULARY)]
    drawn = every_token(texts)
    _, effort = computed(model("gpt2"), *drawn)
    assert effort.arrangement.startswith("equal lengths: the sentences have too little in common")
    assert effort.tokens == 4 * len(texts)


@pytest.fixture
def memory() -> Iterator[list[int]]:
    """Forward passes of gpt2 over more tokens than this fail; the sizes of those that did."""
    inner, failed = model("gpt2").model, []
    forward = inner.forward

    def limited(*args, **given):
        if given["input_ids"].numel() > 40:
            failed.append(given["input_ids"].numel())
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args, **given)

    inner.forward = limited
    yield failed
    inner.forward = forward


def test_out_of_memory_makes_packs_smaller(memory):
    budget = TokenBudget(1000)
    values, effort = computed(model("gpt2"), *MANY, budget=budget)
    assert effort.arrangement.startswith(f"trees of up to {budget.tokens} nodes")
    assert budget.tokens <= 40 < budget.tokens * 4
    assert budget.halved
    assert memory
    np.testing.assert_allclose(values, truth("gpt2"), atol=1e-5, rtol=0)


def test_out_of_memory_in_the_middle(monkeypatch):
    lm, failed, packs = model("gpt2"), [], []
    forward = lm.model.forward

    def fails_once(*args, **given):
        packs.append("position_ids" in given)
        if sum(packs) == 3 and not failed:  # the first is the check
            failed.append(given["input_ids"].numel())
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return forward(*args, **given)

    monkeypatch.setattr(lm.model, "forward", fails_once)
    budget = TokenBudget(60)
    values, _ = computed(lm, *MANY, budget=budget)
    assert budget.halved
    assert budget.tokens < failed[0]
    np.testing.assert_allclose(values, truth("gpt2"), atol=1e-5, rtol=0)


def test_one_sentence_over_the_memory_is_an_error(memory):
    drawn = every_token([[1, *range(3, 48)], [1, *range(3, 47), 4], [1, *range(3, 46), 5]])
    with pytest.raises(torch.OutOfMemoryError):
        computed(model("gpt2"), *drawn)


def test_other_errors_are_not_swallowed(monkeypatch):
    def broken(*args, **given):
        raise RuntimeError("a broken kernel")

    lm = model("gpt2")
    monkeypatch.setattr(lm.model, "forward", broken)
    with pytest.raises(RuntimeError, match="a broken kernel"):
        computed(lm, *MANY)


@pytest.mark.parametrize("name", ["llama", "granite", "bloom"])
def test_large_vocabularies_go_through_the_head_in_blocks(name, monkeypatch, small_packs):
    lm = model(name)
    monkeypatch.setattr(batching, "LOGITS", 7 * VOCABULARY)
    rows = []
    head = lm.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda *call: rows.append(call[-1].numel() // VOCABULARY))
    try:
        values, _ = computed(lm, *MANY)
    finally:
        hook.remove()
    # The first look at a few short sentences apart.
    assert max(rows[1:]) == 7
    np.testing.assert_allclose(values, truth(name), atol=2e-5, rtol=0)


def test_several_packs_make_a_batch():
    """On an accelerator; here by hand."""
    lm = model("llama")
    made = trees.plan(*MANY)
    work = causal._Work(lm, made, TokenBudget(4096), Effort())
    begins = [first for first, _, _ in trees.packs(made, 30, 0, len(made))]
    asked, values = work._tree_pass(begins, len(made))
    expected = truth("llama")[made.requests[asked]]
    np.testing.assert_allclose(values, expected, atol=2e-5, rtol=0)


def test_inside_an_adapter(small_packs):
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA))
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, r=2)
    lm = wrapped(peft.get_peft_model(base, config))
    values, effort = computed(lm, *MANY)
    assert effort.arrangement.startswith("trees")
    np.testing.assert_allclose(values, define(lm, *MANY), atol=2e-5, rtol=0)
    with lm.model.disable_adapter():
        assert np.abs(values - define(lm, *MANY)).max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_reason_to_fall_back(dtype, small_packs):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**LLAMA, "initializer_range": 0.2})
    lm = wrapped(AutoModelForCausalLM.from_config(config).to(dtype))
    values, effort = computed(lm, *MANY)
    assert effort.arrangement.startswith("trees of up to 64 nodes")
    apart = np.abs(values - define(lm, *MANY))
    assert apart.max() <= causal.TOLERANCE[dtype]


def test_the_check_sees_a_small_and_a_rare_difference():
    expected = np.zeros(1000)
    rare, everywhere = expected.copy(), expected + 0.9e-3
    rare[17] = 2e-3
    for found in (rare, everywhere, np.where(rare > 0, np.nan, 0), np.where(rare > 0, -np.inf, 0)):
        assert causal._fault(found, expected, 1e-3).startswith("trees differ by")
    assert causal._fault(expected + 1e-5, expected, 1e-3) == ""
    unknown = np.array([np.nan, -np.inf, 0.0])
    assert causal._fault(unknown, unknown, 1e-3) == ""


def test_nan_is_handed_on():
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA))
    torch.nn.init.constant_(made.get_output_embeddings().weight, float("nan"))
    values, _ = computed(wrapped(made), *MANY)
    assert np.isnan(values).all()


def test_nothing_asked_nothing_done():
    none = np.zeros(0, np.int64)
    values, effort = computed(model("gpt2"), MANY[0], none, none)
    assert len(values) == effort.passes == 0
