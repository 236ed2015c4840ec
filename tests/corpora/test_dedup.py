"""Near-duplicates against their definition, compared pair by pair."""

import random

import numpy as np
import pytest

from corpora import dedup
from corpora.normal import words


def texts(count: int, seed: int) -> list[str]:
    """Random posts, a third of them an earlier one with some words changed."""
    draw = random.Random(seed)
    vocabulary = [f"wort{number}" for number in range(500)]
    made: list[list[str]] = []
    for number in range(count):
        if number and draw.random() < 0.35:
            post = list(draw.choice(made))
            for _ in range(draw.randint(0, 4)):
                post[draw.randrange(len(post))] = draw.choice(vocabulary)
        else:
            post = draw.choices(vocabulary, k=draw.randint(1, 40))
        made.append(post)
    return [" ".join(post) for post in made]


def jaccard(one: str, other: str) -> float:
    first, second = (set(dedup.shingles(words(text))) for text in (one, other))
    return len(first & second) / len(first | second)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_those_go_that_are_alike_to_one_that_stays(threshold: float) -> None:
    posts = texts(300, seed=int(10 * threshold))
    order = list(range(len(posts)))
    random.Random(4).shuffle(order)
    shingled = [dedup.shingles(words(post)) for post in posts]
    stay: list[int] = []
    for at in order:
        if not any(jaccard(posts[at], posts[other]) >= threshold for other in stay):
            stay.append(at)
    expected = sorted(set(order) - set(stay))
    assert expected
    bands = dedup.bands(shingled, threshold)
    assert dedup.repeated(bands, order, lambda at: shingled[at], threshold) == expected


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
def test_bands_find_what_is_at_the_threshold(threshold: float) -> None:
    per_band = dedup.rows(threshold)
    bands = dedup.PERMUTATIONS // per_band
    assert per_band * bands <= dedup.PERMUTATIONS
    assert 1 - (1 - threshold**per_band) ** bands >= 0.995 or per_band == 1


def test_bands_are_the_same_whatever_stands_beside() -> None:
    shingled = [dedup.shingles(words(post)) for post in texts(50, seed=0)]
    whole = dedup.bands(shingled, 0.8)
    parts = np.concatenate([dedup.bands(shingled[:7], 0.8), dedup.bands(shingled[7:], 0.8)])
    assert np.array_equal(whole, parts)
    assert dedup.bands([], 0.8).shape == (0, whole.shape[1])


def test_a_flood_from_one_template_takes_no_quadratic_time() -> None:
    compared = 0

    def shingles(at: int) -> list[str]:
        nonlocal compared
        compared += 1
        return [*(f"same{n}" for n in range(50)), *(f"own{at}.{n}" for n in range(30))]

    posts = [shingles(at) for at in range(2000)]
    compared = 0
    assert dedup.repeated(dedup.bands(posts, 0.8), range(2000), shingles, 0.8) == []
    assert compared <= 2000


def test_short_texts_are_alike_only_word_by_word() -> None:
    assert dedup.shingles(words("Guten Morgen!")) == dedup.shingles(words("guten MORGEN"))
    assert dedup.shingles(words("Guten Morgen")) != dedup.shingles(words("Guten Abend"))
    assert dedup.shingles(words("a b c d")) == ["a b c", "b c d"]
