"""The embedded corpus and the generator of planted-bias text."""

from corpora.samples.world import (
    LANGUAGES,
    World,
    community_text,
    generator_hash,
    load_world,
    neutral_text,
    planted_text,
)

__all__ = [
    "LANGUAGES",
    "World",
    "community_text",
    "generator_hash",
    "load_world",
    "neutral_text",
    "planted_text",
]
