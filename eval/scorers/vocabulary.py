"""Which entries of a vocabulary are whole words, by the signs that its tokenizer sets.

A masked model's likeliest tokens hold pieces of words, punctuation and special tokens; a word
that stands alone is what is wanted. Where words begin or end is written into the tokens: WordPiece
marks what goes on with ##, byte-level BPE what comes after a blank with Ġ, SentencePiece with ▁;
older BPE marks the end of a word with </w>, or with @@ what doesn't end one.
"""

from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

from eval.instructions import WORD

#: Sign → whether a token carries it, and whether what carries it is a word by itself.
_SIGNS: dict[str, tuple[Callable[[str], bool], bool]] = {
    "##": (lambda token: token.startswith("##"), False),
    "Ġ": (lambda token: token.startswith("Ġ"), True),
    "▁": (lambda token: token.startswith("▁"), True),
    "</w>": (lambda token: token.endswith("</w>"), True),
    "@@": (lambda token: token.endswith("@@"), False),
}
#: Share of the vocabulary that carries a sign, from which on it is the tokenizer's; a vocabulary
#: holds ## or @@ as text too.
_LEAST = 0.01


def sign_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The sign by which a tokenizer tells pieces from words; empty where it cuts no words."""
    tokens = list(tokenizer.get_vocab())
    counts = {sign: sum(map(carries, tokens)) for sign, (carries, _) in _SIGNS.items()}
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] >= _LEAST * len(tokens) else ""


def words(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The tokens that are a word by themselves where a blank stands before: id → word.

    Left out are special tokens, pieces of words, and what isn't letters (eval.instructions.WORD).
    """
    special = {*tokenizer.all_special_ids}
    special |= {id_ for id_, added in tokenizer.added_tokens_decoder.items() if added.special}
    sign = sign_of(tokenizer)
    carries, is_word = _SIGNS.get(sign, (lambda token: True, True))
    found = {}
    for token, id_ in tokenizer.get_vocab().items():
        if id_ in special or carries(token) != is_word:
            continue
        word = tokenizer.convert_tokens_to_string([token]).strip()
        if WORD.fullmatch(word):
            found[id_] = word
    return found
