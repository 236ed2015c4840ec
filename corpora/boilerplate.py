"""Lines that stand around the text and are none of it: headers, footers, cookie notices."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

#: So many lines from the top and from the bottom of a document are looked at.
TOP, BOTTOM = 2, 3
#: A line at the edge of so many documents of one source, and of such a share of them.
REPEATS, SHARE = 5, 0.01
#: Longer than a notice is.
NOTICE = 400

_COOKIES = re.compile(r"\bcookies?\b", re.IGNORECASE)
_CONSENT = re.compile(
    r"\b(?:akzeptier|zustimm|stimme|einverstanden|verwende|nutzt|nutzen wir|speicher|einstellung"
    r"|datenschutz|accept|agree|consent|we use|uses|settings|preferences|privacy"
    r"|accepte|toestemming|akkoord|gebruik|maakt gebruik|instellingen|voorkeuren)",
    re.IGNORECASE,
)


def without_notices(text: str) -> tuple[str, int]:
    """A text without lines that ask to accept cookies, and how many went."""
    if "ookie" not in text and "OOKIE" not in text:
        return text, 0
    lines = text.split("\n")
    kept = [line for line in lines if not _notice(line)]
    return "\n".join(kept), len(lines) - len(kept)


def edges(text: str) -> list[int]:
    """The hashes of a document's first and last lines; a document of one line has none."""
    if "\n" not in text:
        return []
    lines = text.split("\n")
    return [_hash(line) for line in dict.fromkeys([*lines[:TOP], *lines[-BOTTOM:]])]


def repeated(edges: Sequence[Sequence[int]], sources: Sequence[str]) -> dict[str, set[int]]:
    """Which edge lines, by source, stand in too many of its documents to be of any one.

    A source of fewer than REPEATS documents, such as a file that is one document, counts
    together with all others of that kind.
    """
    sizes = Counter(sources)
    found: dict[str, set[int]] = {}
    grouped: dict[str, list[int]] = {}
    for hashes, source in zip(edges, sources, strict=True):
        if hashes:
            grouped.setdefault(source if sizes[source] >= REPEATS else "", []).extend(hashes)
    small = sum(size for size in sizes.values() if size < REPEATS)
    for source, hashes in grouped.items():
        lines, counts = np.unique(np.array(hashes, np.uint64), return_counts=True)
        least = max(REPEATS, SHARE * sizes.get(source, small))
        if many := set(lines[counts >= least].tolist()):
            for name in [source] if source else [one for one in sizes if sizes[one] < REPEATS]:
                found[name] = many
    return found


def without_edges(text: str, lines: set[int]) -> tuple[str, int]:
    """A text without such lines at its top and bottom, and how many went."""
    kept = text.split("\n")
    start, end = 0, len(kept)
    while start < min(TOP, end) and _hash(kept[start]) in lines:
        start += 1
    while end > max(start, len(kept) - BOTTOM) and _hash(kept[end - 1]) in lines:
        end -= 1
    return "\n".join(kept[start:end]), len(kept) - (end - start)


def _notice(line: str) -> bool:
    return len(line) < NOTICE and bool(_COOKIES.search(line) and _CONSENT.search(line))


def _hash(line: str) -> int:
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "big")
