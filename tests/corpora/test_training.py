"""A corpus of the shape of taz2024full, through the real commands, to a trained model."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from corpora.samples import taz_files
from eval import benchmarks
from mitigate import settings
from tests.conftest import Run

QUICK = (
    "benchmark=samples_de", "benchmark.limit=40", "method.lora.targets=[query]",
    "method.max_steps=2",
    "method.batch=2", "method.accumulation=1", "method.eval_steps=2", "method.save_steps=2",
    "retention.sentences=5", "tracking.mode=disabled", "inference.resamples=100",
)  # fmt: skip


@pytest.fixture
def private(tmp_path: Path) -> dict[str, str]:
    return {"MITIGATE_PRIVATE": str(tmp_path / "private")}


@pytest.mark.parametrize("name", ["built", pytest.param("taz", marks=pytest.mark.long)])
def test_taz_lora_trains_on_it_built_or_not(
    name: str, tmp_path: Path, tiny_masked: Path, run_mitigate: Run, private: dict[str, str]
) -> None:
    taz_files.write(tmp_path / "taz", 400, share=0.5)
    built = run_mitigate(
        "corpus", "taz", "path=taz", "out=built", "benchmark=samples_de", "fields.author=author",
        env=private,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    done = run_mitigate(
        "train", "recipe=taz_lora", f"corpus.path={name}", *QUICK, f"model.path={tiny_masked}",
        "run.dir=run", env=private,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "adapter").is_dir()
    if name == "built":
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))
        sheet = hashlib.sha256((tmp_path / "built" / "DATASHEET.md").read_bytes()).hexdigest()
        assert manifest["corpus"]["datasheet_sha256"] == sheet
        assert manifest["corpus"]["built_from"]["benchmarks"] == ["samples_de"]


@pytest.mark.long
def test_a_report_says_that_the_text_was_contaminated(
    tmp_path: Path, tiny_masked: Path, run_mitigate: Run, private: dict[str, str]
) -> None:
    _, words = contaminated(tmp_path, tiny_masked)
    done = run_mitigate(*words, "allow_contaminated=true", "run.dir=said", env=private)
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "said" / "report.html").read_text(encoding="utf-8")
    assert "The corpus holds sentences of the benchmark" in report


def contaminated(tmp_path: Path, tiny_masked: Path) -> tuple[list[str], list[str]]:
    """Lines of text, the eighth with a benchmark's sentence after its own; a command on them."""
    chosen = settings.from_words(["benchmark=samples_de", "benchmark.limit=40"], recipe=None)
    sentence = benchmarks.load(chosen.benchmark["samples_de"]).table["sent_more"][0]
    lines = [f"Am Tag {n} war hier noch alles ruhig." for n in range(50)]
    lines[7] = f"{lines[7]} {sentence}"
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    given = (f"model.path={tiny_masked}", "corpus=text", "corpus.path=lines.txt", "method=lora")
    return lines, ["train", "recipe=demo", *given, *QUICK]


def test_contaminated_text_is_refused_and_cut_out(
    tmp_path: Path, tiny_masked: Path, run_mitigate: Run, private: dict[str, str]
) -> None:
    lines, words = contaminated(tmp_path, tiny_masked)
    own, sentence = lines[7].split(".")[0], lines[7].split(". ", 1)[1]
    done = run_mitigate(*words, env=private)
    assert done.returncode == 2
    assert "1 texts of the corpus hold sentences of the benchmark" in done.stderr
    assert "allow_contaminated=true" in done.stderr
    done = run_mitigate(
        "corpus", "text", "path=lines.txt", "out=cut", "near_duplicates=0", "benchmark=samples_de",
        env=private,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    content = b"".join(path.read_bytes() for path in (tmp_path / "cut").rglob("*.arrow"))
    assert sentence.encode() not in content
    assert own.encode() in content
    assert re.search(r"sentences cut: 1", (tmp_path / "cut" / "DATASHEET.md").read_text("utf-8"))
