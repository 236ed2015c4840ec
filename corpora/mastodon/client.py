"""One instance over HTTP: Mastodon.py, on a session that keeps to the instance's own rules.

The session is where every request passes, those that Mastodon.py makes by itself too: it
stays on the one host, asks robots.txt first, keeps the pace, and refuses what an answer's
headers forbid. What a request comes to is one of three: an answer, `RefusedError` (skip this
instance, it doesn't want this) or `DownError` (stop here, go on another day).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from mastodon import Mastodon
from mastodon.errors import (
    MastodonAPIError,
    MastodonNetworkError,
    MastodonRatelimitError,
)

from corpora.consent import Consent
from corpora.mastodon import robots
from corpora.mastodon.pacing import Manners, Pace, TooLongError

#: Posts a page; Mastodon gives no more.
PAGE_SIZE = 40
#: Posts that may be looked up at once.
LOOK_UP = 20
#: What the rules look at and the store keeps; the rest of an answer is let go of at once.
POST = (
    *("id", "created_at", "visibility", "reblog", "sensitive", "spoiler_text", "language"),
    *("content", "tags", "account"),
)
ACCOUNT = ("acct", "display_name", "note", "fields", "bot", "noindex", "indexable")
_SAID = {
    401: "it shows its posts to members only (401)",
    403: "it refuses us (403)",
    404: "it has no such timeline (404)",
    410: "it is gone (410)",
    422: "its preview for those who aren't members is off (422)",
    451: "it may not show its posts here, for legal reasons (451)",
}

Answer = TypeVar("Answer")


class RefusedError(Exception):
    """The instance, or its robots rules, don't give us this: one line, without its name."""


class NotThereError(RefusedError):
    """404 or 410: what was asked for doesn't exist, or no longer, or not for us."""


class DownError(Exception):
    """The instance doesn't answer as it should, again and again: one line, without its name."""


class _MalformedError(Exception):
    """An answer that is JSON, but none of the API's."""


@dataclass(frozen=True)
class Answered:
    """One page as the instance gives it."""

    posts: list[Mapping[str, Any]]  # Status, newest first
    next: str | None  # the id below which the next page begins; None: the timeline ends


class Client:
    """Asks one instance, without an account, at the pace it wants."""

    def __init__(
        self, consent: Consent, contact: str, manners: Manners, say: Callable[[str], None]
    ) -> None:
        """Read the instance's robots.txt; nothing else is asked.

        Raises:
            RefusedError: robots.txt is closed to us, or redirects to another host.
            DownError: it can't be reached.
        """
        self.host = consent.host
        self._tries = manners.tries
        self._pace = Pace(manners, lambda line: say(f"{consent.host}: {line}"))
        self._session = _Session(consent, contact, self._pace)
        self._session.rules = robots.Rules(self._ask(self._session.robots_txt))
        self._pace.pause = max(manners.pause, self._session.rules.pause())
        self._api = _Api(
            api_base_url=consent.base,
            session=self._session,
            user_agent=user_agent(contact),
            request_timeout=manners.timeout,
            ratelimit_method="throw",  # waiting is the pace's
        )

    def page(self, hashtag: str, below: str | None) -> Answered:
        """The posts of a hashtag, or of the public timeline of '', below an id; local ones.

        Raises:
            RefusedError: it, or its robots rules, don't give us this timeline.
            DownError: it doesn't answer as it should.
        """

        def ask() -> list[Mapping[str, Any]]:
            options: dict[str, Any] = {"local": True, "limit": PAGE_SIZE, "max_id": below}
            if hashtag:
                return _posts(self._api.timeline_hashtag(hashtag, **options))
            return _posts(self._api.timeline_public(**options))

        posts = self._ask(ask)
        if not posts:
            return Answered([], None)
        # Pages may be short and still not the last (posts are filtered after they were
        # counted), and the link to the next may be missing: the end is an empty page.
        linked = (getattr(posts, "_pagination_next", None) or {}).get("max_id")
        following = str(linked if linked is not None else posts[-1]["id"])
        return Answered(posts, following if _is_lower(following, below) else None)

    def look_up(self, ids: list[str]) -> list[Mapping[str, Any]]:
        """Those of the posts that are still there, at most LOOK_UP at once.

        An instance without that call (before 4.3) is asked for each.

        Raises:
            RefusedError, DownError: as `page`.
        """
        try:
            found = {str(post["id"]): post for post in self._ask(lambda: self._many(ids))}
        except NotThereError:
            found = {}
        for one in ids:  # what is missing may have been left out for another reason
            if one not in found:
                try:
                    found[one] = self._ask(partial(self._one, one))
                except NotThereError:
                    continue
        return list(found.values())

    def _many(self, ids: list[str]) -> list[Mapping[str, Any]]:
        return _posts(self._api.statuses(ids))

    def _one(self, status: str) -> Mapping[str, Any]:
        return _post(self._api.status(status))

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Make a call, again and again after failures that may pass, but not for ever."""
        failures = 0
        while True:
            try:
                return call()
            except MastodonRatelimitError:
                problem, waits = "it has us wait again and again (429)", False
            except MastodonNetworkError as error:
                # Mastodon.py puts its own error around whatever the session raises.
                cause = error.__context__ or error
                if isinstance(cause, (RefusedError, DownError)):
                    raise cause from None
                if isinstance(cause, requests.exceptions.SSLError):  # no pause mends that
                    raise DownError("its certificate can't be trusted") from error
                problem, waits = _network(cause), True
            except MastodonAPIError as error:
                status = _status(error)
                if status in (404, 410):
                    raise NotThereError(_SAID[status]) from error
                if status is not None and status < 500 and status not in (408, 425):
                    raise RefusedError(_SAID.get(status, f"it answers {status}")) from error
                problem = f"it answers {status}" if status else "it answers broken JSON"
                waits = True
            except _MalformedError:
                problem, waits = "it answers with other JSON than the API's", True
            except requests.RequestException as error:
                problem, waits = _network(error), True
            failures += 1
            if failures == self._tries:
                raise DownError(f"{problem}, {failures} times")
            if waits:
                self._pace.back_off(failures)


def user_agent(contact: str) -> str:
    """How we introduce ourselves: what this is, and whom to write to."""
    return f"{robots.AGENT}/1 (research corpus of posts by consent; contact: {contact})"


class _Api(Mastodon):
    """Mastodon.py without the look at `/api/v2/instance` before each timeline.

    An instance without that address would be asked for it once a page; a timeline that is
    closed says so itself (401, 422).
    """

    def timeline_is_available(self, *_args: Any, **_options: Any) -> bool:
        return True


class _Session(requests.Session):
    """Requests to one host, and none that its rules forbid."""

    def __init__(self, consent: Consent, contact: str, pace: Pace) -> None:
        super().__init__()
        self.max_redirects = 3
        self.rules: robots.Rules | None = None
        self._base = consent.base
        self._pace = pace
        self.headers["User-Agent"] = user_agent(contact)

    def request(self, method: Any, url: Any, *args: Any, **options: Any) -> requests.Response:
        full = requests.Request(method, url, params=options.get("params")).prepare().url or ""
        self._check(full)
        self._wait()
        response = super().request(method, url, *args, **options)
        self._pace.heard(response.status_code, response.headers)
        for name in [name for name in response.headers if name.lower().startswith("x-ratelimit")]:
            del response.headers[name]  # read; Mastodon.py raises on those it can't read
        if response.ok:
            _check_answer(response)
            response.__class__ = _Trimmed
        return response

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where an answer sends us, if it is on this host and robots.txt allows it."""
        target = super().get_redirect_target(resp)
        if target is not None:
            full = urljoin(resp.url, target)
            if urlsplit(full)[:2] != urlsplit(self._base)[:2]:
                raise RefusedError(f"it redirects to {urlsplit(full).netloc or full}, another host")
            self._check(full)
        return target

    def robots_txt(self) -> str:
        """The text of robots.txt; '' where there is none.

        Raises:
            RefusedError: it is closed (401, 403) or on another host.
            requests.RequestException: it can't be had, which forbids everything (RFC 9309).
        """
        self._wait(paging=False)
        timeout = self._pace.manners.timeout
        response = super().request("GET", f"{self._base}/robots.txt", timeout=timeout)
        self._pace.heard(response.status_code, response.headers)
        if response.status_code in (401, 403):
            raise RefusedError(f"its robots.txt is closed ({response.status_code})")
        if response.status_code == 429 or response.status_code >= 500:
            raise requests.HTTPError(f"it answers {response.status_code} for robots.txt")
        return response.text if response.ok else ""

    def _wait(self, paging: bool = True) -> None:
        try:
            self._pace.wait(paging)
        except TooLongError as error:
            raise DownError(str(error)) from error

    def _check(self, url: str) -> None:
        if self.rules is not None and not self.rules.allows(url):
            raise RefusedError(f"its robots.txt forbids {urlsplit(url).path}")


class _Trimmed(requests.Response):
    """An answer without what nobody looks at.

    Mastodon.py makes an object of each thing in it: a third of a second a page.
    """

    def json(self, **options: Any) -> Any:
        answer = super().json(**options)
        if isinstance(answer, list):
            return [_trimmed(post) for post in answer]
        return _trimmed(answer)


def _trimmed(post: Any) -> Any:
    if not isinstance(post, dict):
        return post
    kept = {name: post[name] for name in POST if name in post}
    if isinstance(kept.get("account"), dict):
        account = kept["account"]
        kept["account"] = {name: account[name] for name in ACCOUNT if name in account}
    if isinstance(kept.get("reblog"), dict):
        kept["reblog"] = {"id": kept["reblog"].get("id")}
    return kept


def _check_answer(response: requests.Response) -> None:
    raw = getattr(response.raw, "headers", None)
    tags = raw.getlist("X-Robots-Tag") if raw is not None else []
    if directive := robots.forbidden(tags):
        raise RefusedError(f"its answers forbid keeping them (X-Robots-Tag: {directive})")
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml"):
        raise RefusedError("it answers HTML where the API's JSON should be")


def _is_lower(following: str, below: str | None) -> bool:
    """Whether a cursor goes on from the one before; an instance that ignores it has no end."""
    if below is None:
        return True
    if following.isdigit() and below.isdigit():
        return int(following) < int(below)
    return following != below


def _posts(answer: Any) -> list[Mapping[str, Any]]:
    if not isinstance(answer, list):
        raise _MalformedError
    for post in answer:
        _post(post)
    return answer


def _post(answer: Any) -> Mapping[str, Any]:
    whole = (
        isinstance(answer, Mapping)
        and answer.get("id")
        and isinstance(answer.get("account"), Mapping)
    )
    if not whole:
        raise _MalformedError
    return answer


def _status(error: MastodonAPIError) -> int | None:
    """The HTTP status in an error of Mastodon.py; None where JSON couldn't be read."""
    return next((value for value in error.args if isinstance(value, int)), None)


def _network(error: BaseException) -> str:
    if isinstance(error, requests.Timeout):
        return "it doesn't answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection breaks off"
    if isinstance(error, requests.HTTPError):
        return (
            f"it answers {error.response.status_code} for robots.txt"
            if error.response is not (None)
            else str(error)
        )
    if isinstance(error, requests.TooManyRedirects):
        return "it redirects in a circle"
    return "it can't be reached"
