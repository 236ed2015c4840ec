"""What its source has deleted since leaves a corpus, and the gathered posts with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from corpora import (
    CorpusSettings,
    RequestError,
    Stopped,
    build,
    forget,
    mastodon,
    prepared,
    privacy,
)
from corpora.recheck import recheck

HOSTS = ("a.example", "b.example")


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of ten posts of each host, both with the ids 0 to 9, as if they were gathered."""

    def gather(settings: Any, store: Path, say: Any, *, unwanted: Any) -> dict[str, Any]:
        (store).mkdir(parents=True)
        consent = {"date": "2026-01-01", "agreed_by": "mods", "agreed_to": "research"}
        entry = {**consent, "terms": "https://a.example/terms", "posts": 10}
        return {"instances": dict.fromkeys(HOSTS, entry), "skipped": {}}

    def read(settings: CorpusSettings) -> Any:
        from corpora.documents import Document

        for host in settings.instances:
            for number in range(10):
                yield Document(
                    f"Heute schreibt {host} zum Thema Nummer {number} etwas Neues.",
                    origin=host, key=str(number), author=f"u{number}@{host}", host=host,
                )  # fmt: skip

    monkeypatch.setattr(mastodon, "gather", gather)
    monkeypatch.setattr(mastodon, "read", read)
    asked = CorpusSettings(
        name="m", reader="mastodon", allowlist="list.yaml", contact="x@y.example", near_duplicates=0
    )
    build(asked, tmp_path / "out", private=tmp_path / "private")
    return tmp_path / "out"


def test_the_consent_is_in_the_datasheet_and_goes_with_its_instance(out: Path) -> None:
    sheet = (out / "DATASHEET.md").read_text(encoding="utf-8")
    assert "a.example, 2026-01-01: mods, to research (https://a.example/terms)" in sheet
    forget.forget(out, "instance", "b.example", private=out.parent / "private")
    content = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert b"b.example" not in content
    assert b"a.example, 2026-01-01" in content


def test_what_is_gone_goes_of_the_right_host(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def gone(settings: CorpusSettings, posts: Any, say: Any, *, progress: Path) -> set[str]:
        asked.append((settings.allowlist, settings.contact, {post.host for post in posts}))
        return {"3", "4"} if posts[0].host == "a.example" else {"5"}

    monkeypatch.setattr(mastodon, "gone", gone)
    private = out.parent / "private"
    assert recheck(out, private=private) == 3
    assert asked == [("list.yaml", "x@y.example", {host}) for host in HOSTS]
    left = privacy.Store(private).provenance(prepared.load_manifest(out)["id"]).to_pylist()
    pairs = {(row["host"], row["post"]) for row in left}
    assert len(pairs) == 17
    assert not pairs & {("a.example", "3"), ("a.example", "4"), ("b.example", "5")}
    facts = prepared.load_manifest(out)
    assert facts["steps"][-1]["dropped"] == {"gone at the source": 3}
    assert facts["documents_kept"] == 17
    assert recheck(out, private=private, changes={"allowlist": "other.yaml"}) == 0
    assert asked[-1][0] == "other.yaml"


def test_an_instance_that_is_down_leaves_the_corpus_as_it_is(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: Any, **__: Any) -> set[str]:
        raise Stopped("a.example: down")

    monkeypatch.setattr(mastodon, "gone", down)
    before = (out / "manifest.json").read_bytes()
    with pytest.raises(Stopped, match="down"):
        recheck(out, private=out.parent / "private")
    assert (out / "manifest.json").read_bytes() == before


def test_other_sources_drop_what_was_forgotten_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": f"Satz mit der Nummer {n} hier.", "by": f"p{n % 4}"} for n in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    private = tmp_path / "private"
    asked = CorpusSettings(name="a", path=str(path), fields={"author": "by"}, near_duplicates=0)
    for name in ("one", "two"):
        build(asked, tmp_path / name, private=private)
    forget.forget(tmp_path / "one", "author", "p1", private=private)
    said: list[str] = []
    assert recheck(tmp_path / "two", private=private, say=said.append) == 5
    assert "can't be asked" in said[0]
    with pytest.raises(RequestError, match="contact= is for posts from Mastodon"):
        recheck(tmp_path / "two", private=private, changes={"contact": "x"})
