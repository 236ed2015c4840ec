"""Cleaning: what goes, what stays byte for byte, and that a cleaned text stays as it is."""

from collections import Counter

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
        ("acct:alex@host.de at://did:plc:abc/app/1", "http http"),
        ("tag:chaos.social,2021:objectId=1:x", "http"),
        ("Post 110234567890123456 hier", "Post [id] hier"),
        ("550e8400-e29b-41d4-a716-446655440000", "[id]"),
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
        ("So :blobcat: froh :a_b::blob_heart: :3", "So froh :3"),
        ("um 10:30:15 bis :innen: und Lehrer:innen:", "um 10:30:15 bis :innen: und Lehrer:innen:"),
    ],
)
def test_each_rule(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("fÃ¼r GroÃŸe Ã„mter", "für Große Ämter"),
        ("â€žSchÃ¼ler*innenâ€œ", "„Schüler*innen“"),
        ("Das „SPÄ“ ist »fü« – “so” ‘war’s’…", "Das „SPÄ“ ist »fü« – “so” ‘war’s’…"),
        ("Größe, Straße, Ärzt*in, façade, señor", "Größe, Straße, Ärzt*in, façade, señor"),
    ],
)
def test_mojibake_is_repaired_and_nothing_else(raw: str, cleaned: str) -> None:
    assert clean(raw).encode() == cleaned.encode()


@pytest.mark.parametrize(
    "number",
    [
        "030 1234567",
        "030/1234-567",
        "(030) 123 456",
        "+49 151 23456789",
        "+49 (0)30 123456",
        "+31 6 12345678",
        "06-12345678",
        "0151 23456789",
        "0800 1234567",
        "00 49 30 123456".replace("00 ", "00"),
    ],
)
def test_telephone_numbers_go(number: str) -> None:
    assert clean(f"Ruf {number} an, ja?") == "Ruf [phone] an, ja?"


@pytest.mark.parametrize(
    "said",
    [
        "von 1980–2024 und 2019-2024",
        "am 01.02.2021, am 3.10.1990 um 10:30 Uhr",
        "01/02/2021 12:30",
        "bis 05-06-2021 um 10:30:15",
        "2020 2021 2022 2023",
        "§ 175 StGB, 10.000 Euro, 1 000 000 Menschen, +10 000 000 Euro",
        "taz Nr. 0123456789, !5741234, 5741234",
        "ISBN 978-3-16-148410-0",
        "10115 Berlin, Hausnummer 12/13",
        "0,5 Prozent von 1234567890123",
        "2608.30884 und 10.1000/182",
    ],
)
def test_years_dates_prices_and_other_numbers_stay(said: str) -> None:
    assert clean(said) == said


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("Das #queere Leben in #Berlin.", "Das queere Leben in Berlin."),
        ("Wir lieben #Berlin", "Wir lieben Berlin"),
        ("Wie schön! #csd", "Wie schön!"),
        ("Heute am See #csd #pride", "Heute am See"),
        ("#csd #pride\nHeute am See\n#trans #queer", "Heute am See"),
        ("Heute am See #csd #pride https://a.b/c 🌈", "Heute am See http 🌈"),
        ("Die #Schüler*innen und #1 und C# bleiben", "Die Schüler*innen und #1 und C# bleiben"),
    ],
)
def test_hashtags_are_words_in_a_sentence_and_go_after_it(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


def test_what_was_done_is_counted_once() -> None:
    counts: Counter[str] = Counter()
    clean("@a schau https://b.c und @d, Tel. 030 1234567 :cat: fÃ¼r das #Leben da", counts)
    assert {what: times for what, times in counts.items() if times} == {
        "handles and mail addresses": 2,
        "links": 1,
        "telephone numbers": 1,
        "custom emoji": 1,
        "encodings repaired": 1,
        "hashtags kept as words": 1,
    }


SIGNS = st.text(st.sampled_from("a@.&;#x6mplt:/w*_-\u0308u \n\u00ad<'+0(Ã¼â€ž"), max_size=40)


@given(SIGNS | st.text())
def test_a_cleaned_text_stays_as_it_is(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
