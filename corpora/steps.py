"""From documents to a corpus: the steps that are the same for every source, with their counts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from corpora import decontaminate
from corpora.documents import Document

if TYPE_CHECKING:
    from corpora import CorpusSettings


@dataclass(frozen=True)
class Step:
    """What one step did: documents before and after, why some went, what changed in others."""

    name: str
    before: int
    after: int
    dropped: dict[str, int] = field(default_factory=dict)  # reason: documents
    changed: dict[str, int] = field(default_factory=dict)  # what was replaced or cut: how often


@dataclass(frozen=True)
class Kept:
    """A document that stays."""

    text: str
    document: Document  # where it comes from; its `text` is empty
    groups: tuple[str, ...]  # the identities that it names, canonical, sorted
    label: str  # language: de, nl, …, `unknown`, or '' where none was asked for
    confidence: float  # of the label, 0 to 1


@dataclass(frozen=True)
class Built:
    """A corpus, and how it came about."""

    train: list[Kept]  # in reading order
    valid: list[Kept]
    counts: list[Step]  # in the order of the steps
    removed: list[decontaminate.Removed] = field(default_factory=list)


def run(
    documents: Iterator[Document],
    settings: "CorpusSettings",
    benchmark: "decontaminate.Benchmark | None" = None,
    *,
    report: Callable[[str, int], None] | None = None,
) -> Built:
    """Clean, label, decontaminate, deduplicate, choose and split.

    `report` is told the step's name and how many documents it has done.

    Raises:
        RequestError: nothing is left, and which step took the last document.
    """
    raise NotImplementedError
