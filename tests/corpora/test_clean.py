"""Cleaning: what goes, what stays byte for byte, and that a cleaned text stays as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.clean import clean

GENDER_FORMS = (
    "Schüler*innen Lehrer:innen Kolleg_innen LehrerInnen Schüler/-innen Schüler@innen "
    "der*die Ärzt*in, ein:e Student:in; Leser(innen) Mitarbeiter·innen amig@s"
)


@pytest.mark.parametrize("form", [*GENDER_FORMS.split(), GENDER_FORMS])
def test_gender_forms_survive_byte_for_byte(form: str) -> None:
    assert clean(form).encode() == form.encode()


def test_a_gender_form_glued_to_the_next_sentence_is_no_mail_address() -> None:
    assert clean("Für alle Schüler@innen.Und mehr") == "Für alle Schüler@innen.Und mehr"


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("Siehe https://taz.de/!123?a=1&b=2, dort.", "Siehe http, dort."),
        ("(www.example.org/x)", "(http)"),
        ("Danke @alex_b@chaos.social!", "Danke @user!"),
        ("Danke @alex. Und du?", "Danke @user. Und du?"),
        ("Post an max.muster@example.org bitte", "Post an @user bitte"),
        ("Tom &amp; Jo &quot;hier&quot; &#252;ber", 'Tom & Jo "hier" über'),
        ("&amp;lt;b&amp;gt;", "<b>"),
        ("a=1&copy=2", "a=1&copy=2"),
        ("u\u0308ber", "über"),
        ("Ver\u00adlag\u200b\ufeff", "Verlag"),
        ("a\x00b\x07\ud800", "ab"),
        ("&am\u00adp; a@b.org@c", "& @user"),
        ("  eins \t zwei\u00a0drei \r\n\r\n vier\u2028fünf ", "eins zwei drei\nvier\nfünf"),
        ("👩\u200d❤\ufe0f\u200d👩", "👩\u200d❤\ufe0f\u200d👩"),
        ("siësta, carrière, financiële", "siësta, carrière, financiële"),
    ],
)
def test_each_rule(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


@given(st.text(st.sampled_from("a@.&;#x6mplt:/w*_-\u0308u \n\u00ad<'"), max_size=40) | st.text())
def test_a_cleaned_text_stays_as_it_is(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
