"""How fast an instance is asked: its own limits by header, and a pause that keeps below them.

Mastodon allows 300 paging requests in 15 minutes to those who haven't logged in, and says so
in no header: a request each 3 seconds, in windows that begin on the server's clock. Hence the
pause here, which makes 276 of them, whatever budget the headers show.
"""

import datetime
import email.utils
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

#: Seconds between the beginnings of two paging requests.
PAUSE = 3.25
#: A number below this in a reset header counts seconds from now; above, since 1970.
_EPOCHS_BEGIN = 10_000_000


class TooLongError(Exception):
    """The instance asks for a longer wait than anybody sits through."""


@dataclass(frozen=True)
class Clock:
    """What tells the time and lets it pass; tests have one that doesn't wait."""

    now: Callable[[], float] = time.time  # seconds since 1970
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Manners:
    """How patient we are, in seconds where not said otherwise."""

    pause: float = PAUSE
    timeout: float = 30.0  # for the connection, and for each read from it
    tries: int = 6  # times that a request is made before the instance counts as down
    backoff: float = 5.0  # after the first failure; doubled after each further one
    longest_wait: float = 3600.0
    clock: Clock = field(default_factory=Clock)


class Pace:
    """When the next request to one instance may go out."""

    def __init__(self, manners: Manners, say: Callable[[str], None]) -> None:
        self.manners = manners
        self.pause = manners.pause  # a crawl delay of robots.txt makes it longer
        self._say = say
        self._last: float | None = None
        self._not_before = 0.0
        self._refused = 0  # 429 in a row

    def wait(self, paging: bool = True) -> None:
        """Wait until a request may go out; `paging` ones keep the pause between them.

        Raises:
            TooLongError: the instance wants more than `longest_wait`.
        """
        clock = self.manners.clock
        due = self._not_before
        if paging and self._last is not None:
            due = max(due, self._last + self.pause)
        left = due - clock.now()
        if left > self.manners.longest_wait:
            raise TooLongError(f"it asks to wait {_duration(left)}")
        if left > 30:
            self._say(f"waiting {_duration(left)}, as it asks")
        while left > 0:  # a sleep may end early
            clock.sleep(left)
            left = due - clock.now()
        if paging:
            self._last = clock.now()

    def heard(self, status: int, headers: Mapping[str, str]) -> None:
        """Read what an answer says of limits."""
        now = self.manners.clock.now()
        reset = _moment(headers.get("X-RateLimit-Reset"), headers.get("Date"), now)
        after = _moment(headers.get("Retry-After"), headers.get("Date"), now)
        remaining = headers.get("X-RateLimit-Remaining", "").strip()
        if status == 429:
            # Also where the headers show budget: paging has a limit of its own.
            self._refused += 1
            own = now + 60 * 2 ** (self._refused - 1)
            self._not_before = max(after or reset or own, now + self.pause)
            return
        self._refused = 0
        if status == 503 and after:
            self._not_before = after
        elif remaining.isdigit() and int(remaining) == 0:
            self._not_before = reset or now + 300

    def back_off(self, failures: int) -> None:
        """Wait after a failure: twice as long each time."""
        self.manners.clock.sleep(self.manners.backoff * 2 ** (failures - 1))


def _moment(said: str | None, date: str | None, now: float) -> float | None:
    """A header's moment on our clock, in seconds since 1970; None where it says none.

    ISO 8601 as Mastodon writes it, a date of HTTP, seconds since 1970 or from now. Where the
    answer bears its own date, the difference counts: the server's clock may be wrong, or ours.
    """
    said = (said or "").strip()
    if not said:
        return None
    try:
        number = float(said)
    except ValueError:
        moment = _parsed(said)
    else:
        if not 0 <= number < 1e12:
            return None
        if number < _EPOCHS_BEGIN:
            return now + number
        moment = number
    if moment is None:
        return None
    theirs = _parsed(date.strip()) if date else None
    return moment if theirs is None else now + moment - theirs


def _parsed(said: str) -> float | None:
    try:
        moment = datetime.datetime.fromisoformat(said)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(said)
        except ValueError:
            return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
