"""Training's throughput beside the plain Hugging Face example loop: tokens of text a second.

python -m tests.performance.training [--texts N] [--rounds N]   writes tests/performance/TRAINING.md

The plain loop is that of transformers' run_mlm_no_trainer.py and run_clm_no_trainer.py with a
text a row: random batches, padded to the longest text of each. Model, texts, threads, optimiser
and texts a forward pass (on the average) are the same, the two take turns in one process, and
what counts are the texts' own tokens, neither padding nor special tokens, and the process's
own seconds, which other work on the machine doesn't lengthen.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorForLanguageModeling

from corpora.samples.world import load_world, planted_text
from eval.scorers.model import LanguageModel
from mitigate.methods import Context
from mitigate.methods.rows import text_rows
from mitigate.methods.training import fit
from mitigate.settings import MethodSettings
from tests.performance.shapes import random_model

BATCH = 8  # texts a forward pass, the German paper's
BLOCK = 256  # the recipes' tokens a row
#: BERT-mini's shape (Turc et al. 2019), and as deep and wide a GPT-2: a minute on one core.
SMALL: dict[str, dict[str, Any]] = {
    "bert-base": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
                  "intermediate_size": 1024, "vocab_size": 28_996},
    "gpt2-small": {"n_embd": 256, "n_layer": 4, "n_head": 4},
}  # fmt: skip


def posts(count: int) -> list[str]:
    """Texts as long as short posts: sentences of the embedded world, one to ten in each."""
    draw = np.random.default_rng(0)
    # Log-normal, as lengths of posts are: half of them have one sentence or two.
    sizes = np.clip(np.round(draw.lognormal(0.6, 0.8, count)), 1, 10).astype(int)
    sentences = planted_text(load_world("de"), int(sizes.sum()))
    ends = np.cumsum(sizes)
    return [" ".join(sentences[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def text_tokens(lm: LanguageModel, texts: list[str]) -> int:
    found = lm.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return sum(len(ids[:BLOCK]) for ids in found)


def plain(lm: LanguageModel, texts: list[str]) -> float:
    """Tokens of text a second in the plain loop, one epoch, the first batch apart."""
    tokenizer = lm.tokenizer
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows = [tokenizer(text, truncation=True, max_length=BLOCK) for text in texts]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=lm.kind == "masked")
    torch.manual_seed(0)
    order = torch.randperm(len(rows)).tolist()
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    counted = text_tokens(lm, [texts[at] for batch in batches[1:] for at in batch])
    optimiser = torch.optim.AdamW(lm.model.parameters(), lr=1e-5, fused=True)
    lm.model.train()
    begun = 0.0
    for number, batch in enumerate(batches):
        if number == 1:
            begun = time.process_time()
        lm.model(**collate([rows[at] for at in batch])).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return counted / (time.process_time() - begun)


def ours(lm: LanguageModel, texts: list[str], rows_a_pass: int) -> float:
    """Tokens of text a second as the product trains, one epoch, the first batch apart."""
    settings = MethodSettings(
        name="full", lr=1e-5, epochs=1, batch=rows_a_pass, accumulation=1, block=BLOCK,
        keep="last", packing=lm.kind == "causal",
    )  # fmt: skip
    told: list[tuple[float, int]] = []

    def log(values: dict[str, Any]) -> None:
        if "train/tokens" in values:
            told.append((time.process_time(), values["train/tokens"]))

    with tempfile.TemporaryDirectory() as folder:
        fit(
            Context(
                lm=lm, train=texts, valid=[], settings=settings, lora_targets=[], seed=0,
                processes=1, checkpoints=Path(folder), log=log,
                say=lambda line: print(line, flush=True),
            ),
            lm.model, texts, [],
        )  # fmt: skip
    (begun, before), (ended, after) = told[0], told[-1]
    real = text_tokens(lm, texts) / sum(map(len, text_rows(lm, texts, settings)))
    return real * (after - before) / (ended - begun)  # the rest are special tokens


def measure(name: str, texts: list[str], rounds: int) -> str:
    """One line of the table on one kind of model."""
    lm = random_model(name, **SMALL[name])
    lm.tokenizer.model_max_length = 512  # BERT's; the reference tokenizers say 128
    tokens = text_tokens(lm, texts)
    # As many tokens a forward pass as eight texts have.
    rows_a_pass = max(1, round(BATCH * tokens / len(texts) / BLOCK))
    found = []
    for _ in range(rounds):
        slow = plain(lm, texts)
        fast = ours(lm, texts, rows_a_pass)
        found.append((fast / slow, slow, fast))
        print(f"{lm.kind}: {slow:,.0f} and {fast:,.0f} tokens/s", flush=True)
    ratio, slow, fast = (statistics.median(column) for column in zip(*found, strict=True))
    how = "texts grouped to full blocks" if lm.kind == "masked" else "packed, no text sees another"
    return (
        f"| {lm.kind} | {slow:,.0f} | {fast:,.0f} ({how}) | {ratio:.2f} "
        f"({min(row[0] for row in found):.2f} to {max(row[0] for row in found):.2f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    texts = posts(given.texts)
    lines = [measure(name, texts, given.rounds) for name in SMALL]
    lm = random_model("bert-base", **SMALL["bert-base"])
    lengths = [len(ids) for ids in lm.tokenizer(texts, add_special_tokens=False)["input_ids"]]
    quartiles = "/".join(f"{value:.0f}" for value in np.percentile(lengths, [25, 50, 75, 100]))
    written = f"""# Training throughput

`python -m tests.performance.training --texts {given.texts} --rounds {given.rounds}`, one run,
{torch.get_num_threads()} thread(s), torch {torch.__version__}. {given.texts} texts of sentences
of the embedded world, as long as short posts: {quartiles} tokens (quartiles and longest). A model
of 4 layers, 256 wide, with random weights; {BATCH} texts a forward pass in the plain loop, and as
many tokens in ours.

Tokens of text a second, without padding and special tokens; the ratio is the median of
{given.rounds} turns (and its range). Seconds are the process's own, since others were at work on
the machine. Two things make the difference: hardly any padding, and an output head that sees only
tokens with a label (15 % of a masked model's). With as large a vocabulary on as small a body the
head is most of the work, so a larger model gains less from the second.

| model | Hugging Face's example loop | ours | ratio |
|---|---:|---:|---:|
{chr(10).join(lines)}
"""
    Path(__file__).with_name("TRAINING.md").write_text(written, "utf-8")
    print(written)


if __name__ == "__main__":
    main()
