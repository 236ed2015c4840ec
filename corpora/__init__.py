"""Corpora: where text comes in. One file a source, with `read(settings) -> Iterator[Document]`.

A new source is one file here and one in `recipes/corpus/`, whose `reader` names it. Readers
only find the text; cleaning, duplicates, the split and the facts are the same for all, below.
"""

import difflib
import hashlib
import importlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpora import clean, prepared
from corpora.documents import Document
from corpora.errors import RequestError

READERS = ("text", "taz", "samples.reader")  # the shipped ones, to name in an error


@dataclass
class CorpusSettings:
    """How to read one corpus."""

    name: str = ""
    reader: str = "text"  # the module of corpora that reads it
    path: str | None = None  # a file or folder, or a folder that `mitigate corpus` built
    language: str = ""  # nl, de, en, fr
    encoding: str = "utf-8"  # of text files; JSON and Parquet say theirs themselves
    sentences: int | None = None  # samples: how many are generated
    odds: float = 1.0  # samples: the planted odds ratio; 1 is no tilt
    keywords: list[str] = field(default_factory=list)  # taz: any of them; empty: every article
    years: str = ""  # taz: 2019-2024, 2021, 2019- or -2000; empty: every year
    fields: dict[str, Any] = field(default_factory=dict)  # ours: the source's, dotted if nested
    seed: int = 0  # of the split, of `limit`, of generated text
    valid_share: float = 0.1  # of the documents, held out for the validation loss
    limit: int | None = None  # so many documents, a seeded sample
    weight: float = 1.0  # how often a document counts where several corpora are combined
    hub: str | None = None  # a datasets repository on the hub, or a folder that datasets reads
    hub_config: str | None = None
    hub_split: str = "train"
    on_error: str = "stop"  # a file or line that can't be read: stop, or skip (counted, said)
    languages: list[str] = field(default_factory=list)  # kept; empty: `language` alone
    unknown_language: bool = True  # keep what is too short or too mixed to tell
    min_confidence: float = 0.5  # of the language label, else it is unknown
    min_words: int = 3  # shorter documents are dropped after cleaning
    near_duplicates: float = 0.8  # Jaccard similarity from which one of two goes; 0: exact only
    groups: list[str] = field(default_factory=list)  # only texts that name one of them
    balance: bool = False  # as many documents of each identity
    origins: list[str] = field(default_factory=list)  # only these files or hosts
    tokens: int | None = None  # a budget of words, a seeded sample
    workers: int = 1  # processes that clean and label
    # mastodon
    allowlist: str | None = None  # the file that says who agreed to what
    instances: list[str] = field(default_factory=list)  # of those listed; empty: all of them
    hashtags: list[str] = field(default_factory=list)  # their timelines; empty: the public one
    posts: int | None = None  # at most so many of an instance
    contact: str = ""  # an address for the crawler's user agent
    bots: bool = False  # accounts marked as bots too
    sensitive: bool = False  # posts with a content warning or marked sensitive too
    allow_local: bool = False  # private addresses and http, for tests of one's own
    licence: str = ""
    source: str = ""  # where the data comes from, said when the path is missing
    paper: str = ""


@dataclass(frozen=True)
class Corpus:
    """Text, cleaned and split, and what is known of it."""

    name: str
    train: list[str]  # one text a document
    valid: list[str]
    facts: dict[str, Any]  # for the manifest: plain values only
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.train) + len(self.valid)


def load(settings: CorpusSettings) -> Corpus:
    """Read, clean, deduplicate and split the corpus that `settings` names.

    Texts that are equal after cleaning are one document; a document falls into the held-out
    part by a hash of the seed and its text, so that neither its place in the source nor what
    else is there decides. A folder that `build` made keeps the split it has.

    Raises:
        RequestError: no path, nothing there, a field or encoding that is wrong, no usable text.
    """
    _check(settings)
    train, valid, facts = _collect(settings, _documents(settings))
    if settings.limit is not None:
        train, valid = _limited(train, valid, settings.limit, settings.seed)
    texts = train + valid
    facts.update(
        documents_kept=len(texts),
        documents_train=len(train),
        documents_valid=len(valid),
        characters=sum(map(len, texts)),
        words=sum(len(text.split()) for text in texts),
        sha256=texts_hash(train, valid),
    )
    return Corpus(settings.name, train, valid, facts, settings.weight)


def combine(corpora: list[Corpus]) -> Corpus:
    """Put several corpora together; one alone stays as it is.

    What one corpus holds out, another doesn't train on; a text that two of them have counts
    once. Then weights apply, to the training texts only: with weight 2.5, each is there
    twice, and half of them (by their hash) a third time.

    Raises:
        RequestError: nothing is left to train on.
    """
    if len(corpora) == 1:
        return corpora[0]
    held_out = list(dict.fromkeys(text for corpus in corpora for text in corpus.valid))
    seen = set(held_out)
    train: list[str] = []
    repeated = 0
    for corpus in corpora:
        for text in corpus.train:
            if text in seen:
                repeated += 1
                continue
            seen.add(text)
            whole = int(corpus.weight)
            extra = _rank("weight", text) < corpus.weight - whole
            train += [text] * (whole + extra)
    if not train:
        names = ", ".join(corpus.name for corpus in corpora) or "none"
        raise RequestError(f"corpora {names}: no text left to train on")
    facts = {
        "corpora": {corpus.name: corpus.facts for corpus in corpora},
        "weights": {corpus.name: corpus.weight for corpus in corpora},
        "dropped": {"in two corpora": repeated} if repeated else {},
        "documents_train": len(train),
        "documents_valid": len(held_out),
        "sha256": texts_hash(train, held_out),
    }
    return Corpus("+".join(corpus.name for corpus in corpora), train, held_out, facts)


def build(settings: CorpusSettings, out: Path) -> dict[str, Any]:
    """Read a corpus once and write it to a new folder, which every recipe takes as its path.

    Writes `train.jsonl`, `valid.jsonl`, `manifest.json` (the facts, which are returned too)
    and a `DATASHEET.md` to be filled in.

    Raises:
        RequestError: `out` holds something already, or as `load`.
    """
    out = Path(out)
    prepared.check_free(out)  # before hours of reading
    corpus = load(settings)
    prepared.write(out, corpus.train, corpus.valid, corpus.facts)
    return corpus.facts


def texts_hash(train: list[str], valid: list[str]) -> str:
    """SHA-256 of which texts are in which part, whatever their order (64 hex digits)."""
    digest = hashlib.sha256()
    for part, texts in (("train", train), ("valid", valid)):
        for text in sorted(texts):
            digest.update(f"{part}\x1f{text}\x1e".encode())
    return digest.hexdigest()


def missing(settings: CorpusSettings, problem: str) -> RequestError:
    """The error for a corpus without data: the problem, where data comes from, what to type."""
    command = settings.reader.partition(".")[0]
    offline = settings.language if settings.language in ("de", "nl") else "de"
    source = f"; {settings.source.rstrip('. ')}" if settings.source else ""
    return RequestError(
        f"corpus {settings.name}: {problem}{source}. Give it as corpus.path=FILE_OR_FOLDER; "
        f"`mitigate corpus {command} path=… out=DIR` prepares a folder once, and "
        f"corpus=samples_{offline} tries the recipe offline"
    )


def _check(settings: CorpusSettings) -> None:
    if not 0 <= settings.valid_share < 1:
        raise RequestError(
            f"corpus.valid_share={settings.valid_share}: a share from 0 to below 1, such as 0.1"
        )
    if settings.limit is not None and settings.limit < 2:
        raise RequestError(f"corpus.limit={settings.limit}: 2 documents at least, or null")
    if not settings.weight > 0:
        raise RequestError(f"corpus.weight={settings.weight}: must be more than 0")


def _documents(settings: CorpusSettings) -> Iterator[Document]:
    if settings.path and prepared.is_prepared(Path(settings.path)):
        return prepared.read(settings)
    name = f"corpora.{settings.reader}"
    hint = difflib.get_close_matches(settings.reader, READERS, n=1, cutoff=0.5) or READERS
    error = RequestError(
        f"corpus.reader={settings.reader}: no file {name.replace('.', '/')}.py with "
        f"read(settings); there is: {', '.join(hint)}"
    )
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as failed:
        if failed.name is None or not f"{name}.".startswith(f"{failed.name}."):
            raise  # the reader is there, something that it needs is not
        raise error from failed
    if not hasattr(module, "read"):
        raise error
    return module.read(settings)


def _collect(
    settings: CorpusSettings, documents: Iterator[Document]
) -> tuple[list[str], list[str], dict[str, Any]]:
    """Clean, deduplicate and split; returns training texts, held-out texts, first facts."""
    read, dropped, files = 0, Counter[str](), dict[str, None]()
    splits: dict[str, str] = {}  # text: the split that the source gave it, in reading order
    for document in documents:
        read += 1
        files[document.origin] = None
        if document.dropped:
            dropped[document.dropped] += 1
            continue
        text = clean.clean(document.text)
        if not any(map(str.isalpha, text)):
            dropped["no text"] += 1
        elif text in splits:
            dropped["duplicate"] += 1
        else:
            splits[text] = document.split
    if not splits:
        why = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        at = settings.path or settings.reader
        raise RequestError(
            f"corpus {settings.name}: no usable text in {at} ({read} documents read"
            f"{': ' + why if why else ''})"
        )
    train, valid = _split(settings, splits)
    facts: dict[str, Any] = {
        "name": settings.name,
        "reader": settings.reader,
        "language": settings.language,
        "licence": settings.licence,
        "source": settings.source,
        "paper": settings.paper,
        "files": [name for name in files if name],
        "keywords": list(settings.keywords),
        "years": settings.years,
        "seed": settings.seed,
        "valid_share": settings.valid_share,
        "limit": settings.limit,
        "cleaning": clean.VERSION,
        "documents_read": read,
        "dropped": dict(dropped),
    }
    if settings.path:
        facts.update(prepared.folder_facts(Path(settings.path)))
    return train, valid, facts


def _split(settings: CorpusSettings, splits: dict[str, str]) -> tuple[list[str], list[str]]:
    if any(splits.values()):
        train = [text for text, split in splits.items() if split != "valid"]
        return train, [text for text, split in splits.items() if split == "valid"]
    ranks = {text: _rank(f"split {settings.seed}", text) for text in splits}
    train = [text for text in splits if ranks[text] >= settings.valid_share]
    valid = [text for text in splits if ranks[text] < settings.valid_share]
    if settings.valid_share == 0:
        return train, valid
    if len(splits) == 1:
        raise RequestError(
            f"corpus {settings.name}: one single document can't be split into training and "
            "validation; give it as several lines or rows, or say corpus.valid_share=0"
        )
    if not valid:  # a small corpus: the document that stands nearest changes sides
        valid = [min(train, key=ranks.__getitem__)]
        train.remove(valid[0])
    elif not train:
        train = [max(valid, key=ranks.__getitem__)]
        valid.remove(train[0])
    return train, valid


def _limited(
    train: list[str], valid: list[str], limit: int, seed: int
) -> tuple[list[str], list[str]]:
    """Sample so many documents, from both parts in proportion; a smaller limit is a subset."""
    total = len(train) + len(valid)
    if limit >= total:
        return train, valid
    held_out = round(limit * len(valid) / total)
    held_out = min(max(held_out, 1 if valid else 0), limit - 1)

    def sample(texts: list[str], count: int) -> list[str]:
        kept = set(sorted(texts, key=lambda text: _rank(f"limit {seed}", text))[:count])
        return [text for text in texts if text in kept]

    return sample(train, limit - held_out), sample(valid, held_out)


def _rank(salt: str, text: str) -> float:
    """A number in [0, 1) that depends on nothing but salt and text."""
    digest = hashlib.blake2b(f"{salt}\x1f{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


__all__ = [
    "Corpus",
    "CorpusSettings",
    "Document",
    "RequestError",
    "build",
    "combine",
    "load",
    "missing",
    "texts_hash",
]
