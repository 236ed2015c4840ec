"""From documents to a corpus: the steps that are the same for every source, with their counts.

`prepare` does what looks at one document, or at the documents of one source: markup, cleaning,
boilerplate, language, the benchmark's sentences. `finish` does what looks at all of them:
duplicates, samples, the split. Both give the same for any number of workers and any size of
chunk.
"""

import multiprocessing
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from corpora import boilerplate, clean, decontaminate, dedup, language, markup, normal, select
from corpora.documents import Document
from corpora.errors import RequestError
from corpora.placeholders import HANDLE
from corpora.split import split

if TYPE_CHECKING:
    from corpora import CorpusSettings

#: Documents that a process gets at a time: some milliseconds of sending for a second of work.
CHUNK = 2000

Report = Callable[[str, int], None]
In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class Step:
    """What one step did: documents before and after, why some went, what changed in others."""

    name: str
    before: int
    after: int
    dropped: dict[str, int] = field(default_factory=dict)  # reason: documents
    changed: dict[str, int] = field(default_factory=dict)  # what was replaced or cut: how often


@dataclass(frozen=True, slots=True)
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


@dataclass
class Prepared:
    """Documents on their way from `prepare` to `finish`."""

    kept: list[Kept]  # in reading order
    bands: np.ndarray  # (documents, bands) uint64: hashes that near-duplicates share
    counts: list[Step]
    cut: Counter[tuple[str, str, str]]  # benchmark, kind, words: how often it was cut out


def run(
    documents: Iterable[Document],
    settings: "CorpusSettings",
    benchmark: decontaminate.Benchmark | None = None,
    *,
    report: Report | None = None,
    chunk: int = CHUNK,
) -> Built:
    """Clean, label, decontaminate, deduplicate, choose and split.

    `report` is told the step's name and how many documents it has done.

    Raises:
        RequestError: nothing is left, and which step took the last document; a language or an
            identity that isn't known; a single document that is to be split.
    """
    prepared = prepare(documents, settings, benchmark, report=report, chunk=chunk)
    return finish(prepared, settings)


def prepare(
    documents: Iterable[Document],
    settings: "CorpusSettings",
    benchmark: decontaminate.Benchmark | None = None,
    *,
    report: Report | None = None,
    chunk: int = CHUNK,
) -> Prepared:
    """The steps up to decontamination; see `run`."""
    job = _job(settings, benchmark)
    report = report or (lambda step, done: None)
    with _workers(settings.workers, job) as workers:
        texts, sources, edges, counts = _cleaned(documents, settings, workers, report, chunk)
        _without_boilerplate(texts, sources, edges, counts)
        return _labelled(texts, sources, counts, workers, report, chunk, bool(job.codes))


def finish(prepared: Prepared, settings: "CorpusSettings") -> Built:
    """The steps from duplicates to the split; see `run`."""
    kept, counts = prepared.kept, _Counts(prepared.counts)
    if not kept:
        raise _nothing_left(settings, counts.steps)
    order = sorted(range(len(kept)), key=lambda at: _age(kept[at].document, at))
    counts.begin("duplicates")
    first: dict[str, int] = {}
    for at in order:
        first.setdefault(kept[at].text, at)
    stay = sorted(first.values())
    counts.drop("duplicate", len(kept) - len(stay))
    if settings.near_duplicates:
        counts.begin("near-duplicates")
        places = {at: place for place, at in enumerate(stay)}
        near = dedup.repeated(
            prepared.bands[stay],
            [places[at] for at in order if at in places],
            lambda place: dedup.shingles(normal.words(kept[stay[place]].text)),
            settings.near_duplicates,
        )
        gone = set(near)
        stay = [at for place, at in enumerate(stay) if place not in gone]
        counts.drop("near-duplicate", len(gone))
    kept = [kept[at] for at in stay]
    for name, reason, wanted, choose in (
        ("balance", "more of its identity than of the rarest", settings.balance, _balance),
        ("tokens", "beyond the budget", settings.tokens, _budget),
    ):
        if wanted:
            counts.begin(name)
            chosen = [kept[at] for at in choose(kept, settings)]
            counts.drop(reason, len(kept) - len(chosen))
            kept = chosen
        if not kept:
            raise _nothing_left(settings, counts.steps)
    counts.begin("split")
    held_out, by = split(kept, settings.valid_share, settings.seed, settings.name)
    train = [item for item, out in zip(kept, held_out, strict=True) if not out]
    valid = [item for item, out in zip(kept, held_out, strict=True) if out]
    counts.change({"train": len(train), "valid": len(valid), f"by {by}": len(kept)})
    return Built(train, valid, counts.steps, decontaminate.listed(prepared.cut))


def added(parts: list[Step]) -> Step:
    """One step, done to several parts of the documents."""
    dropped, changed = Counter[str](), Counter[str]()
    for part in parts:
        dropped.update(part.dropped)
        changed.update(part.changed)
    before, after = sum(part.before for part in parts), sum(part.after for part in parts)
    return Step(parts[0].name, before, after, dict(dropped), dict(changed))


class _Counts:
    """The steps so far."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps = list(steps)

    def begin(self, name: str, before: int | None = None) -> None:
        if before is None:
            before = self.steps[-1].after
        self.steps.append(Step(name, before, before))

    def drop(self, reason: str, documents: int = 1) -> None:
        if documents:
            step = self.steps[-1]
            dropped = {**step.dropped, reason: step.dropped.get(reason, 0) + documents}
            self.steps[-1] = Step(
                step.name, step.before, step.after - documents, dropped, step.changed
            )

    def change(self, changed: dict[str, int]) -> None:
        step = self.steps[-1]
        some = {what: times for what, times in changed.items() if times}
        self.steps[-1] = Step(step.name, step.before, step.after, step.dropped, some)


# What runs in the worker processes.


@dataclass(frozen=True)
class _Job:
    """What a worker must know."""

    codes: tuple[str, ...]  # wanted languages
    groups: frozenset[str]  # wanted identities; empty: any text
    languages: tuple[str, ...]  # of the words for identities
    min_confidence: float
    unknown: bool
    min_words: int
    near: float
    benchmark: decontaminate.Benchmark | None


_job_here: _Job  # of this process


def _begin(job: _Job) -> None:
    global _job_here  # a worker's one job, sent once and not with every chunk
    _job_here = job


@dataclass
class _Clean:
    """A chunk, cleaned: for each document its text, or why it goes."""

    texts: list[str]
    reasons: list[str]
    edges: list[list[int]]
    changed: Counter[str]


def _clean_chunk(job: _Job | None, raw: list[tuple[str, bool, str]]) -> _Clean:
    """Markup, placeholders, cookie notices; `raw` is text, whether it is HTML, and its author."""
    job = job or _job_here
    changed: Counter[str] = Counter()
    parsed = iter(markup.texts([text for text, is_html, _ in raw if is_html]))
    texts, reasons, edges = [], [], []
    words_for = select.table(job.languages, ())
    for text, is_html, author in raw:
        if is_html:
            text = next(parsed)
        if len(author) > 4 and author in text:
            text, times = _without_name(text, author)
            changed["names of authors"] += times
        text, notices = boilerplate.without_notices(clean.clean(text, changed))
        if notices:
            changed["cookie notices"] += notices
        reason = ""
        if not any(map(str.isalpha, text)):
            reason = "no text"
        elif job.groups and job.groups.isdisjoint(words_for.find(text)):
            reason = _NO_GROUP
        texts.append("" if reason else text)
        reasons.append(reason)
        edges.append([] if reason else boilerplate.edges(text))
    return _Clean(texts, reasons, edges, changed)


_NO_GROUP = "names none of the identities"


def _without_name(text: str, author: str) -> tuple[str, int]:
    """A placeholder for the author's own name, where it is no ordinary word."""
    if author.isalpha():
        return text, 0
    return re.subn(rf"(?<!\w){re.escape(author)}(?!\w)", HANDLE, text)


@dataclass
class _Labelled:
    """A chunk, labelled: of the documents that stay, and why the others go."""

    places: list[int]  # in the chunk
    texts: list[str]
    groups: list[tuple[str, ...]]
    labels: list[tuple[str, float]]
    bands: np.ndarray
    dropped: Counter[tuple[str, str]]  # step, reason
    cut: Counter[tuple[str, str, str]]


def _label_chunk(job: _Job | None, texts: list[str]) -> _Labelled:
    """Length, language, the benchmark's sentences, identities, signature."""
    job = job or _job_here
    dropped: Counter[tuple[str, str]] = Counter()
    cut: Counter[tuple[str, str, str]] = Counter()
    places, long = [], []
    for place, text in enumerate(texts):
        if len(text.split(None, job.min_words)) < job.min_words:
            dropped["length", f"fewer than {job.min_words} words"] += 1
        else:
            places.append(place)
            long.append(text)
    labels = language.label(long, job.codes, job.min_confidence)
    words_for = select.table(job.languages, ())
    found = _Labelled([], [], [], [], np.empty(0), dropped, cut)
    shingled = []
    for place, text, labelled in zip(places, long, labels, strict=True):
        code = labelled[0]
        wanted = code in job.codes or not job.codes
        if not wanted and not (job.unknown and code == language.UNKNOWN):
            dropped["language", f"language {code}"] += 1
            continue
        sentences = decontaminate.parse(text)
        if job.benchmark is not None:
            rest = decontaminate.cut(text, job.benchmark, cut, sentences)
            if rest != text:
                text, sentences = rest, decontaminate.parse(rest)
                if len(text.split(None, job.min_words)) < max(job.min_words, 1):
                    dropped["decontaminate", "little else than a benchmark's sentences"] += 1
                    continue
        words = [word for _, _, some in sentences for word in some]
        groups = words_for.find(text, words)
        if job.groups and job.groups.isdisjoint(groups):
            dropped["decontaminate", _NO_GROUP + " any more"] += 1
            continue
        found.places.append(place)
        found.texts.append(text)
        found.groups.append(groups)
        found.labels.append(labelled)
        if job.near:
            shingled.append(dedup.shingles(words))
    if job.near:
        found.bands = dedup.bands(shingled, job.near)
    else:
        found.bands = np.empty((len(found.texts), 0), np.uint64)
    return found


# What runs here.


def _job(settings: "CorpusSettings", benchmark: decontaminate.Benchmark | None) -> _Job:
    codes = language.wanted(settings.language, settings.languages)
    select.table(codes, settings.groups)  # raises
    if not 0 <= settings.near_duplicates <= 1:
        raise RequestError(
            f"corpus.near_duplicates={settings.near_duplicates}: a similarity from 0 (equal "
            "texts only) to 1, such as 0.8"
        )
    return _Job(
        codes=codes,
        groups=frozenset(settings.groups),
        languages=codes,
        min_confidence=settings.min_confidence,
        unknown=settings.unknown_language,
        min_words=settings.min_words,
        near=settings.near_duplicates,
        benchmark=benchmark,
    )


Map = Callable[[Callable[[_Job | None, Any], Any], Iterable[Any]], Iterator[Any]]


@contextmanager
def _workers(count: int, job: _Job) -> Iterator[Map]:
    """A map that keeps the order: in processes, or in this one."""
    if count <= 1:
        yield lambda function, items: map(partial(function, job), items)
        return
    # Not `fork`: torch's threads may hold locks that a child would wait for.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload([__name__])  # the libraries are loaded once for all
    with ProcessPoolExecutor(count, context, _begin, (job,)) as pool:
        yield lambda function, items: _in_order(pool, partial(function, None), items, 2 * count)


def _in_order(
    pool: Executor, function: Callable[[In], Out], items: Iterable[In], ahead: int
) -> Iterator[Out]:
    """Map in processes, a few items ahead of what is taken, so that memory stays bounded."""
    waiting: deque[Future[Out]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _chunks(items: Iterable[In], size: int) -> Iterator[list[In]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _cleaned(
    documents: Iterable[Document],
    settings: "CorpusSettings",
    workers: Map,
    report: Report,
    chunk: int,
) -> tuple[list[str], list[Document], list[list[int]], _Counts]:
    """The texts that have any, where they come from, and their first and last lines."""
    read = 0
    by_reader: Counter[str] = Counter()
    by_source: Counter[str] = Counter()
    sources: deque[Document] = deque()

    def raw() -> Iterator[tuple[str, bool, str]]:
        nonlocal read
        for document in documents:
            read += 1
            if document.dropped:
                by_reader[document.dropped] += 1
            elif reason := select.outside(document, settings.origins, settings.years):
                by_source[reason] += 1
            else:
                sources.append(_bare(document))
                yield document.text, document.html, document.author

    texts: list[str] = []
    kept: list[Document] = []
    edges: list[list[int]] = []
    by_cleaning: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for cleaned in workers(_clean_chunk, _chunks(raw(), chunk)):
        changed += cleaned.changed
        for text, reason, lines in zip(cleaned.texts, cleaned.reasons, cleaned.edges, strict=True):
            document = sources.popleft()
            if reason:
                by_cleaning[reason] += 1
            else:
                texts.append(text)
                kept.append(document)
                edges.append(lines)
        report("clean", read)
    counts = _Counts()
    counts.begin("read", read)
    for reason, documents_gone in by_reader.items():
        counts.drop(reason, documents_gone)
    if settings.origins or settings.years:
        counts.begin("sources and years")
        for reason, documents_gone in by_source.items():
            counts.drop(reason, documents_gone)
    counts.begin("clean")
    counts.drop("no text", by_cleaning["no text"])
    counts.change(changed)
    if settings.groups:
        counts.begin("identities")
        counts.drop(_NO_GROUP, by_cleaning[_NO_GROUP])
    return texts, kept, edges, counts


def _bare(document: Document) -> Document:
    """A document without its text; `dataclasses.replace` takes three times as long."""
    return Document(
        "",
        document.origin,
        document.split,
        "",
        document.key,
        document.author,
        document.host,
        document.date,
        document.language,
        document.html,
    )


def _without_boilerplate(
    texts: list[str], sources: list[Document], edges: list[list[int]], counts: _Counts
) -> None:
    """Take the lines that repeat at the edges of a source's documents out, in place."""
    counts.begin("boilerplate")
    repeated = boilerplate.repeated(edges, [document.origin for document in sources])
    gone, lines = 0, 0
    if repeated:
        for at, document in enumerate(sources):
            if edges[at] and document.origin in repeated:
                texts[at], taken = boilerplate.without_edges(texts[at], repeated[document.origin])
                lines += taken
                gone += not texts[at]
    counts.drop("nothing but repeated lines", gone)
    counts.change({"repeated lines": lines})


def _labelled(
    texts: list[str],
    sources: list[Document],
    counts: _Counts,
    workers: Map,
    report: Report,
    chunk: int,
    has_languages: bool,
) -> Prepared:
    kept: list[Kept] = []
    bands: list[np.ndarray] = []
    dropped: Counter[tuple[str, str]] = Counter()
    cut: Counter[tuple[str, str, str]] = Counter()
    present = [at for at, text in enumerate(texts) if text]
    done = 0
    pieces = (
        [texts[at] for at in present[start : start + chunk]]
        for start in range(0, len(present), chunk)
    )
    for labelled in workers(_label_chunk, pieces):
        dropped += labelled.dropped
        cut += labelled.cut
        bands.append(labelled.bands)
        for place, text, groups, (code, confidence) in zip(
            labelled.places, labelled.texts, labelled.groups, labelled.labels, strict=True
        ):
            at = present[done + place]
            kept.append(Kept(text, sources[at], groups, code, confidence))
            texts[at] = ""  # kept once
        done = min(done + chunk, len(present))
        report("label", done)
    steps = ["length", *(["language"] if has_languages else []), "decontaminate"]
    for step in steps:
        counts.begin(step)
        for (of, reason), documents in sorted(dropped.items()):
            if of == step:
                counts.drop(reason, documents)
    counts.change({"sentences cut": cut.total()})
    return Prepared(
        kept,
        np.concatenate(bands) if bands else np.empty((0, 0), np.uint64),
        counts.steps,
        cut,
    )


def _age(document: Document, at: int) -> tuple[bool, str, int]:
    """What sorts documents so that of two duplicates the first one stays: the oldest known."""
    return not document.date, document.date, at


def _balance(kept: list[Kept], settings: "CorpusSettings") -> list[int]:
    return select.balanced(kept, settings.groups, settings.seed)


def _budget(kept: list[Kept], settings: "CorpusSettings") -> list[int]:
    return select.within(kept, settings.tokens or 0, settings.seed)


def _nothing_left(settings: "CorpusSettings", steps: list[Step]) -> RequestError:
    read = steps[0].before
    why = ", ".join(
        f"{documents} {reason}" for step in steps for reason, documents in step.dropped.items()
    )
    last = next((step.name for step in steps if step.before and not step.after), "read")
    return RequestError(
        f"corpus {settings.name}: no usable text in {settings.path or settings.reader} ({read} "
        f"documents read{': ' + why if why else ''}); the last went at the step '{last}'"
    )
