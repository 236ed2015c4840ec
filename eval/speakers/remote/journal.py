"""What a model behind an API has answered, kept on disk as it comes: nothing is paid for twice.

A file of lines only grows: each answer is one line, on the disk before the next is counted on. A
process that is killed leaves at most one torn line, which is passed over.
"""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from eval.errors import RequestError

#: Lines of another version of this file are not read; raise it when a line's meaning changes.
VERSION = 1


class Journal:
    """The answers of one model at one address.

    An answer is found by a hash of everything that decides it (`key_of`); the file holds these
    hashes and the answers, neither prompts nor keys of the API.
    """

    def __init__(self, folder: Path, base_url: str, model: str):
        self.model = model
        self.path = Path(folder) / f"{_hash([VERSION, base_url, model])}.jsonl"
        self._base_url = base_url
        self._known: dict[str, dict[str, Any]] = {}
        self._read_to = 0  # bytes
        self._writing = threading.Lock()

    def key_of(self, endpoint: str, body: Mapping[str, Any]) -> str:
        """Name an answer by address, model, prompt and everything that is asked with it."""
        return _hash([VERSION, self._base_url, endpoint, body])

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer of this key, if it is there."""
        return self._known.get(key)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Keep other processes from asking the same model meanwhile, and read what is there.

        Raises:
            RequestError: another process is asking it now; both would pay for the same answers.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(f"{self.path}.lock", timeout=0):
                self._read()
                yield
        except Timeout as error:
            raise RequestError(
                f"another process is asking {self.model} now, and its answers are kept in the "
                "same file; wait for it, or end it"
            ) from error

    def add(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer: when this returns, it is on the disk. Threads may call it at once.

        Raises:
            OSError: it can't be written.
        """
        line = json.dumps({"key": key, **answer}, ensure_ascii=False) + "\n"
        with self._writing:
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
                self._read_to = file.tell()
            self._known[key] = dict(answer)

    def _read(self) -> None:
        """Take in what was written since the last time, and end a torn last line."""
        if not self.path.is_file():
            # For people: whose answers these are. Not an answer, so it has no key.
            self.path.write_text(
                json.dumps({"base_url": self._base_url, "model": self.model}) + "\n",
                encoding="utf-8",
            )
        with self.path.open("r+b") as file:
            file.seek(self._read_to)
            data = file.read()
            if data and not data.endswith(b"\n"):
                file.write(b"\n")
            self._read_to = file.tell()
        for line in data.split(b"\n"):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # torn, or empty
            if isinstance(entry, dict) and isinstance(entry.get("key"), str):
                self._known[entry.pop("key")] = entry


def _hash(parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
