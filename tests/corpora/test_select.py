"""Choosing: identities and their false friends, equal shares, budgets, sources and years."""

from collections import Counter

import pytest

from corpora import RequestError
from corpora.documents import Document
from corpora.keywords import identities
from corpora.normal import words
from corpora.select import balanced, outside, table, within
from corpora.steps import Kept

NAMED = {
    "de": [
        ("Viele trans* Frauen und Trans-Männer kamen.", "transgender"),
        ("Transgenderrechte sind Menschenrechte", "transgender"),
        ("Die Transfrauen und ein trans Mann", "transgender"),
        ("nicht-binäre Menschen, Nichtbinäre", "nonbinary"),
        ("Das schwul-lesbische Zentrum", "gay lesbian"),
        ("gegen Schwulenfeindlichkeit", "gay"),
        ("Lesben und Schwule", "gay lesbian"),
        ("ich bin bi und pansexuell", "bisexual pansexual"),
        ("die Bi-Flagge", "bisexual"),
        ("Sie ist ace, aroace sogar", "asexual"),
        ("inter* Personen, intergeschlechtlich", "intersex"),
        ("queerfeindliche Angriffe beim CSD", "lgbtq queer"),
        ("LSBTIQ* und LGBTQIA+", "lgbtq"),
        ("der Transport nach Trans-Europa, die Transition", ""),
        ("Inter Mailand gegen Inter Miami, international", ""),
        ("Die BI Lebenswerte Stadt, bi-lateral", ""),
        ("lesbar auf Lesbos, ein Schwulst, schwüle Luft", ""),
        ("Enola Gay, Roxane Gay und Tina Ace", ""),
        ("Homo sapiens und homogene Gruppen", ""),
        ("Nicht der Pan im Wald", ""),
    ],
    "nl": [
        ("Een transvrouw en trans personen", "transgender"),
        ("non-binaire mensen", "nonbinary"),
        ("homo's en lesbiennes", "gay lesbian"),
        ("biseksuele en panseksuele vrienden", "bisexual pansexual"),
        ("de lhbtiqa+-gemeenschap", "lgbtq"),
        ("homo sapiens en homogeen transport", ""),
    ],
    "en": [
        ("Trans women are women", "transgender"),
        ("nonbinary, agender and non-binary folks", "nonbinary"),
        ("a gay bar for lesbians", "gay lesbian"),
        ("trans fats and trans-atlantic flights", ""),
        ("asexual reproduction, bi-weekly, the ace of spades", ""),
    ],
}


@pytest.mark.parametrize(
    ("language", "said", "groups"),
    [(language, *one) for language, some in NAMED.items() for one in some],
)
def test_identities_are_found_and_false_friends_are_not(
    language: str, said: str, groups: str
) -> None:
    table = identities((language,))
    assert " ".join(table.find(said)) == groups
    assert table.find(said, words(said)) == table.find(said)  # the fast way


def test_the_languages_have_the_same_identities() -> None:
    first, *others = (identities((code,)).groups for code in ("de", "nl", "en"))
    assert all(set(groups) == set(first) for groups in others)
    assert set(identities(()).groups) == set(first)


def test_unknown_identities_and_languages_get_one_line() -> None:
    with pytest.raises(RequestError, match=r"corpus\.groups=transgneder: .*; say transgender"):
        table(["de"], ["transgneder"])
    with pytest.raises(RequestError, match=r"identities in de, en, nl, none in fr"):
        table(["fr"], ["queer"])
    assert table(["fr"], []).groups


def kept(count: int, *groups: str, name: str = "") -> list[Kept]:
    return [
        Kept(f"{name or groups} {number} und so", Document(""), groups, "de", 1.0)
        for number in range(count)
    ]


def test_balanced_takes_as_many_of_each() -> None:
    items = kept(50, "gay") + kept(20, "gay", "lesbian") + kept(7, "transgender") + kept(30)
    chosen = balanced(items, [], 0)
    assert Counter(items[at].groups for at in chosen) == {
        ("gay",): 7,
        ("gay", "lesbian"): 7,  # counted for the rarer of the two
        ("transgender",): 7,
    }
    assert balanced(items, [], 0) == chosen == sorted(chosen)
    assert balanced(items, [], 1) != chosen
    only = balanced(items, ["gay", "transgender"], 0)
    assert Counter("transgender" in items[at].groups for at in only) == {True: 7, False: 7}
    with pytest.raises(RequestError, match="no document names asexual"):
        balanced(items, ["gay", "asexual"], 0)


def test_a_budget_is_a_sample_and_a_smaller_one_a_part_of_it() -> None:
    items = kept(200, "gay")
    sizes = [len(item.text.split()) for item in items]
    large, small = within(items, 300, 0), within(items, 100, 0)
    assert set(small) < set(large)
    assert 300 - max(sizes) < sum(sizes[at] for at in large) <= 300
    assert within(items, 300, 1) != large
    assert within(items, 10**6, 0) == list(range(200))


@pytest.mark.parametrize(
    ("document", "origins", "years", "why"),
    [
        (Document("", origin="a.json"), ["a.json"], "", ""),
        (Document("", origin="x", host="chaos.social"), ["chaos.social"], "", ""),
        (Document("", origin="b.json"), ["a.json"], "", "of another source"),
        (Document("", date="2021-03-08"), [], "2019-2024", ""),
        (Document("", date="2018"), [], "2019-", "not of 2019-"),
        (Document(""), [], "2019-2024", "without a date"),
    ],
)
def test_sources_and_years(document: Document, origins: list[str], years: str, why: str) -> None:
    assert outside(document, origins, years) == why
