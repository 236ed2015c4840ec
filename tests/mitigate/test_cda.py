"""Counterfactuals: agreement, what stays as it is, and what a corpus becomes."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.samples import community_text, load_world
from eval.errors import RequestError
from mitigate import settings
from mitigate.methods.cda import augment
from mitigate.methods.counterfactuals import (
    COMPOUND,
    GENDER_FORM,
    LANGUAGES,
    NO_FORM,
    TWICE,
    Counts,
    Table,
    table,
)
from tests.conftest import Run

#: A sentence, and all that it may become.
AGREEMENT = {
    "de": [
        ("Kim ist schwul.", ["Kim ist hetero.", "Kim ist heterosexuell."]),
        ("Ein schwuler Mann.", ["Ein heterosexueller Mann."]),
        ("Mit schwulen Männern.", ["Mit heterosexuellen Männern."]),
        ("Das lesbische Paar.", ["Das heterosexuelle Paar."]),
        ("Der Schwule ging.", ["Der Heterosexuelle ging."]),
        ("Ein Schwuler ging.", ["Ein Heterosexueller ging."]),
        ("Die Lesbe singt.", ["Die Heterofrau singt.", "Die Hetera singt."]),
        ("Mit der Lesbe.", ["Mit der Heterofrau.", "Mit der Hetera."]),
        ("Von den Lesben.", ["Von den Heterofrauen.", "Von den Heteras."]),
        ("Den Transmännern half sie.", ["Den Cismännern half sie."]),
        ("Eine Trans-Frau.", ["Eine Cis-Frau."]),
        ("Trans* Frauen", ["Cis Frauen", "Cisgender Frauen"]),
        ("TRANSFRAUEN!", ["CISFRAUEN!"]),
        ("die lesbe", ["die heterofrau", "die hetera"]),
        ("Nichtbinäre Menschen", ["Cisgeschlechtliche Menschen"]),
        ("intergeschlechtlicher Kinder", ["endogeschlechtlicher Kinder"]),
        ("Kim ist LGBTQ.", ["Kim ist hetero.", "Kim ist heterosexuell."]),
        ("LGBTQ ist Kim.", ["Hetero ist Kim.", "Heterosexuell ist Kim."]),
        ("Queere Bücher", ["Heterosexuelle Bücher"]),
    ],
    "nl": [
        ("Kim is homo.", ["Kim is hetero.", "Kim is heteroseksueel."]),
        ("De homo's kwamen.", ["De hetero's kwamen.", "De heteroseksuelen kwamen."]),
        ("De homo’s kwamen.", ["De hetero’s kwamen.", "De heteroseksuelen kwamen."]),
        ("een biseksuele vrouw", ["een heteroseksuele vrouw"]),
        ("een lesbisch stel", ["een heteroseksueel stel"]),
        ("Een lesbienne.", ["Een heterovrouw."]),
        ("nonbinaire mensen", ["cis mensen", "cisgender mensen"]),
        ("Een transman en twee transvrouwen", ["Een cisman en twee cisvrouwen"]),
        ("queer geschiedenis", ["hetero geschiedenis"]),
    ],
    "en": [
        ("A gay man left.", ["A straight man left.", "A heterosexual man left."]),
        ("An asexual man left.", ["A straight man left.", "A heterosexual man left."]),
        ("AN ASEXUAL MAN", ["A STRAIGHT MAN", "A HETEROSEXUAL MAN"]),
        ("An LGBTQ person", ["A straight person", "A heterosexual person"]),
        ("She is a lesbian.", ["She is a straight woman."]),
        ("a lesbian couple", ["a straight couple", "a heterosexual couple"]),
        ("The lesbian's cat.", ["The straight woman's cat."]),
        ("an intersex child", ["an endosex child"]),
        ("two bisexuals", ["two heterosexuals"]),
    ],
}
#: Said of people without a mark: which words their counterparts agree in.
BACK = {
    "de": [
        (
            "Ein Hetero kam.",
            r"Ein (Schwul|Bisexuell|Pansexuell|Asexuell|Homosexuell|Queer)er kam\.",
        ),
        ("Der Hetero kam.", r"Der \w+e kam\."),
        ("Den jungen Heteros half er.", r"Den jungen [A-Z]\w+(sexuell|Queer|wul)?en half er\."),
        ("Heteros sind da.", r"(Bis|Pans|As|Homos)exuelle sind da\.|Queere sind da\."),
        ("Eine Heterosexuelle kam.", r"Eine (?!Schwul)[A-Z]\w+e kam\."),
        ("Meine Freundin ist hetero.", r"Meine Freundin ist (?!schwul)\w+\."),
        ("Mein Vater ist hetero.", r"Mein Vater ist (?!lesbisch)\w+\."),
        ("Eine cis Frau", r"Eine trans(gender)? Frau"),
    ],
    "nl": [
        ("Mijn zus is hetero.", r"Mijn zus is (?!homo\b)\w+\."),
        ("Een hetero kwam.", r"Een (homo|\w+seksueel) kwam\."),
    ],
    "en": [
        ("A straight man", r"An? (?!lesbian|queer man$)\w+ man|A queer man"),
        ("Kim is straight.", r"Kim is \w+\."),
    ],
}


def results(language: str, sentence: str, draws: int = 60) -> set[str]:
    return {table(language).swap(sentence, str(seed)) for seed in range(draws)}


@pytest.mark.parametrize(
    ("language", "sentence", "expected"),
    [(language, *case) for language, cases in AGREEMENT.items() for case in cases],
)
def test_what_agrees_still_does(language: str, sentence: str, expected: list[str]) -> None:
    assert results(language, sentence) == set(expected)


@pytest.mark.parametrize(
    ("language", "sentence", "pattern"),
    [(language, *case) for language, cases in BACK.items() for case in cases],
)
def test_marked_counterparts_agree_too(language: str, sentence: str, pattern: str) -> None:
    found = results(language, sentence)
    assert sentence not in found
    assert [one for one in found if not re.fullmatch(pattern, one)] == []


@pytest.mark.parametrize(
    ("language", "sentence", "why"),
    [
        ("de", "Im Schwulenclub am Bi-Stammtisch.", COMPOUND),
        ("de", "Lesb*innen und Schwule*r", GENDER_FORM),
        ("de", "Lesben:innen", GENDER_FORM),
        ("de", "Schwul oder lesbisch, egal.", TWICE),
        ("de", "Schwule, Bisexuelle und Heterosexuelle.", TWICE),
        ("de", "mit Freunden und Heteros", NO_FORM),
        ("nl", "het homohuwelijk", COMPOUND),
        ("en", "gay and lesbian rights", TWICE),
        ("de", "Die Trans World Airlines, die BI Lebenswert, Pan und heterogene Gruppen.", ""),
        ("nl", "Homo sapiens en heterogeen", ""),
        ("en", "She went straight home along a straight line; the ace of spades.", ""),
        ("de", "Liebe Schüler*innen, Lehrer:innen, Kolleg_innen und LehrerInnen!", ""),
    ],
)
def test_what_stays_as_it_is(language: str, sentence: str, why: str) -> None:
    counts = Counts()
    assert table(language).swap(sentence, "0", counts) == sentence
    assert set(counts.left) == ({why} if why else set())
    assert counts.swapped_sentences == 0


def test_both_sides_in_a_sentence_are_exchanged_at_once() -> None:
    swap = table("de").swap
    for seed in map(str, range(30)):
        assert swap("Weder schwul noch hetero.", seed) in (
            "Weder hetero noch schwul.",
            "Weder heterosexuell noch schwul.",
        )
        assert swap("Schwule und Heterosexuelle.", seed) == "Heterosexuelle und Schwule."
        said = swap("Sie ist trans und hetero.", seed)
        assert re.fullmatch(r"Sie ist cis(gender|geschlechtlich)? und (?!hetero|trans)\w+\.", said)
    # One sentence's words don't decide about another's.
    assert "hetero" in swap("Kim ist schwul. Bo ist lesbisch.", "0").lower()


def test_gender_forms_survive_byte_for_byte() -> None:
    text = (
        "Die schwulen Schüler*innen, Lehrer:innen, Kolleg_innen,  LehrerInnen\u00a0… «hier»!\n\tOk"
    )
    made = table("de").swap(text, "0")
    assert made == text.replace("schwulen", "heterosexuellen")


def one_to_one(words: Table) -> list[str]:
    """The forms that have one reading, one counterpart, and are its only one."""
    found = []
    for key, forms in words.forms.items():
        if len(forms) > 1 or words.gender[forms[0].concept] or " " in key:
            continue
        form = forms[0]
        theirs = words.against[form.concept]
        if len(theirs) != 1:
            continue
        there = words.words.get((theirs[0], form.kind), [])
        back = [
            concept
            for concept in words.against[theirs[0]]
            if words.words.get((concept, form.kind)) and not words.gender[concept]
        ]
        here = words.words[form.concept, form.kind]
        if len(there) == len(here) == 1 and back == [form.concept]:
            found.append(form.word)
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_where_the_table_is_one_to_one_twice_is_never(language: str) -> None:
    words = table(language)
    once = one_to_one(words)
    assert once
    for word in once:
        for said in (word, word[0].upper() + word[1:], word.upper()):
            # Before a noun, where what never inflects has one reading.
            text = f"– {said}."
            other = words.swap(text, "0")
            assert other != text
            assert words.swap(other, "1") == text


@given(
    st.sampled_from(LANGUAGES),
    st.lists(
        st.one_of(
            st.sampled_from([form for code in LANGUAGES for form in table(code).forms]),
            st.sampled_from(
                ["und", "Menschen", "sind", ".", "\n", "*", "Schüler*innen", "a", "LGBTQ"]
            ),
            st.text(max_size=5),
        ),
        max_size=12,
    ),
    st.text(max_size=3),
)
def test_only_words_of_the_table_ever_change(language: str, parts: list[str], seed: str) -> None:
    words = table(language)
    text = " ".join(parts)
    counts = Counts()
    made = words.swap(text, seed, counts)
    assert made == words.swap(text, seed)
    assert (made == text) == (counts.swapped_sentences == 0)
    known = {part for key in words.forms for part in key.split()} | {"a", "an", "woman", "women"}
    trivial = re.compile(r"[^\W\d_]+")

    def rest(said: str) -> list[str]:
        found = [one.casefold() for one in trivial.findall(said)]
        return [one for one in found if one not in known | {"s", "trans", "cis", "binär", "nicht"}]

    plain = {part for key in known for part in trivial.findall(key)}
    assert [one for one in rest(made) if one not in plain] == [
        one for one in rest(text) if one not in plain
    ]
    # Everything between words stays, a star of trans* aside.
    assert re.sub(r"[\w*'’-]+", "", made).split() == re.sub(r"[\w*'’-]+", "", text).split()


@pytest.mark.parametrize("language", ["de", "nl"])
def test_every_identity_of_the_embedded_world_has_counterparts(language: str) -> None:
    world = load_world(language)
    for name, (form, others) in world.identities.items():
        text = f"Kim, {form}, {world.control[0]}."
        assert {one.split(", ")[1] for one in results(language, text)} & set(others), name
    back = Counter(
        one.split(", ")[1]
        for other in ("hetero", "cis")
        for one in results(language, f"Kim, {other}, {world.control[0]}.", 300)
    )
    assert {form for form, _ in world.identities.values()} <= set(back)


def test_augmenting_balances_what_is_said_of_whom() -> None:
    world = load_world("de")
    text = community_text(world, 3000, odds=6.0)
    made = augment(text[:2700], text[2700:], ["de"])
    marked = [form for form, _ in world.identities.values()]

    def share(texts: list[str], identities: list[str]) -> float:
        named = [one for one in texts if set(re.findall(r"\w+", one)) & set(identities)]
        planted = [one for one in named if set(re.findall(r"\w+", one)) & set(world.planted)]
        return len(planted) / len(named)

    unmarked = ["hetero", "heterosexuell", "cis", "cisgender"]
    before = share(text[:2700], marked) - share(text[:2700], unmarked)
    after = share(made.train, marked) - share(made.train, unmarked)
    assert before > 0.2
    assert abs(after) < before / 4


def test_parts_of_a_corpus_stay_apart_and_are_augmented_once() -> None:
    train = ["Eine Transfrau.", "Der Tee ist warm.", "Zwei Transmänner kamen.", "Eine Cisperson."]
    valid = ["Eine Cisfrau.", "Ein Transmann.", "Eine Transperson."]
    two = augment(train, valid, ["de"])
    assert two.train == [*train, "Zwei Cismänner kamen."]
    assert two.valid == [*valid, "Ein Cismann."]
    assert two.facts["in_the_other_part"] == 4
    one = augment(["Eine Transfrau.", "Der Tee ist warm."], ["Ein Transmann."], ["de"], sides="one")
    assert sorted(one.train) == ["Der Tee ist warm.", "Eine Cisfrau."]
    assert one.valid == ["Ein Cismann."]
    assert augment(train, [], ["de"], seed=1) == augment(train, [], ["de"], seed=1)


def test_mixed_languages_are_told_apart() -> None:
    train = [
        "Meine beste Freundin ist schon lange lesbisch und wohnt in Kassel.",
        "Mijn beste vriendin is al heel lang lesbisch en woont in Zwolle.",
    ]
    made = augment(train, [], ["de", "nl"], sides="one")
    assert any("heterosexuell" in one or "hetero und" in one for one in made.train)
    assert any("heteroseksueel" in one or "hetero en" in one for one in made.train)


def test_wrong_requests_get_one_line() -> None:
    with pytest.raises(RequestError, match=r"language 'fr'; there are: de, en, nl"):
        Table("fr")
    with pytest.raises(RequestError, match=r"corpus\.control_de\.language=fr: .* de, en, nl"):
        settings.from_words(["corpus.language=fr"], recipe="demo_cda")
    with pytest.raises(RequestError, match=r"method\.cda\.sides=three"):
        settings.from_words(["method.cda.sides=three"], recipe="demo_cda")


@pytest.mark.long
def test_a_run_says_what_it_augmented(tiny_masked: Path, run_mitigate: Run, tmp_path: Path) -> None:
    done = run_mitigate(
        *("train", "recipe=demo_cda", f"model.path={tiny_masked}", "run.dir=run"),
        *("corpus.sentences=300", "benchmark.limit=40", "method.max_steps=4"),
        *("method.eval_steps=4", "method.save_steps=4", "retention.sentences=4"),
        *("retention.grammar=false", "retention.places=2"),
        *("inference.resamples=200", "tracking.mode=disabled"),
    )
    assert done.returncode == 0, done.stderr
    assert "counterfactuals (two-sided)" in done.stderr + done.stdout
    facts = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))["training"]
    assert facts["cda"]["changed_train"] > 10
    assert facts["cda"]["augmented_train"] > facts["cda"]["texts_train"]
    assert facts["steps"] == 4
