"""The facts in recipes/model: one file a model that the papers name, and LoRA targets that fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

MODELS = Path(__file__).parents[2] / "recipes" / "model"
FILES = sorted(MODELS.glob("*.yaml"))
KEYS = {
    *("name", "hub", "kind", "size", "languages", "licence", "gated", "paper", "lora_targets"),
    *("langs", "sample", "gguf_package", "base_url"),
}

#: The hub ids and sizes of WinoQueer-NL (2609.02651), Table 5; the ids there are the hub's
#: older ones without an owner, where the hub has since given one.
TABLE_5 = {
    "bertje": ("GroNLP/bert-base-dutch-cased", "109M"),
    "robbert_v2": ("pdelobelle/robbert-v2-dutch-base", "117M"),
    "distilmbert": ("distilbert/distilbert-base-multilingual-cased", "135M"),
    "mbert": ("bert-base-multilingual-cased", "179M"),
    "xlmr_base": ("xlm-roberta-base", "279M"),
    "xlmr_large": ("xlm-roberta-large", "561M"),
    "gpt2_small_dutch": ("GroNLP/gpt2-small-dutch", "129M"),
    "gpt2_large_dutch": ("yhavinga/gpt2-large-dutch", "812M"),
    "schaapje_2b": ("robinsmits/Schaapje-2B-Pretrained", "2.53B"),
    "fietje_2": ("BramVanroy/fietje-2", "2.7B"),
    "llama3_2_1b": ("meta-llama/Llama-3.2-1B", "1.24B"),
    "llama3_2_3b": ("meta-llama/Llama-3.2-3B", "3.21B"),
    "phi4_mini": ("microsoft/Phi-4-mini-instruct", "3.84B"),
}
#: What each paper calls its open models, and our name.
NAMED = {
    "2609.02651": list(TABLE_5),
    "2507.16442": [
        *("bertje", "robbert_v2", "mbert", "bert_base", "roberta_large", "flaubert"),
        *("camembert", "geitje_7b", "mistral_7b"),
    ],
    "2608.30884": [
        *("bloom_560m", "gbert", "german_bert", "gpt2", "mbert", "opt_350m", "xlm_clm_ende"),
        *("xlm_mlm_ende", "xlmr_base"),
    ],
    "2601.20731": [
        *("bert_base", "bert_large", "roberta_base", "roberta_large", "llama3_8b"),
        *("llama3_70b", "gemma3_4b", "gemma3_27b", "deepseek_r1_8b", "deepseek_r1_671b"),
    ],
}
SMALL: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "flaubert": {"emb_dim": 32, "n_layers": 2, "n_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "opt": {"hidden_size": 32, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
    "llama": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
    "deepseek_v3": {"hidden_size": 32, "num_hidden_layers": 2, "n_routed_experts": 8},
}
SHAPES = {
    **SMALL,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), SMALL["bert"]),
    "xlm": SMALL["flaubert"],
    **dict.fromkeys(("phi", "phi3", "mistral", "granite", "gemma3_text"), SMALL["llama"]),
}
#: The model type in each checkpoint's config.
ARCHITECTURE = {
    **dict.fromkeys(("bertje", "mbert", "gbert", "german_bert", "bert_base", "bert_large"), "bert"),
    **dict.fromkeys(("robbert_v2", "roberta_base", "roberta_large"), "roberta"),
    **dict.fromkeys(("xlmr_base", "xlmr_large"), "xlm-roberta"),
    **dict.fromkeys(("gpt2", "gpt2_small_dutch", "gpt2_large_dutch"), "gpt2"),
    **dict.fromkeys(("xlm_clm_ende", "xlm_mlm_ende"), "xlm"),
    **dict.fromkeys(("llama3_2_1b", "llama3_2_3b", "llama3_8b", "llama3_70b"), "llama"),
    **dict.fromkeys(("deepseek_r1_8b", "smollm2_135m"), "llama"),
    **dict.fromkeys(("geitje_7b", "mistral_7b"), "mistral"),
    **dict.fromkeys(("gemma3_4b", "gemma3_27b"), "gemma3_text"),
    **dict.fromkeys(("samples_masked_de", "samples_masked_nl", "samples_masked_de_nl"), "bert"),
    **dict.fromkeys(("samples_causal_de", "samples_causal_nl"), "gpt2"),
    "distilmbert": "distilbert",
    "camembert": "camembert",
    "flaubert": "flaubert",
    "opt_350m": "opt",
    "bloom_560m": "bloom",
    "schaapje_2b": "granite",
    "fietje_2": "phi",
    "phi4_mini": "phi3",
    "deepseek_r1_671b": "deepseek_v3",
}


def facts(name: str) -> dict[str, Any]:
    return yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_says_its_launch_line_its_name_and_nothing_unknown(file: Path) -> None:
    first = file.read_text(encoding="utf-8").split("\n")[0]
    given = facts(file.stem)
    assert given["name"] == file.stem
    assert set(given) <= KEYS
    if file.stem == "custom":
        assert first.startswith("# mitigate score model.path=")
        assert given["hub"] is None
        return
    assert first.startswith(f"# mitigate score model={file.stem} benchmark=")
    if file.stem == "openai_compatible":  # no weights: nothing is known of it
        assert given["hub"] is None
        assert given["base_url"] == ""
        return
    assert given["kind"] in ("masked", "causal")
    assert given["licence"]
    assert given["languages"]
    assert given["lora_targets"]
    assert (given["hub"] is None) == ("sample" in given)


@pytest.mark.parametrize("name", TABLE_5)
def test_ids_and_sizes_are_those_of_table_5(name: str) -> None:
    hub, size = TABLE_5[name]
    given = facts(name)
    assert given["hub"] == hub or given["hub"].endswith(f"/{hub}")
    assert given["size"] == size


@pytest.mark.parametrize("paper", NAMED)
def test_every_open_model_of_a_paper_has_its_file_and_only_those_name_it(paper: str) -> None:
    naming = [file.stem for file in FILES if paper in (facts(file.stem).get("paper") or "")]
    assert naming == sorted(NAMED[paper])


def test_licences_that_must_be_accepted_are_gated() -> None:
    gated = {file.stem for file in FILES if facts(file.stem).get("gated")}
    makers = ("meta-llama/", "google/gemma")
    hubs = {file.stem: facts(file.stem)["hub"] or "" for file in FILES}
    assert gated == {name for name, hub in hubs.items() if hub.startswith(makers)}
    assert len(gated) == 6


@pytest.mark.parametrize("name", sorted(ARCHITECTURE))
def test_lora_targets_are_modules_of_the_architecture(name: str) -> None:
    kind = ARCHITECTURE[name]
    config = transformers.AutoConfig.for_model(kind, vocab_size=50, pad_token_id=0, **SHAPES[kind])
    given = facts(name)
    auto = AutoModelForMaskedLM if given["kind"] == "masked" else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    last = [module.rpartition(".")[2] for module, _ in model.named_modules()]
    for target in given["lora_targets"]:
        assert last.count(target) == 2, f"{target}: one a layer, in two layers"


def test_every_file_has_its_architecture_checked() -> None:
    assert set(ARCHITECTURE) == {file.stem for file in FILES} - {"custom", "openai_compatible"}


def test_only_the_xlm_pair_has_language_ids() -> None:
    assert {file.stem for file in FILES if "langs" in facts(file.stem)} == {
        "xlm_clm_ende",
        "xlm_mlm_ende",
    }
