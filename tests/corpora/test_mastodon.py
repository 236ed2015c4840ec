"""Gathering over HTTP from a running instance: whole, once, politely, and never without a yes."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpora import CorpusSettings
from corpora.documents import Document
from corpora.errors import RequestError, Stopped
from corpora.mastodon import Store, gather, gone, read
from tests.conftest import ROOT
from tests.corpora.mastodon_server import (
    HurriedClock,
    Instance,
    allowlist,
    community,
    hurried,
    tag_link,
)

#: A crawl as a process of its own; it waits for nothing, as nobody else is on that server.
CRAWL = """
import sys
from pathlib import Path
from corpora import CorpusSettings
from corpora.mastodon import Manners, gather
settings = CorpusSettings(name="mastodon", allowlist=sys.argv[1], contact="a@b.example",
                          allow_local=True)
gather(settings, Path(sys.argv[2]), print, manners=Manners(pause=0, backoff=0.01, timeout=20))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Instance]:
    with Instance() as running:
        yield running


@pytest.fixture
def instance(server: Instance) -> Instance:
    server.reset()
    return server


@pytest.fixture
def settings(instance: Instance, tmp_path: Path) -> CorpusSettings:
    return CorpusSettings(
        name="mastodon",
        reader="mastodon",
        allowlist=allowlist(tmp_path / "agreed.yaml", [instance.host]),
        contact="crawler@university.example",
        allow_local=True,
        path=str(tmp_path / "store"),
    )


Gather = Callable[..., dict[str, Any]]


@pytest.fixture
def run(settings: CorpusSettings) -> Gather:
    """Gathers into the settings' path, on a clock that doesn't wait."""

    def gather_now(**changes: Any) -> dict[str, Any]:
        options = {name: changes.pop(name) for name in ("manners", "unwanted") if name in changes}
        options.setdefault("manners", hurried())
        said = changes.pop("said", [])
        asked = replace(settings, **changes)
        return gather(asked, Path(asked.path or ""), said.append, **options)

    return gather_now


def _texts(settings: CorpusSettings) -> list[Document]:
    return [document for document in read(settings) if not document.dropped]


def _ids(settings: CorpusSettings) -> list[int]:
    return [int(document.key) for document in _texts(settings)]


def test_5000_posts_through_faults_and_two_kills(
    instance: Instance, settings: CorpusSettings, tmp_path: Path
) -> None:
    community(instance, 5000)
    instance.faults = {
        **{7: "429 Retry-After: 1", 20: "503", 33: "json", 34: "503 Retry-After: 1", 60: "cut"},
        **{61: "cut", 77: "500", 90: "other", 110: "502"},
    }
    # PYTHONPATH and not the working directory: the crawl may run anywhere.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CRAWL, str(settings.allowlist), str(settings.path)]
    for pages in (25, 70):
        with subprocess.Popen(command, env=environment, cwd=tmp_path) as crawl:
            while len(instance.served) < pages:
                assert crawl.poll() is None
                time.sleep(0.005)
            os.kill(crawl.pid, signal.SIGKILL)
            assert crawl.wait() == -signal.SIGKILL
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=300)
    # The very posts, in their order, each once, with who, when and where.
    found = _texts(settings)
    assert [int(document.key) for document in found] == list(range(5999, 999, -1))
    assert found[-1] == Document(
        found[-1].text,
        origin=instance.host,
        key="1000",
        author=f"person0@{instance.host}",
        host=instance.host,
        date="2026-01-01T16:40:00+00:00",
        language="de",
        html=True,
    )
    assert "Kolleg*innen" in found[-1].text
    assert 'class="mention hashtag"' in found[-1].text
    # No page was asked for again, but for the one that each kill may have caught on its way.
    served = Counter(tuple(ids) for ids in instance.served if ids)
    assert sum(served.values()) - len(served) <= 2
    # And the same once more asks for nothing.
    asked = len(instance.requests)
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=60)
    assert len(instance.requests) == asked
    assert instance.agents == {
        "mitigate-corpus/1 (research corpus of posts by consent; contact: a@b.example)"
    }


def test_a_journal_torn_anywhere_is_made_whole(
    instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    community(instance, 100)
    run()
    (journal,) = Path(str(settings.path)).glob("*~.jsonl")
    whole = journal.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 4  # 40, 40, 20 posts, and the empty page that says it is over
    for cut in sorted({0, 1, *ends[:-1], *(end - 1 for end in ends), ends[1] + 1, ends[0] + 900}):
        journal.write_bytes(whole[:cut])
        instance.requests.clear()
        run()
        assert journal.read_bytes() == whole, cut
        assert len(instance.pages) == sum(end > cut for end in ends), cut


#: What may happen once, and the seconds that are waited for it.
FAULTS = {
    "429 Retry-After: 70": 70,
    "429": 60,
    "503": 5,
    "503 Retry-After: 40": 40,
    "json": 5,
    "other": 5,
    "cut": 5,
    "time": 5,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes(
    fault: str, instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    community(instance, 100)
    instance.faults = {2: fault}
    manners = hurried(timeout=1.0 if fault == "time" else 20.0)
    run(manners=manners)
    assert _ids(settings) == list(range(1099, 999, -1))
    assert isinstance(manners.clock, HurriedClock)
    slept, pauses = manners.clock.slept, 4 * 3.25
    assert FAULTS[fault] - 2 <= sum(slept) <= FAULTS[fault] + pauses
    assert 5 in slept or "429" in fault


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("429 Retry-After: 5", "it has us wait again and again (429), 6 times"),
        ("429 X-RateLimit-Reset: 2999-01-01T00:00:00Z", "it asks to wait"),
        ("503", "it answers 503, 6 times"),
        ("520", "it answers 520, 6 times"),
        ("json", "it answers broken JSON, 6 times"),
        ("cut", "the connection breaks off, 6 times"),
    ],
)
def test_a_fault_that_stays(
    fault: str, why: str, instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    community(instance, 100)
    instance.faults = dict.fromkeys(range(2, 100), fault)
    with pytest.raises(Stopped) as stopped:
        run()
    assert f"{instance.host}: {why}" in str(stopped.value)
    assert "40 posts are saved in" in str(stopped.value)
    assert "the same command goes on from there" in str(stopped.value)
    assert len(instance.requests) in (2, 7)  # not for ever
    instance.faults.clear()
    run()
    assert _ids(settings) == list(range(1099, 999, -1))
    assert Counter(tuple(ids) for ids in instance.served).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("401", "it shows its posts to members only (401)"),
        ("403", "it refuses us (403)"),
        ("404", "it has no such timeline (404)"),
        ("422", "its preview for those who aren't members is off (422)"),
        ("html", "it answers HTML where the API's JSON should be"),
        ("redirect https://elsewhere.example/api", "it redirects to elsewhere.example, another"),
        ("redirect http://127.0.0.1:1/", "it redirects to 127.0.0.1:1, another host"),
        ("redirect /interact/me", "its robots.txt forbids /interact/me"),
    ],
)
def test_an_instance_that_refuses_is_skipped_at_once(
    fault: str, why: str, instance: Instance, run: Gather
) -> None:
    community(instance, 10)
    instance.always = fault
    said: list[str] = []
    with pytest.raises(RequestError, match="no post was taken") as refused:
        run(said=said)
    assert why in str(refused.value)
    assert any(f"{instance.host}: skipped: public: {why}" in line for line in said)
    assert len(instance.requests) == 1  # no second try, no way round


@pytest.mark.parametrize(
    ("options", "why", "asked"),
    [
        ({"robots": "User-agent: *\nDisallow: /api/"}, "robots.txt forbids /api/v1/", 0),
        ({"robots": "User-agent: mitigate-corpus\nDisallow: /"}, "robots.txt forbids", 0),
        ({"robots_status": 403}, "its robots.txt is closed (403)", 0),
        ({"headers": [("X-Robots-Tag", "noindex")]}, "X-Robots-Tag: noindex", 1),
        (
            {"headers": [("X-Robots-Tag", "other: none"), ("X-Robots-Tag", "noarchive")]},
            "X-Robots-Tag: noarchive",
            1,
        ),
    ],
)
def test_what_robots_are_told_is_kept(
    options: dict[str, Any], why: str, asked: int, instance: Instance, run: Gather
) -> None:
    community(instance, 10)
    vars(instance).update(options)
    with pytest.raises(RequestError) as refused:
        run()
    assert why in str(refused.value)
    assert len(instance.requests) == asked


def test_robots_txt_that_cant_be_had_forbids_everything(instance: Instance, run: Gather) -> None:
    community(instance, 10)
    instance.robots_status = 503
    with pytest.raises(Stopped, match=r"it answers 503 for robots\.txt"):
        run()
    assert instance.requests == []
    instance.robots = None  # 404: there is none, and nothing is forbidden
    assert run()["posts"] == 10


def test_one_instance_down_doesnt_keep_another_from_being_gathered(
    instance: Instance, settings: CorpusSettings, run: Gather, tmp_path: Path
) -> None:
    community(instance, 30)
    file = allowlist(tmp_path / "two.yaml", ["127.0.0.1:9", instance.host])
    with pytest.raises(Stopped) as stopped:
        run(allowlist=file)
    assert "127.0.0.1:9: it can't be reached, 6 times. 30 posts are saved" in str(stopped.value)
    facts = run(allowlist=file, instances=[instance.host])
    assert facts["instances"][instance.host]["agreed_to"] == "public posts"
    assert facts["posts"] == len(_ids(settings)) == 30


def test_an_instance_that_ignores_the_cursor_comes_to_an_end(
    instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    community(instance, 100)
    instance.one_page = True
    run()
    assert _ids(settings) == list(range(1099, 1059, -1))
    assert len(instance.requests) == 2


def test_the_pace_between_pages(instance: Instance, run: Gather) -> None:
    community(instance, 200)
    manners = hurried()
    begin = manners.clock.now()
    run(manners=manners)
    assert len(instance.requests) == 6
    assert manners.clock.now() - begin >= 5 * 3.25
    assert isinstance(manners.clock, HurriedClock)
    assert max(manners.clock.slept) <= 3.25


def test_a_spent_budget_is_waited_for_as_real_instances_say_it(
    instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    community(instance, 200)
    instance.limit = 3  # X-RateLimit-Remaining: 0 at each third, X-RateLimit-Reset in ISO
    manners = hurried()
    said: list[str] = []
    run(manners=manners, said=said)
    assert isinstance(manners.clock, HurriedClock)
    assert sum(seconds > 290 for seconds in manners.clock.slept) == 1  # six requests
    assert any("waiting 5 min" in line for line in said)
    assert len(_ids(settings)) == 200


def _mixed(instance: Instance) -> None:
    instance.accounts(
        {"id": 1, "username": "ada"},
        {"id": 2, "username": "closed"},  # noindex, by the wrapper
        {"id": 3, "username": "hidden", "indexable": False},
        {"id": 4, "username": "tagged", "note": f"<p>{tag_link('NoBot', 'a.example')}</p>"},
        {"id": 5, "username": "fields", "fields": [{"name": "bots", "value": "#noarchive"}]},
        {"id": 6, "username": "robot", "bot": True},
        {"id": 7, "username": "far", "domain": "far.example"},
    )
    instance.noindex = {"closed"}
    posts = [
        {"id": 101, "account_id": 1, "content": "<p>taken</p>"},
        *({"id": 100 + author, "account_id": author, "content": "x"} for author in range(2, 8)),
        {"id": 110, "account_id": 1, "content": "x", "visibility": "unlisted"},
        {"id": 111, "account_id": 1, "content": "x", "visibility": "private"},
        {"id": 112, "account_id": 1, "content": "x", "visibility": "direct"},
        {"id": 113, "account_id": 1, "content": "x", "sensitive": True},
        {"id": 114, "account_id": 1, "content": "x", "spoiler_text": "food"},
        {"id": 115, "account_id": 1, "content": f"<p>x {tag_link('nsfw', 'a.example')}</p>"},
        {"id": 116, "account_id": 1, "content": "", "reblog_of_id": 107},
        {"id": 117, "account_id": 1, "content": "", "reblog_of_id": 102},
    ]
    instance.statuses(*({**post, "tags": ["queer"]} for post in posts))


@pytest.mark.parametrize("hashtags", [[], ["#Queer"]])
def test_only_what_may_be_taken_is_taken(
    hashtags: list[str], instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    _mixed(instance)
    facts = run(hashtags=hashtags)
    assert [document.text for document in _texts(settings)] == ["<p>taken</p>"]
    # The mock's hashtag timeline sends boosts and other servers' posts; its public one doesn't.
    more = {"boost": 2, "from another instance": 1} if hashtags else {}
    expected = {"author opted out": 4, "bot": 1, "content warning": 2, "#nsfw": 1, **more}
    assert facts["dropped"] == expected
    assert Counter(d.dropped for d in read(settings) if d.dropped) == expected
    # What isn't taken is not on the disk at all.
    stored = b"".join(file.read_bytes() for file in Path(str(settings.path)).glob("*.jsonl"))
    for name in (b"closed", b"hidden", b"tagged", b"fields", b"robot", b"far"):
        assert name not in stored


def test_bots_and_warnings_are_taken_where_asked_for(
    instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    _mixed(instance)
    run(bots=True, sensitive=True)
    assert sorted(_ids(settings)) == [101, 106, 113, 114]
    with pytest.raises(RequestError, match=r"was gathered with corpus\.bots=true"):
        run(sensitive=True)


def test_hashtags_overlap_and_posts_dont(
    instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    instance.accounts({"id": 1, "username": "ada"})
    for number in range(90):
        tags = [name for name, each in (("queer", 2), ("trans", 3)) if number % each == 0]
        row = {"id": 500 + number, "account_id": 1, "content": f"<p>{number}</p>", "tags": tags}
        instance.statuses(row)
    facts = run(hashtags=["queer", "#trans", "Queer"])
    wanted = {500 + number for number in range(90) if number % 2 == 0 or number % 3 == 0}
    found = _ids(settings)
    assert sorted(found) == sorted(wanted)
    assert facts["hashtags"] == ["queer", "trans"]
    assert {path for path, _query in instance.pages} == {
        "/api/v1/timelines/tag/queer",
        "/api/v1/timelines/tag/trans",
    }
    assert all(query["local"] == "1" for _path, query in instance.pages)


def test_a_number_of_posts_and_then_more(
    instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    community(instance, 200)
    run(posts=50)
    assert len(instance.pages) == 2
    assert _ids(replace(settings, posts=50)) == list(range(1199, 1149, -1))
    run(posts=130)
    assert len(instance.pages) == 4
    assert _ids(replace(settings, posts=130)) == list(range(1199, 1069, -1))


def test_the_forgotten_stay_out(instance: Instance, settings: CorpusSettings, run: Gather) -> None:
    community(instance, 100, authors=4)
    facts = run(unwanted=lambda post: post.author.startswith("person2@"))
    assert facts["dropped"] == {"forgotten": 25}
    store = Store(Path(str(settings.path)))
    assert store.drop(lambda post, host: (post.acct, host) == ("person1", instance.host)) == 25
    assert {post.author.partition("@")[0] for post in _texts(settings)} == {"person0", "person3"}
    stored = b"".join(file.read_bytes() for file in store.folder.glob("*.jsonl"))
    assert b'"acct": "person1"' not in stored
    asked = len(instance.requests)
    run()  # the cursor is still there
    assert len(instance.requests) == asked


def test_daily_messages_are_marked(
    instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    instance.accounts({"id": 1, "username": "admin"}, {"id": 2, "username": "ada"})
    day = 24 * 60
    for number in range(4):
        text = f"<p>Heute {120 + number} Mitglieder, {number} neue Beiträge.</p>"
        instance.statuses({"id": 1 + number * day, "account_id": 1, "content": text})
        text = f"<p>Guten Morgen! {'🏳️‍🌈' * number}</p>"
        instance.statuses({"id": 2 + number * day, "account_id": 2, "content": text})
    for number in range(2):  # on two days: nobody's routine
        text = f"<p>{number} Karten übrig</p>"
        instance.statuses({"id": 3 + number * day, "account_id": 2, "content": text})
    run()
    assert len(_texts(settings)) == 6
    assert Counter(d.dropped for d in read(settings) if d.dropped) == {"daily message": 4}


def test_nothing_is_fetched_without_a_yes_or_a_contact(
    instance: Instance, run: Gather, tmp_path: Path
) -> None:
    community(instance, 10)
    for changes, said in (
        ({"allowlist": None}, "so nothing is fetched; ask an instance's moderators"),
        ({"instances": ["mastodon.social"]}, "mastodon.social is not in"),
        ({"contact": ""}, "whom shall an instance write to?"),
        ({"contact": "me\r\nX-Evil: 1"}, "must be a mail address or a link"),
        ({"hashtags": ["queer/../x"]}, "is no hashtag"),
        ({"allow_local": False}, "http is refused"),
    ):
        with pytest.raises(RequestError, match=r"\A[^\n]*\Z") as refused:
            run(**changes)
        assert said in str(refused.value)
    assert instance.requests == []
    assert not (tmp_path / "store").exists()


def test_two_commands_dont_gather_into_one_store(
    instance: Instance, settings: CorpusSettings, run: Gather
) -> None:
    community(instance, 10)
    store = Store(Path(str(settings.path)))
    store.open(settings)
    with store.locked(), pytest.raises(RequestError, match="another command is gathering"):
        run()
    assert run()["posts"] == 10


def test_a_full_disk(instance: Instance, settings: CorpusSettings, run: Gather) -> None:
    community(instance, 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (25_000, hard))  # within the second page
    try:
        with pytest.raises(Stopped, match="the pages before are saved, and the same command"):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert _ids(settings) == list(range(1099, 1059, -1))
    run()
    assert _ids(settings) == list(range(1099, 999, -1))


def test_a_folder_of_something_else(settings: CorpusSettings, run: Gather) -> None:
    folder = Path(str(settings.path))
    with pytest.raises(RequestError, match=r"corpus\.reader=text"):
        list(read(settings))
    folder.mkdir()
    (folder / "about.json").write_text('{"version": 99}')
    for call in (run, lambda: list(read(settings))):
        with pytest.raises(RequestError, match="gathered by another version"):
            call()


def test_what_is_gone_since(
    instance: Instance, settings: CorpusSettings, run: Gather, tmp_path: Path
) -> None:
    community(instance, 100, authors=10)
    run()
    posts = list(read(settings))
    assert _gone(settings, posts, tmp_path) == set()
    instance.remove(1003, 1047)
    instance.change("person5", note="<p>#nobot</p>")
    instance.change("person6", indexable=False)
    expected = {1003, 1047} | {1000 + n for n in range(100) if n % 10 in (5, 6)}
    instance.requests.clear()
    assert _gone(settings, posts, tmp_path) == expected
    assert len(instance.requests) == 5 + 2  # twenty at once, and each that is missing by itself
    # An instance that is no longer listed has withdrawn, and isn't asked.
    instance.requests.clear()
    other = allowlist(tmp_path / "other.yaml", ["127.0.0.1:9"])
    assert _gone(replace(settings, allowlist=other), posts, tmp_path) == set(range(1000, 1100))
    assert instance.requests == []


def test_asking_again_goes_on_where_it_was_cut_short(
    instance: Instance, settings: CorpusSettings, run: Gather, tmp_path: Path
) -> None:
    community(instance, 100)
    run()
    posts = list(read(settings))
    instance.remove(1099)
    instance.requests.clear()
    instance.faults = dict.fromkeys(range(4, 100), "503")
    with pytest.raises(Stopped, match="What was asked is noted"):
        _gone(settings, posts, tmp_path)
    instance.faults, before = {}, len(instance.requests)
    assert _gone(settings, posts, tmp_path) == {1099}
    assert len(instance.requests) - before == 3  # the first 40 posts were asked
    assert not list((tmp_path / "progress").iterdir())
    # Who is refused an answer knows nothing, and takes nothing out.
    instance.always = "403"
    with pytest.raises(Stopped, match=r"it refuses us \(403\); taken out of .* all its posts go"):
        _gone(settings, posts, tmp_path)


def test_an_instance_without_the_look_up_of_many(
    instance: Instance, settings: CorpusSettings, run: Gather, tmp_path: Path
) -> None:
    community(instance, 5)
    run()
    posts = list(read(settings))
    instance.remove(1002)
    instance.requests.clear()
    instance.faults = {1: "404", 2: "410"}  # the newest is gone for good
    assert _gone(settings, posts, tmp_path) == {1002, 1004}
    assert len(instance.requests) == 6


def _gone(settings: CorpusSettings, posts: list[Document], folder: Path) -> set[int]:
    said: list[str] = []
    progress = folder / "progress"
    found = gone(settings, posts, said.append, progress=progress, manners=hurried())
    return {int(key) for key in found}
