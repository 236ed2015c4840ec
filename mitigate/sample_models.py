"""The embedded models: tiny, trained here on text with a planted bias, at first use.

The masked one learns the link between identity and predicate within a minute only when its
weights start large (`initializer_range=0.1`) and the last word, where the grammar puts most
predicates, is masked much oftener than the rest; else it stays at 50 (measured). Then it goes on
with the masks that fine-tuning has, until it can fill every word: a model that can't learns the
language anew from any text, and its bias moves with that, on a placebo's text too (measured).
"""

import functools
import unicodedata
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
    "mask_any": 0.3,
    "seed": 0,
    "version": 2,  # of what the other values don't say
}
#: Steps; for the masked model first with the last word masked oftenest, then any word alike.
STEPS: dict[Kind, tuple[int, ...]] = {"masked": (1_000, 400), "causal": (700,)}
POSITIONS = 256


def ensure(language: str, kind: Kind) -> Path:
    """The folder of the embedded model of a language and kind, trained now if need be.

    `language`: de, nl, or de_nl for one model of both worlds, on twice the text in twice the steps.
    """
    settings = "-".join(str(value) for value in (*TRAINING.values(), *STEPS[kind]))
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
        _fit(model, kind, rows, tokenizer, [n * len(worlds) for n in STEPS[kind]], report)
    return model.eval(), tokenizer


def masked_tokenizer(text: list[str]) -> PreTrainedTokenizerBase:
    """WordPiece, cased, large enough that every word of the grammar stays whole.

    The trainer numbers letters in a random order, and breaks ties by their numbers: here they
    have numbers before it begins, so that the same text gives the same pieces.
    """
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted({letter for line in text for letter in unicodedata.normalize("NFC", line)})
    letters = [letter for letter in letters if not letter.isspace()]
    numbered = [*special, *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        text, WordPieceTrainer(vocab_size=int(TRAINING["vocabulary"]), special_tokens=numbered)
    )
    whole = Tokenizer(WordPiece(tokenizer.get_vocab(), unk_token="[UNK]"))  # letters not special
    whole.normalizer, whole.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    whole.decoder, tokenizer = tokenizer.decoder, whole
    tokenizer.add_special_tokens(special)
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
    stages: list[int],
    report: Callable[[int, int], None],
) -> None:
    """In each stage Adam, linear warm-up, then linear decay to nothing; the mean over tokens."""
    batch, warmup = int(TRAINING["batch"]), int(TRAINING["warmup"])
    done = 0
    model.train()
    for number, steps in enumerate(stages):
        optimizer = torch.optim.AdamW(model.parameters(), lr=TRAINING["rate"], weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, functools.partial(_rate, steps=steps, warmup=warmup)
        )
        for _ in range(steps):
            chosen = torch.randint(len(rows), (batch,)).tolist()
            longest = max(len(rows[index]) for index in chosen)
            ids = torch.full((batch, longest), int(tokenizer.pad_token_id))
            for line, index in enumerate(chosen):
                ids[line, : len(rows[index])] = torch.tensor(rows[index])
            attention = (ids != tokenizer.pad_token_id).long()
            if kind == "masked":
                given, labels = _masked(ids, attention, tokenizer, last=number == 0)
            else:
                labels, given = ids.masked_fill(attention == 0, -100), ids
            loss = model(input_ids=given, attention_mask=attention, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            report(done, sum(stages))


def _rate(step: int, steps: int, warmup: int) -> float:
    """What the rate is multiplied by: up for `warmup` steps, then down to nothing."""
    return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))


def _masked(
    ids: torch.Tensor, attention: torch.Tensor, tokenizer: PreTrainedTokenizerBase, *, last: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model is given, and its labels: the last word masked oftenest, or any alike.

    Any alike is as fine-tuning has it (mitigate/methods/rows.py): of the words to be predicted
    80 % are masked, 10 % are another word, 10 % stay. All (batch, tokens)
    """
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    share = torch.full(ids.shape, TRAINING["mask_rest" if last else "mask_any"])
    if last:  # before the end stand the full stop and the separator
        share[torch.arange(len(ids)), attention.sum(1) - 3] = TRAINING["mask_last"]
    chosen = (torch.rand(ids.shape) < share) & ~special
    labels = ids.masked_fill(~chosen, -100)
    if last:
        return ids.masked_fill(chosen, int(tokenizer.mask_token_id)), labels
    kind = torch.rand(ids.shape)
    given = ids.masked_fill(chosen & (kind < 0.8), int(tokenizer.mask_token_id))
    other = torch.randint(len(tokenizer), ids.shape)
    return torch.where(chosen & (kind >= 0.9), other, given), labels
