"""What a model is trained on: rows of token ids, their masks, and batches of them."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from eval.scorers import causal, max_length
from eval.scorers.model import LanguageModel
from mitigate.settings import MethodSettings

#: Labels of tokens that are not predicted.
IGNORED = -100
Token = TypeVar("Token")


def block_of(lm: LanguageModel, settings: MethodSettings) -> int:
    """Tokens a row at most, special ones included."""
    return min(settings.block, max_length(lm))


def text_rows(lm: LanguageModel, texts: Sequence[str], settings: MethodSettings) -> list[list[int]]:
    """Token ids of training rows, special tokens included, none longer than a block.

    Masked models: whole texts are grouped until a block is full, and only a text longer than
    a block is cut. Causal models: a text a row with BOS and EOS, cut where it is too long;
    unpacked, so that no text sees another.
    """
    if lm.kind == "masked":
        return [[token for token, _ in row] for row in _masked(lm, texts, settings)]
    plain = _token_ids(lm, texts)["input_ids"]
    _, bos = causal.bos_policy(lm)
    front = [] if bos is None else [bos]
    end = [] if lm.tokenizer.eos_token_id is None else [lm.tokenizer.eos_token_id]
    room = block_of(lm, settings) - len(front)
    return [
        front + piece
        for ids in plain
        for piece in _cut(ids + end, room)
        if len(front) + len(piece) > 1
    ]


def word_starts(
    lm: LanguageModel, texts: Sequence[str], settings: MethodSettings
) -> list[list[bool]]:
    """For each token of a masked model's `text_rows`: whether a word begins with it."""
    return [[begins for _, begins in row] for row in _masked(lm, texts, settings)]


def _token_ids(lm: LanguageModel, texts: Sequence[str]) -> Any:
    if not texts:
        return {"input_ids": []}
    return lm.tokenizer(list(texts), add_special_tokens=False, verbose=False)


def _masked(
    lm: LanguageModel, texts: Sequence[str], settings: MethodSettings
) -> list[list[tuple[int, bool]]]:
    """A masked model's rows: token ids, and whether a word begins with each."""
    found = _token_ids(lm, texts)
    plain = []
    for number, ids in enumerate(found["input_ids"]):
        begins = [True] * len(ids)
        if settings.whole_words:
            words = found.word_ids(number)
            begins = [at == 0 or words[at] != words[at - 1] for at in range(len(ids))]
        plain.append(list(zip(ids, begins, strict=True)))
    front, between, end = ([(token, True) for token in part] for part in _frame(lm.tokenizer))
    room = block_of(lm, settings) - len(front) - len(end)
    return [front + row + end for row in _grouped(plain, room, between)]


def _frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[int]]:
    """The special tokens before a text, between two and after, as the tokenizer sets them."""
    empty = tokenizer("")["input_ids"]
    between = tokenizer.sep_token_id
    if len(empty) == 2:
        return [empty[0]], [] if between is None else [between], [empty[1]]
    return [], [] if between is None else [between], list(empty)


def _grouped(
    texts: Sequence[list[Token]], room: int, between: list[Token]
) -> Iterator[list[Token]]:
    row: list[Token] = []
    for ids in texts:
        for piece in _cut(ids, room):
            if row and len(row) + len(between) + len(piece) > room:
                yield row
                row = []
            row = row + between + piece if row else piece
    if row:
        yield row


def _cut(ids: list[Token], room: int) -> Iterator[list[Token]]:
    for start in range(0, len(ids), room):
        yield ids[start : start + room]


class MaskedRows(torch.utils.data.Dataset):
    """Rows with masks drawn anew each epoch from (seed, epoch, row) and nothing else.

    So two processes mask as one does, a resumed run as an undisturbed one, and with a fixed
    epoch the evaluation is the same each time. 80 % [MASK], 10 % a random token, 10 % kept
    (Devlin et al. 2019, §3.1). With `begins`, where words begin, all tokens of a word are masked
    together (whole-word masking), to the same share of tokens. Rows for training say which they
    are as `row`.
    """

    def __init__(
        self,
        rows: Sequence[list[int]],
        tokenizer: PreTrainedTokenizerBase,
        share: float,
        seed: int,
        *,
        fixed: bool,
        begins: Sequence[list[bool]] | None = None,
    ):
        self.rows = rows
        self.share = share
        self.seed = seed
        self.epoch = 0
        self.fixed = fixed
        self.begins = begins
        self._special = np.array(tokenizer.all_special_ids)
        self._mask = int(tokenizer.mask_token_id)
        self._vocabulary = len(tokenizer)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = np.array(self.rows[index])
        epoch = 2**31 if self.fixed else self.epoch
        draw = np.random.default_rng((self.seed, epoch, index))
        open_ = np.flatnonzero(~np.isin(ids, self._special))
        # At least one, so that no row is without a label.
        count = max(1, round(self.share * len(open_)))
        if self.begins is None:
            chosen = draw.choice(open_, min(count, len(open_)), replace=False)
        else:
            chosen = _of_words(open_, np.array(self.begins[index])[open_], count, draw)
        labels = np.full(len(ids), IGNORED)
        labels[chosen] = ids[chosen]
        kind = draw.random(len(chosen))
        ids[chosen[kind < 0.8]] = self._mask
        random = chosen[kind >= 0.9]
        ids[random] = draw.integers(self._vocabulary, size=len(random))
        row = {} if self.fixed else {"row": index}
        return {"input_ids": ids.tolist(), "labels": labels.tolist(), **row}


def _of_words(
    places: np.ndarray, begins: np.ndarray, count: int, draw: np.random.Generator
) -> np.ndarray:
    """Places of whole words drawn at random, `count` tokens of them; one word at least."""
    word = np.cumsum(begins)
    sizes = dict(zip(*np.unique(word, return_counts=True), strict=True))
    taken: list[int] = []
    left = count
    for one in draw.permutation(list(sizes)):
        if sizes[one] <= left or not taken:
            taken.append(one)
            left -= sizes[one]
    return places[np.isin(word, taken)]


def packed_rows(rows: Sequence[list[int]], block: int) -> list[list[list[int]]]:
    """Texts that fit into a row together, in their order; none is cut."""
    packed: list[list[list[int]]] = []
    left = 0
    for row in rows:
        if len(row) > left:
            packed.append([])
            left = block
        packed[-1].append(row)
        left -= len(row)
    return packed


class Collator:
    """Make a batch of rows, padded to its longest.

    `rows`, (batch,): their ids, where they have some. A row that says the `lengths` of its texts
    is packed: positions begin anew with each text, and instead of a mask of attention that tells
    the model which tokens belong together. Padding is a text of its own there. `langs` for XLM.
    """

    def __init__(self, pad: int, language_id: int | None):
        self.pad = pad
        self.language_id = language_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        shape = (len(rows), longest)
        batch = {
            "input_ids": torch.full(shape, self.pad),
            "labels": torch.full(shape, IGNORED),
        }
        packed = "lengths" in rows[0]
        aside = "position_ids" if packed else "attention_mask"
        batch[aside] = torch.zeros(shape, dtype=torch.long)
        for line, row in enumerate(rows):
            length = len(row["input_ids"])
            batch["input_ids"][line, :length] = torch.tensor(row["input_ids"])
            batch["labels"][line, :length] = torch.tensor(row["labels"])
            if packed:
                lengths = [*row["lengths"], longest - length]
                batch[aside][line] = torch.cat([torch.arange(some) for some in lengths])
            else:
                batch[aside][line, :length] = 1
        if self.language_id is not None:
            batch["langs"] = torch.full(shape, self.language_id)
        if "row" in rows[0]:
            batch["rows"] = torch.tensor([row["row"] for row in rows])
        return batch


@torch.no_grad()
def sees_only_its_own(lm: LanguageModel, model: Any, texts: Sequence[list[int]]) -> bool:
    """Whether texts in one packed row have the logits that each has alone.

    `texts`: token ids of two texts or more. First each is compared with itself alone, then all
    but the first with themselves after another first text.
    """
    model.eval()
    collate = Collator(lm.tokenizer.pad_token_id or 0, lm.language_id)

    def logits(row: Sequence[list[int]]) -> list[torch.Tensor]:
        ids = [token for text in row for token in text]
        batch = collate([{"input_ids": ids, "labels": ids, "lengths": list(map(len, row))}])
        del batch["labels"]
        given = {key: tensor.to(lm.device) for key, tensor in batch.items()}
        found = model(**given, use_cache=False).logits[0].float()
        return list(found.split(list(map(len, row))))

    def alone(text: list[int]) -> torch.Tensor:
        given = lm.inputs(torch.tensor([text]))
        given = {key: tensor.to(lm.device) for key, tensor in given.items()}
        return torch.as_tensor(model(**given, use_cache=False).logits[0].float())

    try:
        packed = logits(texts)
        other = logits([texts[0][::-1], *texts[1:]])
    except (TypeError, ValueError, RuntimeError):  # it takes no positions, or not these
        return False
    room = 1e-5 if torch.finfo(lm.dtype).eps < 1e-6 else 0.05
    room *= max(1.0, *(some.abs().max().item() for some in packed))
    same = all(
        torch.allclose(alone(text), found, rtol=0, atol=room)
        for text, found in zip(texts, packed, strict=True)
    )
    return same and all(
        torch.allclose(one, two, rtol=0, atol=room)
        for one, two in zip(packed[1:], other[1:], strict=True)
    )
