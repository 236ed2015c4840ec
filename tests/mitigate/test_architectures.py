"""Every architecture of the papers, tiny: load, score, train a LoRA, score again, reload."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerBase

from corpora.samples.world import load_world, planted_text
from eval import benchmarks
from eval.benchmarks import BenchmarkSettings
from eval.errors import RequestError
from eval.pairs import Pairs
from eval.scorers import ScoreSettings, score
from eval.scorers.model import LanguageModel
from eval.scores import Scores
from mitigate.methods import Context
from mitigate.methods.continued import train
from mitigate.methods.rows import MaskedRows, text_rows
from mitigate.models import load, save_folder
from mitigate.sample_models import causal_tokenizer, masked_tokenizer
from mitigate.settings import LoraSettings, MethodSettings, ModelSettings

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
XLM = {
    "emb_dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "max_position_embeddings": 128,
    # XLM and FlauBERT start so small (embed_init_std 0.02) that scores would hardly differ.
    "embed_init_std": 0.3,
    "init_std": 0.3,
}
TWO_LANGUAGES = {
    **XLM,
    "n_langs": 2,
    "lang2id": {"de": 1, "en": 0},
    "id2lang": {0: "en", 1: "de"},
}
#: Each architecture: class, its shape, LoRA's targets as recipes/model has them.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "bert": ("BertForMaskedLM", SHAPE, ["query", "value"]),
    "roberta": ("RobertaForMaskedLM", SHAPE, ["query", "value"]),
    "xlm-roberta": ("XLMRobertaForMaskedLM", SHAPE, ["query", "value"]),
    "camembert": ("CamembertForMaskedLM", SHAPE, ["query", "value"]),
    "distilbert": (
        "DistilBertForMaskedLM",
        {
            "dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 32,
            "max_position_embeddings": 128,
            "initializer_range": 0.3,
        },
        ["q_lin", "v_lin"],
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        {**SHAPE, "initializer_cutoff_factor": 2.0, "local_attention": 8},
        ["Wqkv"],
    ),
    "flaubert": ("FlaubertWithLMHeadModel", XLM, ["q_lin", "v_lin"]),
    "xlm masked": ("XLMWithLMHeadModel", TWO_LANGUAGES, ["q_lin", "v_lin"]),
    # As on the hub: its config does not say that it reads left to right; the recipe does.
    "xlm causal": ("XLMWithLMHeadModel", TWO_LANGUAGES, ["q_lin", "v_lin"]),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128, "initializer_range": 0.3},
        ["c_attn"],
    ),
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
            "max_position_embeddings": 128,
            "init_std": 0.3,
        },
        ["q_proj", "v_proj"],
    ),
    "bloom": (
        "BloomForCausalLM",
        {"hidden_size": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3},
        ["query_key_value"],
    ),
    "phi": ("PhiForCausalLM", SHAPE, ["q_proj", "v_proj"]),
    "phi3": ("Phi3ForCausalLM", SHAPE, ["qkv_proj"]),
    **{
        kind: (name, {**SHAPE, "num_key_value_heads": 1}, ["q_proj", "v_proj"])
        for kind, name in (
            ("llama", "LlamaForCausalLM"),
            ("mistral", "MistralForCausalLM"),
        )
    },
    "granite": (
        "GraniteForCausalLM",
        {**SHAPE, "num_key_value_heads": 1, "logits_scaling": 4.0},
        ["q_proj", "v_proj"],
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {**SHAPE, "num_key_value_heads": 1, "head_dim": 8, "final_logit_softcapping": 5.0},
        ["q_proj", "v_proj"],
    ),
}
MASKED = {
    *("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "modernbert", "flaubert"),
    "xlm masked",
}


@pytest.fixture(scope="module")
def text() -> list[str]:
    return planted_text(load_world("de"), 500)


@pytest.fixture(scope="module")
def tokenizers(text: list[str]) -> dict[str, PreTrainedTokenizerBase]:
    return {"masked": masked_tokenizer(text), "causal": causal_tokenizer(text)}


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return benchmarks.load(
        BenchmarkSettings(
            name="samples_de", reader="samples", path="pkg:corpora/samples/de.yaml", limit=20
        )
    )


def kind_of(architecture: str) -> str:
    return "masked" if architecture in MASKED else "causal"


def build(architecture: str, tokenizer: PreTrainedTokenizerBase, folder: Path) -> ModelSettings:
    """Save a random model; the settings that load it, which say only what a user must."""
    name, shape, _ = ARCHITECTURES[architecture]
    kind = getattr(transformers, name)
    special = {
        key: getattr(tokenizer, key)
        for key in ("pad_token_id", "bos_token_id", "eos_token_id")
        if getattr(tokenizer, key) is not None
    }
    if name in ("XLMWithLMHeadModel", "FlaubertWithLMHeadModel"):
        special = {"pad_index": tokenizer.pad_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = kind.config_class(vocab_size=len(tokenizer), **special, **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)
    save_folder(model, tokenizer, folder)
    xlm = architecture.startswith("xlm ")
    return ModelSettings(
        path=str(folder),
        device="cpu",
        kind=kind_of(architecture) if xlm else "auto",
        langs="de" if xlm else None,
    )


def quick(**changed: Any) -> MethodSettings:
    given = {
        "name": "continued",
        "lr": 1e-2,
        "max_steps": 2,
        "batch": 2,
        "accumulation": 2,
        "eval_steps": 2,
        "save_steps": 2,
        "keep": "last",
        "block": 48,
        "weights": "lora",
        "lora": LoraSettings(r=4, alpha=8),
    }
    return MethodSettings(**(given | changed))


def defined_loss(lm: LanguageModel, texts: list[str], settings: MethodSettings, seed: int) -> float:
    """The evaluation loss written out: a row at a time, so nothing is padded.

    A batch's loss is the mean over its labelled tokens, the whole the mean over rows of theirs.
    """
    rows = text_rows(lm, texts, settings)
    if lm.kind == "masked":
        data = MaskedRows(rows, lm.tokenizer, settings.mask_share, seed, fixed=True)
        given = [(data[at]["input_ids"], data[at]["labels"]) for at in range(len(rows))]
    else:
        given = [(row[:-1], row[1:]) for row in rows]
    sums, counts = [], []
    for ids, labels in given:
        with torch.no_grad():
            logits = lm.model(**lm.inputs(torch.tensor([ids]))).logits[0]
        logs = torch.log_softmax(logits.double(), -1)
        sums.append(-sum(logs[at, token].item() for at, token in enumerate(labels) if token >= 0))
        counts.append(sum(token >= 0 for token in labels))
    total = 0.0
    for start in range(0, len(rows), settings.batch):
        part = slice(start, start + settings.batch)
        total += sum(sums[part]) / sum(counts[part]) * len(sums[part])
    return total / len(rows)


def measured(lm: LanguageModel, pairs: Pairs) -> Scores:
    with warnings.catch_warnings():  # the tiny tokenizers fold words
        warnings.simplefilter("ignore")
        return score(lm, pairs, ScoreSettings())


def values(scores: Scores) -> torch.Tensor:
    return torch.tensor(scores.table[["score_more", "score_less"]].to_numpy())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_load_score_train_score_reload(
    architecture: str,
    tokenizers: dict[str, PreTrainedTokenizerBase],
    text: list[str],
    pairs: Pairs,
    tmp_path: Path,
) -> None:
    given = build(architecture, tokenizers[kind_of(architecture)], tmp_path / "base")
    lm = load(given)
    assert lm.kind == kind_of(architecture)
    before = measured(lm, pairs)
    assert before.meta["language_id"] == (1 if architecture.startswith("xlm ") else None)
    assert len(before.table) == 20
    assert torch.isfinite(values(before)).all()

    expected = defined_loss(lm, text[60:70], quick(), seed=0)
    logged: list[dict[str, Any]] = []
    trained = train(
        Context(
            lm=lm,
            train=text[:60],
            valid=text[60:70],
            settings=quick(),
            lora_targets=ARCHITECTURES[architecture][2],
            seed=0,
            processes=1,
            checkpoints=tmp_path / "checkpoints",
            log=logged.append,
            say=lambda line: None,
        )
    )
    assert trained.adapter
    assert trained.facts["steps"] == 2
    # LoRA starts at nothing: the first evaluation is that of the base model.
    losses = [line["train/eval_loss"] for line in logged if "train/eval_loss" in line]
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] != losses[0]
    after = measured(lm, pairs)  # the adapter sits in the model that was loaded
    assert torch.isfinite(values(after)).all()
    moved = (values(after) - values(before)).abs().amax(1)
    assert (moved > 1e-3).float().mean() > 0.9

    save_folder(trained.model, lm.tokenizer, tmp_path / "adapter")
    given.adapter = str(tmp_path / "adapter")
    reloaded = load(given)
    assert reloaded.fingerprint != lm.fingerprint
    torch.testing.assert_close(values(measured(reloaded, pairs)), values(after), atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_a_masked_model_sees_what_comes_after(
    architecture: str, tokenizers: dict[str, PreTrainedTokenizerBase], tmp_path: Path
) -> None:
    kind = kind_of(architecture)
    lm = load(build(architecture, tokenizers[kind], tmp_path / "base"))
    ids = torch.tensor([[6, 7, 8, 9, 10, 11]])
    other = ids.clone()
    other[0, -1] = 12
    with torch.no_grad():
        before, after = (lm.model(**lm.inputs(some)).logits[0, :-1] for some in (ids, other))
    assert torch.allclose(before, after, atol=1e-6) == (kind == "causal")


def test_the_language_reaches_xlm(
    tokenizers: dict[str, PreTrainedTokenizerBase], text: list[str], pairs: Pairs, tmp_path: Path
) -> None:
    given = build("xlm masked", tokenizers["masked"], tmp_path / "base")
    german = measured(load(given), pairs)
    given.langs = "en"
    english = measured(load(given), pairs)
    assert (german.meta["language_id"], english.meta["language_id"]) == (1, 0)
    assert not torch.allclose(values(german), values(english), atol=1e-3)
    given.langs = "fr"
    with pytest.raises(RequestError, match=r"model\.langs=fr"):
        load(given)
