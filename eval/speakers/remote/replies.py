"""What servers of the OpenAI API write: answers, likeliest tokens, tokens charged, refusals.

Servers differ: log-probabilities come in the form of chats or of plain text at either address
(llama.cpp gives the one, llama-cpp-python the other), errors as `error.message`, `error`,
`detail` or `message`. All of them are read in here.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from eval.speakers.remote.cost import Used

#: Codes of refusals that are about one prompt, not about the request: a filter won't have it.
FILTERED = ("content_filter", "content_policy_violation")
#: How much of a server's own words stand in one line.
LONGEST = 240  # characters


class MalformedError(Exception):
    """An answer that is none of the API's."""


def answer(reply: Any) -> dict[str, Any]:
    """The first choice of a reply: its `text`, and its `top` tokens with log-probabilities.

    `top` is None where the server gives none. `text` is empty where it says nothing; `end` is the
    reason it gives for stopping. `served`: as which model, and in which state, it answered.

    Raises:
        MalformedError: it is no answer of that API.
    """
    if not isinstance(reply, dict):
        raise MalformedError("JSON, but no object")
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise MalformedError(words(json.dumps(reply)) if "error" in reply else "no choices in it")
    choice = choices[0]
    message = choice.get("message")
    said = message.get("content") if isinstance(message, dict) else choice.get("text")
    if said is None and not isinstance(message, dict):
        raise MalformedError("neither message nor text in it")
    if said is not None and not isinstance(said, str):
        raise MalformedError("its text is none")
    served = {key: reply[key] for key in ("model", "system_fingerprint") if reply.get(key)}
    return {
        "text": said or "",
        "end": choice.get("finish_reason"),
        "top": _top(choice.get("logprobs")),
        "served": served,
    }


def used(reply: Mapping[str, Any], estimate: Used) -> Used:
    """The tokens that the server counted; the estimate where it says nothing."""
    usage = reply.get("usage")
    counted = usage if isinstance(usage, dict) else {}
    prompt, answered = counted.get("prompt_tokens"), counted.get("completion_tokens")
    return Used(
        prompt if isinstance(prompt, int) else estimate.prompt,
        answered if isinstance(answered, int) else estimate.answer,
    )


def _top(logprobs: Any) -> list[tuple[str, float]] | None:
    """The likeliest first tokens, likeliest first, in nats; None where there are none."""
    if not isinstance(logprobs, dict):
        return None
    first: Any = None
    if isinstance(logprobs.get("content"), list) and logprobs["content"]:  # as chats give it
        first = logprobs["content"][0]
        listed = first.get("top_logprobs") if isinstance(first, dict) else None
        pairs = [
            (each.get("token"), each.get("logprob"))
            for each in (listed if isinstance(listed, list) else [])
            if isinstance(each, dict)
        ]
    elif isinstance(logprobs.get("top_logprobs"), list) and logprobs["top_logprobs"]:
        first = logprobs["top_logprobs"][0]  # as plain text gives it
        pairs = list(first.items()) if isinstance(first, dict) else []
    else:
        return None
    known = [
        (token, float(value))
        for token, value in pairs
        if isinstance(token, str) and isinstance(value, (int, float)) and math.isfinite(value)
    ]
    return sorted(known, key=lambda pair: -pair[1]) or None


def refusal(body: str) -> tuple[str, str]:
    """A server's own words and its code for a refusal, each empty where it gives none."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return words(body), ""
    inner = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    code = inner.get("code") if isinstance(inner, dict) else None
    return words(body), code if isinstance(code, str) else ""


def words(body: str, hidden: Iterable[str] = ()) -> str:
    """What a server says in one line; `hidden` texts (a key, a prompt) don't stand in it.

    Of an answer that isn't JSON, the beginning.
    """
    try:
        said = _message(json.loads(body))
    except (ValueError, RecursionError):
        said = body
    for text in hidden:
        if text:
            said = said.replace(text, "[…]")
    said = " ".join(said.split())
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}…"


def _message(said: Any) -> str:
    """The message in a body: never what it repeats of the request, which pydantic's lists do."""
    if isinstance(said, str):
        return said
    if isinstance(said, list):
        return "; ".join(filter(None, map(_message, said)))
    if isinstance(said, dict):
        for key in ("error", "message", "detail", "msg"):
            if said.get(key):
                return _message(said[key])
    return ""
