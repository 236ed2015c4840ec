"""What is taken, what robots are told, and how long is waited: without any server."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from corpora.mastodon import robots, rules
from corpora.mastodon.pacing import Pace, TooLongError
from tests.corpora.mastodon_server import HurriedClock, hurried, tag_link


def _post(**changes: Any) -> dict[str, Any]:
    account = {"acct": "ada", "bot": False, "note": "<p>Hallo</p>", "fields": []}
    account |= {"noindex": False, "indexable": True, "display_name": "Ada"}
    account |= changes.pop("account", {})
    post = {"visibility": "public", "reblog": None, "sensitive": False, "spoiler_text": ""}
    return {**post, "content": "<p>Hallo</p>", "tags": [], "account": account, **changes}


def _reason(post: dict[str, Any], bots: bool = False, sensitive: bool = False) -> str:
    return rules.reason_against(post, bots=bots, sensitive=sensitive)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"visibility": "unlisted"}, "not public"),
        ({"visibility": "private"}, "not public"),
        ({"visibility": "direct"}, "not public"),
        ({"visibility": None}, "not public"),
        ({"reblog": {"id": "7"}}, "boost"),
        ({"account": {"acct": "ada@far.example"}}, "from another instance"),
        ({"account": {"acct": ""}}, "from another instance"),
        ({"account": {"bot": True}}, "bot"),
        ({"account": {"noindex": True}}, "author opted out"),
        ({"account": {"indexable": False}}, "author opted out"),
        ({"account": {"indexable": None, "noindex": None}}, ""),  # software that has no such switch
        ({"sensitive": True}, "content warning"),
        ({"spoiler_text": "food"}, "content warning"),
        ({"tags": [{"name": "NSFW"}]}, "#nsfw"),
        ({"content": f"<p>x {tag_link('nsfw', 'a.example')}</p>"}, "#nsfw"),
        ({"content": "<p>Nsfw stands here without being a tag</p>"}, ""),
    ],
)
def test_each_kind_of_post(changes: dict[str, Any], reason: str) -> None:
    assert _reason(_post(**changes)) == reason


def test_what_is_asked_for_is_taken() -> None:
    assert _reason(_post(account={"bot": True}), bots=True) == ""
    assert _reason(_post(sensitive=True, spoiler_text="x"), sensitive=True) == ""
    assert _reason(_post(sensitive=True, tags=[{"name": "nsfw"}]), sensitive=True) == "#nsfw"


@pytest.mark.parametrize(
    "said",
    [
        f"<p>Hi!</p><p>{tag_link('nobot', 'a.example')}</p>",
        "<p>Hi</p><p>#NoBot</p>",
        "<p>#noindex #noarchive</p>",
        "<p>cats,#noarchive</p>",
        '<p>x <a href="h">#<span>no</span>bot</a></p>',
        "<p>#no_bots please</p>",
        "<p>#no-index</p>",
        "<p>nobot</p>",
        "<p>#no\u200bbot</p>",
        "<p>＃ｎｏｂｏｔ</p>",
        "<p>#noai</p>",
    ],
)
def test_a_no_in_the_bio_the_name_or_a_field_counts(said: str) -> None:
    assert rules.opted_out({"note": said})
    assert rules.opted_out({"display_name": said})
    assert rules.opted_out({"fields": [{"name": "Bots", "value": said}]})
    assert rules.opted_out({"fields": [{"name": said, "value": "yes"}]})


@pytest.mark.parametrize(
    "said",
    ["", "<p>I build robots, and #nobotany is fun</p>", "<p>No. Bots are fine</p>", "indexed"],
)
def test_other_words_are_no_opt_out(said: str) -> None:
    assert not rules.opted_out({"note": said, "display_name": said, "fields": []})


def test_a_message_generated_anew_has_one_pattern() -> None:
    first = rules.pattern(
        '<p>Montag, 3. März: 1.204 Mitglieder <a href="h">https://a.example/3</a>'
    )
    other = rules.pattern("<p>Freitag, 14. Mai: 1.311 Mitglieder https://a.example/14</p>")
    assert first == other != ""
    assert rules.pattern("<p>Guten Morgen!</p>") == ""  # nothing in it changes


@pytest.mark.parametrize(
    ("text", "path", "allowed"),
    [
        ("", "/api/v1/timelines/public?local=1", True),
        ("User-agent: *\nDisallow: /media_proxy/", "/api/v1/timelines/public", True),
        ("User-agent: *\nDisallow: /api/", "/api/v1/timelines/public", False),
        ("User-agent: *\nDisallow: /", "/api/v1/statuses/1", False),
        ("User-agent: GPTBot\nDisallow: /", "/api/v1/timelines/public", True),
        ("User-agent: mitigate-corpus\nDisallow: /", "/api/v1/timelines/public", False),
        (
            "User-agent: *\nDisallow: /\n\nUser-agent: mitigate-corpus\nAllow: /api/",
            "/api/v1/timelines/public",
            True,
        ),
        ("User-agent: *\nDisallow: /api/v1/timelines/tag/", "/api/v1/timelines/tag/queer", False),
    ],
)
def test_robots_txt(text: str, path: str, allowed: bool) -> None:
    assert robots.Rules(text).allows(f"https://queer.example{path}") is allowed


def test_robots_txt_may_ask_for_more_time() -> None:
    assert robots.Rules("User-agent: *\nCrawl-delay: 10").pause() == 10
    assert robots.Rules("User-agent: *\nRequest-rate: 1/20").pause() == 20
    assert robots.Rules("User-agent: other\nCrawl-delay: 10").pause() == 0


@pytest.mark.parametrize(
    ("tags", "directive"),
    [
        ([], ""),
        (["noindex"], "noindex"),
        (["NoIndex, nofollow"], "noindex"),
        (["nofollow"], ""),
        (["nofollow", "noarchive"], "noarchive"),
        (["none"], "none"),
        (["noai, noimageai"], "noai"),
        (["otherbot: noindex, noarchive"], ""),
        (["otherbot: noindex", "noindex"], "noindex"),
        (["mitigate-corpus: noindex"], "noindex"),
        (["otherbot: nofollow, mitigate-corpus: none"], "none"),
        (["unavailable_after: 25 Jun 2030 15:00:00 PST, noindex"], "noindex"),
        (["max-snippet: 5"], ""),
    ],
)
def test_x_robots_tag(tags: list[str], directive: str) -> None:
    assert robots.forbidden(tags) == directive


def _pace(**options: Any) -> tuple[Pace, HurriedClock]:
    clock = HurriedClock()
    return Pace(hurried(clock=clock, **options), lambda _line: None), clock


def test_never_more_than_300_pages_in_any_quarter_of_an_hour() -> None:
    pace, clock = _pace()
    sent = []
    for _ in range(1000):
        pace.wait()
        sent.append(clock.now())
    for first, last in zip(sent, sent[300:], strict=False):
        assert last - first > 900
    assert sum(clock.slept) < 1000 * 3.3  # and no slower than need be


RESETS: dict[str, tuple[Callable[[datetime], str], float]] = {
    "ISO, Z": (lambda later: later.isoformat().replace("+00:00", "Z"), 200),
    "ISO, offset": (lambda later: later.isoformat(), 200),
    "since 1970": (lambda later: str(int(later.timestamp())), 200),
    "HTTP": (lambda later: format_datetime(later, usegmt=True), 200),
    "from now": (lambda _later: "200", 200),
    "none that can be read": (lambda _later: "gibberish", 300),  # the usual window
    "none": (lambda _later: "", 300),
}


@pytest.mark.parametrize("form", RESETS)
def test_a_spent_budget_is_waited_for(form: str) -> None:
    written, wait = RESETS[form]
    pace, clock = _pace()
    reset = written(datetime.now(UTC) + timedelta(seconds=200))
    pace.heard(200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset})
    pace.wait()
    assert sum(clock.slept) == pytest.approx(wait, abs=5)


def test_the_servers_clock_counts_not_ours() -> None:
    pace, clock = _pace()
    theirs = 1_000_000_000  # a quarter of a century behind
    date = format_datetime(datetime.fromtimestamp(theirs, UTC), usegmt=True)
    reset = datetime.fromtimestamp(theirs + 120, UTC).isoformat()
    pace.heard(429, {"X-RateLimit-Reset": reset, "Date": date})
    pace.wait()
    assert sum(clock.slept) == pytest.approx(120, abs=5)


def test_429_is_waited_for_though_the_headers_show_budget() -> None:
    pace, clock = _pace()
    pace.heard(429, {"X-RateLimit-Remaining": "250", "Retry-After": "90"})
    pace.wait()
    assert sum(clock.slept) == pytest.approx(90, abs=5)
    pace.heard(429, {})
    pace.wait()
    assert sum(clock.slept) == pytest.approx(90 + 120, abs=5)  # our own guess, doubled


def test_nobody_waits_a_day() -> None:
    pace, clock = _pace()
    pace.heard(429, {"Retry-After": "86400"})
    with pytest.raises(TooLongError, match="asks to wait 1440 min"):
        pace.wait()
    assert clock.slept == []
