"""Forgetting: no trace of text or key in the folder, right counts, and it doesn't come back."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corpora import CorpusSettings, RequestError, build, forget, load, privacy
from tests.conftest import ROOT

NOUNS = ("Regen", "Wolken", "Brot", "Fahrrad", "Garten", "Kaffee")


def rows(authors: int = 6, each: int = 5) -> list[dict[str, str]]:
    return [
        {
            "text": f"Heute war {NOUNS[a]} und {NOUNS[n]} wichtig, lesbisch oder nicht {a}{n}.",
            "by": f"@Person{a}",
            "host": f"h{a % 2}.example",
            "id": f"9{a}{n}",
            "at": f"2022-0{1 + n}-0{1 + a}",
        }
        for a in range(authors)
        for n in range(each)
    ]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "posts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    return path


def settings(source: Path, **more: Any) -> CorpusSettings:
    fields = {"text": "text", "author": "by", "host": "host", "id": "id", "date": "at"}
    some = {"name": "posts", "path": str(source), "fields": fields, "near_duplicates": 0}
    return CorpusSettings(**{**some, "valid_share": 0.3, **more})


@pytest.fixture
def out(source: Path) -> Path:
    build(settings(source), source.parent / "out", private=source.parent / "private")
    return source.parent / "out"


def bytes_in(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def store(out: Path) -> privacy.Store:
    return privacy.Store(out.parent / "private")


def texts_of(out: Path) -> list[str]:
    corpus = load(CorpusSettings(name="x", path=str(out)))
    return corpus.train + corpus.valid


def take(out: Path, kind: str, said: str, **more: Any) -> int:
    return forget.forget(out, kind, said, private=out.parent / "private", **more)


@pytest.mark.parametrize(
    ("kind", "said", "goes"),
    [
        ("author", "@person2@h0.example", lambda row: row["by"] == "@Person2"),
        ("author", "Person2", lambda row: row["by"] == "@Person2"),
        ("author", "https://h0.example/@Person2", lambda row: row["by"] == "@Person2"),
        ("post", "934", lambda row: row["id"] == "934"),
        ("post", "https://h1.example/@Person3/934", lambda row: row["id"] == "934"),
        ("instance", "H1.example", lambda row: row["host"] == "h1.example"),
    ],
)
def test_no_trace_is_left(out: Path, kind: str, said: str, goes: Any) -> None:
    gone = [row for row in rows() if goes(row)]
    before = bytes_in(out)
    keys = [store(out).key("post", f"{row['host']}/{row['id']}").encode() for row in gone]
    if kind == "author":
        keys.append(store(out).key("author", "person2@h0.example").encode())
    if kind == "instance":
        keys += [store(out).key("instance", "h1.example").encode(), b"h1.example"][:1]
    assert all(row["text"].encode() in before for row in gone)
    assert all(key in before for key in keys)
    old = json.loads((out / "manifest.json").read_text(encoding="utf-8"))

    assert take(out, kind, said) == len(gone)

    after = bytes_in(out)
    for row in gone:
        assert row["text"].encode() not in after
    assert not [key for key in keys if key in after]
    assert len(texts_of(out)) == 30 - len(gone)
    facts = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert facts["documents_kept"] == 30 - len(gone)
    assert facts["documents_train"] + facts["documents_valid"] == 30 - len(gone)
    assert sum(facts["months"].values()) == 30 - len(gone)
    assert facts["identities"] == {"lesbian": 30 - len(gone)}
    assert facts["sha256"] != old["sha256"]
    assert facts["hashes"] != old["hashes"]
    assert facts["steps"][-1]["dropped"] == {f"{kind} forgotten": len(gone)}
    sheet = (out / "DATASHEET.md").read_text(encoding="utf-8")
    assert f": {len(gone):,} documents ({kind} forgotten)" in sheet
    # Nor does the private folder keep more of it than the key.
    secret = store(out).provenance(facts["id"]).to_pylist()
    assert len(secret) == 30 - len(gone)
    assert not {row["id"] for row in gone} & {row["post"] for row in secret}


def test_the_next_build_does_not_bring_it_back(source: Path, out: Path) -> None:
    take(out, "author", "@person2@h0.example")
    private = source.parent / "private"
    facts = build(settings(source), source.parent / "new", private=private)
    assert facts["dropped"] == {"forgotten": 5}
    assert facts["documents_kept"] == 25
    assert len(load(settings(source), private=private)) == 25
    take(out, "author", "somebody@else.example")  # not there now, may be later
    fresh = {"text": "Noch ein Satz von jemand anderem.", "by": "Somebody", "host": "else.example"}
    with source.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**fresh, "id": "1", "at": "2023-01-01"}) + "\n")
    again = build(settings(source), source.parent / "newer", private=private)
    assert again["documents_kept"] == 25
    assert again["dropped"] == {"forgotten": 6}


def test_twice_is_once_and_others_with_it_are_named(source: Path, out: Path) -> None:
    build(settings(source), source.parent / "other", private=source.parent / "private")
    said: list[str] = []
    assert take(out, "post", "911", say=said.append) == 1
    assert [line for line in said if str(source.parent / "other") in line]
    facts = (out / "manifest.json").read_bytes()
    assert take(out, "post", "911") == 0
    assert (out / "manifest.json").read_bytes() == facts


def test_answers_in_the_datasheet_stay(out: Path) -> None:
    sheet = out / "DATASHEET.md"
    sheet.write_text(
        sheet.read_text(encoding="utf-8").replace("**to answer**", "we asked @Person1", 1),
        encoding="utf-8",
    )
    said: list[str] = []
    assert take(out, "author", "@Person1@h1.example", say=said.append) == 5
    assert "we asked @Person1" in sheet.read_text(encoding="utf-8")
    take(out, "author", "Person0")
    assert sheet.read_text(encoding="utf-8").count("author forgotten)") == 2


def test_nothing_left_takes_the_folder_away(out: Path) -> None:
    take(out, "instance", "h0.example")
    assert out.is_dir()
    take(out, "instance", "h1.example")
    assert {path.name for path in out.parent.iterdir()} == {"posts.jsonl", "private"}
    assert not store(out).corpora()


def test_a_name_that_two_have_and_another_salt_are_refused(source: Path, tmp_path: Path) -> None:
    twice = [dict(row, by="max") for row in rows()]
    source.write_text("".join(json.dumps(row) + "\n" for row in twice), encoding="utf-8")
    out = tmp_path / "out"
    build(settings(source), out, private=tmp_path / "private")
    before = bytes_in(out)
    with pytest.raises(RequestError, match=r"there are 2 of this name: max@h0.example, max@h1"):
        take(out, "author", "max")
    for other in ("none", "another"):
        if other == "another":
            privacy.Store(tmp_path / other)
        with pytest.raises(RequestError, match=r"was not built with the private folder .*private="):
            forget.forget(out, "author", "max@h0.example", private=tmp_path / other)
    for kind, said in (("author", "@"), ("post", "https://h0.example/@max")):
        with pytest.raises(RequestError, match=f"no {kind} can be read"):
            take(out, kind, said)
    with pytest.raises(RequestError, match="not a corpus that"):
        take(tmp_path, "author", "max")
    assert bytes_in(out) == before


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import datasets, pyarrow.compute, corpora.mastodon, corpora.pictures
from corpora import forget, prepared

here, who = Path(sys.argv[1]), "Person2@h0.example"
out, private = here / "out", here / "private"

def in_child(work):
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    return os.waitpid(child, 0)[1]

def deadly(place):
    calls = 0
    def wrap(module, name):
        plain = getattr(module, name)
        def call(*args, **more):
            nonlocal calls
            calls += 1
            if calls == place:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*args, **more)
        setattr(module, name, call)
    wrap(os, "replace"), wrap(shutil, "rmtree")
    forget.forget(out, "author", who, private=private)

shutil.copytree(here, here.parent / "aside")
place = 0
while True:
    place += 1
    shutil.rmtree(here)
    shutil.copytree(here.parent / "aside", here)
    ended = in_child(lambda: deadly(place))
    if ended == 0:
        break
    assert ended == signal.SIGKILL, (place, ended)
    assert in_child(lambda: forget.forget(out, "author", who, private=private)) == 0, place
    assert {path.name for path in here.iterdir()} == {"out", "private", "posts.jsonl"}, place
    prepared.check_files(out, prepared.load_manifest(out))
    left = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert b"Brot und" not in left and b"Regen und" in left, place
print(place)
"""


def test_killed_anywhere_and_again_it_is_gone(source: Path, out: Path, tmp_path: Path) -> None:
    """Every move and removal by the command is once the last thing that it did."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("out", "private", "posts.jsonl"):
        (tmp_path / name).rename(here / name)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(here)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 8
