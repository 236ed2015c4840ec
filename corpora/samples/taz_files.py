"""Files in the shape of taz2024full, of whatever size: `{id: {…, "text": {…}}}`, one a year.

For tests and for measuring: the sentences are the embedded world's, so nothing of the paper's
is in them; shape, keys and the spread over years and keywords are as `corpora.taz` expects.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpora.samples.world import community_text, load_world

YEARS = range(2017, 2025)
#: Every tenth article or so has one of these among its keywords.
QUEER = ("Queer", "LGBTQ", "Trans Frau", "Trans Mann", "Nicht-binär", "Lesbisch", "Schwul")
OTHER = ("Berlin", "Fußball", "Klima", "Transport", "Kultur", "Wirtschaft", "Internet")
SHARE = 0.1
SENTENCES = 5_000  # different ones; articles are made of them
AUTHORS = 200


def articles(count: int, seed: int = 0, share: float = SHARE) -> Iterator[tuple[str, dict]]:
    """So many articles, (id, article) each, spread evenly over YEARS in order.

    `share`: of them, how many have a keyword of QUEER.
    """
    draw = random.Random(seed)
    sentences = list(community_text(load_world("de"), SENTENCES, odds=1.0, seed=seed))
    for number in range(count):
        year = YEARS[number * len(YEARS) // count]
        month, day = draw.randint(1, 12), draw.randint(1, 28)
        queer = draw.random() < share
        keywords = draw.sample(OTHER, 2) + ([draw.choice(QUEER)] if queer else [])
        paragraphs = [" ".join(draw.sample(sentences, 4)) for _ in range(draw.randint(1, 4))]
        yield (
            f"T{seed}-{number:07}",
            {
                "publishing_date": f"{year}-{month:02}-{day:02}",
                "author": f"Redakteur*in {draw.randrange(AUTHORS)}",
                "keywords": keywords,
                "text": {
                    "headline": f"Nummer {number}: {draw.choice(sentences)}",
                    "lead": draw.choice(sentences) if draw.random() < 0.5 else None,
                    "body": "\n".join(paragraphs),
                },
            },
        )


def write(folder: Path, count: int, seed: int = 0, share: float = SHARE) -> list[Path]:
    """Write the articles as a JSON file a year, one article in memory at a time; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, Any] = {}
    try:
        for name, article in articles(count, seed, share):
            year = article["publishing_date"][:4]
            first = year not in written
            if first:
                written[year] = (folder / f"taz_{year}.json").open("w", encoding="utf-8")
            content = json.dumps(article, ensure_ascii=False)
            written[year].write(f"{'{' if first else ','}\n{json.dumps(name)}: {content}")
    finally:
        for file in written.values():
            file.write("\n}\n")
            file.close()
    return [folder / f"taz_{year}.json" for year in written]
