"""Corpora: where text comes in. One file a source, with `read(settings) -> Iterator[Document]`.

A new source is one file here and one in `recipes/corpus/`, whose `reader` names it. Readers
only find the text; cleaning, duplicates, the split and the facts are the same for all, below.
"""

import datetime
import difflib
import hashlib
import importlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from corpora import clean, decontaminate, filtering, prepared, privacy, rows, select, steps
from corpora.documents import Document
from corpora.errors import RequestError, Stopped
from corpora.summary import Row, summary, texts_hash

READERS = ("text", "taz", "mastodon", "samples.reader")  # the shipped ones, to name in an error

_NO_GROUP = "names none of the wanted identities"


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
    control: bool = False  # a placebo's text: names no identity, and no keyword of `keywords`
    match: str | None = None  # a placebo: the built corpus that it has as many words as
    stereotypes: str | None = None  # a list: sentences with one of these and an identity are cut
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


def load(
    settings: CorpusSettings,
    *,
    private: Path | None = None,
) -> Corpus:
    """Read, clean, deduplicate, choose and split the corpus that `settings` names.

    `corpora.steps` says what is done. A folder that `build` made keeps the split it has, and
    only choices are made in it. What was forgotten (`corpora.forget`) is left out; `private`
    is the folder that knows, the user's own where none is given.

    Raises:
        RequestError: no path, nothing there, a field or encoding that is wrong, no usable text.
    """
    built, facts = _collect(settings, privacy.existing(private))
    facts.update(
        summary(
            {split: map(_row, kept) for split, kept in _splits(built).items()},
            (kept.document.date for kept in [*built.train, *built.valid]),
        )
    )
    train, valid = ([kept.text for kept in part] for part in _splits(built).values())
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
            extra = select.rank("weight", text) < corpus.weight - whole
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


def build(
    settings: CorpusSettings,
    out: Path,
    *,
    private: Path | None = None,
    benchmark: decontaminate.Benchmark | None = None,
    benchmarks: Sequence[str] = (),
    ready: steps.Prepared | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Read a corpus once and write it to a new folder, which every recipe takes as its path.

    `corpora.prepared` says what the folder holds; salt and provenance go to `private`, a folder
    outside it. `benchmark`: whose sentences and templates are cut out, with its names in
    `benchmarks` for the datasheet. `ready`: what a cluster has prepared of it already
    (`corpora.cluster.gather`), so that nothing is read here. Posts from Mastodon are gathered
    first. Returns the facts, which are the folder's manifest.

    Raises:
        RequestError: `out` holds something already, or `private` lies in it, or as `load`.
        Stopped: an instance is down; what was gathered is kept.
    """
    out, private = Path(out), private or privacy.default_folder()
    privacy.check_outside(private, out)
    prepared.check_free(out)  # before hours of reading
    if settings.path and prepared.is_prepared(Path(settings.path).expanduser()):
        raise RequestError(
            f"path={settings.path}: is a corpus that was built already; a recipe takes it as it "
            "is, corpus.path=DIR, and chooses in it, corpus.groups=[…]; build from the source"
        )
    store = privacy.Store(private)
    with store.alone(out):
        prepared.settle(out)
        gathered: dict[str, Any] = {}
        if settings.reader == "mastodon" and not settings.path:
            settings, gathered = _gathered(settings, store, say)
        built, facts = _collect(settings, store, benchmark, ready)
        splits, provenance = rows.tables(built, store)
        facts |= summary(
            {split: rows.counted(table) for split, table in splits.items()},
            provenance["date"].to_pylist(),
        )
        facts |= {
            "id": secrets.token_hex(8),
            "built": datetime.date.today().isoformat(),
            "benchmarks": list(benchmarks),
            "consent": _consent(settings, gathered),
            "gathered": gathered,
            "forgotten": [],
        }
        store.note(facts["id"], provenance, _about(settings, out))
        try:
            return prepared.write(out, splits, facts, [asdict(cut) for cut in built.removed])
        except BaseException:
            store.discard(facts["id"])
            raise


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


def _without_forgotten(ready: steps.Prepared, store: privacy.Store | None) -> steps.Prepared:
    """What a cluster prepared, without those who have asked to be forgotten since."""
    stays = [not (store and store.is_forgotten(kept.document)) for kept in ready.kept]
    left = [kept for kept, stay in zip(ready.kept, stays, strict=True) if stay]
    gone = len(stays) - len(left)
    if not gone:
        return ready
    step = steps.Step("forgotten", len(stays), len(left), {"forgotten": gone})
    bands = ready.bands[np.asarray(stays)]
    return replace(ready, kept=left, bands=bands, counts=[*ready.counts, step])


def _collect(
    settings: CorpusSettings,
    store: privacy.Store | None,
    benchmark: decontaminate.Benchmark | None = None,
    ready: steps.Prepared | None = None,
) -> tuple[steps.Built, dict[str, Any]]:
    """What is left of the documents, split, and what was done; nothing is counted yet."""
    _check(settings)
    settings = filtering.matched(settings)
    files: dict[str, None] = {}
    read = 0

    def told() -> Iterator[Document]:
        nonlocal read
        for document in _documents(settings):
            read += 1
            files[document.origin] = None
            if store and not document.dropped and store.is_forgotten(document):
                document = replace(document, text="", dropped="forgotten")
            yield document

    place = Path(settings.path).expanduser() if settings.path else None
    if place and prepared.is_prepared(place):
        built, manifest = _chosen(settings, place)
        files, read = dict.fromkeys(manifest["files"]), built.counts[0].before
    elif ready is not None:
        built = steps.finish(_without_forgotten(ready, store), settings)
        files = dict.fromkeys(kept.document.origin for kept in ready.kept)
        read = built.counts[0].before
    else:
        ready = filtering.apply(steps.prepare(told(), settings, benchmark), settings)
        built = steps.finish(ready, settings)
    if settings.limit is not None:
        built = _limited(built, settings.limit, settings.seed)
    dropped = Counter[str]()
    for step in built.counts:
        dropped.update(step.dropped)
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
        "groups": list(settings.groups),
        "origins": list(settings.origins),
        "balance": settings.balance,
        "tokens": settings.tokens,
        "seed": settings.seed,
        "valid_share": settings.valid_share,
        "limit": settings.limit,
        **filtering.facts(settings),
        "cleaning": clean.VERSION,
        "documents_read": read,
        "dropped": dict(dropped),
        "steps": [asdict(step) for step in built.counts],
    }
    if place:
        facts.update(prepared.folder_facts(place))
    return built, facts


def _chosen(settings: CorpusSettings, folder: Path) -> tuple[steps.Built, dict[str, Any]]:
    """What is chosen in a corpus that was built: nothing else is done to it again."""
    manifest = prepared.check(settings)
    select.table((manifest["language"],) if manifest["language"] else (), settings.groups)
    kept = list(rows.kept(folder))
    wanted = frozenset(settings.groups)
    named = [one for one in kept if not wanted or not wanted.isdisjoint(one.groups)]
    other = len(kept) - len(named)
    counts = [
        steps.Step("read", len(kept), len(kept)),
        steps.Step("identities", len(kept), len(named), {_NO_GROUP: other} if other else {}),
    ]
    bands = np.empty((len(named), 0), np.uint64)
    ready = filtering.apply(steps.Prepared(named, bands, counts, Counter()), settings)
    return steps.finish(ready, replace(settings, near_duplicates=0)), manifest


def _splits(built: steps.Built) -> dict[str, list[steps.Kept]]:
    return {"train": built.train, "valid": built.valid}


def _row(kept: steps.Kept) -> Row:
    return kept.text, kept.document.author, kept.label, kept.groups


def _gathered(
    settings: CorpusSettings, store: privacy.Store, say: Callable[[str], None]
) -> tuple[CorpusSettings, dict[str, Any]]:
    """Fetch posts into the private folder, a place for each choice; where they are, and how."""
    from corpora import mastodon

    place = mastodon_folder(settings, store)
    facts = mastodon.gather(settings, place, say, unwanted=store.is_forgotten)
    return replace(settings, path=str(place), instances=list(facts["instances"])), facts


def mastodon_folder(settings: CorpusSettings, store: privacy.Store) -> Path:
    """Where posts of this choice are gathered: the same choice goes on where it was left."""
    choice = [
        sorted(settings.instances),
        sorted(settings.hashtags),
        settings.bots,
        settings.sensitive,
        settings.posts,
    ]
    name = hashlib.blake2b(json.dumps(choice).encode(), digest_size=8).hexdigest()
    return store.folder / "mastodon" / name


def _consent(settings: CorpusSettings, gathered: dict[str, Any]) -> list[dict[str, str]]:
    """The entries of the allowlist whose posts are here."""
    keys = ("date", "agreed_by", "agreed_to", "terms")
    return [
        {"host": host, **{key: str(entry[key]) for key in keys}}
        for host, entry in gathered.get("instances", {}).items()
        if entry["posts"]
    ]


def _about(settings: CorpusSettings, out: Path) -> dict[str, Any]:
    """What the private folder keeps of a corpus, so that its source can be asked again."""
    keys = ("name", "reader", "allowlist", "contact", "bots", "sensitive", "allow_local")
    return {"path": str(out.resolve()), **{key: getattr(settings, key) for key in keys}}


def _limited(built: steps.Built, limit: int, seed: int) -> steps.Built:
    """Sample so many documents, from both parts in proportion; a smaller limit is a subset."""
    total = len(built.train) + len(built.valid)
    if limit >= total:
        return built
    held_out = round(limit * len(built.valid) / total)
    held_out = min(max(held_out, 1 if built.valid else 0), limit - 1)

    def sample(kept: list[steps.Kept], count: int) -> list[steps.Kept]:
        places = sorted(
            range(len(kept)), key=lambda at: select.rank(f"limit {seed}", kept[at].text)
        )
        return [kept[at] for at in sorted(places[:count])]

    taken = steps.Step("limit", total, limit, {"beyond the limit": total - limit})
    return replace(
        built,
        train=sample(built.train, limit - held_out),
        valid=sample(built.valid, held_out),
        counts=[*built.counts, taken],
    )


__all__ = [
    "Corpus",
    "CorpusSettings",
    "Document",
    "RequestError",
    "Stopped",
    "build",
    "combine",
    "load",
    "missing",
    "texts_hash",
]
