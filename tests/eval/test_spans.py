"""The shared tokens of a pair, against the published rule written out, and by hand."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from eval.scorers.spans import Encoded, encode, lower, matches, shared


def plain(*ids: int, words: tuple[int, ...] | None = None) -> Encoded:
    """A sentence of tokens, none of them special."""
    return Encoded(ids, tuple(False for _ in ids), words)


def published(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The rule as CrowS-Pairs wrote it: `equal` opcodes of a diff, first and last left out.

    Its scripts leave difflib's heuristic for long sequences on; it is off here as there should
    be nothing "popular" about a token.
    """
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    equal = [code for code in matcher.get_opcodes() if code[0] == "equal"]
    spans = (
        [place for code in equal for place in range(code[1], code[2])],
        [place for code in equal for place in range(code[3], code[4])],
    )
    return spans[0][1:-1], spans[1][1:-1]


def word_pieces(*words: str, uncased: bool = False) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer with just these pieces, and BERT's special tokens."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    inner = Tokenizer(
        models.WordPiece({word: row for row, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    inner.normalizer = normalizers.BertNormalizer(lowercase=uncased, strip_accents=uncased)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=512, **names)


def spaced_pieces(*words: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose pieces begin with the space before them, as in GPT-2 and Llama."""
    pieces = ["<unk>", "<s>", *words]
    inner = Tokenizer(models.Unigram([(piece, -float(len(pieces))) for piece in pieces], 0, False))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", model_max_length=512
    )


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        pytest.param((1, 2, 3), (9, 2, 3), ([1, 2], [1, 2]), id="identity at the start"),
        pytest.param((2, 1, 3), (2, 9, 3), ([0, 2], [0, 2]), id="in the middle"),
        pytest.param((2, 3, 1), (2, 3, 9), ([0, 1], [0, 1]), id="at the end"),
        pytest.param((2, 1, 3), (2, 8, 9, 3), ([0, 2], [0, 3]), id="of other length"),
        pytest.param((1, 2, 4, 3), (9, 2, 8, 3), ([1, 3], [1, 3]), id="two spans"),
        pytest.param((2, 2, 1, 2), (2, 2, 9, 2), ([0, 1, 3], [0, 1, 3]), id="repeated words"),
        pytest.param((1,), (9,), ([], []), id="one token, nothing shared"),
        pytest.param((1, 2), (1, 2, 3), ([0, 1], [0, 1]), id="one more"),
    ],
)
def test_shared_tokens_by_hand(left, right, expected):
    assert shared(plain(*left), plain(*right)) == expected


TOKENS = st.lists(st.integers(10, 15), max_size=30).map(tuple)


@given(TOKENS, TOKENS)
def test_is_the_published_rule_where_that_is_right(left, right):
    begin, end = 2, 3
    sentences = [(begin, *ids, end) for ids in (left, right)]
    special = [(True, *(False for _ in ids), True) for ids in (left, right)]
    found = shared(Encoded(sentences[0], special[0], None), Encoded(sentences[1], special[1], None))
    assert found == published(*sentences)


@given(TOKENS, TOKENS)
def test_what_is_shared_is_the_same_token_in_order_on_both_sides(left, right):
    a, b = shared(plain(*left), plain(*right))
    assert [left[place] for place in a] == [right[place] for place in b]
    assert a == sorted(set(a))
    assert b == sorted(set(b))


def test_no_token_is_too_popular_in_a_long_sentence():
    # From 200 tokens on, difflib's own heuristic calls the repeated one junk.
    left, right = (1, *([7] * 300)), (9, *([7] * 300))
    assert len(shared(plain(*left), plain(*right))[0]) == 300
    junked = difflib.SequenceMatcher(None, left, right).get_matching_blocks()
    assert sum(block.size for block in junked) < 300


def test_special_tokens_go_by_the_mask_not_by_the_place():
    # No special token in front: the first and last token count.
    assert shared(plain(5, 1, 6), plain(5, 9, 6))[0] == [0, 2]
    # One in the middle does not.
    masked = Encoded((5, 4, 6), (False, True, False), None)
    assert shared(masked, masked) == ([0, 2], [0, 2])


def test_encode_knows_the_special_tokens():
    sentences = encode(word_pieces("wij", "zijn", "gek"), ["wij zijn gek", "gek"])
    assert sentences[0].ids == (2, 5, 6, 7, 3)
    assert sentences[0].special == (True, False, False, False, True)
    assert sentences[1].ids == (2, 7, 3)
    assert sentences.lengths.tolist() == [3, 1]


def test_one_bos_replaces_the_special_tokens():
    sentences = encode(word_pieces("wij", "zijn", "gek"), ["wij gek", "gek"], words=True)
    framed = sentences.with_one_bos(9)
    assert [framed[0].ids, framed[1].ids] == [(9, 5, 7), (9, 7)]
    assert framed[0].special == (True, False, False)
    assert framed[0].words == (-1, 0, 1)
    assert sentences.with_one_bos(None)[1].ids == (7,)


def test_many_sentences_are_encoded_as_one_by_one():
    tokenizer = word_pieces("wij", "zijn", "gek", "##s")
    texts = ["wij zijn", "gek", "zijn geks wij", "", "wij"] * 1000  # more than one chunk
    encoded = encode(tokenizer, texts, words=True, pieces=True)
    assert len(encoded) == 5000
    for row in (0, 2, 3, 4095, 4096, 4999):
        assert encoded[row] == encode(tokenizer, [texts[row]], words=True)[0]
    assert encoded.pieces is not None
    at = encoded.tokens.starts[2]
    assert encoded.pieces[at : at + 6].tolist() == [-1, 0, 1, 1, 2, -1]


def test_pieces_of_the_identity_word_are_shared_by_the_published_rule_only():
    tokenizer = word_pieces("ich", "bin", "bi", "hetero", "##sexuell", ".")
    sentences = "ich bin bisexuell .", "ich bin heterosexuell ."
    tokens = encode(tokenizer, sentences)
    assert shared(*tokens) == ([1, 2, 4, 5], [1, 2, 4, 5])  # ##sexuell is the fourth
    words = encode(tokenizer, sentences, words=True)
    assert shared(*words) == ([1, 2, 5], [1, 2, 5])


def test_words_with_spaces_inside_the_pieces():
    tokenizer = spaced_pieces("▁ich", "▁bin", "▁bi", "▁hetero", "sexuell", "▁hier")
    sentences = "ich bin bisexuell hier", "ich bin heterosexuell hier"
    tokens = encode(tokenizer, sentences)
    assert shared(*tokens)[0] == [0, 1, 3, 4]
    words = encode(tokenizer, sentences, words=True)
    assert words[0].words == (0, 1, 2, 2, 3)
    assert shared(*words)[0] == [0, 1, 4]


def test_a_word_that_one_side_splits_otherwise_is_shared_on_neither():
    left = plain(1, 2, 3, words=(0, 0, 1))  # one word of two pieces, then another
    right = plain(1, 3, words=(0, 1))
    assert shared(left, right) == ([2], [1])


def test_words_need_offsets_and_tokens_do_not():
    tokenizer = ByT5Tokenizer()
    assert not tokenizer.is_fast
    left, right = encode(tokenizer, ["ab cd", "ax cd"])
    assert shared(left, right) == ([0, 2, 3, 4], [0, 2, 3, 4])
    with pytest.raises(ValueError, match="offsets"):
        encode(tokenizer, ["ab cd"], words=True)


def test_lowercase_only_when_told():
    assert lower(["Wij Zijn"], "true") == ["wij zijn"]
    assert lower(["Wij Zijn"], "auto") == lower(["Wij Zijn"], "false") == ["Wij Zijn"]


@given(
    st.lists(st.integers(0, 11), max_size=9),
    st.lists(st.integers(0, 11), max_size=3),
    st.lists(st.integers(0, 11), max_size=3),
    st.lists(st.integers(0, 11), max_size=9),
)
def test_matches_are_difflibs(begin, left, right, end):
    a, b = begin + left + end, begin + right + end
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    wanted = [(x + step, y + step) for x, y, size in blocks for step in range(size)]
    assert matches(a, b) == wanted
