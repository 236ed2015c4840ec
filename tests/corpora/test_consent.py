"""The allowlist: nothing without a yes, and wrong entries named in one line."""

from pathlib import Path

import pytest

from corpora.consent import Consent, check_public, chosen, read_allowlist
from corpora.errors import RequestError

ENTRY = {
    "host": "queer.example",
    "date": "2026-01-15",
    "agreed_by": "the moderators, by mail",
    "agreed_to": "public posts for research on bias",
    "terms": "https://queer.example/terms",
}


def _file(path: Path, *entries: dict[str, str]) -> str:
    file = path / "agreed.yaml"
    lines = []
    for entry in entries:
        lines += [f"{'-' if not n else ' '} {k}: {v}" for n, (k, v) in enumerate(entry.items())]
    file.write_text("\n".join(lines), "utf-8")
    return str(file)


def _error(path: str | None, allow_local: bool = False) -> str:
    with pytest.raises(RequestError) as caught:
        read_allowlist(path, allow_local)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_entry_is_read(tmp_path: Path) -> None:
    other = {**ENTRY, "host": "https://Zwei.Example/", "date": "2025-12-31T10:00:00Z"}
    first, second = read_allowlist(_file(tmp_path, ENTRY, other))
    assert first == Consent(**ENTRY)
    assert first.base == "https://queer.example"
    assert (second.host, second.date) == ("zwei.example", "2025-12-31")


@pytest.mark.parametrize("content", [None, "", "[]", "# nobody yet\n"])
def test_with_nobody_listed_the_message_says_how_to_ask(
    content: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "agreed.yaml"
    if content is not None:
        file.write_text(content)
    said = _error(str(file) if content is not None else None)
    assert "nothing is fetched" in said
    assert "moderators" in said
    assert "- {host: queer.example, date: 2026-01-15, agreed_by:" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"host": ""}, "entry 2: host is missing"),
        ({"agreed_by": ""}, "entry 2 (queer.example): agreed_by is missing"),
        ({"terms": "on paper"}, "terms=on paper: must be a link"),
        ({"date": "15.01.2026"}, "date=15.01.2026: must be a day, such as 2026-01-15"),
        ({"date": "2026-02-30"}, "date=2026-02-30: must be a day"),
        ({"date": "2999-01-01"}, "is still to come"),
        ({"agreed_To": "x"}, "unknown key agreed_To; say agreed_to"),
        ({"host": "queer.example/about"}, "must be a bare name, such as queer.example"),
        ({"host": "user@queer.example"}, "must be a bare name"),
        ({"host": "queer example"}, "must be a bare name"),
        ({"host": "http://queer.example"}, "http is refused, posts come over https"),
        ({"host": "queer.example:8443"}, "a port is refused; say host: queer.example"),
        ({"agreed_to": "[public, posts]"}, "agreed_to must be text"),
    ],
)
def test_a_wrong_entry_is_named(change: dict[str, str], said: str, tmp_path: Path) -> None:
    first = {**ENTRY, "host": "one.example"}
    assert said in _error(_file(tmp_path, first, {**ENTRY, **change}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("host: queer.example", "must be a list of entries"),
        ("- queer.example", "entry 1: must be as - {host:"),
        ("- host: a\n  - b: [", "line 2: not YAML"),
    ],
)
def test_a_file_of_another_form(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "agreed.yaml"
    file.write_text(content)
    assert said in _error(str(file))


def test_a_file_that_is_not_there_and_a_host_listed_twice(tmp_path: Path) -> None:
    assert "no such file" in _error(str(tmp_path / "none.yaml"))
    assert "queer.example is listed twice" in _error(_file(tmp_path, ENTRY, ENTRY))


def test_instances_are_chosen_from_those_listed() -> None:
    one, two = Consent(**ENTRY), Consent(**{**ENTRY, "host": "zwei.example"})
    assert chosen([one, two], [], "f") == [one, two]
    assert chosen([one, two], ["https://Zwei.example"], "f") == [two]
    with pytest.raises(RequestError, match=r"zwei\.exampel is not in f.*; zwei\.example is"):
        chosen([one, two], ["zwei.exampel"], "f")
    with pytest.raises(RequestError, match=r"listed: queer\.example, zwei\.example"):
        chosen([one, two], ["mastodon.social"], "f")


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.5", "172.16.0.1", "169.254.169.254", "0.0.0.0"),
        *("[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]", "localhost", "2130706433"),
    ],
)
def test_addresses_of_ones_own_network_are_refused(host: str) -> None:
    with pytest.raises(RequestError, match=r"no public address.*allow_local=true"):
        check_public(Consent(**{**ENTRY, "host": host}))


def test_a_name_is_judged_by_every_address_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(*addresses: str) -> None:
        found = [(2, 1, 6, "", (address, 443)) for address in addresses]
        monkeypatch.setattr("socket.getaddrinfo", lambda *_words, **_options: found)

    resolved("9.9.9.9")
    check_public(Consent(**ENTRY))
    resolved("9.9.9.9", "10.0.0.1")
    with pytest.raises(RequestError, match=r"queer\.example is at 10\.0\.0\.1"):
        check_public(Consent(**ENTRY))


def test_a_server_of_ones_own_may_be_listed_where_it_is_allowed(tmp_path: Path) -> None:
    path = _file(tmp_path, {**ENTRY, "host": "http://127.0.0.1:8000"})
    (own,) = read_allowlist(path, allow_local=True)
    assert own.base == "http://127.0.0.1:8000"
