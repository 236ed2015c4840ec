"""What is in a corpus, in counts: no text, no name."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

#: What is counted of a row: text, author (a name or a key), language, identities.
Row = tuple[str, str, str, Sequence[str]]


def summary(splits: dict[str, Iterable[Row]], dates: Iterable[str]) -> dict[str, Any]:
    """Counts of the rows of each split, and of their dates (ISO).

    `lengths` counts documents by the power of two that their words reach: 8 is 8 to 15 words.
    `identities` counts documents that name one, each under every identity that it names.
    """
    lengths, languages, identities = Counter[int](), Counter[str](), Counter[str]()
    words = characters = 0
    authors: set[str] = set()
    texts: dict[str, list[str]] = {"train": [], "valid": []}
    for split, rows in splits.items():
        for text, author, language, groups in rows:
            count = len(text.split())
            words += count
            characters += len(text)
            lengths[1 << (count.bit_length() - 1) if count else 0] += 1
            languages[language or "not looked at"] += 1
            identities.update(groups)
            authors.add(author)
            texts[split].append(text)
    months = Counter(date[:7] for date in dates if date)
    return {
        "documents_kept": len(texts["train"]) + len(texts["valid"]),
        "documents_train": len(texts["train"]),
        "documents_valid": len(texts["valid"]),
        "characters": characters,
        "words": words,
        "authors": len(authors - {""}),
        "languages": dict(languages.most_common()),
        "identities": dict(identities.most_common()),
        "lengths": {str(at): lengths[at] for at in sorted(lengths)},
        "months": {month: months[month] for month in sorted(months)},
        "sha256": texts_hash(texts["train"], texts["valid"]),
    }


def texts_hash(train: list[str], valid: list[str]) -> str:
    """SHA-256 of which texts are in which part, whatever their order (64 hex digits)."""
    digest = hashlib.sha256()
    for part, texts in (("train", train), ("valid", valid)):
        for text in sorted(texts):
            digest.update(f"{part}\x1f{text}\x1e".encode())
    return digest.hexdigest()
