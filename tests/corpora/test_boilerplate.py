"""Headers, footers and cookie notices: what repeats at the edges of a source's documents goes."""

from corpora import boilerplate
from corpora.boilerplate import REPEATS, edges, repeated, without_edges, without_notices


def stripped(texts: list[str], sources: list[str]) -> list[str]:
    found = repeated([edges(text) for text in texts], sources)
    return [
        without_edges(text, found.get(source, set()))[0]
        for text, source in zip(texts, sources, strict=True)
    ]


def test_a_repeated_footer_and_header_go_and_the_article_stays() -> None:
    texts = [f"Seite eins\nArtikel {n}\nMitte\nEnde {n}\nMehr dazu hier" for n in range(20)]
    assert stripped(texts, ["a"] * 20) == [f"Artikel {n}\nMitte\nEnde {n}" for n in range(20)]


def test_what_repeats_in_another_source_or_seldom_stays() -> None:
    texts = [f"Artikel {n}\nMehr dazu" for n in range(REPEATS)]
    assert stripped(texts, ["a"] * (REPEATS - 1) + ["b"]) == [
        *(["Artikel 0", "Artikel 1", "Artikel 2", "Artikel 3", "Artikel 4"]),
    ]  # sources of fewer documents count together
    many = texts + [f"Anderes {n}\nEnde {n}" for n in range(int(REPEATS / boilerplate.SHARE))]
    assert stripped(many, ["a"] * len(many)) == many
    assert stripped(texts[1:], ["a"] * (REPEATS - 1)) == texts[1:]


def test_a_line_in_the_middle_and_a_post_of_one_line_stay() -> None:
    texts = [f"{n}a\n{n}b\nMitte\n{n}c\n{n}d\n{n}e" for n in range(20)] + ["Guten Morgen"] * 20
    assert stripped(texts, ["a"] * 40) == texts


def test_cookie_notices_go_and_talk_of_cookies_stays() -> None:
    notice = "Wir verwenden Cookies. Bitte akzeptieren Sie diese."
    assert without_notices(f"Oben\n{notice}\nUnten") == ("Oben\nUnten", 1)
    assert without_notices("We use cookies. Accept all?") == ("", 1)
    assert without_notices("Accepteer onze cookies en ga verder")[1] == 1
    baked = "Heute backen wir Cookies für den CSD."
    assert without_notices(baked) == (baked, 0)
