"""A causal model in memory as a speaker: asked through its chat template, or in plain text.

Likelihoods of options are computed as the likelihoods of sentences are (`eval.scorers.causal`):
what prompts share is computed once, without any padding. Writing goes in batches of prompts of
one length, so that no padding is needed there either, and every prompt draws from numbers of its
own.
"""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jinja2.exceptions import TemplateError

from eval.errors import RequestError
from eval.scorers import causal
from eval.scorers.batching import Effort, TokenBudget, Tokens, default_budget, equal_lengths
from eval.scorers.model import LanguageModel
from eval.scorers.plan import max_length
from eval.scorers.work import Parts, Requests, ranks
from eval.scorers.work import log_probs as computed
from eval.speakers import Ask

#: How templates of models that think aloud open that thinking; we close it, to ask for the answer.
THINKING = ("<think>", "\n\n</think>\n\n")

MASK = "attention_mask"


class TooLongError(RequestError):
    """Prompts are longer than the model reads. `asks`: which ones, by number."""

    def __init__(self, said: str, asks: np.ndarray):
        super().__init__(said)
        self.asks = asks


class LocalSpeaker:
    """Answers prompts with a causal model that is loaded here.

    Under torch.distributed the prompts are shared out, and every process returns all answers.
    `effort` counts what was computed, for the result's metadata. `parts`, where set, keep the
    likelihoods of the next call's options as they come, and what they hold isn't computed again.

    Raises:
        RequestError: the model is masked.
    """

    def __init__(self, lm: LanguageModel, *, batch_tokens: int | None = None):
        if lm.kind != "causal":
            raise RequestError(
                f"{lm.name} is {lm.kind}: only a causal model answers prompts; "
                "score.scorer=auto scores a masked one"
            )
        self.lm = lm
        self.name = lm.name
        self.fingerprint = lm.fingerprint
        self.chats = bool(lm.tokenizer.chat_template)
        self.effort = Effort()
        self.parts: Parts | None = None
        self._budget = TokenBudget(batch_tokens or default_budget(lm))
        self._lead = self._before_answers() if self.chats else ""
        self._ends = _ends(lm)
        forward = inspect.signature(causal.unwrapped(lm).forward).parameters
        # Logits of every position would be the largest thing in memory.
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}
        self._cached = {"use_cache": True} if "use_cache" in forward else {}
        # transformers 5.24 renamed it.
        self._cache = "cache" if "cache" in forward else "past_key_values"

    @property
    def temperature(self) -> float:
        """The model's own temperature, of its generation settings; 1 where they name none."""
        own = getattr(getattr(self.lm.model, "generation_config", None), "temperature", None)
        return float(own or 1.0)

    def log_probs(
        self,
        asks: Sequence[Ask],
        options: Sequence[str],
        *,
        report: Callable[[int, int], None] | None = None,
    ) -> np.ndarray:
        """log P(option | prompt) in nats for each option as the answer's start. (asks, options)

        The option stands as the model would write it: after a blank where plain text goes on, and
        as the chat template begins an answer. An option of several tokens is their sum. `report`
        counts tokens of options.

        Raises:
            TooLongError: a prompt is longer than the model reads.
            RequestError: an option has no token of its own.
            NotFiniteError: the model gave NaN or infinity.
        """
        if not len(asks):
            return np.zeros((0, len(options)))
        distinct, of = _distinct(asks)
        texts = [self.prompt(ask) for ask in distinct]
        prompts = self._encoded(distinct, texts)
        rows: list[list[int]] = []
        first: list[int] = []  # the option's first place in each row
        answered = self._answered(distinct, texts, options)
        for text, ids, written in zip(texts, prompts, answered, strict=True):
            self._check_own(ids, written, options, text)
            rows += written
            first += [len(ids)] * len(options)
        tokens = Tokens.of(rows)
        self._check_length(tokens.lengths.reshape(-1, len(options)).max(axis=1), of)
        begin = np.asarray(first)
        row = np.repeat(np.arange(len(rows)), tokens.lengths - begin)
        place = np.concatenate(
            [np.arange(a, b) for a, b in zip(begin, tokens.lengths, strict=True)]
        )
        values = computed(
            self.lm,
            Requests(tokens, row, place),
            budget=self._budget,
            effort=self.effort,
            parts=self.parts,
            report=report,
        )
        summed = np.bincount(row, values, len(rows)).reshape(len(distinct), len(options))
        return summed[of]

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
        """What it says to each prompt, at most `tokens` tokens, `samples` times.

        Greedily (then `samples` is 1), or drawn at the model's own temperature from the whole
        distribution. A prompt's draws depend on `seed`, the prompt and the sample's number alone,
        not on its batch. `report` counts prompts. (asks, samples)

        Raises:
            TooLongError: a prompt with its answer is longer than the model reads.
            ValueError: `tokens` or `samples` is less than 1, or several greedy samples.
        """
        if tokens < 1 or samples < 1 or (greedy and samples > 1):
            raise ValueError(f"tokens={tokens}, samples={samples}, greedy={greedy}")
        if not len(asks):
            return []
        distinct, of = _distinct(asks)
        texts = [self.prompt(ask) for ask in distinct]
        prompts = Tokens.of(self._encoded(distinct, texts))
        self._check_length(prompts.lengths + tokens, of)
        seeds = [_seed(seed, text) for text in texts]
        rank, world = ranks()
        order = np.argsort(-prompts.lengths, kind="stable")[rank::world]
        # What a prompt costs: equal costs are equal lengths.
        costs = (prompts.lengths + tokens) * samples
        said: dict[int, list[str]] = {}

        def forward(items: np.ndarray) -> np.ndarray:
            draws = [
                None if greedy else np.random.default_rng([seeds[item], sample])
                for item in items
                for sample in range(samples)
            ]
            return self._written(prompts.block(items), tokens, samples, draws)

        for items, written in equal_lengths(order, costs, self._budget, len(order), forward):
            said |= zip(items.tolist(), written.tolist(), strict=True)
            if report is not None:
                report(len(said), len(order))
        if world > 1:
            everyone: list[Any] = [None] * world
            torch.distributed.all_gather_object(everyone, said)
            said = {item: words for part in everyone for item, words in part.items()}
        return [list(said[int(item)]) for item in of]

    def prompt(self, ask: Ask) -> str:
        """An ask as the text that the model goes on from, its special tokens written out.

        A persona goes into the system's turn; into the user's, before the rest, where the
        template has no such turn or there are no turns at all.

        Raises:
            RequestError: turns are asked for and the tokenizer has no chat template.
        """
        if not ask.chat:
            return f"{ask.system}\n{ask.user}" if ask.system else ask.user
        if not self.chats:
            raise RequestError(
                f"{self.name}: its tokenizer has no chat template; ask in plain text"
            )
        text = self._turns(ask)
        opening, closing = THINKING
        return text.rstrip() + closing if text.rstrip().endswith(opening) else text

    def _turns(self, ask: Ask, answer: str | None = None) -> str:
        user = {"role": "user", "content": ask.user}
        last = [] if answer is None else [{"role": "assistant", "content": answer}]
        if ask.system:
            try:
                return self._rendered([{"role": "system", "content": ask.system}, user, *last])
            except TemplateError:  # this model knows no such turn
                user["content"] = f"{ask.system}\n\n{ask.user}"
        return self._rendered([user, *last])

    def _rendered(self, turns: list[dict[str, str]]) -> str:
        answered = turns[-1]["role"] == "assistant"
        # Templates that have no thinking to switch off pass over the last argument.
        return str(
            self.lm.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=not answered, enable_thinking=False
            )
        )

    def _before_answers(self) -> str:
        """The blank that the chat template puts between the prompt's end and an answer."""
        ask = Ask("?")
        prompt, whole = self._turns(ask), self._turns(ask, "1")
        if not whole.startswith(prompt) or "1" not in whole[len(prompt) :]:
            return ""
        between = whole[len(prompt) : whole.index("1", len(prompt))]
        return between if not between.strip() else ""

    def _answered(
        self, asks: Sequence[Ask], texts: Sequence[str], options: Sequence[str]
    ) -> list[list[list[int]]]:
        """The ids of each prompt with each option after it. (asks, options) lists"""
        leads = [
            self._lead if ask.chat else "" if text[-1:].isspace() else " "
            for ask, text in zip(asks, texts, strict=True)
        ]
        by_option = [
            self._encoded(
                asks,
                [f"{text}{lead}{option}" for text, lead in zip(texts, leads, strict=True)],
            )
            for option in options
        ]
        return [list(written) for written in zip(*by_option, strict=True)]

    def _encoded(self, asks: Sequence[Ask], texts: Sequence[str]) -> list[list[int]]:
        """Ids of prompts: turns with the special tokens the template writes, else one BOS first."""
        found = self.lm.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        _, bos = causal.bos_policy(self.lm)
        first = [] if bos is None else [bos]
        return [
            list(ids) if ask.chat else [*first, *ids] for ask, ids in zip(asks, found, strict=True)
        ]

    def _check_own(
        self,
        prompt: list[int],
        written: list[list[int]],
        options: Sequence[str],
        text: str,
    ) -> None:
        """Refuse options that the tokenizer can't tell apart, or from the prompt's end."""
        unknown = self.lm.tokenizer.unk_token_id
        own = [ids[len(prompt) :] for ids in written]
        for option, ids, whole in zip(options, own, written, strict=True):
            others = [other for other in own if other is not ids]
            why = ""
            if not ids or whole[: len(prompt)] != prompt:
                why = f"runs into the prompt's end ({text[-12:]!r})"
            elif unknown is not None and unknown in ids:
                why = "is not in its vocabulary"
            elif any(other[: len(ids)] == ids for other in others):
                why = "is how another option begins"
            if why:
                raise RequestError(
                    f"{self.name}: option {option!r} has no token of its own: it {why}; name other "
                    "options in a file of your own (score.prompt=FILE)"
                )

    def _check_length(self, lengths: np.ndarray, of: np.ndarray) -> None:
        limit = max_length(self.lm)
        long = np.flatnonzero(lengths > limit)
        if len(long):
            asks = np.flatnonzero(np.isin(of, long))
            raise TooLongError(
                f"{len(asks)} prompts are longer than the {limit} tokens {self.name} reads, the "
                f"longest {lengths.max()}",
                asks,
            )

    def _written(
        self,
        prompts: np.ndarray,
        tokens: int,
        samples: int,
        draws: list[np.random.Generator | None],
    ) -> np.ndarray:
        """What is written to prompts of one length. (prompts, samples) str

        `draws`: the numbers of each prompt's samples, one after another; None: greedy.
        """
        with torch.inference_mode():
            ids = torch.from_numpy(prompts).to(self.lm.device)
            out = self.lm.model(**self.lm.inputs(ids), **self._cached, **self._last)
            kept = getattr(out, self._cache, None) if self._cached else None
            # Samples of one prompt read it once.
            logits = out.logits[:, -1].repeat_interleave(samples, 0)
            ids = ids.repeat_interleave(samples, 0)
            if kept is not None and samples > 1:
                kept.batch_repeat_interleave(samples)
            ends = torch.tensor(self._ends, device=ids.device)
            ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
            written = []
            self.effort.arrangement = "prompts of equal lengths"
            self.effort.passes += 1
            self.effort.tokens += prompts.size
            while True:
                chosen = self._chosen(logits, draws).to(ids.device)
                written.append(chosen)
                ended |= torch.isin(chosen, ends)
                if len(written) == tokens or bool(ended.all()):
                    break
                ids = torch.cat([ids, chosen[:, None]], dim=1)
                given = self.lm.inputs(ids)
                if kept is not None:
                    # The mask stays whole: some models read positions off it.
                    given |= {name: given[name][:, -1:] for name in given.keys() - {MASK}}
                    given[self._cache] = kept
                out = self.lm.model(**given, **self._cached, **self._last)
                logits = out.logits[:, -1]
                self.effort.passes += 1
                self.effort.tokens += given["input_ids"].numel()
            said = torch.stack(written, dim=1).cpu().tolist()
        texts = [self._text(answer) for answer in said]
        return np.asarray(texts, dtype=object).reshape(len(prompts), samples)

    def _chosen(
        self, logits: torch.Tensor, draws: list[np.random.Generator | None]
    ) -> torch.Tensor:
        """The next token of each row. (rows,)"""
        if draws[0] is None:
            return logits.argmax(-1)
        shares = torch.softmax(logits.double() / self.temperature, -1).cumsum(-1)
        points = torch.tensor(
            [draw.random() for draw in draws if draw is not None],
            dtype=shares.dtype,
            device=shares.device,
        )
        # Rounding may leave the last share below 1.
        points = points[:, None] * shares[:, -1:]
        return torch.searchsorted(shares, points, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)

    def _text(self, ids: list[int]) -> str:
        """An answer's text, up to where the model ended it."""
        end = next((at for at, token in enumerate(ids) if token in self._ends), len(ids))
        return str(self.lm.tokenizer.decode(ids[:end], skip_special_tokens=True))


def _distinct(asks: Sequence[Ask]) -> tuple[list[Ask], np.ndarray]:
    """Each ask once, in order of appearance, and which of them each is. (asks,)"""
    number: dict[Ask, int] = {}
    of = [number.setdefault(ask, len(number)) for ask in asks]
    return list(number), np.asarray(of, np.int64)


def _seed(seed: int, prompt: str) -> int:
    """A prompt's own seed, of 64 bits."""
    digest = hashlib.blake2b(f"{seed}\x1f{prompt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _ends(lm: LanguageModel) -> list[int]:
    """The tokens that end an answer: those of the model's generation settings and tokenizer."""
    own = getattr(getattr(lm.model, "generation_config", None), "eos_token_id", None)
    found = own if isinstance(own, list) else [own]
    return sorted({int(end) for end in (*found, lm.tokenizer.eos_token_id) if end is not None})
