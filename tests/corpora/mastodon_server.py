"""A Mastodon instance to gather from: `mastodon-mock` over HTTP, with what it lacks around it.

The mock keeps accounts and posts and serves the API. Around it this sends what real instances
send too: robots.txt, X-Robots-Tag, rate limits with an ISO reset and the server's date, an
account's `noindex`; and the faults that networks have, by the number of the API request.
"""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from mastodon_mock.app import create_app
from mastodon_mock.config import MastodonMockConfig, SeedConfig
from mastodon_mock.db.models import Account, Status, StatusTag
from sqlalchemy import delete, insert

from corpora.mastodon.pacing import Clock, Manners

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def mention(name: str, host: str) -> str:
    """A mention as Mastodon writes it."""
    return (
        f'<span class="h-card" translate="no"><a href="https://{host}/@{name}" '
        f'class="u-url mention">@<span>{name}</span></a></span>'
    )


def tag_link(name: str, host: str) -> str:
    """A hashtag as Mastodon writes it."""
    return (
        f'<a href="https://{host}/tags/{name}" class="mention hashtag" rel="tag">'
        f"#<span>{name}</span></a>"
    )


@dataclass
class Instance:
    """One server on a free port of this machine; a context manager."""

    robots: str | None = "User-agent: GPTBot\nDisallow: /\n\nUser-agent: *\nDisallow: /interact/\n"
    robots_status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)  # on API answers
    noindex: set[str] = field(default_factory=set)  # usernames
    faults: dict[int, str] = field(default_factory=dict)  # number of the API request: kind
    always: str = ""  # a fault for each API request
    one_page: bool = False  # whatever the cursor, the first page
    limit: int = 1_000_000  # requests until the rate limit resets
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # API: path, query
    agents: set[str] = field(default_factory=set)
    served: list[list[str]] = field(default_factory=list)  # ids of each page sent whole

    def __enter__(self) -> "Instance":
        config = MastodonMockConfig(seed=SeedConfig(accounts=[], statuses=[], follows=[]))
        self.app = create_app(config)
        self.server = uvicorn.Server(
            uvicorn.Config(
                self._serve,
                interface="asgi3",
                host="127.0.0.1",
                port=0,
                log_level="critical",
                lifespan="off",
            )
        )
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.host = f"127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_error: object) -> None:
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(10)
        self.app.state.engine.dispose()

    def reset(self) -> None:
        """As at the start: nobody and nothing on it, no fault, nothing asked."""
        with self.app.state.engine.begin() as connection:
            for table in (StatusTag, Status, Account):
                connection.execute(delete(table))
        for name, value in vars(Instance()).items():
            setattr(self, name, value)

    # What is on it.

    def accounts(self, *rows: dict[str, Any]) -> None:
        """Add accounts: `username`, and what differs from a person who let themselves be found."""
        usual = {
            "display_name": "",
            "note": "<p>Hallo!</p>",
            "locked": False,
            "bot": False,
            "group": False,
            "indexable": True,
            "domain": None,
            "fields": [],
            "created_at": BEGIN,
        }
        self._insert(Account, [{**usual, **row} for row in rows])

    def statuses(self, *rows: dict[str, Any]) -> None:
        """Add posts: `id`, `account_id`, `content`, and what differs from a public one; `tags`."""
        usual = {"text": "", "sensitive": False, "spoiler_text": "", "visibility": "public"}
        usual |= {"language": "de", "edit_history": []}
        posts: list[dict[str, Any]] = []
        tags: list[dict[str, Any]] = []
        for row in rows:
            row = {**usual, "created_at": BEGIN + timedelta(minutes=row["id"]), **row}
            tags += [{"status_id": row["id"], "name": name} for name in row.pop("tags", ())]
            posts.append(row)
        for keys in {tuple(sorted(post)) for post in posts}:
            self._insert(Status, [post for post in posts if tuple(sorted(post)) == keys])
        if tags:
            self._insert(StatusTag, tags)

    def remove(self, *ids: int) -> None:
        """Delete posts."""
        with self.app.state.engine.begin() as connection:
            connection.execute(delete(Status).where(Status.id.in_(ids)))

    def change(self, username: str, **values: Any) -> None:
        """Change an account."""
        with self.app.state.engine.begin() as connection:
            table = Account.__table__
            connection.execute(table.update().where(table.c.username == username).values(values))

    def _insert(self, model: type, rows: list[dict[str, Any]]) -> None:
        with self.app.state.engine.begin() as connection:
            connection.execute(insert(model), rows)

    @property
    def pages(self) -> list[tuple[str, dict[str, str]]]:
        """The timeline pages that were asked for."""
        return [request for request in self.requests if "/timelines/" in request[0]]

    # How it answers.

    async def _serve(self, scope: Message, receive: Callable[..., Any], send: Send) -> None:
        if scope["path"] == "/robots.txt":
            await self._robots(send)
            return
        names = {key.decode().lower(): value.decode() for key, value in scope["headers"]}
        self.agents.add(names.get("user-agent", ""))
        query = {
            key: values[-1] for key, values in parse_qs(scope["query_string"].decode()).items()
        }
        self.requests.append((scope["path"], query))
        fault = self.faults.get(len(self.requests)) or self.always
        if fault and not fault.startswith("cut"):
            await self._fail(fault, send)
            return
        if self.one_page:
            scope = {**scope, "query_string": b"limit=40&local=1"}
        status, headers, body = await self._of_the_mock(scope, receive)
        ids = []
        if status == 200 and scope["path"].startswith("/api/"):
            answer = self._as_real(json.loads(body))
            ids = [post["id"] for post in answer] if isinstance(answer, list) else []
            body = json.dumps(answer).encode()
        headers = [(name, value) for name, value in headers if name != b"content-length"]
        headers += [(b"content-length", str(len(body)).encode()), *self._extra()]
        if fault:  # the connection breaks off in the middle of the answer
            body = body[: len(body) // 2]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": bool(fault)})
        if fault:
            raise ConnectionAbortedError
        if "/timelines/" in scope["path"]:
            self.served.append(ids)

    async def _of_the_mock(
        self, scope: Message, receive: Callable[..., Any]
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        sent: list[Message] = []

        async def keep(message: Message) -> None:
            sent.append(message)

        await self.app(scope, receive, keep)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], list(sent[0]["headers"]), body

    def _as_real(self, answer: Any) -> Any:
        for post in answer if isinstance(answer, list) else [answer]:
            account = post.get("account") if isinstance(post, dict) else None
            if account:
                account["noindex"] = account["username"] in self.noindex
        return answer

    def _extra(self) -> Iterator[tuple[bytes, bytes]]:
        now = datetime.now(UTC)
        left = self.limit - 1 - (len(self.requests) - 1) % self.limit
        said = {
            "X-RateLimit-Limit": str(self.limit),
            "X-RateLimit-Remaining": str(max(left, 0)),
            "X-RateLimit-Reset": (now + timedelta(minutes=5)).isoformat().replace("+00:00", "Z"),
        }
        yield from ((name.encode(), value.encode()) for name, value in said.items())
        yield from ((name.encode(), value.encode()) for name, value in self.headers)

    async def _robots(self, send: Send) -> None:
        status = self.robots_status if self.robots is not None else 404
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": (self.robots or "").encode()})

    async def _fail(self, fault: str, send: Send) -> None:
        """`429 KEY: VALUE`, `503`, `json`, `other`, `html`, `time`, `redirect URL`."""
        kind, _space, rest = fault.partition(" ")
        headers = [(b"content-type", b"application/json")]
        status, body = 200, b'{"error": "no"}'
        if kind.isdigit():
            status = int(kind)
            name, _colon, value = rest.partition(": ")
            headers += [(name.encode(), value.encode())] if name else []
        elif kind == "json":
            body = b'[{"id": "1", "content": "<p>'
        elif kind == "other":
            body = b'["no", "posts"]'
        elif kind == "html":
            headers, body = [(b"content-type", b"text/html; charset=utf-8")], b"<html>log in"
        elif kind == "redirect":
            status = 301
            headers.append((b"location", rest.encode()))
        elif kind == "time":
            await asyncio.sleep(1.5)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class HurriedClock(Clock):
    """A clock on which waiting takes no time, and which notes how long it would have taken."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        super().__init__(self._now, self._sleep)

    def _now(self) -> float:
        return time.time() + sum(self.slept)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def hurried(**options: Any) -> Manners:
    """Manners on a clock that doesn't wait."""
    return Manners(**{"clock": HurriedClock(), **options})


def community(instance: Instance, posts: int, authors: int = 50) -> None:
    """Fill an instance with posts of people who agreed, in Mastodon's own HTML."""
    instance.accounts(
        *({"id": 10 + number, "username": f"person{number}"} for number in range(authors))
    )
    instance.statuses(
        *(
            {
                "id": 1000 + number,
                "account_id": 10 + number % authors,
                "content": (
                    f"<p>Beitrag von heute, Kolleg*innen und "
                    f"{mention('person1', 'other.example')}: {_word(number)}</p>"
                    f"<p>{tag_link('queer', 'other.example')}</p>"
                ),
                "tags": ["queer"],
            }
            for number in range(posts)
        )
    )


def allowlist(path: Any, hosts: Iterable[str]) -> str:
    """Write an allowlist of local hosts."""
    path.write_text(
        "".join(
            f"- host: http://{host}\n  date: 2026-01-15\n  agreed_by: the moderators\n"
            f"  agreed_to: public posts\n  terms: https://{host}/terms\n"
            for host in hosts
        )
    )
    return str(path)


def _word(number: int) -> str:
    """A word of letters for a number, so that no two posts are equal but for numbers."""
    letters = ""
    while True:
        number, rest = divmod(number, 26)
        letters += chr(97 + rest)
        if not number:
            return letters
