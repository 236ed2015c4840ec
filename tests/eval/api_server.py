"""A server of the OpenAI API on this machine, and a proxy that makes faults on the way to it.

The server's model is a real one (`model_says`), or a rule where many answers are wanted fast.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests

#: What a server says to a request's body: a choice, without its index and end.
Says = Callable[[dict[str, Any]], dict[str, Any]]
KEY = "sk-tests-0123456789abcdefghij"


def rule(body: dict[str, Any]) -> dict[str, Any]:
    """A choice by rule: "1" where the prompt has an even number of letters, else "2"."""
    text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    likelier, other = ("1", "2") if len(text) % 2 == 0 else ("2", "1")
    top = {likelier: -0.1, f" {likelier}": -3.5, other: -2.75, "The": -6.0}
    return _choice(body, likelier, top)


def model_says(folder: Path) -> Says:
    """A causal model's greedy answers, and the likeliest of all its first tokens."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    lock = threading.Lock()

    def says(body: dict[str, Any]) -> dict[str, Any]:
        if "messages" in body:
            text = tokenizer.apply_chat_template(
                body["messages"], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        else:
            ids = tokenizer(body["prompt"], return_tensors="pt")["input_ids"]
        with lock, torch.no_grad():
            logits = model(ids).logits[0, -1].double()
            written = model.generate(ids, max_new_tokens=body["max_tokens"], do_sample=False)
        said = tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
        values, places = logits.log_softmax(-1).topk(20)
        top = {
            tokenizer.decode(place): float(value)
            for value, place in zip(values, places, strict=True)
        }
        return _choice(body, said, top)

    return says


def _choice(body: dict[str, Any], said: str, top: dict[str, float]) -> dict[str, Any]:
    if "messages" not in body:
        listed = dict(list(top.items())[: body.get("logprobs") or 0])
        logprobs = {"tokens": [said], "top_logprobs": [listed]} if listed else None
        return {"text": said, "logprobs": logprobs}
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": said}}
    if body.get("logprobs"):
        listed = [{"token": token, "logprob": value} for token, value in top.items()]
        first = {"token": said, "logprob": -0.1, "top_logprobs": listed[: body["top_logprobs"]]}
        choice["logprobs"] = {"content": [first]}
    return choice


@dataclass
class Served:
    """A running server: where it is, and every body that it was asked."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # Authorization headers

    @property
    def count(self) -> int:
        return len(self.bodies)


@contextlib.contextmanager
def serving(says: Says = rule, *, pause: float = 0.0, usage: bool = True) -> Iterator[Served]:
    """A server that answers each request after `pause` seconds; 20 tokens asked, 2 answered."""

    class Handler(_Handler):
        def do_POST(self) -> None:
            body = self.body()
            served.keys.append(self.headers.get("Authorization", ""))
            served.bodies.append(body)
            time.sleep(pause)
            reply = {
                "id": "x",
                "model": f"{body['model']}-2026",
                "system_fingerprint": "fp_1",
                "choices": [{"index": 0, "finish_reason": "stop", **says(body)}],
            }
            if usage:
                reply["usage"] = {"prompt_tokens": 20, "completion_tokens": 2}
            self.answer(200, json.dumps(reply))

    with _running(Handler) as url:
        served = Served(f"{url}/v1")
        yield served


@contextlib.contextmanager
def refusing(status: int, answer: Any) -> Iterator[Served]:
    """A server that refuses everything; `answer` may be made from the request's body."""

    class Handler(_Handler):
        def do_POST(self) -> None:
            served.bodies.append(self.body())
            said = answer(served.bodies[-1]) if callable(answer) else answer
            self.answer(status, said if isinstance(said, str) else json.dumps(said))

    with _running(Handler) as url:
        served = Served(f"{url}/v1")
        yield served


@contextlib.contextmanager
def faulty(target: str, faults: list[str]) -> Iterator[Served]:
    """A proxy to `target` that meets one request after the other with a fault, while they last.

    limited: 429, wait a second; broken: 500 with a page; cut: the connection ends amid the
    answer; slow: the answer comes by the byte; nonsense: 200 without JSON; other: JSON that is
    no answer; fine: none.
    """
    left = list(faults)

    class Handler(_Handler):
        def do_POST(self) -> None:
            body = self.body()
            served.bodies.append(body)
            fault = left.pop(0) if left else "fine"
            if fault == "limited":
                self.answer(429, '{"error": {"message": "slow down"}}', {"Retry-After": "1"})
            elif fault == "broken":
                self.answer(500, "<html>Internal Server Error</html>")
            elif fault == "nonsense":
                self.answer(200, "<html>It works!</html>")
            elif fault == "other":
                self.answer(200, '{"error": {"message": "no provider", "code": 502}}')
            else:
                there = requests.post(
                    target.removesuffix("/v1") + self.path,
                    json=body,
                    headers={"Authorization": self.headers.get("Authorization", "")},
                    timeout=30,
                )
                self.pass_on(there, fault)

        def pass_on(self, there: requests.Response, fault: str) -> None:
            if fault == "cut":
                self.send_response(200)
                self.send_header("Content-Length", str(len(there.content)))
                self.end_headers()
                self.wfile.write(there.content[: len(there.content) // 2])
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif fault == "slow":
                self.send_response(200)
                self.send_header("Content-Length", str(len(there.content)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the client has gone
                    for place in range(len(there.content)):
                        self.wfile.write(there.content[place : place + 1])
                        time.sleep(0.02)
            else:
                self.answer(there.status_code, there.text)

    with _running(Handler) as url:
        served = Served(f"{url}/v1")
        yield served


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self) -> dict[str, Any]:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: Any) -> None:
        """Nothing: tests ask what was asked."""


@contextlib.contextmanager
def _running(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
