"""Models behind an API: what is asked, kept, paid and refused, over real HTTP on this machine."""

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import torch

from eval.errors import RequestError, Stopped
from eval.speakers import Ask, NoLogProbsError
from eval.speakers.remote import RemoteSpeaker
from eval.speakers.remote.client import Manners
from eval.speakers.remote.cost import Meter, Prices, Used
from eval.speakers.remote.settings import RemoteSettings
from mitigate import models
from mitigate.settings import ModelSettings
from tests.conftest import ROOT
from tests.eval.api_server import KEY, Served, faulty, model_says, refusing, rule, serving

QUICK = Manners(timeout=5.0, backoff=0.01, longest_backoff=0.05)
PRICED = Prices(prompt=10.0, answer=50.0)
ASKS = [Ask(user=f"Which? {'x' * size}", system="You choose.") for size in range(12)]

Make = Callable[..., RemoteSpeaker]


@pytest.fixture
def speaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`speaker(server, ceiling=…)`: a speaker that asks `server`, its answers in `tmp_path`."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def make(server: Served | str, **settings: Any) -> RemoteSpeaker:
        told = {key: settings.pop(key) for key in ("reuse", "say", "count") if key in settings}
        url = server if isinstance(server, str) else server.url
        asked = RemoteSettings(base_url=url, name="tiny", manners=QUICK, concurrency=4)
        return RemoteSpeaker(replace(asked, **settings), tmp_path / "answers", **told)

    return make


def test_options_get_what_the_server_lists_for_them(speaker: Make) -> None:
    with serving() as server:
        values = speaker(server).log_probs(ASKS, ["1", "2"])
    body = server.bodies[0]
    assert body["messages"] == [
        {"role": "system", "content": "You choose."},
        {"role": "user", "content": "Which? "},
    ]
    assert (body["model"], body["max_tokens"], body["top_logprobs"]) == ("tiny", 1, 20)
    assert server.keys[0] == f"Bearer {KEY}"
    both = math.log(math.exp(-0.1) + math.exp(-3.5))  # with and without a blank before it
    odd = np.array([len(ask.user) % 2 for ask in ASKS])
    assert values == pytest.approx(np.where(np.c_[odd, 1 - odd], -2.75, both))


def test_plain_text_goes_to_the_other_address_and_lists_five(speaker: Make) -> None:
    asks = [Ask(user="A sentence of", chat=False), Ask(user="Two", system="Be bad.", chat=False)]
    with serving() as server:
        values = speaker(server, chats=False).log_probs(asks, ["1", "2"])
    assert [body["prompt"] for body in server.bodies] == ["A sentence of", "Be bad.\nTwo"]
    assert server.bodies[0]["logprobs"] == 5
    assert np.isfinite(values).all()


def test_an_option_that_is_not_listed_gets_the_bound_and_one_alone_gets_nothing(
    speaker: Make,
) -> None:
    tops = {
        "one": {"1": -0.1, "The": -3.0, "A": -5.0},
        "none": {"The": -0.1, "A": -3.0},
        "both": {"2": -0.5, "1": -1.0},
    }

    def says(body: dict[str, Any]) -> dict[str, Any]:
        top = tops[body["messages"][-1]["content"]]
        listed = [{"token": token, "logprob": value} for token, value in top.items()]
        content = [{"token": "x", "logprob": -0.1, "top_logprobs": listed}]
        return {"message": {"content": "x"}, "logprobs": {"content": content}}

    with serving(says) as server:
        asking = speaker(server)
        values = asking.log_probs([Ask(user=name) for name in tops], ["1", "2"])
        assert values[0] == pytest.approx([-0.1, -5.0])
        assert np.isnan(values[1]).all()
        assert values[2] == pytest.approx([-1.0, -0.5])
        assert (asking.facts["bounded"], asking.facts["unlisted"]) == (1, 1)
        with pytest.raises(NoLogProbsError, match="none of 1, 2 is among the likeliest"):
            asking.log_probs([Ask(user="none")], ["1", "2"])
        with pytest.raises(RequestError, match="must differ"):
            asking.log_probs([Ask(user="one")], ["1", " 1"])


def test_a_server_without_log_probabilities_says_so_after_one_request(speaker: Make) -> None:
    with serving(lambda body: {"message": {"content": "1"}, "logprobs": None}) as server:
        asking = speaker(server)
        for _ in range(2):
            with pytest.raises(NoLogProbsError, match="no log-probabilities"):
                asking.log_probs(ASKS, ["1", "2"])
        assert server.count == 1
    words = {"error": {"message": "logprobs are not supported with this model"}}
    with (
        refusing(400, words) as server,
        pytest.raises(NoLogProbsError, match="“logprobs are not supported with this model”"),
    ):
        speaker(server).log_probs(ASKS, ["1", "2"])


def test_what_is_written_is_greedy_or_drawn_with_a_seed_of_its_own(speaker: Make) -> None:
    with serving() as server:
        asking = speaker(server, temperature=0.7)
        assert asking.write(ASKS[:2], tokens=3) == [["2"], ["1"]]
        greedy = server.bodies[-1]
        assert (greedy["temperature"], greedy["max_tokens"]) == (0, 3)
        assert "seed" not in greedy
        said = asking.write(ASKS[:2], tokens=3, samples=5, greedy=False, seed=1)
        assert [len(draws) for draws in said] == [5, 5]
        drawn = server.bodies[2:]
        assert {body["temperature"] for body in drawn} == {asking.temperature} == {0.7}
        seeds = {body["seed"] for body in drawn}
        assert len(seeds) == 10
        assert all(0 <= seed < 2**31 for seed in seeds)
        asking.write(ASKS[:2], tokens=3, samples=5, greedy=False, seed=2)
        assert server.count == 22
        assert not seeds & {body["seed"] for body in server.bodies[12:]}


def test_faults_on_the_way_change_no_answer(speaker: Make) -> None:
    with serving() as server:
        plain = speaker(server).log_probs(ASKS, ["1", "2"])
        faults = ["fine", "limited", "broken", "cut", "slow", "nonsense", "other", "broken", "cut"]
        with faulty(server.url, faults) as proxy:
            asking = speaker(proxy, manners=replace(QUICK, timeout=1.0), prices=PRICED)
            begun = time.monotonic()
            values = asking.log_probs(ASKS, ["1", "2"])
            assert time.monotonic() - begun > 1  # the second that it was asked to wait
        assert values.tolist() == plain.tolist()
        assert proxy.count == len(ASKS) + 8
        # A cut, slow or nonsensical answer may have been charged: counted as estimated.
        assert asking.meter.lost.answer == 5
        assert asking.facts["cost"] == pytest.approx(
            (12 * 20 + asking.meter.lost.prompt) * 10e-6 + (12 * 2 + 5) * 50e-6
        )


def test_a_server_that_stays_down_ends_the_work_and_says_what_is_kept(speaker: Make) -> None:
    with serving() as server, faulty(server.url, ["fine"] * 5 + ["broken"] * 90) as proxy:
        asking = speaker(proxy, concurrency=1)
        with pytest.raises(Stopped) as stopped:
            asking.log_probs(ASKS, ["1", "2"])
        line = str(stopped.value)
        assert "it answers 500, “<html>Internal Server Error</html>”, 6 times" in line
        assert f"5 answers are kept in {asking.journal.path}; the same command asks only" in line
        assert proxy.count == 5 + 6


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (401, {"error": {"message": f"bad key {KEY}"}}, r"key in OPENAI_API_KEY \(401\): “bad key"),
        (404, {"error": {"message": "no model tiny"}}, r"no model named tiny \(404\): “no model t"),
        (400, {"detail": [{"msg": "too long", "input": "a secret"}]}, r"\(400\): “too long”$"),
        (402, {"detail": "no credit"}, r"refuses the request \(402\): “no credit”"),
        (413, "", r"refuses the request \(413\)$"),
        (307, "", r"it sends us elsewhere \(307\)"),
        (422, lambda body: {"error": body["messages"][-1]["content"] + " is bad"}, "“[^W]* is bad"),
    ],
)
def test_a_refusal_is_one_line_in_the_servers_words_without_key_or_prompt(
    status: int, answer: Any, said: str, speaker: Make
) -> None:
    with refusing(status, answer) as server:
        with pytest.raises(RequestError, match=said) as error:
            speaker(server).log_probs(ASKS, ["1", "2"])
        assert server.count == 1
    line = str(error.value)
    assert KEY not in line
    assert "\n" not in line


def test_a_model_that_wants_the_newer_name_gets_it(speaker: Make) -> None:
    words = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    with refusing(400, {"error": {"message": words}}) as server:
        with pytest.raises(RequestError, match="Unsupported"):
            speaker(server).write(ASKS[:1], tokens=3)
        assert ["max_tokens" in body for body in server.bodies] == [True, False]
        assert server.bodies[1]["max_completion_tokens"] == 3


def test_a_filtered_prompt_is_an_answer_and_counted(speaker: Make) -> None:
    with refusing(400, {"error": {"message": "policy", "code": "content_filter"}}) as server:
        asking = speaker(server)
        assert asking.write(ASKS[:3], tokens=3) == [[""]] * 3
        assert asking.facts["filtered"] == 3
        with pytest.raises(NoLogProbsError):
            asking.log_probs(ASKS[:2], ["1", "2"])


def test_nobody_at_the_address_is_a_wrong_request(speaker: Make) -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(RequestError, match="the connection is refused, 3 times; is it right"):
        speaker(url).write(ASKS[:1], tokens=1)


def test_what_was_answered_is_not_asked_again(speaker: Make) -> None:
    with serving() as server:
        first = speaker(server)
        values = first.log_probs([*ASKS, *ASKS], ["1", "2"])
        assert server.count == len(ASKS)
        with first.journal.path.open("a") as file:
            file.write('{"key": "torn by a ki')
        again = speaker(server)
        assert again.log_probs([*ASKS, *ASKS], ["1", "2"]).tolist() == values.tolist()
        assert server.count == len(ASKS)
        more = [*ASKS, Ask(user="one more")]
        again.log_probs(more, ["1", "2"])
        assert server.count == len(ASKS) + 1
        assert speaker(server).log_probs(more, ["1", "2"]).shape == (13, 2)
        assert server.count == len(ASKS) + 1
        # Another setting, another question.
        speaker(server, top_logprobs=5).log_probs(ASKS[:2], ["1", "2"])
        assert server.count == len(ASKS) + 3
        speaker(server, reuse=False).log_probs(ASKS, ["1", "2"])
        assert server.count == 2 * len(ASKS) + 3
        assert again.facts["served"] == ["tiny-2026 fp_1"]


def test_two_commands_do_not_pay_for_the_same_answers(speaker: Make) -> None:
    with serving() as server:
        one, other = speaker(server), speaker(server)
        with one.journal.opened(), pytest.raises(RequestError, match="another process is asking"):
            other.write(ASKS, tokens=1)
        assert server.count == 0


def test_the_cost_is_said_before_and_the_ceiling_holds(speaker: Make) -> None:
    lines: list[str] = []
    with serving() as server:
        speaker(server, say=lines.append).log_probs(ASKS[:2], ["1", "2"])
        # Two turns each: 11 characters, and 7 or 8: 3 + 2 tokens, and 4 for each turn's frame.
        assert lines == [
            f"2 requests to tiny at {server.url}, estimated by 4 characters a token: 26 tokens of "
            "prompts, 2 of answers at most; at no known price (model.price_in and "
            "model.price_out, for a million tokens)"
        ]
        before = server.count
        with pytest.raises(RequestError, match=r"more than model.ceiling=0.0001 allows: 12 req"):
            speaker(server, prices=PRICED, ceiling=1e-4, chats=True).write(ASKS, tokens=5)
        assert server.count == before


def test_a_ceiling_reached_while_asking_stops_and_the_rest_comes_later(speaker: Make) -> None:
    # Estimated: 12 × (about 14 × 10 + 1 × 50) = about 0.0023; charged: 12 × 300 millionths.
    with serving() as server:
        settings = {"prices": PRICED, "concurrency": 3}
        asking = speaker(server, ceiling=0.0026, **settings)
        with pytest.raises(Stopped) as stopped:
            asking.log_probs(ASKS, ["1", "2"])
        made = server.count
        assert 4 < made < len(ASKS)
        line = str(stopped.value)
        assert line.startswith("model.ceiling=0.0026 is reached (about 0.00")
        assert f"{made} answers are kept in " in line
        assert "the same command with a higher model.ceiling asks only for" in line
        assert asking.facts["cost"] == pytest.approx(made * 300e-6)
        assert asking.facts["cost"] < 0.0026
        # What was paid counts again, since the ceiling is for the whole result.
        with pytest.raises(RequestError, match=r"0.002\d* spent already"):
            speaker(server, ceiling=0.0026, **settings).log_probs(ASKS, ["1", "2"])
        assert server.count == made
        whole = speaker(server, ceiling=0.01, **settings)
        assert np.isfinite(whole.log_probs(ASKS, ["1", "2"])).all()
        assert server.count == len(ASKS)
        assert whole.facts["cost"] == pytest.approx(12 * 300e-6)


def test_what_is_on_its_way_is_held_back() -> None:
    meter = Meter(Prices(1.0, 1.0), ceiling=10e-6)
    assert meter.hold(Used(4, 0))
    assert meter.hold(Used(4, 1))
    assert not meter.hold(Used(2, 0))
    meter.settle(Used(4, 0), Used(1, 0))
    assert meter.hold(Used(2, 0))
    assert meter.spent == pytest.approx(1e-6)


def test_calls_to_come_are_taken_to_be_as_dear_as_those_before() -> None:
    meter = Meter(Prices(1.0, 1.0), ceiling=10e-6)
    assert meter.hold(Used(1, 0))
    meter.settle(Used(1, 0), Used(4, 0))
    assert meter.hold(Used(1, 0))
    assert not meter.hold(Used(1, 0))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"base_url": "localhost:8000"}, "an address such as https"),
        ({"base_url": "https://me:pw@host/v1"}, "an address alone"),
        ({"base_url": "https://host/v1?key=abc"}, "an address alone"),
        ({"base_url": "http://host/v1/chat/completions"}, "without /chat/completions"),
        ({"name": ""}, "model.name=…"),
        ({"concurrency": 0}, "model.concurrency=0"),
        ({"ceiling": 1.0}, "model.ceiling needs prices"),
        ({"prices": Prices(-1.0, 1.0)}, "model.price_in=-1.0"),
        ({"key_env": "NO_SUCH_KEY"}, "no key: the environment variable NO_SUCH_KEY is not set"),
        ({"key_env": KEY}, "model.key_env names an environment variable"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(
    settings: dict[str, Any], said: str, speaker: Make
) -> None:
    with pytest.raises(RequestError, match=said) as error:
        speaker("http://127.0.0.1:9/v1", **settings)
    line = str(error.value)
    assert not [secret for secret in (KEY, "pw", "abc") if secret in line]


def test_a_broken_key_is_not_repeated(speaker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-one\nsk-two")
    with pytest.raises(RequestError, match="holds something that is no key") as error:
        speaker("http://127.0.0.1:9/v1")
    assert "sk-" not in str(error.value)


def test_neither_key_nor_prompt_is_in_a_file(speaker: Make, tmp_path: Path) -> None:
    with serving() as server:
        asking = speaker(server)
        asking.log_probs(ASKS, ["1", "2"])
        asking.write(ASKS, tokens=2)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    text = "".join(path.read_text() for path in files)
    assert len(text) > 1000
    assert KEY not in text
    assert "Which?" not in text
    assert KEY not in json.dumps(asking.facts)
    assert KEY not in repr(asking.settings)


KILLED = """
import sys
from pathlib import Path
from eval.speakers import Ask
from eval.speakers.remote import RemoteSpeaker
from eval.speakers.remote.settings import RemoteSettings

settings = RemoteSettings(base_url=sys.argv[1], name="tiny", concurrency=8)
asks = [Ask(user=f"prompt {number}") for number in range(600)]
values = RemoteSpeaker(settings, Path(sys.argv[2])).log_probs(asks, ["1", "2"])
print(len(values), flush=True)
"""


def test_killed_amid_600_calls_the_same_command_makes_only_the_missing_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED]
    env = {**os.environ, "OPENAI_API_KEY": KEY, "PYTHONPATH": str(ROOT)}
    with serving(pause=0.01) as server:
        command += [server.url, str(tmp_path / "answers")]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while server.count < 200 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
        time.sleep(0.1)  # what was on its way has come in
        made = server.count
        (journal,) = (tmp_path / "answers").glob("*.jsonl")
        lines = journal.read_text().split("\n")
        kept = sum('"key"' in line and line.endswith("}") for line in lines)
        assert 150 < kept <= made < 600
        assert made - kept <= 8  # those on their way when it was killed
        done = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, text=True, timeout=60, check=True
        )
        assert done.stdout == "600\n"
        assert server.count - made == 600 - kept
        asked = {body["messages"][-1]["content"] for body in server.bodies}
        assert len(asked) == 600


def test_the_rule_answers_both_ways() -> None:
    """What the other tests rest on: their server doesn't always say the same."""
    said = {rule({"prompt": "x" * size, "logprobs": 0})["text"] for size in (1, 2)}
    assert said == {"1", "2"}


@pytest.fixture(scope="session")
def tiny_chatting(tiny_causal: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny causal model with a template for turns."""

    folder = tmp_path_factory.mktemp("chatting") / "tiny"
    shutil.copytree(tiny_causal, folder)
    (folder / "chat_template.jinja").write_text(
        "{% for turn in messages %}{{ turn['content'] }}\n{% endfor %}"
    )
    return folder


@pytest.fixture(scope="session")
def transformers_serve(tiny_chatting: Path) -> Iterator[str]:
    """The server that comes with transformers, serving the tiny model in this process."""
    pytest.importorskip("openai", reason="transformers serve needs it")
    from transformers.cli.serve import Serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Serve(
        force_model=str(tiny_chatting),
        device="cpu",
        host="127.0.0.1",
        port=port,
        non_blocking=True,
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(200):
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{url}/health", timeout=1).ok:
                break
        time.sleep(0.05)
    yield f"{url}/v1"
    server.kill_server()


def test_a_real_server_writes_what_the_model_writes_here(
    transformers_serve: str, tiny_chatting: Path, speaker: Make
) -> None:
    asks = [Ask(user="Die Frau ist", system="Antworte."), Ask(user="Er")]
    plain = [Ask(user="Die Frau ist", chat=False)]
    asking = speaker(transformers_serve, name=str(tiny_chatting))
    with faulty(transformers_serve, ["fine", "broken", "cut"]) as proxy:
        through = speaker(proxy, name=str(tiny_chatting))
        said = through.write([*asks, *plain], tokens=5)
    lm = models.load(ModelSettings(path=str(tiny_chatting)))
    texts = ("Antworte.\nDie Frau ist\n", "Er\n", "Die Frau ist")
    for text, (written,) in zip(texts, said, strict=True):
        # A template writes its special tokens itself; plain text gets the tokenizer's own.
        plainly = not text.endswith("\n")
        ids = lm.tokenizer(text, return_tensors="pt", add_special_tokens=plainly)["input_ids"]
        whole = lm.model.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
        assert written == lm.tokenizer.decode(whole, skip_special_tokens=True)
    assert any(text for (text,) in said)
    assert asking.write(asks, tokens=5) == said[:2]
    with pytest.raises(NoLogProbsError):  # it takes the question, and leaves it unanswered
        asking.log_probs(asks, ["Ja", "Nein"])
    with pytest.raises(RequestError, match=r"refuses the request \(400\): “Server is pinned to"):
        speaker(transformers_serve, name="other").write(asks, tokens=5)


def test_listed_tokens_of_a_model_are_its_log_probabilities(
    tiny_chatting: Path, speaker: Make
) -> None:
    lm = models.load(ModelSettings(path=str(tiny_chatting)))
    ask = Ask(user="Die Frau ist")
    text = "Die Frau ist\n"
    ids = lm.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        nats = lm.model(ids).logits[0, -1].double().log_softmax(-1)
    pieces = [lm.tokenizer.decode(place) for place in nats.topk(20).indices]
    options = list(dict.fromkeys(piece for piece in pieces if piece.strip()))[:2]
    with serving(model_says(tiny_chatting)) as server:
        values = speaker(server).log_probs([ask], options)[0]
    alike = [
        [
            place
            for place, piece in zip(nats.topk(20).indices, pieces, strict=True)
            if piece.strip() == option.strip()
        ]
        for option in options
    ]
    wanted = [float(nats[torch.stack(places)].logsumexp(0)) for places in alike]
    assert values == pytest.approx(wanted, abs=1e-6)
