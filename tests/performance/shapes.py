"""Models of real shapes with random weights, real sentences, and what a pass over them costs."""

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)
from transformers.pytorch_utils import Conv1D

from eval import benchmarks
from eval.benchmarks import BenchmarkSettings
from eval.pairs import Pairs, build
from eval.scorers.model import LanguageModel

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference"


def reference() -> Path:
    """The folder of reference data; without it there is nothing to measure on."""
    if not REFERENCE.is_dir():
        raise SystemExit("no reference data at ../shared/reference: nothing was measured")
    return REFERENCE


def sample_pairs() -> Pairs:
    """The sample in WinoQueer-NL's form: 8,336 pairs."""
    folder = reference()
    return benchmarks.load(
        BenchmarkSettings(
            name="winoqueer_nl",
            reader="winoqueer_nl",
            language="nl",
            path=str(folder / "winoqueer_nl_sample_pairs.csv"),
            predicates_path=str(folder / "winoqueer_nl_sample_predicates.csv"),
        )
    )


def grown_pairs(count: int) -> Pairs:
    """`count` pairs in the sample's form: its own, and again with their first words changed.

    Each copy begins with a word of its own, so that no sentence of one is in another.
    """
    table = sample_pairs().table
    copies = []
    for copy in range(-(-count // len(table))):
        front = f"nummer {copy} zegt dat " if copy else ""
        more, less = (front + table[column] for column in ("sent_more", "sent_less"))
        copies.append(table[["group", "stereotype_id"]].assign(sent_more=more, sent_less=less))
    rows = pd.concat(copies, ignore_index=True).head(count)
    return build(rows, name="grown", language="nl")


BERT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
             "intermediate_size": 3072, "vocab_size": 30_522}  # fmt: skip
GPT2_SMALL = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257}
XLMR_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
              "intermediate_size": 4096, "vocab_size": 250_002,
              "max_position_embeddings": 514}  # fmt: skip
LLAMA_1B = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128_256,
            "head_dim": 64}  # fmt: skip


@functools.cache
def random_model(
    name: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32, **changed: Any
) -> LanguageModel:
    """A model of a real shape, its weights drawn at random; its tokenizer a reference one."""
    kind, model_class, config, shape, tokenizer = {
        "bert-base": ("masked", BertForMaskedLM, BertConfig, BERT_BASE, "bert-cased"),
        "gpt2-small": ("causal", GPT2LMHeadModel, GPT2Config, GPT2_SMALL, "gpt2"),
        "xlmr-large": (
            "masked",
            XLMRobertaForMaskedLM,
            XLMRobertaConfig,
            XLMR_LARGE,
            "xlm-roberta",
        ),
        "llama-1b": ("causal", LlamaForCausalLM, LlamaConfig, LLAMA_1B, "llama"),
    }[name]  # fmt: skip
    made = AutoTokenizer.from_pretrained(reference() / "models" / tokenizer)
    ids = {"pad_token_id": made.pad_token_id, "bos_token_id": made.bos_token_id}
    torch.manual_seed(0)
    with torch.device(device):
        model = model_class(config(**shape | ids | changed)).to(dtype).eval()
    return LanguageModel(name, kind, model, made, "random", tokenizer)


@dataclass(frozen=True)
class Cost:
    """Multiplications and additions of a model's matrix products, from its own layers."""

    a_token: int  # of the body, for each position computed
    a_head_row: int  # of the head, for each position that goes through it
    a_pair_of_tokens: int  # attention, for each two positions that may see each other

    def flops(self, tokens: int, head_rows: int, token_pairs: int) -> float:
        return (
            self.a_token * tokens
            + self.a_head_row * head_rows
            + self.a_pair_of_tokens * token_pairs
        )


def cost(lm: LanguageModel) -> Cost:
    """What a pass costs: two operations a weight of every linear layer, and attention."""
    body = set(map(id, lm.model.base_model.modules()))
    totals = {True: 0, False: 0}
    for module in lm.model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            totals[id(module) in body] += 2 * module.weight.numel()
    config = lm.model.config
    return Cost(totals[True], totals[False], 4 * config.num_hidden_layers * config.hidden_size)


def matmul_rate(device: str = "cpu", dtype: torch.dtype = torch.float32, size: int = 2048) -> float:
    """This machine's own rate of matrix products, in floating-point operations a second."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    rounds = 8 if device == "cpu" else 200  # as sustained as scoring is: a burst would be faster
    torch.mm(left, right)
    _wait(device)
    begun = time.perf_counter()
    for _ in range(rounds):
        torch.mm(left, right)
    _wait(device)
    return rounds * 2 * size**3 / (time.perf_counter() - begun)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def peak_memory() -> int:
    """The most memory that this process has held, in bytes."""
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) * 1024


def pairs_seen(lengths: np.ndarray) -> int:
    """How many pairs of tokens see each other in plain rows of these lengths."""
    return int((lengths.astype(np.int64) ** 2).sum())
