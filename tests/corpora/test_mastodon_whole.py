"""The real commands, one after the other, against a real server: gather, forget, recheck, again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from datasets import load_from_disk

from tests.corpora.mastodon_server import Instance, allowlist, community

POSTS, AUTHORS = 60, 12


def mitigate(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MITIGATE_PRIVATE": str(cwd / "private")}
    done = subprocess.run(
        [sys.executable, "-m", "mitigate", "corpus", *words],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def texts(folder: Path) -> set[str]:
    return {row["text"] for part in load_from_disk(str(folder)).values() for row in part}


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_gathered_forgotten_rechecked_and_built_again(tmp_path: Path) -> None:
    with Instance() as instance:
        community(instance, POSTS, AUTHORS)
        words = [
            f"allowlist={allowlist(tmp_path / 'agreed.yaml', [instance.host])}",
            "contact=crawler@university.example", "allow_local=true", "near_duplicates=0",
            "unknown_language=true", "min_confidence=0",
        ]  # fmt: skip
        mitigate("mastodon", *words, "out=first", cwd=tmp_path)
        first = tmp_path / "first"
        assert len(texts(first)) == POSTS
        for trace in (b"person", b"other.example"):
            assert trace not in content(first)
        for text in texts(first):
            assert not re.search(r"<|://|127\.0\.0\.1|#", text), text

        mitigate("forget", "corpus=first", f"author=@person3@{instance.host}", cwd=tmp_path)
        theirs = {number for number in range(POSTS) if number % AUTHORS == 3}
        left = texts(first)
        assert len(left) == POSTS - len(theirs)

        instance.remove(1000, 1001)  # by person0 and person1
        instance.change("person2", note="<p>#nobot</p>")
        mitigate("recheck", "first", cwd=tmp_path)
        gone = theirs | {0, 1} | {number for number in range(POSTS) if number % AUTHORS == 2}
        assert len(texts(first)) == POSTS - len(gone)
        assert texts(first) < left
        facts = json.loads((first / "manifest.json").read_text("utf-8"))
        assert facts["documents_kept"] == POSTS - len(gone)
        sheet = (first / "DATASHEET.md").read_text("utf-8")
        assert re.search(r"gone at the source|taken out", sheet)

        # Who was forgotten does not come back, whoever asks; nor does what is deleted.
        mitigate("mastodon", *words, "out=second", cwd=tmp_path)
        assert texts(tmp_path / "second") == texts(first)
