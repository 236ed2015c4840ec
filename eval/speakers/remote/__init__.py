"""A model behind an OpenAI-compatible API as a speaker: closed, or on one's own server.

Requests go out side by side and are made again after what may pass; answers are kept as they
come, so that a stopped command goes on where it was; what it may cost is said before and never
exceeded. The key comes from the environment and is written nowhere.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eval.errors import RequestError, Stopped
from eval.speakers import Ask, NoLogProbsError
from eval.speakers.remote import replies
from eval.speakers.remote.client import (
    Client,
    DownError,
    FilteredError,
    RefusedError,
)
from eval.speakers.remote.cost import Meter, Used, prompt_tokens, rule_of_thumb
from eval.speakers.remote.journal import Journal
from eval.speakers.remote.settings import RemoteSettings, address, key

#: So many likeliest tokens the API gives at most: in chats, and for plain text.
MOST_LISTED = {"/chat/completions": 20, "/completions": 5}
#: What tokenizers write for a blank before a word, where a server lists raw pieces.
BLANKS = " \t\r\n▁Ġ"


@dataclass(frozen=True)
class _Call:
    key: str  # in the journal
    endpoint: str
    body: dict[str, Any]
    estimate: Used


class RemoteSpeaker:
    """Answers prompts by asking a server.

    `facts` says what a reader of results must know: tokens, cost, what the server calls itself,
    how many options were not among the listed tokens and how many prompts were filtered.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        folder: Path,
        *,
        reuse: bool = True,
        count: Callable[[str], int] = rule_of_thumb,
        say: Callable[[str], None] = lambda line: None,
    ):
        """`folder`: where answers are kept; `reuse=False`: those in there are not read.

        `count`: the tokens of a text, for estimates; `say` is told what asking will cost.

        Raises:
            RequestError: no address, no name, no key, or a ceiling without prices.
        """
        base_url = address(settings)
        self.settings = settings
        self.name = settings.name
        self.chats = settings.chats
        self.fingerprint = hashlib.blake2b(
            f"{base_url}\n{settings.name}".encode(), digest_size=8
        ).hexdigest()
        self.meter = Meter(settings.prices, settings.ceiling)
        self.journal = Journal(folder, base_url, settings.name)
        self._client = Client(base_url, key(settings), settings.key_env, settings.manners)
        self._reuse = reuse
        self._asked: set[str] = set()  # keys whose cost is counted
        self._count = count
        self._say = say
        self._lock = threading.Lock()
        self._served: set[str] = set()
        self._counted = dict.fromkeys(("answers", "calls", "filtered", "bounded", "unlisted"), 0)

    @property
    def temperature(self) -> float | None:
        """Of drawn answers; None: the server's own, which we don't know."""
        return self.settings.temperature

    @property
    def facts(self) -> dict[str, Any]:
        """How the answers were come by, for a result's metadata; no key and no prompt in it.

        `answers`, and how many of them `calls` of this process brought; tokens, and `cost` at the
        stated prices, of all; `filtered`: prompts that the server's filter wouldn't have;
        `bounded`: options set to the bound, `unlisted`: prompts without any option (`log_probs`).
        """
        used = self.meter.used
        return {
            "base_url": self._client.base_url,
            "served": sorted(self._served),
            **self._counted,
            "prompt_tokens": used.prompt,
            "answer_tokens": used.answer,
            "cost": self.meter.spent,
        }

    def log_probs(
        self,
        asks: Sequence[Ask],
        options: Sequence[str],
        *,
        report: Callable[[int, int], None] | None = None,
    ) -> np.ndarray:
        """log P(option | prompt) in nats for each option as the answer's start. (asks, options)

        A server lists the likeliest first tokens alone. An option is every listed token that
        reads as it does, blanks aside. One that isn't listed is at most as likely as the least
        listed token and is given that bound, so that a choice between it and a listed one stays
        right and its margin is understated. Where no option is listed, or the server's filter
        won't have the prompt, nothing is known: NaN.

        Raises:
            NoLogProbsError: the server gives none, or never lists an option.
            RequestError: options read alike; or the server refuses the request.
            Stopped: the ceiling is reached, or the server doesn't answer as it should.
        """
        wanted = [option.strip(BLANKS) for option in options]
        if not all(wanted) or len(set(wanted)) < len(wanted):
            raise RequestError(f"{', '.join(options)}: the options of an answer must differ")
        calls = [self._asking_for_tokens(ask) for ask in asks]
        try:
            answers = self._answers(calls, report, _must_list)
        except RefusedError as error:
            if "logprob" not in error.words.lower():
                raise
            raise NoLogProbsError(
                f"{self.name}: the server gives no log-probabilities, or not so many "
                f"(model.top_logprobs): “{error.words}”"
            ) from error
        values = np.full((len(asks), len(options)), np.nan)
        listed_any = False
        for row, (call, said) in enumerate(zip(calls, answers, strict=True)):
            top = said.get("top")
            if not top:
                self._counted["unlisted"] += not said.get("filtered")
                continue
            for column, option in enumerate(wanted):
                alike = [value for token, value in top if token.strip(BLANKS) == option]
                if alike:
                    values[row, column] = np.logaddexp.reduce(alike)
            listed = np.isfinite(values[row])
            listed_any |= bool(listed.any())
            if not listed.any():
                self._counted["unlisted"] += 1
            elif not listed.all():
                values[row, ~listed] = top[: self._listed(call.endpoint)][-1][1]
                self._counted["bounded"] += int((~listed).sum())
        if calls and not listed_any:
            raise NoLogProbsError(
                f"{self.name}: none of {', '.join(wanted)} is among the likeliest first tokens of "
                f"any answer ({len(calls):,} prompts); does it think before it answers?"
            )
        return values

    def write(
        self,
        asks: Sequence[Ask],
        *,
        tokens: int,
        samples: int = 1,
        greedy: bool = True,
        seed: int = 0,
        report: Callable[[int, int], None] | None = None,
    ) -> list[list[str]]:
        """What it says to each prompt, at most `tokens` tokens, `samples` times. (asks, samples)

        Greedily at temperature 0, or drawn at the settings' temperature, else the server's own.
        Every draw is a request with a seed of its own, made of `seed`, the prompt and the draw's
        number; servers take it as a wish. '' where a filter won't have the prompt or the model
        says nothing.

        Raises:
            RequestError: the server refuses the request.
            Stopped: the ceiling is reached, or the server doesn't answer as it should.
        """
        if greedy and samples != 1:
            raise ValueError(f"{samples} greedy samples: they would all be the same")
        calls = []
        for ask in asks:
            for draw in range(samples):
                how: dict[str, Any] = {"max_tokens": tokens}
                if greedy:
                    how["temperature"] = 0
                else:
                    how["seed"] = _seed(seed, ask, draw)
                    if self.settings.temperature is not None:
                        how["temperature"] = self.settings.temperature
                calls.append(self._call(ask, how))
        said = [answer.get("text", "") for answer in self._answers(calls, report)]
        return [said[first : first + samples] for first in range(0, len(said), samples)]

    def _asking_for_tokens(self, ask: Ask) -> _Call:
        """Temperature 0, at which servers that scale log-probabilities leave them as they are."""
        endpoint = _endpoint(ask)
        listed = self._listed(endpoint)
        how = {"logprobs": True, "top_logprobs": listed} if ask.chat else {"logprobs": listed}
        return self._call(ask, {"max_tokens": 1, "temperature": 0, **how})

    def _listed(self, endpoint: str) -> int:
        return self.settings.top_logprobs or MOST_LISTED[endpoint]

    def _call(self, ask: Ask, how: dict[str, Any]) -> _Call:
        if ask.chat and not self.chats:
            raise RequestError(f"{self.name}: model.chats=false, so it is asked in plain text only")
        endpoint = _endpoint(ask)
        body: dict[str, Any] = {"model": self.name}
        if ask.chat:
            turns = [("system", ask.system), ("user", ask.user)]
            body["messages"] = [
                {"role": role, "content": text} for role, text in turns if text or role == "user"
            ]
            texts = [ask.system, ask.user] if ask.system else [ask.user]
        else:
            texts = [f"{ask.system}\n{ask.user}" if ask.system else ask.user]
            body["prompt"] = texts[0]
        body |= how
        estimate = Used(prompt_tokens(texts, self._count), how["max_tokens"])
        return _Call(self.journal.key_of(endpoint, body), endpoint, body, estimate)

    def _answers(
        self,
        calls: Sequence[_Call],
        report: Callable[[int, int], None] | None,
        check: Callable[[dict[str, Any]], None] = lambda answer: None,
    ) -> list[dict[str, Any]]:
        """The answer of each call, found or asked for. `check` sees the first and may raise."""
        distinct = {call.key: call for call in calls}
        found: dict[str, dict[str, Any]] = {}
        with self.journal.opened():
            for key in distinct:
                known = self.journal.get(key) if self._reuse or key in self._asked else None
                if known is not None:
                    found[key] = known
                    if key not in self._asked:  # paid for earlier, for this same result
                        self.meter.count(Used(*known["tokens"]))
                        self._note(key, known)
            missing = [call for key, call in distinct.items() if key not in found]
            if found:
                check(next(iter(found.values())))
            if missing:
                self._announce(missing, len(found))
                self._ask_all(missing, found, check, report)
        if report is not None:
            report(len(distinct), len(distinct))
        return [found[call.key] for call in calls]

    def _ask_all(
        self,
        missing: Sequence[_Call],
        found: dict[str, dict[str, Any]],
        check: Callable[[dict[str, Any]], None],
        report: Callable[[int, int], None] | None,
    ) -> None:
        """Ask for answers side by side, and put them into `found`; each is kept by then.

        The first is asked for alone: what is wrong with all of them is told once.
        """
        total = len(found) + len(missing)
        left = list(reversed(missing))
        pending: set[Future[dict[str, Any]]] = set()
        room, full = 1, False
        self._client.go()
        try:
            with ThreadPoolExecutor(max_workers=self.settings.concurrency) as pool:
                try:
                    while True:
                        while left and len(pending) < room and not full:
                            full = not self.meter.hold(left[-1].estimate)
                            if not full:
                                pending.add(pool.submit(self._ask, left.pop(), found))
                        if not pending:
                            break
                        ready, pending = wait(pending, return_when=FIRST_COMPLETED)
                        for future in ready:
                            answer = future.result()
                            if len(found) == 1:
                                check(answer)
                        room = self.settings.concurrency
                        if report is not None:
                            report(len(found), total)
                except BaseException:
                    self._client.stop()  # what is on its way is waited for, and kept
                    raise
        except DownError as error:
            raise Stopped(self._kept(f"{self._client.base_url}: {error}")) from error
        except KeyboardInterrupt as error:
            raise Stopped(self._kept("interrupted")) from error
        if full:
            line = f"model.ceiling={self.settings.ceiling:g} is reached ({self._spent()} spent)"
            raise Stopped(self._kept(line, " with a higher model.ceiling"))

    def _ask(self, call: _Call, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """One request, its answer kept and its cost counted."""

        def read(reply: Any) -> dict[str, Any]:
            used = replies.used(reply, call.estimate)
            return {**replies.answer(reply), "tokens": [used.prompt, used.answer]}

        cost = Used()
        try:
            lost = partial(self.meter.lose, call.estimate)
            try:
                answer = self._client.post(call.endpoint, call.body, read, lost)
            except FilteredError as error:
                answer = {"filtered": str(error), "tokens": [0, 0]}
            cost = Used(*answer["tokens"])
            self.journal.add(call.key, answer)
        finally:
            self.meter.settle(call.estimate, cost)
        with self._lock:
            found[call.key] = answer
            self._counted["calls"] += 1
            self._note(call.key, answer)
        return answer

    def _note(self, key: str, answer: dict[str, Any]) -> None:
        self._asked.add(key)
        self._counted["answers"] += 1
        self._counted["filtered"] += "filtered" in answer
        served = " ".join(str(each) for each in answer.get("served", {}).values())
        self._served |= {served} - {""}

    def _announce(self, missing: Sequence[_Call], found: int) -> None:
        """Say what asking will cost, before the first request.

        Raises:
            RequestError: it is estimated to be more than the ceiling.
            Stopped: the same, once this command has paid for answers.
        """
        estimate = sum((call.estimate for call in missing), Used())
        how = "4 characters a token" if self._count is rule_of_thumb else "the tokenizer named"
        price = self.settings.prices.of(estimate)
        cost = (
            "at no known price (model.price_in and model.price_out, for a million tokens)"
            if price is None
            else f"about {price:.4g} at most, at {self.settings.prices.prompt:g} and "
            f"{self.settings.prices.answer:g} a million tokens"
        )
        kept = f" ({found:,} answers are kept from before)" if found else ""
        line = (
            f"{len(missing):,} requests to {self.name} at {self._client.base_url}{kept}, "
            f"estimated by {how}: {estimate.prompt:,} tokens of prompts, {estimate.answer:,} of "
            f"answers at most; {cost}"
        )
        if self.meter.fits(estimate):
            self._say(line)
            return
        before = f", with {self._spent()} spent already," if self.meter.spent else ""
        over = f"more than model.ceiling={self.settings.ceiling:g} allows: {line}{before}"
        if self._counted["calls"]:
            raise Stopped(self._kept(over, " with a higher model.ceiling"))
        raise RequestError(f"{over}; raise model.ceiling, or ask for less")

    def _spent(self) -> str:
        spent = self.meter.spent
        return "an unknown sum" if spent is None else f"about {spent:.4g}"

    def _kept(self, why: str, how: str = "") -> str:
        return (
            f"{why}; {len(self._asked):,} answers are kept in {self.journal.path}; the same "
            f"command{how} asks only for those that are missing"
        )


def _endpoint(ask: Ask) -> str:
    return "/chat/completions" if ask.chat else "/completions"


def _seed(seed: int, ask: Ask, draw: int) -> int:
    """A seed of 31 bits, which every server takes."""
    text = "\x1f".join((str(seed), ask.system, ask.user, str(draw)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


def _must_list(answer: dict[str, Any]) -> None:
    if not answer.get("top") and "filtered" not in answer:
        raise NoLogProbsError("the server's answers carry no log-probabilities")
