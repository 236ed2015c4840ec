"""Sentence completion: a Prompt table and a model in, a Completion table out (2601.20731, §4.2).

A masked model gives its likeliest words at a mask in the word's place. A causal one is asked to
put one word there, in the paper's wordings, or goes on with the sentence where it knows no turns.
"""

import math
import operator
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch

from eval.benchmarks.filters import sample_prompts
from eval.completions import COMPLETION_COLUMNS, Completions
from eval.errors import RequestError
from eval.instructions import (
    PLACE,
    PLAIN,
    CompletionSettings,
    decoding_of,
    first_word,
    instruction,
    only_word,
    wording_of,
    wordings,
)
from eval.prompts import Prompts
from eval.scorers import ScoringError
from eval.scorers.answers import Answer, AnswerStore
from eval.scorers.batching import Effort, TokenBudget, Tokens, default_budget, equal_lengths
from eval.scorers.head import Head
from eval.scorers.model import LanguageModel
from eval.scorers.plan import max_length
from eval.scorers.store import versions
from eval.scorers.vocabulary import words
from eval.scorers.work import ranks, told
from eval.speakers import Ask, Speaker
from eval.speakers.local import LocalSpeaker

#: Results of different versions are never compared: raise it with every change of a word.
COMPLETIONS_VERSION = "1"
#: Prompts that are answered together at first, and at most: twice as many as long as they take
#: less than LOSS seconds, so that a killed run loses little and a fast one has full batches.
CHUNK, MOST, LOSS = 16, 512, 20.0


class _Answering(Protocol):
    """A way of completing prompts."""

    identity: dict[str, Any]  # everything that decides an answer but the prompts
    meta: dict[str, Any]  # and what else is said of it

    def answer(self, prompts: pd.DataFrame) -> list[list[Answer]]:
        """The answers to each prompt, by rank, on every process."""
        ...

    def lengths(self, prompts: pd.DataFrame) -> np.ndarray:
        """How long each prompt is; those of one length are cheap together. (prompts,)"""
        ...


def complete(
    model: LanguageModel | Speaker,
    prompts: Prompts,
    settings: CompletionSettings,
    *,
    store: Path | None = None,
    batch_tokens: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Completions:
    """Complete every prompt: a row per prompt and rank, the Prompt table's columns first.

    Masked: ranks 0 … top - 1 are the likeliest words with their log-probability in nats, over
    the whole vocabulary. Causal: rank 0 is the greedy answer; where samples are drawn, ranks 1 …
    top are those, at the model's own temperature. So rank 0 is the paper's top-1 for either kind;
    `meta["decoding"]["ranks"]` says which are the `first` and which the `several`, its top-5.

    Under torch.distributed the work is shared out; every process returns the whole table.
    `store` is a folder in which finished answers, and those of a killed job, are found again.
    `report(done, total)` counts prompts.

    Raises:
        RequestError: settings that don't fit the model, no wording in the prompts' language, a
            prompt over the model's length, or one in which there isn't one mask.
        ScoringError: the model gave NaN; names the prompt.
    """
    language = str(prompts.table["language"].iloc[0])
    answering: _Answering
    if isinstance(model, LanguageModel) and model.kind == "masked":
        answering = _Masked(model, settings, batch_tokens)
    else:
        answering = _Spoken(model, settings, language, batch_tokens)
    kept = AnswerStore(store, answering.identity, prompts) if store is not None else None
    stored: Completions | None = told(kept.find) if kept is not None else None
    if stored is None:
        found = _completed(answering, prompts, kept, report)
    else:
        work = {**stored.meta["work"], "reused": True}
        meta = {**stored.meta, "source": prompts.source, "work": work}
        found = Completions(_joined(prompts, stored.table), meta)
    asked = min(settings.trial, len(prompts)) if isinstance(answering, _Spoken) else 0
    untried = asked and found.meta.get("trial", {}).get("prompts") != asked
    if untried and isinstance(answering, _Spoken):
        found.meta["trial"] = answering.trial(prompts, settings)
    if kept is not None and (stored is None or untried):
        told(partial(kept.keep, found))
    return found


def _completed(
    answering: _Answering,
    prompts: Prompts,
    kept: AnswerStore | None,
    report: Callable[[int, int], None] | None,
) -> Completions:
    """Answer every prompt that earlier work has not, and make the table of all."""
    begun = time.monotonic()
    answers: dict[int, list[Answer]] = told(kept.read) if kept is not None else {}
    answers = {number: some for number, some in answers.items() if number < len(prompts)}
    known = len(answers)
    # Prompts of one length go together, so that batches are full.
    order = np.argsort(answering.lengths(prompts.table), kind="stable").tolist()
    left = [at for at in order if at not in answers]
    main, size = ranks()[0] == 0, CHUNK
    while left:
        numbers, left, chunk_begun = left[:size], left[size:], time.monotonic()
        new = dict(zip(numbers, answering.answer(prompts.table.iloc[numbers]), strict=True))
        answers |= new
        if kept is not None and main:
            kept.add(new)
        if report is not None:
            report(len(answers), len(prompts))
        if told(partial(operator.lt, time.monotonic() - chunk_begun, LOSS)):
            size = min(2 * size, MOST)
    rows = [
        (prompt, rank, *answer)
        for number, prompt in enumerate(prompts.table["prompt_id"])
        for rank, answer in enumerate(answers[number])
    ]
    table = _joined(prompts, pd.DataFrame(rows, columns=["prompt_id", *COMPLETION_COLUMNS]))
    meta = {
        **answering.identity,
        **answering.meta,
        "benchmark": prompts.name,
        "benchmark_hash": prompts.hash,
        "language": str(prompts.table["language"].iloc[0]),
        "prompts": len(prompts),
        "usable": float((table["word"] != "").mean()),
        "judges": [],
        "source": prompts.source,
        "work": {"found": known, "seconds": round(time.monotonic() - begun, 3)},
    }
    return Completions(table, meta)


def _joined(prompts: Prompts, answers: pd.DataFrame) -> pd.DataFrame:
    """Answers with the benchmark's columns as it is read now, in its order."""
    return prompts.table.merge(answers, on="prompt_id", how="left", validate="one_to_many")


class _Masked:
    """The likeliest words of a masked model at the place of the word."""

    def __init__(self, lm: LanguageModel, settings: CompletionSettings, batch_tokens: int | None):
        kind = decoding_of(settings, "masked", lm.name)
        if lm.tokenizer.mask_token_id is None:
            raise RequestError(f"{lm.name}: a masked model's tokenizer needs a mask token")
        self.lm, self.top = lm, settings.top
        self.words = words(lm.tokenizer)
        if len(self.words) < self.top:
            raise RequestError(
                f"completion.top={self.top}: {lm.name} has {len(self.words)} words of its own"
            )
        self._usable = torch.zeros(max(self.words) + 1, dtype=torch.bool)
        self._usable[list(self.words)] = True
        self._budget = TokenBudget(batch_tokens or default_budget(lm))
        self._head: Head | None = None
        self.identity: dict[str, Any] = {
            "scorer": "completions",
            "scorer_version": COMPLETIONS_VERSION,
            "kind": "masked",
            "model_fingerprint": lm.fingerprint,
            "tokenizer_fingerprint": lm.tokenizer_fingerprint,
            "language_id": lm.language_id,
            "dtype": lm.precision,
            "device": lm.device.type,
            "wording": "mask",
            "decoding": {
                "kind": kind,
                "how_many": self.top,
                "ranks": {"first": [0], "several": list(range(self.top))},
            },
            "versions": versions(),
        }
        self.meta = {"model": lm.name, "words": len(self.words)}

    def lengths(self, prompts: pd.DataFrame) -> np.ndarray:
        return _tokens_of(self.lm, prompts)

    def answer(self, prompts: pd.DataFrame) -> list[list[Answer]]:
        tokens, places = self._encoded(prompts)
        lengths = tokens.lengths
        rank, world = ranks()
        order = np.argsort(-lengths, kind="stable")[rank::world]
        found: dict[int, np.ndarray] = {}

        def forward(items: np.ndarray) -> np.ndarray:
            ids = torch.from_numpy(tokens.block(items)).to(self.lm.device)
            at = torch.from_numpy(places[items]).to(self.lm.device)
            return self._likeliest(ids, at)

        for items, values in equal_lengths(order, lengths, self._budget, len(order), forward):
            found |= zip(items.tolist(), values, strict=True)
        if world > 1:
            everyone: list[Any] = [None] * world
            torch.distributed.all_gather_object(everyone, found)
            found = {item: values for part in everyone for item, values in part.items()}
        answers = []
        for item, prompt in enumerate(prompts["prompt_id"]):
            if not np.isfinite(found[item]).all():
                raise ScoringError(f"{self.lm.name} gave no finite number for prompt {prompt}")
            said = [(self.words[int(id_)], float(value)) for id_, value in found[item]]
            answers.append([Answer(word, word, value) for word, value in said])
        return answers

    def _likeliest(self, ids: torch.Tensor, at: torch.Tensor) -> np.ndarray:
        """Ids of the likeliest words at one place of each row, and their nats. (rows, top, 2)"""
        inputs, rows = self.lm.inputs(ids), torch.arange(len(ids), device=ids.device)
        if self._head is None:
            few = slice(0, 4)
            self._head = Head.checked(self.lm, self.lm.inputs(ids[few]), rows[few], at[few])
        found = []
        with torch.inference_mode():
            for block in self._head.logits(inputs, rows, at, Effort()):
                logits = block.double()
                usable = self._usable.to(logits.device)
                wanted = logits[:, : len(usable)].masked_fill(~usable, -math.inf)
                best, which = wanted.topk(self.top, dim=-1)
                nats = best - logits.logsumexp(-1, keepdim=True)
                found.append(torch.stack([which.double(), nats], dim=-1).cpu())
        return torch.cat(found).numpy()

    def _encoded(self, prompts: pd.DataFrame) -> tuple[Tokens, np.ndarray]:
        """Prompts with the mask in the word's place as ids, and where it stands in each."""
        mask = self.lm.tokenizer
        texts = prompts["text"] + f" {mask.mask_token}" + prompts["after"]
        ids = mask(texts.tolist(), verbose=False)["input_ids"]
        limit = max_length(self.lm)
        for prompt, row in zip(prompts["prompt_id"], ids, strict=True):
            if row.count(mask.mask_token_id) != 1:
                raise RequestError(
                    f"prompt {prompt}: holds {mask.mask_token} itself; take it out of its template"
                )
            if len(row) > limit:
                raise RequestError(
                    f"prompt {prompt}: {len(row)} tokens; {self.lm.name} reads {limit}"
                )
        return Tokens.of(ids), np.asarray([row.index(mask.mask_token_id) for row in ids])


class _Spoken:
    """What a causal model says when it is asked, or how it goes on."""

    def __init__(
        self,
        model: LanguageModel | Speaker,
        settings: CompletionSettings,
        language: str,
        batch_tokens: int | None,
    ):
        lm = model if isinstance(model, LanguageModel) else None
        self.speaker: Speaker = (
            LocalSpeaker(model, batch_tokens=batch_tokens)
            if isinstance(model, LanguageModel)
            else model
        )
        self.kind = decoding_of(settings, "causal", self.speaker.name)
        self.wording = wording_of(settings, language, self.speaker.chats)
        self.language, self.settings = language, settings
        self.blanks = lm is not None and _writes_blanks(lm)
        samples = settings.top if self.kind == "samples" else 0
        self.identity: dict[str, Any] = {
            "scorer": "completions",
            "scorer_version": COMPLETIONS_VERSION,
            "kind": "causal",
            "model_fingerprint": self.speaker.fingerprint,
            "tokenizer_fingerprint": lm.tokenizer_fingerprint if lm is not None else "",
            "dtype": lm.precision if lm is not None else "",
            "device": lm.device.type if lm is not None else "",
            "wording": self.wording,
            "instruction": self._instruction(self.wording),
            "chat": self.speaker.chats and self.wording != PLAIN,
            "decoding": {
                "kind": self.kind,
                "how_many": settings.top,
                "tokens": settings.tokens,
                # None: the other side's own, which we don't know.
                "temperature": getattr(self.speaker, "temperature", None) if samples else 0.0,
                "seed": settings.seed if samples else None,
                "ranks": {"first": [0], "several": list(range(1, samples + 1)) or [0]},
            },
            "versions": versions(),
        }
        self.meta: dict[str, Any] = {"model": self.speaker.name}
        self._lm = lm

    def lengths(self, prompts: pd.DataFrame) -> np.ndarray:
        if self._lm is None:
            return prompts["text"].str.len().to_numpy()
        return _tokens_of(self._lm, prompts)

    def answer(self, prompts: pd.DataFrame) -> list[list[Answer]]:
        asks = self._asks(prompts, self.wording)
        said = self.speaker.write(asks, tokens=self.settings.tokens)
        if self.kind == "samples":
            drawn = self.speaker.write(
                asks,
                tokens=self.settings.tokens,
                samples=self.settings.top,
                greedy=False,
                seed=self.settings.seed,
            )
            said = [[*first, *others] for first, others in zip(said, drawn, strict=True)]
        return [[Answer(one, self._word(one), math.nan) for one in some] for some in said]

    def trial(self, prompts: Prompts, settings: CompletionSettings) -> dict[str, Any]:
        """The usable share of greedy answers in every wording, on the same sample of prompts."""
        some = sample_prompts(prompts.table, settings.trial, settings.seed)
        usable = {}
        for name in wordings(self.language):
            said = self.speaker.write(self._asks(some, name), tokens=settings.tokens)
            usable[name] = sum(bool(only_word(one)) for one, *_ in said) / len(some)
        return {"prompts": len(some), "usable": usable}

    def _asks(self, prompts: pd.DataFrame, wording: str) -> list[Ask]:
        if wording == PLAIN:
            return [Ask(text, chat=False) for text in prompts["text"]]
        said = instruction(wording, self.language)
        sentences = prompts["text"] + f" {PLACE}" + prompts["after"]
        return [Ask(f"{said} {sentence}", chat=self.speaker.chats) for sentence in sentences]

    def _instruction(self, wording: str) -> str:
        return "" if wording == PLAIN else instruction(wording, self.language)

    def _word(self, said: str) -> str:
        return first_word(said, self.blanks) if self.wording == PLAIN else only_word(said)


def _tokens_of(lm: LanguageModel, prompts: pd.DataFrame) -> np.ndarray:
    """The tokens of each prompt's sentence. (prompts,)"""
    texts = (prompts["text"] + prompts["after"]).tolist()
    ids = lm.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return np.asarray([len(row) for row in ids])


def _writes_blanks(lm: LanguageModel) -> bool:
    """Whether the model's text keeps the blank before a word that it begins with."""
    ids = lm.tokenizer("x a", add_special_tokens=False)["input_ids"]
    return str(lm.tokenizer.decode(ids[-1:])).startswith(" ")
