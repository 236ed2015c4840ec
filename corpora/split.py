"""Training and held-out part: by author and time, never by row.

What one person wrote is alike, and so is what is written in one week: a held-out part drawn by
rows would look easier than new text is. Near-duplicates are gone before (`corpora.dedup`).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from corpora.documents import Document
from corpora.errors import RequestError
from corpora.select import rank


class Sourced(Protocol):
    """A text that knows where it comes from."""

    @property
    def text(self) -> str: ...

    @property
    def document(self) -> Document: ...


def split(items: Sequence[Sourced], share: float, seed: int, name: str) -> tuple[list[bool], str]:
    """Say of each document whether it is held out, and what decided: given, author, date, text.

    - Where the source has a split, that is kept.
    - Where authors are known, each is on one side, by a hash of the seed and the name; one who
      wrote more than the share that is to be held out is on the training side.
    - Where only dates are known, of half of the documents at least, the newest are held out,
      whole days; documents without a date are trained on.
    - Else a hash of the seed and the text decides, so that neither its place in the source nor
      what else is there does.

    Raises:
        RequestError: one single document.
    """
    if any(item.document.split for item in items):
        return [item.document.split == "valid" for item in items], "given"
    if share == 0:
        return [False] * len(items), "nothing"
    if len(items) == 1:
        raise RequestError(
            f"corpus {name}: one single document can't be split into training and "
            "validation; give it as several lines or rows, or say corpus.valid_share=0"
        )
    authors = [_author(item.document) for item in items]
    if any(authors) and len({author or f"\x1f{at}" for at, author in enumerate(authors)}) > 1:
        keys = [author or f"\x1f{item.text}" for author, item in zip(authors, items, strict=True)]
        return _by_unit(keys, share, seed), "author"
    dates = [item.document.date[:10] for item in items]
    if sum(map(bool, dates)) * 2 >= len(items) and len(set(filter(None, dates))) > 1:
        return _by_date(dates, share), "date"
    return _by_unit([item.text for item in items], share, seed), "text"


def _author(document: Document) -> str:
    return f"{document.author}\x1e{document.host}" if document.author else ""


def _by_unit(units: Sequence[str], share: float, seed: int) -> list[bool]:
    sizes = Counter(units)
    ranks = {unit: rank(f"split {seed}", unit) for unit in sizes}
    most = max(1.0, share * len(units))
    held_out = {unit for unit in sizes if ranks[unit] < share and sizes[unit] <= most}
    # A small corpus: the unit that stands nearest changes sides.
    if not held_out:
        held_out = {min(sizes, key=lambda unit: (sizes[unit] > most, ranks[unit]))}
    elif len(held_out) == len(sizes):
        held_out.remove(max(held_out, key=ranks.__getitem__))
    return [unit in held_out for unit in units]


def _by_date(dates: Sequence[str], share: float) -> list[bool]:
    """Hold out the newest days: as many as come nearest to the share, but not all."""
    by_day = sorted(Counter(filter(None, dates)).items(), reverse=True)
    wanted, taken, cut, distance = share * len(dates), 0, "", float("inf")
    undated = len(dates) - sum(size for _, size in by_day)
    for day, size in by_day if undated else by_day[:-1]:
        taken += size
        if abs(taken - wanted) >= distance:
            break
        cut, distance = day, abs(taken - wanted)
    return [bool(date) and date >= cut for date in dates]
