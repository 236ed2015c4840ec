"""The embedded community-like corpus, as a source like any other."""

from collections.abc import Iterator

from corpora import CorpusSettings
from corpora.documents import Document
from corpora.samples.world import community_text, load_world

DEFAULT_SENTENCES = 6000


def read(settings: CorpusSettings) -> Iterator[Document]:
    """Generate `sentences` lines in `language` with the planted `odds`; 1 is no tilt.

    Raises:
        RequestError: no world in this language.
    """
    world = load_world(settings.language)
    sentences = settings.sentences or DEFAULT_SENTENCES
    lines = community_text(world, sentences, odds=settings.odds, seed=settings.seed)
    yield from map(Document, lines)
