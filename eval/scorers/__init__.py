"""Scorers: a Pair table and a model in, a Score table out."""

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from eval.confounds import confounds
from eval.errors import RequestError
from eval.pairs import Pairs, benchmark_hash
from eval.rules import ScoreSettings, rule_for
from eval.scorers import causal, precision
from eval.scorers.batching import Effort, TokenBudget, default_budget
from eval.scorers.model import LanguageModel
from eval.scorers.plan import Plan, encode_all, max_length, plan
from eval.scorers.store import ScoreStore, again, counted, keep, key_of, versions, with_source
from eval.scorers.work import NotFiniteError, ScoringError, log_probs, told
from eval.scores import TERM_COLUMNS, Scores

__all__ = [
    "SCORER_VERSION",
    "ScoreSettings",
    "ScoringError",
    "encode_all",
    "max_length",
    "score",
]

#: Results of different versions are never compared: raise it with every change of a score.
SCORER_VERSION = "1"


def score(
    lm: LanguageModel,
    pairs: Pairs,
    settings: ScoreSettings,
    *,
    store: Path | None = None,
    noise: bool = True,
    persona: str | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Scores:
    """Score every pair: by default the summed log-likelihood of the shared tokens.

    Under torch.distributed the work is shared out; every process returns the whole table.
    `store` is a folder for scores that are finished or on their way; with `settings.reuse`
    what is in there isn't computed again. In half precision the result says how much noise that
    is; `noise=False` saves the weights in float32 that this takes for a while.
    `persona`: whom a prompted model is asked as, by default the first of the settings.
    `report(done, total)` counts this process's requests.

    Raises:
        RequestError: the scorer is none for this model, a sentence is over the model's length,
            a masked model's tokenizer has no mask token, or no pair has a token to score.
        ScoringError: the model gave NaN; names the pair.
    """
    name, rule = rule_for(settings.scorer, lm.kind, lm.name)
    if rule.hidden != "nothing" and lm.tokenizer.mask_token_id is None:
        raise RequestError(f"{lm.name}: a masked scorer needs a tokenizer with a mask token")
    identity = _identity(lm, name, settings)
    if rule.tokens == "options":
        from eval.scorers import prompted  # whose speaker is made of scorers' parts

        _warn_of_folding(lm, pairs)
        return prompted.score(
            lm,
            pairs,
            settings,
            identity,
            persona=persona or settings.personas[0],
            store=store,
            report=report,
        )
    if rule.tokens == "shared":
        identity["terms"] = "left to right" if settings.terms else "none"
    key = key_of(identity, pairs.table["pair_id"])
    kept = ScoreStore(store) if store is not None and settings.reuse else None
    if kept is not None:
        found = told(lambda: kept.find(key))
        if found is not None:
            return again(found, pairs)

    begun = time.monotonic()
    planned = plan(lm, pairs, rule, settings)
    _warn_of_folding(lm, pairs)
    planning = time.monotonic() - begun
    parts = kept.parts(key) if kept is not None else None
    budget = TokenBudget(settings.batch_tokens or default_budget(lm))
    effort = Effort()

    def computed(numbers: np.ndarray | None = None, **how: Any) -> np.ndarray:
        """The values of all requests, or of some by their numbers, the others NaN."""
        wanted = planned.requests if numbers is None else planned.requests.only(numbers)
        values = np.full(len(planned.requests), np.nan)
        try:
            values[slice(None) if numbers is None else numbers] = log_probs(
                lm, wanted, budget=budget, **how
            )
        except NotFiniteError as error:
            at = error.request if numbers is None else int(numbers[error.request])
            raise ScoringError(
                f"{lm.name} gave {error.value} for pair "
                f"{pairs.table['pair_id'].iloc[planned.pair_of(at)]} of {pairs.name}"
            ) from error
        return values

    values = computed(effort=effort, parts=parts, report=report)
    total = planned.scores(values, rule.combined)
    if parts is not None and parts.damaged:
        warnings.warn(
            f"{parts.damaged} damaged part files of earlier work were computed again", stacklevel=2
        )
    table = _table(pairs, planned, total, planned.term_scores(values))
    meta = {
        **identity,
        "benchmark": pairs.name,
        "benchmark_hash": benchmark_hash(table["pair_id"]),
        "model": lm.name,
        "kind": lm.kind,
        "rule": rule.says,
        "rows_used": len(table),
        "unusable": counted(planned.unusable.values()),
        "work": {
            "requests": len(planned.requests),
            "distinct_sentences": len(planned.requests.tokens),
            "distinct_tokens": int(planned.requests.tokens.starts[-1]),
            "planning_seconds": round(planning, 3),
            "seconds": round(time.monotonic() - begun, 3),
            "batch_tokens": budget.tokens,
            "budget_halved": budget.halved,
            **asdict(effort),
        },
    }
    if noise and lm.dtype in (torch.float16, torch.bfloat16):

        def exact(some: np.ndarray) -> np.ndarray:
            with precision.in_float32(lm.model):
                again = computed(planned.of_pairs(some), effort=Effort())
            both = planned.scores(again, rule.combined)[some]
            return both[:, 0] - both[:, 1]

        meta["noise"] = (
            precision.noise(total[:, 0] - total[:, 1], exact)
            if precision.measurable(lm.model)
            else None
        )
    found = with_source(Scores(table, meta), pairs)
    found.meta["confounds"] = confounds(found)
    if kept is not None and parts is not None:
        keep(kept, key, found, parts)
    return found


def _identity(lm: LanguageModel, scorer: str, settings: ScoreSettings) -> dict[str, Any]:
    """Everything that decides a score but the pairs."""
    changed = {"decoding": lm.decoding} if lm.decoding else {}
    return {
        **changed,
        "scorer": scorer,
        "scorer_version": SCORER_VERSION,
        "alignment": settings.alignment,
        "lowercase": settings.lowercase,
        "overlong": settings.overlong,
        "tokenizer_lowercases": _lowercases(lm),
        "model_fingerprint": lm.fingerprint,
        "tokenizer_fingerprint": lm.tokenizer_fingerprint,
        "bos_policy": causal.bos_policy(lm)[0] if lm.kind == "causal" else "none: masked",
        "language_id": lm.language_id,
        "dtype": lm.precision,
        "device": lm.device.type,
        "versions": versions(),
    }


def _table(
    pairs: Pairs, planned: Plan, total: np.ndarray, terms: np.ndarray | None
) -> pd.DataFrame:
    table = pairs.table.iloc[planned.kept].reset_index(drop=True)
    table["score_more"], table["score_less"] = total[:, 0], total[:, 1]
    # A token that both sentences share counts once, in a scorer of all tokens the fewer.
    table["shared_tokens"] = planned.counts.min(axis=1)
    table["length_more"], table["length_less"] = planned.lengths[:, 0], planned.lengths[:, 1]
    if terms is not None:
        for side, column in enumerate(TERM_COLUMNS):
            table[column] = terms[:, side]
    return table


def _lowercases(lm: LanguageModel) -> bool:
    """Whether the tokenizer makes upper and lower case one, found out by trying."""
    upper, small = lm.tokenizer(["QUEER HOMO", "queer homo"], add_special_tokens=False)["input_ids"]
    return bool(upper == small and upper != [lm.tokenizer.unk_token_id] * len(upper))


def _warn_of_folding(lm: LanguageModel, pairs: Pairs) -> None:
    """Warn where the tokenizer makes one of two words of the benchmark (möchte, mochte)."""
    words = sorted(
        {
            word.strip(".,;:!?\"'()")
            for column in ("sent_more", "sent_less")
            for sentence in pairs.table[column].unique()
            for word in sentence.lower().split()
        }
    )
    seen: dict[tuple[int, ...], str] = {}
    folded = []
    unknown = lm.tokenizer.unk_token_id
    for word, ids in zip(
        words, lm.tokenizer(words, add_special_tokens=False)["input_ids"], strict=True
    ):
        if unknown in ids or not ids:
            continue
        other = seen.setdefault(tuple(ids), word)
        if other != word:
            folded.append(f"{other}/{word}")
    if folded:
        warnings.warn(
            f"{lm.name}'s tokenizer can't tell {len(folded)} pairs of words apart: "
            f"{', '.join(folded[:5])}",
            stacklevel=3,
        )
