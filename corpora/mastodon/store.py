"""The private store: what was taken of each timeline, a journal a timeline, outside any corpus.

A journal is append-only JSON lines, a line a page: its posts, how many it had that aren't
taken (those are not kept), and the cursor of the page after it. A line is on disk before the
next page is asked for, so that whatever kills the crawl leaves whole pages, each with the
place to go on from, and at most one torn line, which is cut off at the next start.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from filelock import FileLock, Timeout

from corpora import CorpusSettings
from corpora.errors import RequestError, Stopped

#: Stores of other versions are not read.
VERSION = 1
ABOUT = "about.json"
#: Settings that decide which posts a store holds.
RULES = ("bots", "sensitive")


@dataclass(frozen=True)
class Post:
    """What is kept of a post: no name but the handle, no counts, no media."""

    id: str
    acct: str
    date: str  # ISO 8601
    language: str  # as the author's client says
    content: str  # HTML


@dataclass(frozen=True)
class Page:
    """One page of a timeline, as far as it was taken."""

    posts: list[Post]
    dropped: dict[str, int]  # why: how many
    next: str | None  # posts below this id are next; None: the timeline ends here


@dataclass
class Journal:
    """One timeline's pages so far."""

    host: str
    hashtag: str  # '' for the public timeline
    path: Path
    pages: int = 0
    next: str | None = None
    ended: bool = False
    dropped: Counter[str] = field(default_factory=Counter)


class Store:
    """A folder of journals, held by one command at a time while it is open to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, settings: CorpusSettings) -> None:
        """Make the folder, or check that it was gathered by the same rules.

        Raises:
            RequestError: a folder of something else, of another version, of other rules.
        """
        about = {"version": VERSION, **{name: getattr(settings, name) for name in RULES}}
        if self.folder.exists() and not self.folder.is_dir():
            raise RequestError(f"{self.folder}: is a file; posts are gathered into a folder")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / ABOUT
        if not path.exists():
            if any(name.suffix == ".jsonl" for name in self.folder.iterdir()):
                raise RequestError(f"{self.folder}: no {ABOUT}; give an empty folder")
            write(path, json.dumps(about).encode())
        there = self.about()
        for name in RULES:
            if there.get(name) != about[name]:
                raise RequestError(
                    f"{self.folder} was gathered with corpus.{name}={str(there.get(name)).lower()}"
                    f"; say so again, or gather into another folder"
                )

    def about(self) -> dict[str, Any]:
        """By which version and rules it was gathered.

        Raises:
            RequestError: another version, or a folder of something else.
        """
        path = self.folder / ABOUT
        try:
            about = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RequestError(f"{path}: not written by gathering posts ({error})") from error
        if not isinstance(about, dict) or about.get("version") != VERSION:
            raise RequestError(
                f"{self.folder}: gathered by another version; gather anew into another folder"
            )
        return about

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one command; a killed one lets go of it.

        Raises:
            RequestError: another command has it.
        """
        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RequestError(f"{self.folder}: another command is gathering into it") from error
        try:
            yield
        finally:
            lock.release()

    def journal(self, host: str, hashtag: str) -> Journal:
        """A timeline's journal as it stands, without what a kill tore; new if there is none."""
        name = f"{quote(host, safe='')}~{quote(hashtag, safe='')}.jsonl"
        found = Journal(host, hashtag, self.folder / name)
        if found.path.exists():
            with found.path.open("r+b") as file:
                content = file.read()
                whole = content.rfind(b"\n") + 1
                if whole < len(content):
                    file.truncate(whole)
                    os.fsync(file.fileno())
        for page in _pages(found.path):
            _count(found, page)
        return found

    def append(self, journal: Journal, page: Page) -> None:
        """Put a page on disk, whole or not at all.

        Raises:
            Stopped: the disk is full, or can't be written.
        """
        line = _line(page)
        new = not journal.path.exists()
        try:
            handle = os.open(journal.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "ab", buffering=0) as file:
                written = 0
                while written < len(line):
                    written += file.write(line[written:])
                os.fsync(file.fileno())
            if new:
                settle(self.folder)
        except OSError as error:
            raise Stopped(
                f"{journal.path}: {error.strerror or error}; the pages before are saved, and the "
                "same command goes on from there"
            ) from error
        _count(journal, page)

    def journals(self) -> list[Journal]:
        """Every timeline's journal, by name, as `journal` gives it."""
        return [self.journal(*_named(path)) for path in sorted(self.folder.glob("*~*.jsonl"))]

    def posts(self, journal: Journal) -> Iterator[Post]:
        """The posts of one timeline, newest first."""
        for page in _pages(journal.path):
            yield from page.posts

    def drop(self, unwanted: Callable[[Post, str], bool]) -> int:
        """Take posts (and the host they are from) out of the store for good; returns how many.

        Their journals are written anew beside their place and moved in; cursors stay.

        Raises:
            RequestError: another command is gathering into it.
        """
        taken_out = 0
        with self.locked():
            for journal in self.journals():
                kept, count = [], 0
                for page in _pages(journal.path):
                    posts = [post for post in page.posts if not unwanted(post, journal.host)]
                    count += len(page.posts) - len(posts)
                    kept.append(Page(posts, page.dropped, page.next))
                if count:
                    write(journal.path, b"".join(map(_line, kept)))
                    taken_out += count
        return taken_out


def is_store(folder: Path) -> bool:
    """Whether `gather` made this folder."""
    return (folder / ABOUT).is_file() and not (folder / "manifest.json").exists()


def write(path: Path, data: bytes) -> None:
    """Write a file for its owner's eyes, whole or not at all; it is on disk on return."""
    beside = path.with_name(f".{path.name}.new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    settle(path.parent)


def settle(folder: Path) -> None:
    """Have the folder's names on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _line(page: Page) -> bytes:
    # A lone half of a surrogate pair, which JSON may hold, has no UTF-8.
    return json.dumps(asdict(page), ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _pages(path: Path) -> Iterator[Page]:
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return  # torn, or being written
            try:
                page = json.loads(line)
                yield Page([Post(**post) for post in page["posts"]], page["dropped"], page["next"])
            except (ValueError, TypeError, KeyError) as error:
                raise RequestError(
                    f"{path}, line {number}: damaged; delete the file to gather that timeline anew"
                ) from error


def _count(journal: Journal, page: Page) -> None:
    journal.pages += 1
    journal.next = page.next
    journal.ended = page.next is None
    journal.dropped.update(page.dropped)


def _named(path: Path) -> tuple[str, str]:
    host, _tilde, hashtag = path.name.removesuffix(".jsonl").partition("~")
    return unquote(host), unquote(hashtag)


def total(journals: Iterable[Journal]) -> Counter[str]:
    """How many posts of all journals weren't taken, by why."""
    return sum((journal.dropped for journal in journals), Counter())
