"""Language: labels of real sentences, what is unknown, and that the rest has no part in it."""

import pytest

from corpora import RequestError
from corpora.language import label, wanted

SAID = {
    "de": [
        "Heute zum ersten Mal mit Regenbogenfahne am Rucksack zur Uni gefahren.",
        "Die Schüler*innen haben gestern lange über das neue Gesetz gesprochen.",
        "Søren und Łukasz haben am Samstag in Århus geheiratet, und wir waren alle da.",
    ],
    "nl": ["Vandaag voor het eerst met een regenboogvlag naar de universiteit gefietst."],
    "en": ["Today I went to the university with a rainbow flag for the first time."],
    "fr": ["Aujourd'hui, je suis allée à l'université avec un drapeau, c'était très agréable."],
    "nb da": [
        "I dag gik jeg på universitetet med et regnbueflag for første gang, og det var så godt."
    ],
    "sv": ["I dag gick jag till universitetet med en regnbågsflagga för första gången, så bra."],
    "tr": ["Bugün ilk kez gökkuşağı bayrağıyla üniversiteye gittim ve çok güzeldi."],
    "pl": ["Dzisiaj po raz pierwszy poszłam na uczelnię z tęczową flagą i było pięknie."],
}


@pytest.mark.parametrize(("code", "said"), [(code, one) for code in SAID for one in SAID[code]])
def test_sentences_get_their_language(code: str, said: str) -> None:
    ((found, confidence),) = label([said], ["de"], 0.5)
    assert found in code.split()
    assert 0.5 <= confidence <= 1


def test_what_is_too_short_or_below_the_wanted_confidence_is_unknown() -> None:
    assert (
        label(["Ja!", "@user http", "@user @user [phone] http [id]"], ["de"], 0.5)
        == [("unknown", 0.0)] * 3
    )
    ((found, confidence),) = label(["die Ministerin in het parlement"], ["de"], 1.01)
    assert found == "unknown"
    assert confidence > 0


def test_placeholders_and_the_other_texts_have_no_part_in_it() -> None:
    text = SAID["de"][0]
    alone = label([text], ["de"], 0.5)
    assert label(["x y z", text, SAID["en"][0]], ["de"], 0.5)[1:2] == alone
    assert label([f"@user {text} http"], ["de"], 0.5)[0][0] == "de"


def test_no_wanted_language_gives_no_label() -> None:
    assert label(["Egal was"], [], 0.5) == [("", 0.0)]


def test_wanted_languages() -> None:
    assert wanted("de", []) == ("de",)
    assert wanted("de", ["nl", "en", "nl"]) == ("nl", "en")
    assert wanted("", []) == ()
    with pytest.raises(RequestError, match=r"corpus\.languages=deutsch: no ISO 639-1 code"):
        wanted("", ["deutsch"])
