"""One server of the OpenAI API over HTTP: a request in, its reply out.

What a request comes to is one of four: a reply; `RefusedError`, it is wrong and would be again;
`FilteredError`, the server won't have this one prompt; `DownError`, the server doesn't answer as
it should, again and again.
"""

import datetime
import email.utils
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase

from eval.errors import RequestError
from eval.speakers.remote.replies import FILTERED, MalformedError, refusal, words

#: Statuses after which the same request may go well. 409: a lock; 425: too early.
PASSING = (408, 409, 425, 429)
#: Bytes of an answer; what is longer is none.
LARGEST = 2**24

Reply = TypeVar("Reply")


class RefusedError(RequestError):
    """The server refuses the request: one line with its own `words` and `status`."""

    def __init__(self, line: str, status: int, said: str):
        super().__init__(line)
        self.status = status
        self.words = said


class FilteredError(Exception):
    """A filter of the server's won't have this prompt: its own words."""


class DownError(Exception):
    """The server doesn't answer as it should, again and again: one line."""


class AbandonedError(Exception):
    """Another thread has met with something that ends the work."""


@dataclass(frozen=True)
class Manners:
    """How patient we are, in seconds where not said otherwise."""

    timeout: float = 60.0  # for a whole answer
    connect: float = 10.0  # for the connection
    tries: int = 6  # times that a request is made before the server counts as down
    backoff: float = 1.0  # after the first failure at most; doubled after each further one
    longest_backoff: float = 60.0
    longest_wait: float = 600.0  # that a server may ask for


@dataclass(frozen=True)
class _Answer:
    status: int
    retry_after: str | None
    body: str


class Client:
    """Makes requests, from many threads at once, and makes them again after what may pass."""

    def __init__(self, base_url: str, key: str | None, key_env: str | None, manners: Manners):
        """`base_url`: without a slash at its end; `key`: for the Authorization header."""
        self.base_url = base_url
        self._key = key or ""
        self._key_env = key_env
        self._manners = manners
        self._stop = threading.Event()
        self._sessions = threading.local()
        self._lock = threading.Lock()
        self._not_before = 0.0  # on the monotonic clock: what the server asked all of us to wait
        self._heard = False  # whether it has ever answered
        self._new_name = False  # whether it wants max_completion_tokens

    def stop(self) -> None:
        """Let requests that wait for another try give up."""
        self._stop.set()

    def go(self) -> None:
        """Take `stop` back."""
        self._stop.clear()

    def post(
        self,
        endpoint: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Reply],
        lost: Callable[[], None],
    ) -> Reply:
        """Ask, and read the reply; a `read` that raises MalformedError makes it a failure.

        `lost` is called for each request that may have been charged without giving an answer.

        Raises:
            RefusedError, FilteredError, DownError: see above.
            RequestError: nothing was ever heard from this address, or its certificate is bad.
            AbandonedError: `stop` was called.
        """
        failures = 0
        while True:
            self._wait_for_all()
            problem, asked_to_wait = "", None
            try:
                answer = self._send(endpoint, body)
            except requests.exceptions.SSLError as error:
                raise RequestError(
                    f"model.base_url={self.base_url}: its certificate can't be trusted"
                ) from error
            except requests.exceptions.RequestException as error:
                problem, sent = self._fault(error)
                if sent:
                    lost()
            else:
                self._heard = True
                if answer.status == 200:
                    try:
                        return read(json.loads(answer.body))
                    except (ValueError, RecursionError, MalformedError) as error:
                        what = str(error) if isinstance(error, MalformedError) else "no JSON"
                        problem = f"it answers, but not as that API does ({self._clean(what)})"
                        lost()
                elif answer.status in PASSING or answer.status >= 500:
                    said = self._clean(words(answer.body, self._hidden(body)))
                    problem = f"it answers {answer.status}" + (f", “{said}”" if said else "")
                    asked_to_wait = _seconds(answer.retry_after)
                elif self._takes_new_name(answer, body):
                    continue
                else:
                    self._refuse(answer, endpoint, body)
            failures += 1
            if not self._heard and failures == 3:
                raise RequestError(
                    f"model.base_url={self.base_url}: {problem}, {failures} times; is it right, "
                    "and does the server run?"
                )
            if asked_to_wait is not None and asked_to_wait > self._manners.longest_wait:
                raise DownError(f"{problem}; it asks to wait {asked_to_wait / 60:,.0f} minutes")
            if failures == self._manners.tries:
                raise DownError(f"{problem}, {failures} times")
            self._back_off(failures, asked_to_wait)

    def _send(self, endpoint: str, body: Mapping[str, Any]) -> _Answer:
        """One request, and its answer whole."""
        session = getattr(self._sessions, "one", None)
        if session is None:  # a session is for one thread
            session = self._sessions.one = requests.Session()
        until = time.monotonic() + self._manners.timeout
        with session.post(
            f"{self.base_url}{endpoint}",
            data=json.dumps(self._named(body)).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "mitigate/1"},
            auth=_Bearer(self._key),
            timeout=(min(self._manners.connect, self._manners.timeout), self._manners.timeout),
            allow_redirects=False,  # another host is not to see the key
            stream=True,
        ) as response:
            parts, size = [], 0
            for part in response.iter_content(64):  # small: a trickle has to end too
                parts.append(part)
                size += len(part)
                if time.monotonic() > until:
                    raise requests.exceptions.Timeout
                if size > LARGEST:
                    raise requests.exceptions.ContentDecodingError
        text = b"".join(parts).decode("utf-8", errors="replace")
        return _Answer(response.status_code, response.headers.get("Retry-After"), text)

    def _fault(self, error: requests.exceptions.RequestException) -> tuple[str, bool]:
        """What went wrong on the way, and whether the request had been sent."""
        said = str(error)  # not for people: it holds addresses of objects
        if isinstance(error, requests.exceptions.ConnectTimeout):
            return "no connection in time", False
        if isinstance(error, requests.exceptions.Timeout) or "timed out" in said:
            return f"no whole answer within {self._manners.timeout:g} s (model.timeout)", True
        if "NameResolution" in said or "getaddrinfo" in said:
            return "its name can't be resolved", False
        if "refused" in said:
            return "the connection is refused", False
        return "the connection is cut", True

    def _named(self, body: Mapping[str, Any]) -> dict[str, Any]:
        named = dict(body)
        if self._new_name and "max_tokens" in named:
            named["max_completion_tokens"] = named.pop("max_tokens")
        return named

    def _takes_new_name(self, answer: _Answer, body: Mapping[str, Any]) -> bool:
        """Newer models of OpenAI's refuse `max_tokens` and name what to write in its place."""
        if self._new_name or "max_tokens" not in body or answer.status != 400:
            return False
        self._new_name = "max_completion_tokens" in answer.body
        return self._new_name

    def _refuse(self, answer: _Answer, endpoint: str, body: Mapping[str, Any]) -> None:
        """Raise what a status that won't pass means."""
        _, code = refusal(answer.body)
        said = self._clean(words(answer.body, self._hidden(body)))
        if code in FILTERED:
            raise FilteredError(said)
        quoted = f" “{said}”" if said else ""
        where = urlsplit(self.base_url).netloc
        if answer.status in (401, 403):
            whose = f"the key in {self._key_env}" if self._key else "a request without a key"
            line = f"{where} refuses {whose} ({answer.status}):{quoted}"
        elif 300 <= answer.status < 400:
            line = f"model.base_url={self.base_url}: it sends us elsewhere ({answer.status})"
        elif answer.status == 404:
            line = (
                f"{self.base_url}{endpoint} is not there, or no model named {body['model']} "
                f"(404):{quoted}; model.base_url mostly ends in /v1"
            )
        else:
            line = f"{where} refuses the request ({answer.status}):{quoted}"
        raise RefusedError(line.rstrip(":"), answer.status, said)

    def _hidden(self, body: Mapping[str, Any]) -> list[str]:
        """What no error may repeat: the key, and the prompt, which may hold slurs."""
        prompts = [body.get("prompt", "")]
        prompts += [turn["content"] for turn in body.get("messages", ())]
        return [self._key, *prompts]

    def _clean(self, said: str) -> str:
        return said.replace(self._key, "[…]") if self._key else said

    def _wait_for_all(self) -> None:
        """Wait as the server has asked some thread to, since it means all of us."""
        while True:
            left = self._not_before - time.monotonic()
            if self._stop.wait(max(left, 0.0)):
                raise AbandonedError
            if left <= 0:
                return

    def _back_off(self, failures: int, asked: float | None) -> None:
        """Wait after a failure, longer each time and never all threads for as long."""
        longest = self._manners.backoff * 2 ** (failures - 1)
        own = min(longest, self._manners.longest_backoff) * random.uniform(0.5, 1.0)
        if asked is not None:
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + asked)
            own = random.uniform(0.0, min(self._manners.backoff, 1.0))
        if self._stop.wait(own):
            raise AbandonedError


class _Bearer(AuthBase):
    """The key in its header; without this, a netrc file would put another in its place."""

    def __init__(self, key: str):
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request


def _seconds(said: str | None) -> float | None:
    """What a Retry-After header asks for, in seconds from now: a number or a date of HTTP."""
    try:
        seconds = float(said or "")
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(said or "")
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        seconds = moment.timestamp() - time.time()
    return max(seconds, 0.0) if seconds == seconds else None
