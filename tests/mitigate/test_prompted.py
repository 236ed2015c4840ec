"""Prompted choice through the commands: scores by persona, the main job, published answers."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eval import scores
from eval.errors import RequestError
from mitigate import cli, comparing, reporting, settings
from mitigate.sample_models import causal_tokenizer
from tests.eval.test_speakers import CHATML

ANSWERS = "dutch_crows_pairs/answers_arlms.csv"


@pytest.fixture(scope="module")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama that has a chat template and room for prompts."""
    folder = tmp_path_factory.mktemp("tiny_chat")
    tokenizer = causal_tokenizer(["kies een van de twee opties, zin a is waarschijnlijker"])
    tokenizer.model_max_length = 1024
    tokenizer.chat_template = CHATML
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=1024,
                initializer_range=0.5,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def asked(model: Path, *words: str) -> list[str]:
    return [
        f"model.path={model}",
        "benchmark=samples_nl",
        "benchmark.limit=6",
        "score.scorer=prompted",
        "score.personas=[none,bad]",
        "inference.resamples=200",
        *words,
    ]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITIGATE_CACHE", str(tmp_path / "cache"))


def test_score_writes_a_file_a_persona_and_says_what_position_does(
    tiny_chat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.dispatch(["score", *asked(tiny_chat, f"out={tmp_path / 'of.parquet'}")]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert "position effect" in said
    assert "As the bad persona" in said
    files = [tmp_path / f"of-{persona}.parquet" for persona in ("none", "bad")]
    tables = [scores.read(file) for file in files]
    assert [table.meta["persona"] for table in tables] == ["none", "bad"]
    assert len({table.meta["benchmark_hash"] for table in tables}) == 1
    out = tmp_path / "again"
    words = ["prompted", *map(str, files), f"out={out}", "inference.resamples=200"]
    assert cli.dispatch(words) == 0
    assert set(pd.read_csv(out / "positions.csv")["persona"]) == {"none", "bad"}
    assert pd.read_csv(out / "personas.csv")["persona"].unique().tolist() == ["bad"]
    with pytest.raises(RequestError, match="has answered as none in an earlier file"):
        cli.dispatch(["prompted", str(files[0]), str(files[0])])


@pytest.mark.long
def test_the_main_job_compares_each_persona_and_its_report_shows_them(
    tiny_chat: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = [
        "recipe=demo_causal",
        *asked(tiny_chat, f"run.dir={folder}", "tracking.mode=disabled"),
        "method.max_steps=2",
        "method.eval_steps=2",
        "method.save_steps=2",
        "corpus.limit=40",
        "retention.sentences=4",
        "retention.grammar=false",
        "retention.places=0",
    ]
    assert cli.dispatch(["train", *words]) == 0
    done = reporting.read_run(folder)
    assert list(done.tables) == ["samples_nl none", "samples_nl bad"]
    assert (folder / "before-samples_nl-bad.parquet").is_file()
    page = (folder / "report.html").read_text("utf-8")
    assert "Asked to choose" in page
    assert "What personas do" in page
    found = reporting.personas_of(done)["samples_nl"]
    assert found["when"].unique().tolist() == ["before", "after"]


def test_published_answers_are_read_as_they_are(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = reference / ANSWERS
    assert cli.dispatch(["prompted", str(path), f"out={tmp_path}", "inference.resamples=200"]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    for share in ("85.03", "59.67", "90.98", "94.46", "53.11", "22.21"):
        assert share in said
    assert len(pd.read_csv(tmp_path / "personas.csv")) == 4 * 11
    request = comparing.from_words(
        [f"{path}#answer_geitje", f"{path}#answers_geitjegood", "inference.resamples=200"]
    )
    comparing.run(request)
    said = " ".join("".join(capsys.readouterr()).split())
    assert "Asked as none before and as good after" in said
    with pytest.raises(RequestError, match=r"several columns of answers; say which: .*#answer_gei"):
        comparing.run(comparing.from_words([str(path), str(path)]))
    with pytest.raises(RequestError, match="no column geitje; there are: answer_geitje"):
        comparing.run(comparing.from_words([f"{path}#geitje", f"{path}#answer_geitje"]))


def test_wrong_words_are_answered() -> None:
    for word, said in (
        ("score.scorer=promted", "prompted"),
        ("score.answer=written", "log_probs, generate"),
        ("score.personas=[]", "name at least one"),
        ("score.personas=[bad,bad]", "each once"),
    ):
        with pytest.raises(RequestError, match=said):
            settings.from_words([word], recipe=None)
    with pytest.raises(RequestError, match="which answers"):
        cli.dispatch(["prompted"])
    with pytest.raises(RequestError, match=r"no key limit"):
        cli.dispatch(["prompted", "limit=3"])
