"""Keys, the private folder, and what must not come back."""

import stat
from pathlib import Path

import pytest

from corpora import RequestError, privacy
from corpora.documents import Document


def test_the_salt_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    store = privacy.Store(tmp_path / "private")
    again = privacy.Store(tmp_path / "private")
    other = privacy.Store(tmp_path / "other")
    assert store.key("author", "alex@h") == again.key("author", "alex@h")
    assert store.key("author", "alex@h") != other.key("author", "alex@h")
    assert store.key("author", "x") != store.key("post", "x")
    assert stat.S_IMODE((tmp_path / "private" / "salt").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    (tmp_path / "private" / "salt").write_bytes(b"short")
    with pytest.raises(RequestError, match="not a salt of 32 bytes"):
        privacy.Store(tmp_path / "private")


def test_reading_makes_no_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(privacy.VARIABLE, str(tmp_path / "mine"))
    assert privacy.default_folder() == tmp_path / "mine"
    assert privacy.existing() is None
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("spelling", ["@Alex@H.example", "alex@h.example", " @alex@H.Example "])
def test_one_author_has_one_key(tmp_path: Path, spelling: str) -> None:
    store = privacy.Store(tmp_path)
    document = Document("x", author="@alex", host="h.example", key="7")
    assert store.keys(document).author == store.key("author", spelling)
    assert store.keys(document).author in store.named("author", spelling)
    assert store.keys(document).post in store.named("post", "https://h.example/@alex/7")


def test_documents_without_an_id_are_known_by_their_text(tmp_path: Path) -> None:
    store = privacy.Store(tmp_path)
    one, two = (store.keys(Document("", origin="a.txt"), text) for text in ("eins", "zwei"))
    assert one.document != two.document
    assert (one.author, one.post, one.instance) == ("", "", "")


def test_forgotten_is_by_author_post_or_instance(tmp_path: Path) -> None:
    store = privacy.Store(tmp_path)
    document = Document("x", author="alex", host="h.example", key="7")
    for kind, name in (("author", "alex@h.example"), ("post", "h.example/7")):
        fresh = privacy.Store(tmp_path / kind)
        assert not fresh.is_forgotten(document)
        fresh.leave_out([fresh.key(kind, name), ""])
        assert fresh.is_forgotten(document)
        assert privacy.Store(tmp_path / kind).is_forgotten(document)
        assert not fresh.is_forgotten(Document("x"))
    store.leave_out([store.key("instance", "h.example")])
    assert store.is_forgotten(document)


def test_two_commands_at_one_corpus_are_refused(tmp_path: Path) -> None:
    store = privacy.Store(tmp_path / "private")
    with (
        store.alone(tmp_path / "out"),
        pytest.raises(RequestError, match="another command is writing it"),
        store.alone(tmp_path / "out"),
    ):
        pass
