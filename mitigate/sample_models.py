"""The embedded models: tiny, trained here on text with a planted bias, at first use.

The masked one learns the link between identity and predicate within a minute only when its
weights start large (`initializer_range=0.1`) and the last word, where the grammar puts most
predicates, is masked much oftener than the rest; else it stays at 50 (measured).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece
from tokenizers.trainers import BpeTrainer, WordPieceTrainer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from corpora.samples.world import generator_hash, load_world, planted_text
from eval.rules import Kind
from mitigate.console import cache_folder, once_per_machine, progress

#: Everything that decides the weights, and so the name of the folder in the cache.
TRAINING = {
    "sentences": 20_000,
    "odds": 6.0,
    "layers": 2,
    "width": 128,
    "heads": 4,
    "vocabulary": 6_000,
    "batch": 64,
    "rate": 1e-3,
    "warmup": 100,
    "mask_last": 0.95,
    "mask_rest": 0.03,
    "seed": 0,
}
STEPS = {"masked": 1_000, "causal": 700}
POSITIONS = 256


def ensure(language: str, kind: Kind) -> Path:
    """The folder of the embedded model of a language and kind, trained now if need be.

    `language`: de, nl, or de_nl for one model of both worlds, on twice the text in twice the steps.
    """
    settings = "-".join(str(value) for value in (*TRAINING.values(), STEPS[kind]))
    name = f"samples-{kind}-{language}-{generator_hash()}-{settings}"
    folder = cache_folder() / "models" / name

    def build() -> None:
        with progress(f"building {kind} {language}") as report:
            model, tokenizer = train(language, kind, report)
        from mitigate.models import save_folder

        save_folder(model, tokenizer, folder)

    once_per_machine(folder, build)
    return folder


def train(
    language: str, kind: Kind, report: Callable[[int, int], None]
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Train one tiny model on planted text; seeded, so the same weights on the same machine.

    On one thread, however many there are: sums in another order make other weights.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(language, kind, report)
    finally:
        torch.set_num_threads(threads)


def _train(
    language: str, kind: Kind, report: Callable[[int, int], None]
) -> tuple[Any, PreTrainedTokenizerBase]:
    worlds = [load_world(one) for one in language.split("_")]
    text: list[str] = []
    for world in worlds:
        text += planted_text(
            world, int(TRAINING["sentences"]), odds=TRAINING["odds"], seed=int(TRAINING["seed"])
        )
    lines = [line for world in worlds for line in world.lines]
    tokenizer = (masked_tokenizer if kind == "masked" else causal_tokenizer)([*text, *lines])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(TRAINING["seed"]))
        model = _model(kind, tokenizer)
        # The hand-written lines ride along a few times, so that their words are known ones.
        rows = tokenizer([*text, *lines * 4], add_special_tokens=True)["input_ids"]
        _fit(model, kind, rows, tokenizer, STEPS[kind] * len(worlds), report)
    return model.eval(), tokenizer


def masked_tokenizer(text: list[str]) -> PreTrainedTokenizerBase:
    """WordPiece, cased, large enough that every word of the grammar stays whole."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        text, WordPieceTrainer(vocab_size=int(TRAINING["vocabulary"]), special_tokens=special)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=POSITIONS,
    )


def causal_tokenizer(text: list[str]) -> PreTrainedTokenizerBase:
    """Byte-level BPE, with BOS and EOS of its own; the scorer puts the BOS in front."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=int(TRAINING["vocabulary"]),
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=POSITIONS,
    )


def _model(kind: Kind, tokenizer: PreTrainedTokenizerBase) -> Any:
    width, layers, heads = (int(TRAINING[key]) for key in ("width", "layers", "heads"))
    if kind == "masked":
        return BertForMaskedLM(
            BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=width,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=2 * width,
                max_position_embeddings=POSITIONS,
                type_vocab_size=2,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                initializer_range=0.1,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=POSITIONS,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            n_inner=2 * width,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _fit(
    model: Any,
    kind: Kind,
    rows: list[list[int]],
    tokenizer: PreTrainedTokenizerBase,
    steps: int,
    report: Callable[[int, int], None],
) -> None:
    """Adam, linear warm-up, then linear decay to nothing; the sum over tokens, averaged."""
    batch, warmup = int(TRAINING["batch"]), int(TRAINING["warmup"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=TRAINING["rate"], weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, (steps - step) / max(1, steps - warmup)),
    )
    model.train()
    for step in range(steps):
        chosen = torch.randint(len(rows), (batch,)).tolist()
        longest = max(len(rows[index]) for index in chosen)
        ids = torch.full((batch, longest), int(tokenizer.pad_token_id))
        for line, index in enumerate(chosen):
            ids[line, : len(rows[index])] = torch.tensor(rows[index])
        attention = (ids != tokenizer.pad_token_id).long()
        if kind == "masked":
            special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
            share = torch.full(ids.shape, TRAINING["mask_rest"])
            # Before the end stand the full stop and the separator.
            share[torch.arange(batch), attention.sum(1) - 3] = TRAINING["mask_last"]
            masked = (torch.rand(ids.shape) < share) & ~special
            labels = ids.masked_fill(~masked, -100)
            given = ids.masked_fill(masked, int(tokenizer.mask_token_id))
        else:
            labels, given = ids.masked_fill(attention == 0, -100), ids
        loss = model(input_ids=given, attention_mask=attention, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        report(step + 1, steps)
