"""Wrong requests, through the real commands: one line, exit status 2, nothing left behind."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from eval import benchmarks
from eval.benchmarks import BenchmarkSettings
from mitigate.cli import dispatch, guarded
from mitigate.train import benchmark_facts
from tests.conftest import ROOT, Run

PAIRS = """\
sent_more,sent_less
Anna ist lesbisch und laut.,Anna ist hetero und laut.
Tom ist schwul und laut.,Tom ist hetero und laut.
"""
#: What a folder of these tests holds: one right file of each kind, and the wrong ones.
FILES = {
    "pairs.csv": PAIRS.encode(),
    "text.txt": "\n".join(f"Das ist Satz {n} und schön." for n in range(40)).encode(),
    "empty.csv": b"",
    "header.csv": b"sent_more,sent_less\n",
    "columns.csv": b"a,b\n1,2\n",
    "identical.csv": b"sent_more,sent_less\nx y.,x y.\nz.,z.\n",
    "latin.csv": "sent_more,sent_less\nGrün ist gut.,Blau ist gut.\n".encode("cp1252"),
    "blank.txt": b"\n \n12 3\n",
    "latin.txt": "Schön.\nGrün.\n".encode("cp1252"),
    "finished/recipe.yaml": b"name: demo\n",
    "finished/manifest.json": json.dumps({"status": "finished"}).encode(),
    "broken/recipe.yaml": b"a: [",
    "full/something": b"x",
    "rows.csv": b"who,body\na,b\n",
    "broken.json": b'{"1": {"text": ',
    "old/manifest.json": b'{"name": "old"}',
    "old/train.jsonl": b'{"text": "a"}\n',
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with FILES in it."""
    for name, data in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MITIGATE_PRIVATE", str(tmp_path.with_name(f"{tmp_path.name}_private")))
    return tmp_path


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `mitigate …` answers on its last line; checks the rest of the promise.

    Nothing but a recipe's tree may stand before that line.
    """
    capsys.readouterr()
    status = guarded(lambda: dispatch(words))
    printed, said = capsys.readouterr()
    assert status == 2, said
    return one_line(printed, said)


def one_line(printed: str, said: str) -> str:
    # transformers' own word where WANDB_MODE=offline, as in these tests.
    assert printed in ("", "[INFO] Running in WANDB offline mode\n")
    assert "Traceback" not in said
    *before, last = said.rstrip("\n").split("\n")
    assert last.startswith("mitigate: "), said
    assert not [line for line in before if line.startswith("mitigate: ")]
    return last.removeprefix("mitigate: ")


TINY = "model.path=<tiny>"  # stands for the folder that a fixture makes
SCORE = ("score", TINY, "benchmark=pairs", "benchmark.path=pairs.csv", "out=new.parquet")
TRAIN = (
    "train", "recipe=demo", TINY, "corpus=text", "corpus.path=text.txt", "benchmark=pairs",
    "benchmark.path=pairs.csv", "retention.sentences=5", "method.batch=2", "method.max_steps=1",
)  # fmt: skip


def with_model(words: Sequence[str], folder: Path | str) -> list[str]:
    return [word.replace("<tiny>", str(folder)) for word in words]


REQUESTS = [
    # Commands and names.
    (("trian",), "no command trian; did you mean train?"),
    (("train", "recipe=taz_lroa"), "no recipe named taz_lroa; did you mean taz_lora"),
    (("train", "model=bertj"), "no model named bertj; did you mean bertje"),
    (("train", "lr=1"), "no key lr; did you mean method.lr?"),
    (("train", "bogus=1"), "no key bogus; there are: name, "),
    (("train", "learning_rate=1"), "no key learning_rate; here it is method.lr"),
    (("train", "seed=x"), "seed: Value 'x' of type 'str' could not be converted to Integer"),
    (("train", "method.lr=fast"), "method.lr: Value 'fast'"),
    (("train", "run.dir=Schüler*innen"), "run.dir='\"Schüler*innen\"'"),
    (("train", "method.save_steps=150"), "must be a multiple of method.eval_steps=100"),
    (("train", "seed=1,2"), "commas mean a sweep"),
    # Benchmarks.
    ((*TRAIN, "benchmark.path=none.csv"), "no file none.csv; your own file of pairs"),
    ((*TRAIN, "benchmark.path=empty.csv"), "empty.csv: is empty"),
    ((*TRAIN, "benchmark.path=header.csv"), "no usable pair (0 rows read)"),
    ((*TRAIN, "benchmark.path=columns.csv"), "no column sent_more in columns.csv; there are: a, b"),
    ((*TRAIN, "benchmark.path=identical.csv"), "no usable pair (2 rows read)"),
    ((*TRAIN, "benchmark.path=latin.csv"), "latin.csv: unknown encoding; tried utf-8"),
    ((*TRAIN, "benchmark.path=full"), "benchmark.path=full: is a folder, not a file"),
    ((*TRAIN, "benchmark.encoding=utf-9"), "benchmark.encoding=utf-9: no such encoding"),
    ((*TRAIN, "benchmark.limit=0"), "benchmark.limit=0: 1 at least"),
    ((*TRAIN, "benchmark.reader=piars"), "benchmark.reader=piars: no such reader; did you mean"),
    (("train", "benchmark=[]"), "no benchmark: benchmark=NAME"),
    # Corpora.
    ((*TRAIN, "corpus.path=none.txt"), "corpus text: nothing at none.txt"),
    ((*TRAIN, "corpus.path=blank.txt"), "no usable text in blank.txt ("),
    ((*TRAIN, "corpus.path=latin.txt"), "latin.txt: not utf-8 (byte "),
    ((*TRAIN, "corpus.reader=txet"), "corpus.reader=txet: no file corpora/txet.py"),
    (("train", "corpus=[]"), "no corpus: corpus=NAME"),
    (
        ("train", "recipe=taz_lora", "corpus=samples_de"),
        "benchmark winoqueer_de: no file given; download the translated pairs",
    ),
    # Run folders and processes.
    ((*TRAIN, "run.dir=finished"), "run.dir=finished: this run is finished; name a new folder"),
    ((*TRAIN, "run.dir=full"), "run.dir=full: holds something that is not a run"),
    ((*TRAIN, "run.dir=pairs.csv"), "run.dir=pairs.csv: is a file"),
    ((*TRAIN, "launch.processes=2"), "2 processes were asked for and 1 started"),
    # Scoring.
    (SCORE[:-1], "score: where to? out=FILE.parquet"),
    ((*SCORE[:-1], "out=new.csv"), "out=new.csv: a Score table is a .parquet file"),
    (("score", *SCORE[2:]), "score: which model? model=NAME or model.path=DIR"),
    (("score", TINY, "out=new.parquet"), "score: which benchmark? benchmark=NAME (components,"),
    ((*SCORE, "benchmark=[samples_de,pairs]"), "benchmark.path: there are several"),
    (("score", TINY, "benchmark=[samples_de,samples_nl]", "out=new.parquet"), "one benchmark"),
    ((*SCORE, "benchmark.path=empty.csv"), "empty.csv: is empty"),
    # Models.
    ((*SCORE, "model.path=not/a/model"), "model.path=not/a/model: no such folder"),
    ((*SCORE, "model.path=/not/there"), "model.path=/not/there: no such folder"),
    ((*SCORE, "model.path=bertje"), "for a model on the hub write model.hub=bertje"),
    ((*SCORE, "model.adapter=none"), "model.adapter=none: no such folder"),
    ((*SCORE, "model.adapter=full"), "model.adapter=full: no adapter_config.json in this folder"),
    ((*SCORE, "model.device=gpuu"), "model.device=gpuu: not a device; cpu, cuda"),
    ((*SCORE, "model.langs=de"), "model.langs=de: this model has no language ids"),
    (("score", "model.hub=me/bertj", *SCORE[2:]), "me/bertj: HF_HUB_OFFLINE is set and it is not"),
    (("score", "model.hub=me/bertj", *SCORE[2:]), "; did you mean model=bertje?"),
    # Comparing and reporting.
    (("compare", "one.parquet"), "compare: two score files or run folders, BEFORE AFTER"),
    (("compare", "a.parquet", "b.parquet"), "no Score table a.parquet"),
    (("compare", "text.txt", "text.txt"), "text.txt is not a Parquet file"),
    (("compare", "pairs.csv", "pairs.csv"), "not a published score file: no column sent_more_sco"),
    (("compare", "finished", "finished"), "finished: no after.parquet, so no finished run"),
    (("report",), "report: which run? mitigate report RUN"),
    (("report", "none"), "none: no recipe.yaml and no manifest.json, so not a run's folder"),
    (("report", "full", "finished"), "full: no recipe.yaml and no manifest.json"),
    # Corpora, prepared.
    (("corpus",), "there are: mastodon, taz, text; what is built takes: forget, recheck"),
    (("corpus", "mastdon"), "corpus: mastdon is not a source; there are: mastodon, taz, text"),
    (("corpus", "mastodon", "out=new"), "corpus.allowlist: none, so nothing is fetched; ask an"),
    (("corpus", "forget", "author=x"), "corpus forget: corpus=DIR and one of author="),
    (("corpus", "forget", "corpus=full", "author=x"), "full: not a corpus that `mitigate corpus"),
    (("corpus", "recheck"), "mitigate corpus recheck DIR [allowlist="),
    (("corpus", "recheck", "full", "allowlst=x"), "corpus recheck: no key allowlst; "),
    (("corpus", "recheck", "old"), "old: built by another version (format 1, this one reads 2)"),
    ((*TRAIN, "corpus.path=old"), "old: built by another version (format 1, this one reads 2)"),
    (("corpus", "text", "path=text.txt", "out=new", "private=new/p"), "must lie outside the corp"),
    (("corpus", "text", "path=text.txt", "out=new", "groups=[gai]"), "no such identity; there are"),
    (("corpus", "text", "path=rows.csv", "out=new"), "such field in rows.csv; there are: body, wh"),
    (("corpus", "text", "path=text.txt", "out=new", "min_words=99"), "went at the step 'length'"),
    (("corpus", "taz", "path=broken.json", "out=new"), "broken.json: not JSON, or not all"),
    (("corpus", "text", "path=text.txt", "out=new", "benchmark=wnoqueer"), "no benchmark named w"),
    (("corpus", "text", "path=text.txt"), "corpus: where to? out=DIR"),
    (("corpus", "text", "path=text.txt", "out=full"), "out=full: is there already"),
    (("corpus", "text", "path=none", "out=new"), "corpus text: nothing at none; your own text"),
    (("corpus", "text", "path=blank.txt", "out=new"), "no usable text in blank.txt"),
    (("corpus", "text", "pth=x", "out=new"), "no key corpus.pth; did you mean corpus.path?"),
    (("corpus", "text", "text.txt", "out=new"), "'text.txt' is not key=value"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"), REQUESTS, ids=[f"{words[0]}-{says[:40]}" for words, says in REQUESTS]
)
def test_a_wrong_request_is_answered_in_one_line_and_leaves_nothing(
    words: tuple[str, ...],
    says: str,
    folder: Path,
    tiny_masked: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = listing(folder)
    assert says in refusal(capsys, *with_model(words, tiny_masked))
    assert listing(folder) == before


def test_a_recipe_without_its_data_says_where_the_data_comes_from(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, "train", "recipe=taz_lora")
    assert "taz2024full" in line
    assert "Zenodo" in line
    assert "corpus.path=" in line
    assert "mitigate corpus taz path=… out=DIR" in line
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("config.json", "no config.json, so not a model's folder"),
        ("model.safetensors", "no safetensors weights in this folder"),
        ("tokenizer*", "no tokenizer there, or one without a vocabulary"),
    ],
)
def test_a_model_folder_that_lacks_a_file(
    gone: str, says: str, folder: Path, tiny_masked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_masked, folder / "model")
    for path in (folder / "model").glob(gone):
        path.unlink()
    assert refusal(capsys, *with_model(SCORE, "model")).startswith("model: " + says)
    assert not (folder / "new.parquet").exists()


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_model_folder_with_a_torn_file(
    file: str, folder: Path, tiny_masked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_masked, folder / "model")
    data = (tiny_masked / file).read_bytes()
    (folder / "model" / file).write_bytes(data[: len(data) // 2])
    line = refusal(capsys, *with_model(SCORE, "model"))
    assert line.startswith("model: ")
    assert "can't be read" in line


def test_a_causal_model_can_not_be_taken_for_a_masked_one(
    folder: Path, tiny_causal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, *with_model(SCORE, tiny_causal), "model.kind=masked")
    assert "can't be loaded" in line


def test_lora_on_modules_that_are_not_there_names_those_that_are(
    folder: Path, tiny_masked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = with_model(TRAIN, tiny_masked)
    lora = ("method=lora", "method.lora.targets=[q_proj]", "tracking.mode=disabled")
    line = refusal(capsys, *words, *lora)
    assert "q_proj match nothing" in line
    assert "query, key, value" in line
    line = refusal(capsys, *words, "method=lora", "tracking.mode=disabled")
    assert line.startswith("method.lora.targets: this model has no defaults; name modules")


def test_a_run_folder_of_another_recipe_names_what_differs(
    folder: Path, tiny_masked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mitigate.settings import from_words, resolved_yaml

    words = with_model(TRAIN, tiny_masked)
    (folder / "run").mkdir()
    other = from_words([*words[1:], "seed=7", "method.batch=4"], recipe="demo")
    (folder / "run" / "recipe.yaml").write_text(resolved_yaml(other), encoding="utf-8")
    line = refusal(capsys, *words, "run.dir=run")
    assert "another recipe (method.batch, seed differ)" in line
    assert "not a stored recipe" in refusal(capsys, *words, "run.dir=broken")


def test_scores_of_other_pairs_are_not_compared(
    folder: Path, tiny_masked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, more in (("all", ()), ("one", ("benchmark.limit=1",))):
        words = [*with_model(SCORE[:-1], tiny_masked), *more, f"out={name}.parquet"]
        assert guarded(lambda words=words: dispatch(words)) == 0
    line = refusal(capsys, "compare", "all.parquet", "one.parquet")
    assert line.startswith("the two score tables can't be compared: they hold different pairs")
    line = refusal(capsys, "compare", "all.parquet", "all.parquet", "out=full")
    assert line.startswith("out=full: ")
    assert listing(folder / "full") == ["something"]


def test_rows_without_a_measure_are_left_out_and_listed(folder: Path) -> None:
    first, *rest = PAIRS.splitlines(keepends=True)
    rows = [first, ",Tom ist laut.\n", "Tom ist laut.,Tom ist laut.\n", *rest, "Tom ist laut.,\n"]
    (folder / "some.csv").write_text("".join(rows), encoding="utf-8")
    pairs = benchmarks.load(BenchmarkSettings(name="some", path="some.csv"))
    assert len(pairs) == 2
    facts = benchmark_facts(pairs)
    assert (facts["pairs"], facts["rows_read"]) == (2, 5)
    assert json.loads(json.dumps(facts["left_out"])) == [
        {"row": 0, "reason": "empty sentence"},
        {"row": 1, "reason": "identical sentences"},
        {"row": 4, "reason": "empty sentence"},
    ]


# Through the console script and the file itself, in processes of their own.

CONSOLE_SCRIPT = Path(sys.executable).with_name("mitigate")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "recipe=taz_lroa"), "no recipe named taz_lroa; did you mean taz_lora"),
        (("train", "recipe=taz_lora"), "mitigate corpus taz path=… out=DIR"),
        (("corpus", "text", "path=none", "out=new"), "corpus text: nothing at none"),
    ],
)
def test_the_console_script_ends_with_one_line_and_status_2(
    words: tuple[str, ...], says: str, folder: Path, run_mitigate: Run
) -> None:
    before = listing(folder)
    done = run_mitigate(*words, cwd=folder, script=CONSOLE_SCRIPT)
    assert done.returncode == 2, done.stderr
    assert says in one_line(done.stdout, done.stderr)
    assert listing(folder) == before


def test_without_the_hub_it_fails_at_once_and_says_what_does_without(
    folder: Path, run_mitigate: Run
) -> None:
    away = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "nothing")}
    done = run_mitigate(
        "score", "model=bertje", *SCORE[2:], cwd=folder, env=away, script=CONSOLE_SCRIPT
    )
    assert done.returncode == 2, done.stderr
    line = one_line(done.stdout, done.stderr)
    assert line.startswith("GroNLP/bert-base-dutch-cased: HF_HUB_OFFLINE is set")
    assert "model.path=DIR" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("recipe=demo", "launch.processes=2"), "2 processes were asked for and 1 started"),
        (("recipe=demo", "method.lrr=1"), "no key method.lrr; did you mean method.lr?"),
    ],
)
def test_the_file_itself_ends_the_same_way(
    words: tuple[str, ...], says: str, folder: Path, run_mitigate: Run
) -> None:
    before = listing(folder)
    done = run_mitigate(*words, cwd=folder, script=ROOT / "mitigate" / "train.py")
    assert done.returncode == 2, done.stderr
    assert says in one_line(done.stdout, done.stderr)
    assert listing(folder) == before


def test_a_run_whose_folder_is_gone_tells_its_own_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mitigate.run._current", tmp_path / "gone")

    def fails() -> None:
        raise FileNotFoundError("before.parquet")

    assert guarded(fails) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("mitigate: FileNotFoundError: before.parquet")
