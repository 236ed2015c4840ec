"""What an instance tells robots: robots.txt (RFC 9309) and the header X-Robots-Tag."""

import re
from collections.abc import Iterable

from protego import Protego

#: The name under which rules may address us, and the begin of the user agent.
AGENT = "mitigate-corpus"
#: Of X-Robots-Tag: each says that what is fetched must not be kept or learnt from.
FORBIDDING = frozenset({"none", "noindex", "noarchive", "noai"})

_WITH_VALUE = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
_NAMED = re.compile(r"\s*([\w.*-]+)\s*:\s*(.*)", re.DOTALL)


class Rules:
    """One instance's robots.txt."""

    def __init__(self, text: str) -> None:
        self._parsed = Protego.parse(text)

    def allows(self, url: str) -> bool:
        """Whether our robot may fetch the address."""
        return self._parsed.can_fetch(url, AGENT)

    def pause(self) -> float:
        """Seconds between two requests that it asks of us; 0 where it asks none."""
        rate = self._parsed.request_rate(AGENT)
        each = rate.seconds / rate.requests if rate and rate.requests else 0.0
        return max(float(self._parsed.crawl_delay(AGENT) or 0.0), each)


def forbidden(tags: Iterable[str]) -> str:
    """The directive of X-Robots-Tag headers that forbids us an answer; '' where none does.

    `tags` are the headers' values, one each: a name before a directive (`otherbot: noindex`)
    is for that robot alone, up to the next name in the same header.
    """
    for tag in tags:
        ours = True
        for part in tag.split(","):
            named = _NAMED.fullmatch(part)
            directive = part
            if named and named[1].lower() not in _WITH_VALUE:
                ours = named[1].lower() in (AGENT, "*")
                directive = named[2]
            if ours and directive.strip().lower() in FORBIDDING:
                return directive.strip().lower()
    return ""
