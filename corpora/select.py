"""Choosing documents: by source and year, by identity, as many of each, so many words.

Samples are by hash: the same seed takes the same documents, whatever else is there, and a
smaller sample is part of a larger one.
"""

import difflib
import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Protocol

from corpora.documents import Document
from corpora.errors import RequestError
from corpora.keywords import LANGUAGES, Identities, identities
from corpora.years import years


class Labelled(Protocol):
    """A text that knows what identities it names."""

    @property
    def text(self) -> str: ...

    @property
    def groups(self) -> tuple[str, ...]: ...


def table(languages: Sequence[str], groups: Sequence[str]) -> Identities:
    """The words for identities of the wanted languages.

    Raises:
        RequestError: a group that they don't have, or none of the languages has any.
    """
    words = identities(tuple(languages))
    if groups and languages and not set(languages) & set(LANGUAGES):
        raise RequestError(
            f"corpus.groups={list(groups)}: there are words for identities in "
            f"{', '.join(LANGUAGES)}, none in {', '.join(languages)}"
        )
    for group in groups:
        if group not in words.groups:
            close = difflib.get_close_matches(group, words.groups, n=1, cutoff=0.5)
            raise RequestError(
                f"corpus.groups={group}: no such identity; there are "
                f"{', '.join(words.groups)}" + (f"; say {close[0]}" if close else "")
            )
    return words


def outside(document: Document, origins: Collection[str], said_years: str) -> str:
    """Why a document is not of the wanted sources or years; '' if it is."""
    if origins and document.origin not in origins and document.host not in origins:
        return "of another source"
    if not said_years:
        return ""
    if not document.date[:4].isdigit():
        return "without a date"
    first, last = years(said_years)
    return "" if first <= int(document.date[:4]) <= last else f"not of {said_years}"


def balanced(items: Sequence[Labelled], groups: Sequence[str], seed: int) -> list[int]:
    """As many documents of each identity, by position; those that name none are left out.

    A document that names several counts for the rarest of them. `groups`: those to balance;
    empty: all that are named.

    Raises:
        RequestError: one of `groups` is named by no document.
    """
    named = Counter(group for item in items for group in item.groups)
    wanted = set(groups) or set(named)
    for group in groups:
        if not named[group]:
            raise RequestError(
                f"corpus.balance=true: no document names {group}; leave it out of corpus.groups"
            )
    strata: dict[str, list[int]] = {group: [] for group in sorted(wanted)}
    for at, item in enumerate(items):
        of = [group for group in item.groups if group in wanted]
        if of:
            strata[min(of, key=lambda group: (named[group], group))].append(at)
    strata = {group: places for group, places in strata.items() if places}
    least = min(map(len, strata.values()), default=0)
    kept = []
    for places in strata.values():
        kept += sorted(places, key=lambda at: rank(f"balance {seed}", items[at].text))[:least]
    return sorted(kept)


def within(items: Sequence[Labelled], words: int, seed: int) -> list[int]:
    """A sample of documents with so many words together at most, by position."""
    kept, left = [], words
    for at in sorted(range(len(items)), key=lambda at: rank(f"tokens {seed}", items[at].text)):
        left -= len(items[at].text.split())
        if left < 0:
            break
        kept.append(at)
    return sorted(kept)


def rank(salt: str, text: str) -> float:
    """A number in [0, 1) that depends on nothing but salt and text."""
    digest = hashlib.blake2b(f"{salt}\x1f{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
