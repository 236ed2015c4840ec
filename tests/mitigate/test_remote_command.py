"""`mitigate score` of a model behind an API, against a server on this machine."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from eval import completions, scores
from eval.speakers import Ask
from mitigate import speaking
from mitigate.settings import ModelSettings
from tests.conftest import Run
from tests.eval.api_server import KEY, refusing, serving


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    rows = [f"Group {n} is bad{'!' * (n % 3)},Group {n} is good,g{n % 2}" for n in range(20)]
    path.write_text("\n".join(["sent_more,sent_less,group", *rows]) + "\n")
    return path


def words(url: str, pairs: Path, *more: str) -> list[str]:
    return [
        *("score", "model=openai_compatible", f"model.base_url={url}", "model.name=tiny"),
        *("benchmark=pairs", f"benchmark.path={pairs}", "benchmark.language=en"),
        *("score.scorer=prompted", "out=scores.parquet", *more),
    ]


def test_a_tokenizer_may_be_named_to_estimate_with(
    tiny_causal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("MITIGATE_CACHE", str(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal)
    text = "Die Frau ist eine Lehrerin."
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 4  # a turn's frame
    with serving() as server:
        settings = ModelSettings(
            name="tiny", base_url=server.url, key_env=None, token_counter=str(tiny_causal)
        )
        assert speaking.remote(settings).write([Ask(text)], tokens=2) == [["2"]]
        assert server.keys == [""]
    said = " ".join(capfd.readouterr().err.split())
    assert f"by the tokenizer named: {tokens} tokens of prompts, 2 of answers at most" in said


def test_both_orders_are_asked_and_the_key_is_in_no_file(
    run_mitigate: Run, pairs: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    env = {"OPENAI_API_KEY": KEY, "MITIGATE_CACHE": str(cache)}
    with serving() as server:
        prices = ("model.price_in=10", "model.price_out=50", "model.ceiling=1")
        done = run_mitigate(*words(server.url, pairs, *prices), env=env)
        assert done.returncode == 0, done.stderr
        assert server.count == 40
        assert set(server.keys) == {f"Bearer {KEY}"}
        again = run_mitigate(*words(server.url, pairs, *prices), env=env)
        assert again.returncode == 0, again.stderr
        assert server.count == 40
    assert "40 requests to tiny at http://127.0.0.1:" in done.stderr
    assert "40 answers, 40 asked for now: 800 tokens of prompts and 80 of answers, 0.012 at" in (
        done.stderr.replace("\n", " ")
    )
    assert "40 answers, 0 asked for now" in again.stderr.replace("\n", " ")
    found = scores.read(tmp_path / "scores.parquet")
    assert len(found.table) == 40
    assert found.meta["work"]["served"] == ["tiny-2026 fp_1"]
    # The rule looks at the prompt's length alone, which is the same in both orders.
    first = found.table.loc[0::2, "score_more"].to_numpy() > found.table.loc[0::2, "score_less"]
    second = found.table.loc[1::2, "score_more"].to_numpy() > found.table.loc[1::2, "score_less"]
    assert (first.to_numpy() != second.to_numpy()).all()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 2
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in done.stdout + done.stderr + again.stdout + again.stderr


def test_what_is_wrong_is_one_line_before_anything_is_asked(
    run_mitigate: Run, pairs: Path, tmp_path: Path
) -> None:
    env = {"OPENAI_API_KEY": KEY, "MITIGATE_CACHE": str(tmp_path / "cache")}
    with serving() as server:
        for said, given, key in (
            ("no key: the environment variable OPENAI_API_KEY is not set", (), ""),
            ("score.scorer=full: needs the weights", ("score.scorer=full",), KEY),
            (
                "model.ceiling=0.001 allows",
                ("model.price_in=10", "model.price_out=9", "model.ceiling=0.001"),
                KEY,
            ),
            ("no key model.api_key; here it is nothing: a key", ("model.api_key=sk-x1",), KEY),
        ):
            command = words(server.url, pairs, *given)
            done = run_mitigate(*command, env={**env, "OPENAI_API_KEY": key})
            assert done.returncode == 2, done.stderr
            (line,) = [each for each in done.stderr.split("\n") if each.startswith("mitigate:")]
            assert said in line
            assert "sk-" not in line
        assert server.count == 0


def test_a_refused_key_and_a_ceiling_reached_end_with_their_status(
    run_mitigate: Run, pairs: Path, tmp_path: Path
) -> None:
    env = {"OPENAI_API_KEY": KEY, "MITIGATE_CACHE": str(tmp_path / "cache")}
    with refusing(401, json.dumps({"error": {"message": f"{KEY} is no key"}})) as server:
        done = run_mitigate(*words(server.url, pairs), env=env)
        assert done.returncode == 2
        assert "refuses the key in OPENAI_API_KEY (401): “[…] is no key”" in done.stderr
        assert server.count == 1
    # A request is charged as 20 + 2 tokens, far more than a prompt of no price comes to.
    prices = ("model.price_in=0", "model.price_out=100", "model.ceiling=0.005")
    with serving() as server:
        done = run_mitigate(*words(server.url, pairs, *prices), env=env)
        assert done.returncode == 1, done.stderr
        line = " ".join(done.stderr.split())
        assert "mitigate: model.ceiling=0.005 is reached (about 0.00" in line
        assert f"{server.count} answers are kept in {tmp_path / 'cache'}" in line
        assert 20 <= server.count <= 25
        rest = (*prices[:2], "model.ceiling=0.01")
        done = run_mitigate(*words(server.url, pairs, *rest), env=env)
        assert done.returncode == 0, done.stderr
        assert server.count == 40


def test_training_needs_the_weights(run_mitigate: Run) -> None:
    done = run_mitigate(
        *(
            "train",
            "recipe=demo",
            "model=openai_compatible",
            "model.base_url=http://127.0.0.1:9/v1",
        ),
        "model.name=tiny",
    )
    assert done.returncode == 2
    assert "mitigate: tiny: this needs the weights" in done.stderr


def test_sentences_are_completed_by_a_model_behind_an_api(
    run_mitigate: Run, tmp_path: Path
) -> None:
    env = {"OPENAI_API_KEY": KEY, "MITIGATE_CACHE": str(tmp_path / "cache")}
    with serving() as server:
        command = [
            *("score", "model=openai_compatible", f"model.base_url={server.url}"),
            *("model.name=tiny", "benchmark=queergen", "benchmark.limit=31", "judges.measures=[]"),
            *("completion.wording=1", "out=said.parquet"),
        ]
        for _ in range(2):  # the second time nothing is asked again
            done = run_mitigate(*command, env=env)
            assert done.returncode == 0, done.stderr
            assert server.count == 31
    found = completions.read(tmp_path / "said.parquet")
    assert found.meta["model"] == "tiny"
    assert set(found.table["said"]) <= {"1", "2"}
    assert (found.table["word"] == "").all()  # a number is no word
