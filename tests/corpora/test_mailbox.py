"""Posts that people hand over: their own words, with what lets them be taken out again."""

import json
import mailbox
import tarfile
import zipfile
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from corpora import CorpusSettings, RequestError, text
from corpora.documents import Document

PUBLIC = "https://www.w3.org/ns/activitystreams#Public"


def post(number: int, **more: Any) -> dict[str, Any]:
    note = {
        "id": f"https://queer.example/users/alex/statuses/{number}",
        "type": "Note",
        "attributedTo": "https://queer.example/users/alex",
        "published": f"2023-05-0{number}T10:00:00Z",
        "to": [PUBLIC],
        "content": f"<p>Post {number}</p>",
        "contentMap": {"de": f"<p>Post {number}</p>"},
    }
    return {"type": "Create", "object": {**note, **more}}


OUTBOX = {
    "@context": "https://www.w3.org/ns/activitystreams",
    "id": "outbox.json",
    "type": "OrderedCollection",
    "totalItems": 6,
    "orderedItems": [
        post(1),
        {"type": "Announce", "object": "https://other.example/users/max/statuses/7"},
        post(2, to=["https://queer.example/users/alex/followers"], cc=[PUBLIC]),
        post(3, summary="cw", sensitive=True),
        post(4, type="Tombstone"),
        post(5, contentMap={"de": "a", "en": "b"}),
    ],
}


def documents(path: Path, **more: Any) -> list[Document]:
    return list(text.read(CorpusSettings(name="text", path=str(path), **more)))


def kept(found: list[Document]) -> list[str]:
    return [document.text for document in found if not document.dropped]


def test_an_archive_gives_public_posts_with_who_and_when(tmp_path: Path) -> None:
    (tmp_path / "outbox.json").write_text(json.dumps(OUTBOX), encoding="utf-8")
    found = documents(tmp_path)
    assert kept(found) == ["<p>Post 1</p>", "<p>Post 5</p>"]
    assert [document.dropped for document in found] == [
        *("", "boosts", "not public", "sensitive, or with a content warning", "not a post", "")
    ]
    first, last = found[0], found[-1]
    assert (first.author, first.host, first.key) == ("alex", "queer.example", "1")
    assert (first.date, first.language, first.html) == ("2023-05-01T10:00:00Z", "de", True)
    assert last.language == ""
    assert len(kept(documents(tmp_path, sensitive=True))) == 3


def test_packed_archives_read_alike_and_media_in_them_are_passed(tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.mkdir()
    (content / "outbox.json").write_text(json.dumps(OUTBOX), encoding="utf-8")
    (content / "image.png").write_bytes(b"\x89PNG")
    (tmp_path / "z").mkdir()
    with zipfile.ZipFile(tmp_path / "z" / "archive.zip", "w") as archive:
        for path in content.iterdir():
            archive.write(path, path.name)
    (tmp_path / "t").mkdir()
    with tarfile.open(tmp_path / "t" / "archive.tar.gz", "w:gz") as packed:
        packed.add(content, ".")
    for folder in ("z", "t"):
        assert kept(documents(tmp_path / folder)) == ["<p>Post 1</p>", "<p>Post 5</p>"]
    torn = tmp_path / "t" / "archive.tar.gz"
    torn.write_bytes(torn.read_bytes()[:60])
    with pytest.raises(RequestError, match=r"archive\.tar\.gz: not a whole archive"):
        documents(tmp_path / "t")


def test_a_mailbox_gives_own_lines_only(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "posts.mbox")
    mail = EmailMessage()
    mail["From"] = "Käthe Müller <kaethe@mail.example>"
    mail["Date"] = "Mon, 08 Mar 2021 12:00:00 +0100"
    mail["Message-ID"] = "<abc@mail.example>"
    mail.set_content("Schön gesagt, Freund*innen.\n> was andere sagten\nUnd ich auch.\n-- \nKäthe")
    mail.add_alternative("<p>Schön</p>", subtype="html")
    box.add(mail)
    other = EmailMessage()
    other["From"] = "b@mail.example"
    other.set_content("<p>Nur HTML</p>", subtype="html")
    box.add(other)
    box.close()
    first, second = documents(tmp_path / "posts.mbox")
    assert first.text == "Schön gesagt, Freund*innen.\nUnd ich auch."
    assert (first.author, first.key) == ("kaethe@mail.example", "abc@mail.example")
    assert (first.date, first.html) == ("2021-03-08T12:00:00+01:00", False)
    assert (second.text.strip(), second.html) == ("<p>Nur HTML</p>", True)


def test_a_torn_archive_names_file_and_byte_or_is_skipped(tmp_path: Path) -> None:
    whole = json.dumps(OUTBOX)
    (tmp_path / "outbox.json").write_text(whole[: whole.index('"Announce"')], encoding="utf-8")
    with pytest.raises(RequestError, match=r"outbox\.json: not JSON, .* \(.* at byte"):
        documents(tmp_path)
    with pytest.warns(UserWarning, match=r"outbox\.json: .* the rest of it is left out"):
        found = documents(tmp_path, on_error="skip")
    assert kept(found) == ["<p>Post 1</p>"]
    assert found[-1].dropped == "unreadable: the rest of a file"
