"""Who wrote what, apart from the text: a private folder with the salt, and keys that say nothing.

A built corpus holds texts and keys. A key is a BLAKE2b hash of a name (an author, a post, an
instance) under a secret salt: without the salt nobody can tell whose it is, nor test a guess.
Salt, provenance (which key stands for which post, where) and the list of what must never come
back lie in a *private folder*, outside every corpus, that is not handed on with it:

    salt                 32 random bytes, readable by its owner alone
    forgotten            keys of authors, posts and instances that no build takes again, a line each
    provenance/ID.parquet  of the corpus ID: a row's key, author, post, host and date
    corpora.json         the corpora that were built with this salt, and where they lie
    mastodon/            posts as they were gathered (see `corpora.mastodon`)

Lose the salt, and nobody can be found in a corpus any more, to be forgotten either.
"""

import contextlib
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import platformdirs
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from corpora.documents import Document
from corpora.errors import RequestError

#: Names the private folder where no command says one.
VARIABLE = "MITIGATE_PRIVATE"
KINDS = ("author", "post", "instance")
SALT_BYTES = 32
KEY_BYTES = 16  # 32 hex digits: no two of 10^12 documents meet

PROVENANCE = pa.schema(
    [(name, pa.string()) for name in ("key", "author", "post", "host", "date", "origin")]
)


@dataclass(frozen=True)
class Keys:
    """The keys of one document, 32 hex digits each; '' for what its source doesn't say."""

    document: str
    author: str
    post: str
    instance: str


def default_folder() -> Path:
    """`$MITIGATE_PRIVATE`, else a folder among the user's own data."""
    said = os.environ.get(VARIABLE)
    return Path(said).expanduser() if said else platformdirs.user_data_path("mitigate") / "private"


def check_outside(private: Path, out: Path) -> None:
    """Raise unless neither folder lies in the other: who gets a corpus must not get the salt.

    Raises:
        RequestError: one is in the other, or both are the same.
    """
    secret, open_ = private.expanduser().resolve(), out.expanduser().resolve()
    if secret == open_ or secret.is_relative_to(open_) or open_.is_relative_to(secret):
        raise RequestError(
            f"private={private}: the salt and the provenance must lie outside the corpus, which is "
            f"{out}; give a folder elsewhere as private=DIR, or as {VARIABLE}"
        )


def normal(kind: str, name: str) -> str:
    """One spelling of a name: handles and hosts without a leading @ and whatever their case."""
    name = name.strip()
    return name if kind in ("post", "document") else name.removeprefix("@").casefold()


def handle(author: str, host: str) -> str:
    """An author's full name: `user@host` of a bare handle on a host, else as it is."""
    author = normal("author", author)
    return f"{author}@{host.casefold()}" if host and author and "@" not in author else author


class Store:
    """A private folder."""

    def __init__(self, folder: Path) -> None:
        """Open the folder, with a new salt where there is none.

        Raises:
            RequestError: there is something else at its place, or a salt that is torn.
        """
        self.folder = folder.expanduser()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise RequestError(f"private={folder}: is a file, not a folder") from error
        path = self.folder / "salt"
        with self.locked():
            if not path.exists():
                replace(path, secrets.token_bytes(SALT_BYTES))
        self._salt = path.read_bytes()
        if len(self._salt) != SALT_BYTES:
            raise RequestError(
                f"{path}: not a salt of {SALT_BYTES} bytes; bring it back from a copy (without it "
                "no author can be found in the corpora that were built with it)"
            )
        self.forgotten: frozenset[str] = frozenset(self._lines())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one change at a time."""
        with FileLock(self.folder / ".lock"):
            yield

    @contextlib.contextmanager
    def alone(self, corpus: Path) -> Iterator[None]:
        """Hold the place of one corpus while it is built, or something is taken out of it.

        Raises:
            RequestError: another command is at it.
        """
        folder = self.folder / "locks"
        folder.mkdir(mode=0o700, exist_ok=True)
        place = hashlib.blake2b(str(corpus.resolve()).encode(), digest_size=8).hexdigest()
        lock = FileLock(folder / place)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RequestError(f"{corpus}: another command is writing it") from error
        try:
            yield
        finally:
            lock.release()

    def key(self, kind: str, name: str) -> str:
        """The key of a name of this kind; '' of ''."""
        name = normal(kind, name)
        if not name:
            return ""
        said = f"{kind}\x1f{name}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(said, key=self._salt, digest_size=KEY_BYTES).hexdigest()

    def keys(self, document: Document, text: str = "") -> Keys:
        """The keys of a document; one without an id is known by its text."""
        post = self.key("post", f"{document.host}/{document.key}") if document.key else ""
        return Keys(
            document=self.key(
                "document",
                f"{document.host or document.origin}/{document.key}"
                if document.key
                else f"\x1f{text or document.text}",
            ),
            author=self.key("author", handle(document.author, document.host)),
            post=post,
            instance=self.key("instance", document.host),
        )

    def is_forgotten(self, document: Document) -> bool:
        """Whether its author, its post or its instance is to be left out for good."""
        if not self.forgotten:
            return False
        found = self.keys(document)
        return not self.forgotten.isdisjoint((found.author, found.post, found.instance))

    def leave_out(self, keys: Iterable[str]) -> None:
        """Note that no build takes what has one of these keys; it is on disk on return."""
        with self.locked():
            known = dict.fromkeys([*self._lines(), *(key for key in keys if key)])
            replace(self.folder / "forgotten", "".join(f"{key}\n" for key in known).encode())
            self.forgotten = frozenset(known)

    def _lines(self) -> list[str]:
        path = self.folder / "forgotten"
        return path.read_text("ascii").split() if path.exists() else []

    # Provenance.

    def note(self, corpus: str, rows: pa.Table, about: dict[str, Any] | None = None) -> None:
        """Keep where the rows of a corpus come from (columns: PROVENANCE), and facts of it.

        `about`: where it lies (`path`) and what its source has to be asked with; None keeps
        what is there.
        """
        with self.locked():
            (self.folder / "provenance").mkdir(mode=0o700, exist_ok=True)
            path = self._provenance(corpus)
            beside = path.with_name(f".{path.name}.new")
            pq.write_table(rows.cast(PROVENANCE), beside)
            beside.chmod(0o600)
            with beside.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(beside, path)
            if about is not None:
                known = {**self.corpora(), corpus: about}
                replace(self.folder / "corpora.json", json.dumps(known, indent=1).encode())

    def discard(self, corpus: str) -> None:
        """Keep nothing of a corpus that is no more."""
        with self.locked():
            self._provenance(corpus).unlink(missing_ok=True)
            known = {name: about for name, about in self.corpora().items() if name != corpus}
            replace(self.folder / "corpora.json", json.dumps(known, indent=1).encode())

    def provenance(self, corpus: str) -> pa.Table:
        """Where a corpus's rows come from (columns: PROVENANCE); no rows where none is known."""
        path = self._provenance(corpus)
        return pq.read_table(path) if path.exists() else PROVENANCE.empty_table()

    def corpora(self) -> dict[str, dict[str, Any]]:
        """The corpora built with this salt, by id: what `note` was told of each."""
        path = self.folder / "corpora.json"
        return json.loads(path.read_text("utf-8")) if path.exists() else {}

    def hosts(self) -> list[str]:
        """Every host that the provenance names."""
        found: set[str] = set()
        for corpus in self.corpora():
            path = self._provenance(corpus)
            if path.exists():
                found |= set(pq.read_table(path, columns=["host"])["host"].unique().to_pylist())
        return sorted(host for host in found if host)

    def _provenance(self, corpus: str) -> Path:
        return self.folder / "provenance" / f"{corpus}.parquet"

    # Names as people give them.

    def named(self, kind: str, said: str) -> dict[str, str]:
        """The keys that a name may have, and the full name that each is the key of.

        `https://host/@user/123` is a post, `https://host/@user` an author, `@user@host` too; a
        bare id or handle is looked for on every host that this folder knows, first without any.

        Raises:
            RequestError: nothing of that kind can be read from it.
        """
        name, host = said.strip(), ""
        if "://" in name:
            parts = urlsplit(name)
            host = parts.hostname or ""
            name = host if kind == "instance" else parts.path.rstrip("/").rpartition("/")[2]
        if not name.strip("@") or (kind == "post" and host and name.startswith("@")):
            raise RequestError(f"{kind}={said}: no {kind} can be read from this")
        if kind == "instance":
            names = [name]
        elif kind == "author":
            names = [handle(name, some) for some in ([host] if host else ["", *self.hosts()])]
        elif host or "/" in name:
            names = [f"{host}/{name}" if host else name]
        else:
            names = [f"{some}/{name}" for some in ["", *self.hosts()]]
        return {self.key(kind, some): some for some in names}


def existing(folder: Path | None = None) -> Store | None:
    """The private folder if there is one already: reading a corpus makes none."""
    folder = (folder or default_folder()).expanduser()
    return Store(folder) if (folder / "salt").exists() else None


def replace(path: Path, data: bytes) -> None:
    """Write a file of one's own eyes whole or not at all; it is on disk on return."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
