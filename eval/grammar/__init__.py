"""Grammatical minimal pairs: does a model still prefer what its language allows?

A fixed set of our own in German, Dutch and English, in the manner of BLiMP (Warstadt et al.
2020): two sentences that differ in one form or in the order of two words, one of them
ungrammatical. They name no identity, so a mitigation has no reason to change the answers.
"""

import itertools
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from eval.errors import RequestError
from eval.pairs import Pairs, build

LANGUAGES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.yaml")))


@cache
def load(language: str) -> Pairs:
    """The minimal pairs of a language as a Pair table: `sent_more` is the grammatical one.

    `group` is the phenomenon; `stereotype_id`, the cluster, is the frame with the forms that
    differ: pairs that only put other words around the same two forms are one observation.

    Raises:
        RequestError: there are none in this language.
    """
    if language not in LANGUAGES:
        raise RequestError(f"no minimal pairs in {language}; there are: {', '.join(LANGUAGES)}")
    path = Path(__file__).parent / f"{language}.yaml"
    frames = yaml.safe_load(path.read_text("utf-8"))
    rows = [row for number, frame in enumerate(frames) for row in _filled(number, frame)]
    return build(
        pd.DataFrame(rows),
        name=f"grammar_{language}",
        language=language,
        source={"file": path.name, "licence": "apache-2.0"},
    )


def _filled(number: int, frame: dict[str, Any]) -> list[dict[str, str]]:
    """`count` of a frame's fillings, each word of a slot as often as any other."""
    names = list(frame["slots"])
    rows = []
    for filling in _spread(list(frame["slots"].values()), frame["count"]):
        forms = [word.split("|") for word in filling]  # [right, wrong], or the one there is
        right, wrong = (
            frame["frame"].format(**{name: of[side] for name, of in zip(names, forms, strict=True)})
            for side in (0, -1)
        )
        differing = ", ".join("|".join(form) for form in forms if len(form) > 1)
        rows.append(
            {
                "sent_more": right,
                "sent_less": wrong,
                "group": frame["phenomenon"],
                "group_label": frame["phenomenon"],
                "stereotype_id": f"{number}: {differing}",
                "template": frame["frame"],
            }
        )
    return rows


def _spread(slots: list[list[str]], count: int) -> list[tuple[str, ...]]:
    """Of all fillings, one after the other that whose words were used least; the first of those.

    Raises:
        ValueError: there are not so many.
    """
    left = list(itertools.product(*slots))
    if count > len(left):
        raise ValueError(f"{count} pairs are wanted of {len(left)} fillings")
    used: Counter[tuple[int, str]] = Counter()
    chosen = []
    for _ in range(count):
        best = min(left, key=lambda words: sum(used[at, word] for at, word in enumerate(words)))
        left.remove(best)
        used.update(enumerate(best))
        chosen.append(best)
    return chosen
