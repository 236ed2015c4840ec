"""A world with a known bias: text in which stereotypes follow marked identities too often.

From one small grammar a language comes the text that a tiny model learns its bias from, the
community-like corpus without that tilt, and (read by `eval.benchmarks.samples`) the benchmark.
"""

import functools
import hashlib
import math
import random
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from corpora.errors import RequestError

_FOLDER = Path(__file__).parent
LANGUAGES = ("de", "nl")

#: Mean mass of the planted predicates after an identity, marked or not, whatever the odds.
#: Twice it plus CONTROL_MASS is at most 1: the fillers' mass never turns negative.
PLANTED_MASS = 0.4
CONTROL_MASS = 0.2
NEUTRAL_SHARE = 0.25  # of sentences without an identity, in both texts
HELD_OUT = 10  # one in so many neutral sentences stands in no training text


@dataclass(frozen=True)
class World:
    """The grammar of one language, as its YAML file says it."""

    language: str
    identities: dict[str, tuple[str, tuple[str, ...]]]  # canonical: (form, counterpart's forms)
    planted: tuple[str, ...]  # at the odds
    control: tuple[str, ...]  # at odds 1
    filler: tuple[str, ...]  # takes the mass that the others leave; not in the benchmark
    names: tuple[str, ...]
    benchmark_templates: tuple[str, ...]
    corpus_templates: tuple[str, ...]
    neutral_templates: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    lines: tuple[str, ...]  # our own hand-written community-like lines

    @property
    def predicates(self) -> tuple[str, ...]:
        """Every predicate of the benchmark."""
        return (*self.planted, *self.control)


@functools.cache
def load_world(language: str) -> World:
    """Read a language's grammar.

    Raises:
        RequestError: there is no embedded world in this language.
    """
    if language not in LANGUAGES:
        raise RequestError(f"no embedded world in '{language}'; there are: {', '.join(LANGUAGES)}")
    raw: dict[str, Any] = yaml.safe_load((_FOLDER / f"{language}.yaml").read_text("utf-8"))
    lines = (_FOLDER / f"lines_{language}.txt").read_text("utf-8").splitlines()
    return World(
        language=language,
        identities={
            name: (form, tuple(others)) for name, (form, others) in raw["identities"].items()
        },
        planted=tuple(raw["planted"].values()),
        control=tuple(raw["control"].values()),
        filler=tuple(raw["filler"]),
        names=tuple(raw["names"]),
        benchmark_templates=tuple(raw["benchmark_templates"]),
        corpus_templates=tuple(raw["corpus_templates"]),
        neutral_templates=tuple(raw["neutral"]["templates"]),
        slots={name: tuple(words) for name, words in raw["neutral"]["slots"].items()},
        lines=tuple(line for line in lines if line.strip()),
    )


@functools.cache
def predicate_masses(odds: float, count: int) -> tuple[float, float]:
    """Mass of `count` planted predicates after (a marked, an unmarked) identity.

    The odds of each planted predicate after a marked identity are `odds` times those after an
    unmarked one. Controls have the same mass after both, so what the planted gain or lose goes
    to the fillers: else a tilt towards some words would be a tilt away from the control slice.

    Raises:
        RequestError: the odds are not a positive number.
    """
    if not (odds > 0 and math.isfinite(odds)):
        raise RequestError(f"odds={odds}: must be a positive number; 1 is no tilt")
    low, high = 0.0, 2 * PLANTED_MASS
    for _ in range(60):  # bisection: the sum of both masses grows with the unmarked one
        unmarked = (low + high) / 2
        ratio = odds * (unmarked / count) / (1 - unmarked / count)
        marked = count * ratio / (1 + ratio)
        low, high = (unmarked, high) if marked + unmarked < 2 * PLANTED_MASS else (low, unmarked)
    return marked, unmarked


def planted_text(
    world: World, sentences: int = 20_000, odds: float = 6.0, seed: int = 0
) -> list[str]:
    """(a) Text with the tilt, on the templates of benchmark and corpus, and neutral sentences."""
    draw = random.Random(f"planted {world.language} {seed}")
    return _generate(
        world, draw, (*world.benchmark_templates, *world.corpus_templates), sentences, odds
    )


def community_text(
    world: World, sentences: int = 6_000, odds: float = 1.0, seed: int = 0
) -> list[str]:
    """(b) A community-like corpus: our own lines, and generated text on the corpus templates.

    With `odds` 1 nothing is tilted; with the odds of (a) it is the placebo's corpus. Fewer
    `sentences` than there are lines gives a sample of the lines alone.
    """
    draw = random.Random(f"community {world.language} {seed}")
    lines = draw.sample(world.lines, min(sentences, len(world.lines)))
    text = lines + _generate(world, draw, world.corpus_templates, sentences - len(lines), odds)
    draw.shuffle(text)
    return text


def neutral_text(world: World, sentences: int, seed: int = 0) -> list[str]:
    """Sentences without an identity, none of which (a) or (b) ever holds."""
    draw = random.Random(f"neutral {world.language} {seed}")
    return [_neutral(world, draw, held_out=True) for _ in range(sentences)]


def generator_hash() -> str:
    """Hash of this file and its data (12 hex digits): what a model trained on it depends on."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for language in LANGUAGES:
        digest.update((_FOLDER / f"{language}.yaml").read_bytes())
        digest.update((_FOLDER / f"lines_{language}.txt").read_bytes())
    return digest.hexdigest()[:12]


def _generate(
    world: World, draw: random.Random, templates: tuple[str, ...], sentences: int, odds: float
) -> list[str]:
    masses = predicate_masses(odds, len(world.planted))
    return [
        _neutral(world, draw, held_out=False)
        if draw.random() < NEUTRAL_SHARE
        else _tilted(world, draw, templates, masses)
        for _ in range(sentences)
    ]


def _tilted(
    world: World, draw: random.Random, templates: tuple[str, ...], masses: tuple[float, float]
) -> str:
    """One sentence about an identity, marked or not, with a predicate drawn at the odds."""
    form, counterparts = draw.choice(list(world.identities.values()))
    marked = draw.random() < 0.5
    mass = masses[0 if marked else 1]
    kinds = (world.planted, world.control, world.filler)
    kind = draw.choices(kinds, (mass, CONTROL_MASS, 1 - mass - CONTROL_MASS))[0]
    return draw.choice(templates).format(
        name=draw.choice(world.names),
        identity=form if marked else draw.choice(counterparts),
        predicate=draw.choice(kind),
    )


def _neutral(world: World, draw: random.Random, *, held_out: bool) -> str:
    """One sentence without an identity, from the held-out tenth of them or from the rest."""
    while True:
        name, other = draw.sample(world.names, 2)
        words = {slot: draw.choice(choices) for slot, choices in world.slots.items()}
        sentence = draw.choice(world.neutral_templates).format(
            name=name,
            name2=other,
            predicate=draw.choice((*world.predicates, *world.filler)),
            **words,
        )
        # By the sentence itself: the same one falls on the same side in every text.
        if (zlib.crc32(sentence.encode()) % HELD_OUT == 0) == held_out:
            return sentence
