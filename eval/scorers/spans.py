"""Which tokens the two sentences of a pair share.

The published rule (Nangia et al. 2020, as used in WinoQueer): the tokens inside the `equal`
blocks of a diff of the two token sequences. Special tokens are never scored; they are known
by the tokenizer's own mask, not by being first and last.
"""

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Encoded:
    """One sentence as a model reads it."""

    ids: tuple[int, ...]  # with special tokens
    special: tuple[bool, ...]  # which of them are special
    words: tuple[int, ...] | None  # the whitespace-separated word of each token; -1: none

    @property
    def length(self) -> int:
        """How many tokens it has, special ones apart."""
        return len(self.special) - sum(self.special)


def encode(tokenizer: PreTrainedTokenizerBase, sentence: str, *, words: bool = False) -> Encoded:
    """Tokenize one sentence with the tokenizer's own special tokens.

    With `words`, each token also gets the number of its whitespace-separated word.

    Raises:
        ValueError: `words` is asked of a tokenizer that gives no character offsets.
    """
    if words and not tokenizer.is_fast:
        raise ValueError("alignment=words needs a tokenizer with character offsets")
    encoding = tokenizer(sentence, return_special_tokens_mask=True, return_offsets_mapping=words)
    ids = tuple(encoding["input_ids"])
    special = tuple(bool(flag) for flag in encoding["special_tokens_mask"])
    if not words:
        return Encoded(ids, special, None)
    # Character c belongs to word number (words begun up to and including c) - 1.
    begins = [
        not char.isspace() and (index == 0 or sentence[index - 1].isspace())
        for index, char in enumerate(sentence)
    ]
    word_of = [count - 1 for count in itertools.accumulate(begins)]
    # A token's last character decides: its first may be the space before the word.
    of_token = tuple(
        -1 if flag or end <= start else word_of[end - 1]
        for (start, end), flag in zip(encoding["offset_mapping"], special, strict=True)
    )
    return Encoded(ids, special, of_token)


def shared(left: Encoded, right: Encoded) -> tuple[list[int], list[int]]:
    """The positions of the shared tokens in either sentence, in order, special ones left out.

    If the sentences carry words, a token counts only where its whole word is shared, so that
    the common ending of bi+sexuell and hetero+sexuell is part of the change.
    """
    # autojunk would drop "popular" tokens from 200 on.
    matcher = difflib.SequenceMatcher(None, left.ids, right.ids, autojunk=False)
    pairs = [
        (block.a + offset, block.b + offset)
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    ]
    pairs = [(a, b) for a, b in pairs if not left.special[a] and not right.special[b]]
    if left.words is not None and right.words is not None:
        whole_left = _whole_words(left, {a for a, _ in pairs})
        whole_right = _whole_words(right, {b for _, b in pairs})
        pairs = [
            (a, b)
            for a, b in pairs
            if left.words[a] in whole_left and right.words[b] in whole_right
        ]
    return [a for a, _ in pairs], [b for _, b in pairs]


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
