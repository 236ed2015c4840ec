"""What `mitigate corpus` leaves: whole or nothing, readable by others, checked when it is read."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import datasets
import pytest

from corpora import CorpusSettings, RequestError, build, load, prepared

TEXTS = [
    "Die lesbische Autorin liest heute Abend in Köln.",
    "Mein schwuler Nachbar backt immer sehr guten Kuchen.",
    "Der Zug nach Bremen hat schon wieder Verspätung gehabt.",
    "Wir haben gestern lange über den Haushalt gestritten.",
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [
        {
            "text": f"{text} Ausgabe {number}.",
            "who": f"wanda{number % 5}",
            "when": f"2021-0{1 + n}-03",
        }
        for number in range(20)
        for n, text in enumerate(TEXTS)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def settings(path: Path, **more: Any) -> CorpusSettings:
    fields = {"author": "who", "date": "when"}
    some = {"name": "rows", "path": str(path), "fields": fields, "near_duplicates": 0}
    return CorpusSettings(**{**some, "language": "de", **more})


def built(source: Path, **more: Any) -> tuple[Path, dict[str, Any]]:
    out = source.parent / "out"
    return out, build(settings(source, **more), out, private=source.parent / "private")


def test_the_folder_is_a_dataset_with_splits_and_opaque_keys(source: Path) -> None:
    out, facts = built(source)
    found = datasets.load_from_disk(str(out))
    assert set(found) == {"train", "valid"}
    assert len(found["train"]) == facts["documents_train"]
    assert found["train"].column_names == prepared.ROWS.names
    rows = [row for split in found.values() for row in split]
    assert len({row["key"] for row in rows}) == len(rows) == 80
    assert {len(row["author"]) for row in rows} == {32}
    assert not {row["author"] for row in found["train"]} & {row["author"] for row in found["valid"]}
    content = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert b"wanda" not in content
    assert facts["identities"] == {"gay": 20, "lesbian": 20}
    assert facts["months"] == {f"2021-0{month}": 20 for month in range(1, 5)}
    assert facts["authors"] == 5


def test_manifest_and_datasheet_say_what_is_there(source: Path) -> None:
    out, facts = built(source, licence="cc0-1.0")
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest == facts
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert set(manifest["hashes"]) == files - {"manifest.json"}
    sheet = (out / "DATASHEET.md").read_text(encoding="utf-8")
    for said in (facts["sha256"], "cc0-1.0", "2021-01 to 2021-04", "gay 20 (25.0 %)", "forget"):
        assert said in sheet
    for step in facts["steps"]:
        assert f"| {step['name']} | {step['before']:,} | {step['after']:,} |" in sheet
    page = (out / "corpus.html").read_text(encoding="utf-8")
    for name in ("months", "lengths", "identities", "steps"):
        assert f'src="figures/{name}.png"' in page
        assert (out / "figures" / f"{name}.png").stat().st_size > 5000
    assert "http" not in page.replace("<!doctype html>", "").replace("http-equiv", "")


def test_a_recipe_chooses_in_a_built_folder(source: Path) -> None:
    out, _ = built(source)
    some = load(CorpusSettings(name="some", path=str(out), groups=["gay"]))
    assert len(some) == 20
    assert all("schwuler" in text for text in some.train + some.valid)
    assert some.facts["dropped"] == {"names none of the wanted identities": 60}
    budget = load(CorpusSettings(name="some", path=str(out), tokens=100))
    assert 50 < budget.facts["words"] <= 100
    with pytest.raises(RequestError, match=r"corpus\.groups=gai: no such identity.*say gay"):
        load(CorpusSettings(name="some", path=str(out), groups=["gai"]))
    with pytest.raises(RequestError, match=r"no usable text.*identities"):
        load(CorpusSettings(name="some", path=str(out), groups=["asexual"]))


def test_what_is_asked_for_must_be_what_was_built(source: Path) -> None:
    out, _ = built(source)
    with pytest.raises(RequestError, match=r"corpus\.keywords=\['queer'\]: .* was built with \[\]"):
        load(CorpusSettings(name="x", path=str(out), keywords=["queer"]))
    with pytest.raises(RequestError, match=r"corpus\.origins=.* was built with \[\]"):
        load(CorpusSettings(name="x", path=str(out), origins=["a"]))


def test_changed_files_and_other_versions_get_one_line(source: Path) -> None:
    out, _ = built(source)
    asked = CorpusSettings(name="x", path=str(out))
    (out / "DATASHEET.md").write_text("answered", encoding="utf-8")
    load(asked)  # people fill it in
    arrow = next((out / "valid").glob("*.arrow"))
    content = arrow.read_bytes()
    arrow.write_bytes(content[:-1] + b"x")
    with pytest.raises(RequestError, match=r"valid/.*: not what it was when the corpus was built"):
        load(asked)
    arrow.unlink()
    with pytest.raises(RequestError, match=r"manifest\.json names valid/.*, which is not there"):
        load(asked)
    shutil.rmtree(out)
    out.mkdir()
    (out / "train.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    (out / "manifest.json").write_text('{"name": "old"}', encoding="utf-8")
    with pytest.raises(RequestError, match=r"another version \(format 1, this one reads 2\)"):
        load(asked)


def test_a_private_folder_in_the_corpus_is_refused(source: Path) -> None:
    for private in ("out", "out/private", "."):
        with pytest.raises(RequestError, match="must lie outside the corpus"):
            build(settings(source), source.parent / "out", private=source.parent / private)
    assert {path.name for path in source.parent.iterdir()} == {"rows.jsonl"}


def test_a_build_that_fails_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("corpora.datasheet.render", full)
    with pytest.raises(OSError, match="No space left"):
        built(source)
    assert {path.name for path in source.parent.iterdir()} == {"rows.jsonl", "private"}
    left = list((source.parent / "private").rglob("*.parquet"))
    assert left == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_leaves_nothing_half_made(source: Path) -> None:
    disk = source.parent / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        with pytest.raises(OSError, match="No space left"):
            build(settings(source), disk / "out", private=source.parent / "private")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
