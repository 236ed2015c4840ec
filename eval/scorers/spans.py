"""Which tokens the two sentences of a pair share.

The published rule (Nangia et al. 2020, as used in WinoQueer): the tokens inside the `equal`
blocks of a diff of the two token sequences. Special tokens are never scored; they are known
by the tokenizer's own mask, not by being first and last.
"""

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from eval.scorers.batching import Tokens

#: Sentences a tokenizer gets at once: its lists of Python numbers must not pile up.
CHUNK = 4096


@dataclass(frozen=True)
class Encoded:
    """One sentence as a model reads it."""

    ids: tuple[int, ...]  # with special tokens
    special: tuple[bool, ...]  # which of them are special
    words: tuple[int, ...] | None  # the whitespace-separated word of each token; -1: none


@dataclass(frozen=True)
class Sentences:
    """Many sentences as a model reads them, in flat arrays that `tokens.starts` cuts."""

    tokens: Tokens  # with special tokens
    special: np.ndarray  # (all tokens,) bool
    words: np.ndarray | None = None  # (all tokens,) whitespace-separated word; -1: none
    pieces: np.ndarray | None = None  # (all tokens,) word as the tokenizer cuts them; -1: none

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> Encoded:
        cut = slice(self.tokens.starts[row], self.tokens.starts[row + 1])
        return Encoded(
            tuple(self.tokens.flat[cut].tolist()),
            tuple(self.special[cut].tolist()),
            None if self.words is None else tuple(self.words[cut].tolist()),
        )

    @property
    def lengths(self) -> np.ndarray:
        """How many tokens each has, special ones apart. (sentences,)"""
        plain = np.concatenate([[0], np.cumsum(~self.special)])
        return plain[self.tokens.starts[1:]] - plain[self.tokens.starts[:-1]]

    def select(self, keep: np.ndarray) -> "Sentences":
        """The same sentences with only the tokens that `keep` marks. (all tokens,) bool"""
        kept = np.concatenate([[0], np.cumsum(keep)])
        return Sentences(
            Tokens(self.tokens.flat[keep], kept[self.tokens.starts]),
            self.special[keep],
            None if self.words is None else self.words[keep],
            None if self.pieces is None else self.pieces[keep],
        )

    def with_one_bos(self, bos: int | None) -> "Sentences":
        """Without whatever special tokens the tokenizer added, and one BOS in front of each."""
        bare = self.select(~self.special)
        if bos is None:
            return bare
        at = bare.tokens.starts[:-1]
        return Sentences(
            Tokens(
                np.insert(bare.tokens.flat, at, bos),
                bare.tokens.starts + np.arange(len(self) + 1),
            ),
            np.insert(bare.special, at, True),
            None if bare.words is None else np.insert(bare.words, at, -1),
            None if bare.pieces is None else np.insert(bare.pieces, at, -1),
        )


def encode(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    words: bool = False,
    pieces: bool = False,
) -> Sentences:
    """Tokenize sentences with the tokenizer's own special tokens.

    With `words`, each token also gets the number of its whitespace-separated word; with
    `pieces`, that of the word it is a piece of, as the tokenizer cuts words.

    Raises:
        ValueError: `words` or `pieces` is asked of a tokenizer that can't tell words apart.
    """
    if (words or pieces) and not tokenizer.is_fast:
        raise ValueError("its tokenizer gives no character offsets, so it can't tell words apart")
    flat: dict[str, list[np.ndarray]] = {"ids": [], "special": [], "words": [], "pieces": []}
    lengths: list[int] = []
    for start in range(0, len(sentences), CHUNK):
        chunk = list(sentences[start : start + CHUNK])
        encoding = tokenizer(
            chunk, return_special_tokens_mask=True, return_offsets_mapping=words, verbose=False
        )
        lengths += map(len, encoding["input_ids"])
        flat["ids"].append(_flat(encoding["input_ids"], np.int64))
        flat["special"].append(_flat(encoding["special_tokens_mask"], bool))
        if words:
            special = encoding["special_tokens_mask"]
            offsets = encoding["offset_mapping"]
            of = [_words(*each) for each in zip(chunk, offsets, special, strict=True)]
            flat["words"].append(_flat(of, np.int64))
        if pieces:
            of = [
                [-1 if word is None else word for word in encoding.word_ids(row)]
                for row in range(len(chunk))
            ]
            flat["pieces"].append(_flat(of, np.int64))
    joined = {
        name: np.concatenate(parts) if parts else np.zeros(0, np.int64)
        for name, parts in flat.items()
    }
    return Sentences(
        Tokens(joined["ids"], np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])),
        joined["special"].astype(bool),
        joined["words"] if words else None,
        joined["pieces"] if pieces else None,
    )


def _flat(rows: Sequence[Sequence[int]], kind: type) -> np.ndarray:
    return np.fromiter(itertools.chain.from_iterable(rows), kind)


def _words(sentence: str, offsets: Sequence[tuple[int, int]], special: Sequence[int]) -> list[int]:
    """The whitespace-separated word of each token; -1 for special and empty ones."""
    # Character c belongs to word number (words begun up to and including c) - 1.
    begins = [
        not char.isspace() and (index == 0 or sentence[index - 1].isspace())
        for index, char in enumerate(sentence)
    ]
    word_of = [count - 1 for count in itertools.accumulate(begins)]
    # A token's last character decides: its first may be the space before the word.
    return [
        -1 if flag or end <= start else word_of[end - 1]
        for (start, end), flag in zip(offsets, special, strict=True)
    ]


def shared(left: Encoded, right: Encoded) -> tuple[list[int], list[int]]:
    """The positions of the shared tokens in either sentence, in order, special ones left out.

    If the sentences carry words, a token counts only where its whole word is shared, so that
    the common ending of bi+sexuell and hetero+sexuell is part of the change.
    """
    pairs = [
        (a, b)
        for a, b in matches(left.ids, right.ids)
        if not left.special[a] and not right.special[b]
    ]
    if left.words is not None and right.words is not None:
        whole_left = _whole_words(left, {a for a, _ in pairs})
        whole_right = _whole_words(right, {b for _, b in pairs})
        pairs = [
            (a, b)
            for a, b in pairs
            if left.words[a] in whole_left and right.words[b] in whole_right
        ]
    return [a for a, _ in pairs], [b for _, b in pairs]


def matches(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of places inside the `equal` blocks of difflib's diff of two sequences.

    Where no token stands twice in a sequence, and no token of the changed middle stands in the
    other sequence, each token has one place to match at most: the common beginning and end are
    the blocks, and the diff, a hundred times as slow, need not be made.
    """
    shorter = min(len(left), len(right))
    begin = next((at for at in range(shorter) if left[at] != right[at]), shorter)
    end = 0
    while end < shorter - begin and left[-1 - end] == right[-1 - end]:
        end += 1
    distinct = set(left), set(right)
    plain = (
        len(distinct[0]) == len(left)
        and len(distinct[1]) == len(right)
        and distinct[1].isdisjoint(left[begin : len(left) - end])
        and distinct[0].isdisjoint(right[begin : len(right) - end])
    )
    if plain:
        closing = zip(
            range(len(left) - end, len(left)), range(len(right) - end, len(right)), strict=True
        )
        return [*((at, at) for at in range(begin)), *closing]
    # autojunk would drop "popular" tokens from 200 on.
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    return [
        (block.a + offset, block.b + offset)
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    ]


def _whole_words(sentence: Encoded, positions: set[int]) -> set[int]:
    """The words all of whose tokens stand at `positions`."""
    assert sentence.words is not None
    torn = {
        word
        for position, word in enumerate(sentence.words)
        if not sentence.special[position] and position not in positions
    }
    return set(sentence.words) - torn


def lower(sentences: Sequence[str], wanted: str) -> list[str]:
    """Lowercase for `true`; `auto` and `false` leave it to the tokenizer."""
    return [text.lower() for text in sentences] if wanted == "true" else list(sentences)
