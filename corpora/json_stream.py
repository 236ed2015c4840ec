"""JSON files that are larger than memory should be: the members of the top level, one by one."""

import codecs
import json
from collections.abc import Iterator
from typing import IO, Any

from corpora.errors import RequestError

CHUNK = 2**20  # bytes read at a time
#: A member longer than this is no article: something before it is broken.
LONGEST = 2**26  # characters
#: So near to the end of what has been read, a fault may be that the rest is still to come.
_NEAR_END = 16

_SPACE = " \t\n\r"
_decode = json.JSONDecoder().raw_decode


class BrokenError(Exception):
    """A file that can't be read from some place on, which it names; what stood before was given."""


class _Buffer:
    """The text of a stream, as far as it has been read and is still needed."""

    def __init__(self, stream: IO[bytes], name: str, encoding: str) -> None:
        self.stream, self.name, self.encoding = stream, name, encoding
        self.text, self.at, self.ended = "", 0, False
        self.fed = 0  # bytes given to the decoder
        self.before = 0  # bytes of the text that is gone from the buffer
        self.first = True
        try:
            self.decoder = codecs.getincrementaldecoder(encoding)()
        except LookupError as error:
            raise RequestError(f"corpus.encoding={encoding}: no such codec") from error

    def more(self, size: int) -> bool:
        """Read on; whether there was anything."""
        if self.ended:
            return False
        if self.at > CHUNK:
            self.before += self._bytes(self.at)
            self.text, self.at = self.text[self.at :], 0
        pending = len(self.decoder.getstate()[0])
        try:
            data = self.stream.read(size)
        except (OSError, EOFError, ValueError) as error:  # a torn gzip or zip member
            raise BrokenError(f"{self.name}, after byte {self.fed:,}: {error}") from error
        self.ended = not data
        if self.first:
            self.first = False
            if data.startswith(codecs.BOM_UTF8):
                data, self.before, self.fed = data[3:], 3, 3
        try:
            self.text += self.decoder.decode(data, final=self.ended)
        except UnicodeDecodeError as error:
            place = self.fed - pending + error.start
            raise BrokenError(
                f"{self.name}: not {self.encoding} (byte {place:,}); say corpus.encoding=, such as "
                "cp1252 or utf-16"
            ) from error
        self.fed += len(data)
        return bool(data)

    def next_sign(self) -> str:
        """The next sign that is no blank, without taking it; '' at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more(CHUNK):
                return ""

    def take(self, wanted: str) -> str:
        """Take the next sign, which must be one of `wanted`."""
        found = self.next_sign()
        if not found or found not in wanted:
            raise self.broken(f"{' or '.join(wanted)} expected", self.at)
        self.at += 1
        return found

    def value(self) -> Any:
        """Take the next value whole, however many chunks it fills."""
        self.next_sign()
        size = CHUNK
        while True:
            try:
                value, end = _decode(self.text, self.at)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or (
                    error.pos >= len(self.text) - _NEAR_END
                )
                longest = len(self.text) - self.at > LONGEST
                if longest or not unfinished or not self.more(size):
                    raise self.broken(error.msg, min(error.pos, len(self.text))) from error
            except RecursionError as error:
                raise self.broken("nested too deeply", self.at) from error
            else:
                if end < len(self.text) or not self.more(size):
                    self.at = end
                    return value
            size *= 2

    def broken(self, why: str, at: int) -> BrokenError:
        return BrokenError(
            f"{self.name}: not JSON, or not all of it ({why} at byte "
            f"{self.before + self._bytes(at):,})"
        )

    def _bytes(self, end: int) -> int:
        return len(self.text[:end].encode(self.encoding, "surrogatepass"))


def members(
    stream: IO[bytes], name: str, encoding: str = "utf-8", inside: str = ""
) -> Iterator[tuple[str, Any]]:
    """The members of the object or list that a JSON file is: (name or position, value).

    With `inside`, those of the object or list that the file's member of that name is. Only one
    member and a chunk are in memory, whatever the file's size.

    Raises:
        BrokenError: it isn't JSON, or not in this encoding, from some byte on, which is said.
        RequestError: no such encoding.
    """
    buffer = _Buffer(stream, name, encoding)
    for key in _keys(buffer):
        if not inside:
            yield key, buffer.value()
        elif key == inside:
            yield from ((inner, buffer.value()) for inner in _keys(buffer))
        else:
            buffer.value()
    if buffer.next_sign():
        raise buffer.broken("nothing more expected", buffer.at)


def _keys(buffer: _Buffer) -> Iterator[str]:
    """The names in an object, or the positions in a list; who iterates takes each value."""
    if buffer.next_sign() not in ("{", "["):
        buffer.value()  # says where it is broken, if it is
        raise BrokenError(f"{buffer.name}: neither a JSON object nor a list")
    closing = {"{": "}", "[": "]"}[buffer.take("{[")]
    position = 0
    if buffer.next_sign() == closing:
        buffer.take(closing)
        return
    while True:
        if closing == "]":
            yield str(position)
        else:
            if buffer.next_sign() != '"':
                raise buffer.broken("a name in quotes expected", buffer.at)
            name = buffer.value()
            buffer.take(":")
            yield name
        position += 1
        if buffer.take("," + closing) == closing:
            return
