"""All steps: counts that add up, the same result however the work is cut, what is left out."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from corpora import CorpusSettings, RequestError, decontaminate, steps
from corpora.documents import Document

BENCHMARK = decontaminate.Benchmark(["Alle Nachbarn sind leider furchtbar laut."], "small")
WORDS = (
    "heute gestern morgen wir ihr sie gehen kommen sehen lesen wieder gern Stadt Straße Haus "
    "Garten Zeitung Freunde Nachbarn schwule lesbische queere trans Menschen und oder aber nicht "
    "mit ohne für über Regen Sonne Abend Sommer lange schnell endlich vielleicht zusammen"
)


def settings(**more: Any) -> CorpusSettings:
    return CorpusSettings(name="posts", path="posts.jsonl", language="de", **more)


def documents(count: int = 240, seed: int = 0) -> Iterator[Document]:
    """Posts and articles in all conditions that a step looks for."""
    draw = random.Random(seed)
    for number in range(count):
        said = " ".join(draw.choices(WORDS.split(), k=20))
        author = f"anna_{number % 17}"
        text = f"<p>{said} @wer@chaos.social</p><p>#csd #pride</p>"
        if number % 5 == 1:
            text = f"{said}. Alle Nachbarn sind leider furchtbar laut. {said}"
        if number % 40 == 2:
            text = "Today we are going to see the new film with all of our very good friends."
        if number % 40 == 3:
            text = "👍 …"
        if number % 40 == 4:
            text = "Ja gut"
        if number % 40 == 5:
            text = "Am Abend gehen wir gern lange durch die Stadt und lesen im Garten die Zeitung."
        if number % 40 == 6:
            text = f"Am Abend gehen WIR gern lange durch die Stadt und lesen im Garten {number}"
        if number % 3 == 0:
            text = f"{said}\nvon {author}\nMehr Texte auf unserer Seite"
        yield Document(
            "" if number % 50 == 49 else text,
            origin=f"file{number % 2}",
            dropped="of 2017" if number % 50 == 49 else "",
            author=author,
            host="chaos.social",
            date=f"2023-{1 + number % 12:02}-01",
            html=text.startswith("<p>"),
        )


def test_counts_add_up_and_everything_happens() -> None:
    built = steps.run(documents(), settings(), BENCHMARK)
    names = [step.name for step in built.counts]
    assert names == [
        *("read", "clean", "boilerplate", "length", "language", "decontaminate"),
        *("duplicates", "near-duplicates", "split"),
    ]
    after = built.counts[0].before
    for step in built.counts:
        assert step.before == after
        after = step.after
        assert step.before - step.after == sum(step.dropped.values())
    assert len(built.train) + len(built.valid) == after
    by_name = {step.name: step for step in built.counts}
    assert by_name["read"].dropped == {"of 2017": 4}
    assert by_name["clean"].dropped == {"no text": 6 - 2}
    assert by_name["boilerplate"].changed["repeated lines"] > 50
    assert set(by_name["length"].dropped) == {"fewer than 3 words"}
    assert set(by_name["language"].dropped) == {"language en"}
    assert by_name["decontaminate"].changed["sentences cut"] == sum(
        one.times for one in built.removed
    )
    assert by_name["duplicates"].dropped["duplicate"] > 0
    assert by_name["near-duplicates"].dropped["near-duplicate"] > 0
    texts = [kept.text for kept in built.train + built.valid]
    assert decontaminate.overlap(texts, BENCHMARK) == []
    assert not any("<" in text or "chaos" in text or "anna_" in text for text in texts)
    assert not any("Mehr Texte" in text for text in texts)
    authors = [{kept.document.author for kept in part} for part in (built.train, built.valid)]
    assert not authors[0] & authors[1]
    assert all(kept.label in ("de", "unknown") for kept in built.train)


@pytest.mark.parametrize("more", [{}, {"groups": ["gay"], "near_duplicates": 0.0}])
def test_the_same_for_any_chunk_and_any_number_of_workers(more: dict[str, Any]) -> None:
    asked = settings(**more)
    expected = steps.run(documents(), asked, BENCHMARK)
    assert expected.valid
    assert steps.run(documents(), asked, BENCHMARK, chunk=7) == expected
    if not more:
        assert steps.run(documents(), replace(asked, workers=2), BENCHMARK, chunk=50) == expected


def test_of_two_alike_the_oldest_stays() -> None:
    said = "Am Abend gehen wir gern lange durch die Stadt und lesen im Garten die Zeitung"
    posts = [
        Document(f"{said} ohne Datum"),
        Document(f"{said}!", date="2023-05-01"),
        Document(said, date="2021-01-01", key="oldest"),
        Document(said, date="2022-01-01"),
        Document("Etwas ganz anderes steht hier in diesem langen Satz.", date="2024-01-01"),
    ]
    built = steps.run(iter(posts), settings(near_duplicates=0.8))
    assert [kept.document.key for kept in built.train + built.valid] == ["oldest", ""]
    exact = steps.run(iter(posts), settings(near_duplicates=0.0))
    assert len(exact.train + exact.valid) == 4


def test_identities_choose_and_balance_and_a_budget_ends() -> None:
    built = steps.run(
        documents(), settings(groups=["gay", "transgender"], balance=True, tokens=200)
    )
    kept = built.train + built.valid
    assert all({"gay", "transgender"} & set(one.groups) for one in kept)
    assert sum(len(one.text.split()) for one in kept) <= 200
    names = [step.name for step in built.counts]
    assert names[2] == "identities"
    assert names[-3:] == ["balance", "tokens", "split"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"groups": ["pansexual"]}, r"no usable text in posts\.jsonl .*the step 'identities'"),
        ({"languages": ["fr"], "unknown_language": False}, r"the step 'language'"),
        ({"min_words": 500}, r"fewer than 500 words.*the step 'length'"),
        ({"years": "1999"}, r"not of 1999.*the step 'sources and years'"),
        ({"tokens": 1}, r"the step 'tokens'"),
        ({"near_duplicates": 2.0}, r"corpus\.near_duplicates=2\.0"),
        ({"groups": ["gray"]}, r"corpus\.groups=gray.*say gay"),
    ],
)
def test_an_empty_selection_says_which_step_took_the_last(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        steps.run(documents(), settings(**change), BENCHMARK)


def test_reading_is_streamed_and_reported() -> None:
    seen: list[tuple[str, int]] = []
    steps.run(documents(), settings(), report=lambda *said: seen.append(said), chunk=100)
    assert [done for step, done in seen if step == "clean"][-1] == 240
    assert {step for step, _ in seen} == {"clean", "label"}
