"""The grammatical minimal pairs: what they must be, and that a model of the language knows them."""

import difflib
from pathlib import Path

import pytest
import yaml

from eval import grammar
from eval.errors import RequestError


@pytest.mark.parametrize("language", grammar.LANGUAGES)
def test_at_least_200_distinct_pairs_over_several_phenomena(language):
    table = grammar.load(language).table
    assert len(table) >= 200
    assert not table.duplicated(["sent_more", "sent_less"]).any()
    assert table["group"].nunique() >= 7
    # no sentence is right in one pair and wrong in another
    assert not set(table["sent_more"]) & set(table["sent_less"])


@pytest.mark.parametrize("language", grammar.LANGUAGES)
def test_pairs_are_minimal(language):
    """One run of words differs, of four at most, or two words change places."""
    for more, less in grammar.load(language).table[["sent_more", "sent_less"]].to_numpy():
        a, b = (text.strip(".?").split() for text in (more, less))
        if sorted(a) == sorted(b):
            continue
        codes = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        changed = [code for code in codes if code[0] != "equal"]
        assert len(changed) == 1, (more, less)
        assert max(changed[0][2] - changed[0][1], changed[0][4] - changed[0][3]) <= 3, (more, less)


@pytest.mark.parametrize("language", grammar.LANGUAGES)
def test_every_word_of_a_slot_is_used(language):
    path = Path(grammar.__file__).parent / f"{language}.yaml"
    sentences = " ".join(grammar.load(language).table["sent_more"]) + " "
    for frame in yaml.safe_load(path.read_text("utf-8")):
        for words in frame["slots"].values():
            for word in words:
                assert f"{word.split('|')[0]}" in sentences, word


def test_an_unknown_language_names_those_there_are():
    with pytest.raises(RequestError, match="de, en, nl"):
        grammar.load("fr")
