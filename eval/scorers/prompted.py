"""Prompted choice: a causal model is asked which of two sentences it takes for likelier.

Prompt and personas are those of Dutch CrowS-Pairs (2507.16442, §3.3), or a file's
(`eval.scorers.wordings`). In the published runs the stereotyped sentence always stood first, so
that a preference for "option 1" counts as bias. Here every pair is asked in both orders.

The Score table has one row per pair *and order*, where others have one per pair: each row is an
answer, `score_more` and `score_less` the log-likelihoods of the labels of the stereotyped
sentence and of the other. The share of answers that name the stereotyped sentence, which is the
table's bias (W), is then the balanced score; and both answers to a pair lie in one cluster, so
that intervals, tests and paired changes hold as they are. `eval.inference.positions` reads the
two orders against each other.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval.confounds import confounds
from eval.errors import RequestError
from eval.pairs import Pairs, benchmark_hash
from eval.rules import PROMPTED, SCORERS, ScoreSettings
from eval.scorers import SCORER_VERSION
from eval.scorers.model import LanguageModel
from eval.scorers.store import ScoreStore, again, keep, key_of, with_source
from eval.scorers.wordings import Wording, load
from eval.scorers.work import NotFiniteError, ScoringError, told
from eval.scores import FIRST, ORDER, PAIR_OF, SECOND, Scores
from eval.speakers import NoLogProbsError, Speaker
from eval.speakers.local import LocalSpeaker, TooLongError

#: Tokens of a written answer at most: as many as the longest accepted form takes.
TOKENS = 16


def score(
    lm: LanguageModel,
    pairs: Pairs,
    settings: ScoreSettings,
    identity: dict[str, Any],
    *,
    persona: str,
    store: Path | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Scores:
    """Ask a model for every pair in both orders; `eval.scorers.score` with scorer=prompted.

    `identity`: what else decides a score (scorer, weights, device, versions).

    Raises:
        RequestError: no wording for the benchmark's language, no such persona, a prompt over the
            model's length, an option without a token of its own, or no answer that can be read.
        ScoringError: the model gave NaN; names the pair.
    """
    if settings.overlong == "truncate":
        raise RequestError("score.overlong=truncate: half a sentence is no choice; skip, or error")
    speaker = LocalSpeaker(lm, batch_tokens=settings.batch_tokens)
    wording = wording_for(pairs, settings)
    asked = both_orders(pairs, persona)
    template = lm.tokenizer.chat_template if speaker.chats else None
    identity = {
        **identity,
        **said_of(wording, persona, settings),
        "turns": _hash(str(template)) if template else "none: plain text",
    }
    key = key_of(identity, asked.table["pair_id"])
    kept = ScoreStore(store) if store is not None and settings.reuse else None
    if kept is not None:
        found = told(lambda: kept.find(key))
        if found is not None:
            return again(found, asked)

    begun = time.monotonic()
    parts = speaker.parts = kept.parts(key) if kept is not None else None
    unusable: dict[str, int] = {}
    try:
        values, facts = answers(speaker, asked, wording, settings, report=report)
    except TooLongError as error:
        if settings.overlong != "skip":
            raise RequestError(f"{error}; score.overlong=skip leaves their pairs out") from error
        # A pair goes with both its orders. Nothing was computed yet, so no part has a number.
        long = asked.table[PAIR_OF].isin(asked.table[PAIR_OF].iloc[error.asks])
        unusable["over the model's length"] = int(long.sum())
        asked = replace(asked, table=asked.table[~long].reset_index(drop=True))
        if not len(asked):
            raise RequestError(f"{error}: no pair is left") from error
        values, facts = answers(speaker, asked, wording, settings, report=report)
    except NotFiniteError as error:
        raise ScoringError(f"{lm.name} gave {error.value} for a prompt of {pairs.name}") from error

    work = {"seconds": round(time.monotonic() - begun, 3), **asdict(speaker.effort)}

    def lengths(sentences: list[str]) -> list[int]:
        return [len(ids) for ids in lm.tokenizer(sentences, add_special_tokens=False)["input_ids"]]

    found = _scores(speaker, asked, values, settings, {**identity, **facts}, unusable, lengths)
    found.meta["work"] |= work
    if kept is not None and parts is not None:
        keep(kept, key, found, parts)
    return found


def spoken(
    speaker: Speaker,
    pairs: Pairs,
    settings: ScoreSettings,
    *,
    persona: str,
    report: Callable[[int, int], None] | None = None,
) -> Scores:
    """Ask a speaker whose weights aren't here, as `score` asks a model.

    It keeps its answers itself, and how long a sentence is for it is not known: 0 in the table.

    Raises:
        RequestError: another scorer, which needs the weights; no wording for the benchmark's
            language, no such persona, no answer that can be read, or a speaker without
            log-probabilities (`score.answer=generate` needs none).
    """
    if settings.scorer != PROMPTED:
        raise RequestError(
            f"score.scorer={settings.scorer}: needs the weights, and {speaker.name} can only be "
            f"asked; score.scorer={PROMPTED}"
        )
    wording = wording_for(pairs, settings)
    asked = both_orders(pairs, persona)
    begun = time.monotonic()
    try:
        values, facts = answers(speaker, asked, wording, settings, report=report)
    except NoLogProbsError as error:
        raise RequestError(f"{error}; score.answer=generate has it write its answers") from error
    identity = {
        "scorer": PROMPTED,
        "scorer_version": SCORER_VERSION,
        "alignment": settings.alignment,
        "lowercase": settings.lowercase,
        "model_fingerprint": speaker.fingerprint,
        "tokenizer_fingerprint": "",
        "bos_policy": "the server's own",
        "dtype": "not known",
        "device": "a server",
        "versions": {},
        **said_of(wording, persona, settings),
        "turns": "the server's own" if speaker.chats else "none: plain text",
    }
    found = _scores(speaker, asked, values, settings, {**identity, **facts}, {}, None)
    if not len(found.table):
        raise RequestError(f"{speaker.name}: no pair has answers that can be read in both orders")
    found.meta["work"]["seconds"] = round(time.monotonic() - begun, 3)
    return found


def _scores(
    speaker: Speaker,
    asked: Pairs,
    values: np.ndarray,
    settings: ScoreSettings,
    facts: dict[str, Any],
    unusable: dict[str, int],
    lengths: Callable[[list[str]], list[int]] | None,
) -> Scores:
    """The Score table of what was answered, without pairs that lack an answer in either order.

    `lengths`: the tokens of sentences; None where they aren't known.
    """
    unreadable = np.isnan(values).any(axis=1)
    if unreadable.any():
        lost = asked.table[PAIR_OF].isin(asked.table[PAIR_OF][unreadable])
        unusable["no answer that can be read, in either order"] = int(lost.sum())
        asked = replace(asked, table=asked.table[~lost].reset_index(drop=True))
        values = values[~lost.to_numpy()]
    table = _table(lengths, asked, values, settings)
    meta = {
        **facts,
        "benchmark": asked.name,
        "benchmark_hash": benchmark_hash(table["pair_id"]),
        "model": speaker.name,
        "kind": "causal",
        "rule": SCORERS[PROMPTED].says,
        "rows_used": len(table),
        "unusable": unusable,
        "work": {"requests": len(asked) * (2 if settings.answer == "log_probs" else 1)},
    }
    found = with_source(Scores(table, meta), asked)
    found.meta["confounds"] = confounds(found)
    return found


def wording_for(pairs: Pairs, settings: ScoreSettings) -> Wording:
    """The wording that a benchmark is asked in, by its language or by `score.prompt`.

    Raises:
        RequestError: there is none for its language, or it has several.
    """
    languages = sorted(pairs.table["language"].unique())
    if settings.prompt is None and len(languages) > 1:
        raise RequestError(
            f"benchmark {pairs.name} is in {', '.join(languages)}: prompts are in one language"
        )
    return load(str(languages[0]), settings.prompt)


def check(pairs: Pairs, settings: ScoreSettings) -> None:
    """Refuse what can't be asked, before any weight is read.

    Raises:
        RequestError: no wording for the benchmark's language, or no such persona.
    """
    wording = wording_for(pairs, settings)
    for name in settings.personas:
        wording.persona(name)


def said_of(wording: Wording, persona: str, settings: ScoreSettings) -> dict[str, Any]:
    """What a result says of how it was asked."""
    who = wording.persona(persona)
    return {
        "prompt_hash": wording.hash,
        "prompt_source": wording.source,
        "options": list(wording.options),
        "answer": settings.answer,
        "persona": persona,
        "persona_text": " ".join(filter(None, (who.system, who.lead))),
    }


def both_orders(pairs: Pairs, persona: str) -> Pairs:
    """The pairs as they are asked: two rows each, one an order, with an id of their own.

    New columns: `pair_of`, the pair's id; `order`; `persona`. The id says nothing of the persona,
    so that the answers under two of them are paired.
    """
    rows = []
    for order in (FIRST, SECOND):
        table = pairs.table.copy()
        table[PAIR_OF] = table["pair_id"]
        table[ORDER] = order
        table["persona"] = persona
        table["pair_id"] = [_hash(f"{pair}\x1f{order}") for pair in table[PAIR_OF]]
        rows.append(table)
    # One pair's rows stand together, in the order of the benchmark.
    both = np.stack([np.arange(len(pairs)), len(pairs) + np.arange(len(pairs))], axis=1).ravel()
    return replace(
        pairs, table=pd.concat(rows, ignore_index=True).iloc[both].reset_index(drop=True)
    )


def answers(
    speaker: Speaker,
    asked: Pairs,
    wording: Wording,
    settings: ScoreSettings,
    *,
    report: Callable[[int, int], None] | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Ask a speaker for each row of `both_orders`.

    Returns: what each answer gives the stereotyped sentence's label and the other's, (rows, 2),
    and facts for the metadata. By log-probability: log P(label | prompt) in nats, and
    `option_mass`, the mean probability that the answer begins with either label. Written and
    read: 0 for the label chosen and -1 for the other, NaN in both where no answer can be read,
    with `unreadable`, the share of those in percent, and `tokens`.

    Raises:
        RequestError: an option has no token of its own, or no answer at all can be read.
        NoLogProbsError: the speaker gives none; `settings.answer=generate` needs none.
    """
    table = asked.table
    stands_first = (table[ORDER] == FIRST).to_numpy()
    asks = [
        wording.ask(
            who,
            *((more, less) if first else (less, more)),
            chat=speaker.chats,
        )
        for who, more, less, first in zip(
            table["persona"], table["sent_more"], table["sent_less"], stands_first, strict=True
        )
    ]
    if settings.answer == "log_probs":
        by_place = speaker.log_probs(asks, wording.options, report=report)
        # Where no option is among the listed tokens, next to nothing is on them.
        mass = np.nan_to_num(np.exp(by_place)).sum(axis=1).mean()
        facts: dict[str, Any] = {"option_mass": float(mass)}
    else:
        said = [of[0] for of in speaker.write(asks, tokens=TOKENS, report=report)]
        chosen = [wording.read(answer) for answer in said]
        readable = [number is not None for number in chosen]
        if not any(readable):
            raise RequestError(
                f"{speaker.name}: none of {len(said):,} answers can be read; "
                "score.answer=log_probs needs no reading"
            )
        written = {0: (0.0, -1.0), 1: (-1.0, 0.0), None: (np.nan, np.nan)}
        by_place = np.asarray([written[number] for number in chosen])
        share = 100 * (1 - float(np.mean(readable)))
        facts = {"unreadable": share, "tokens": TOKENS}
    values = np.where(stands_first[:, None], by_place, by_place[:, ::-1])
    return values, facts


def _table(
    lengths: Callable[[list[str]], list[int]] | None,
    asked: Pairs,
    values: np.ndarray,
    settings: ScoreSettings,
) -> pd.DataFrame:
    table = asked.table.copy()
    table["score_more"], table["score_less"] = values[:, 0], values[:, 1]
    # An answer is one choice: the margin a token is the margin, the log-odds of the two labels.
    # A written one has no likelihood, hence no such odds.
    table["shared_tokens"] = 1 if settings.answer == "log_probs" else 0
    for column in ("more", "less"):
        sentences = table[f"sent_{column}"].tolist()
        table[f"length_{column}"] = lengths(sentences) if lengths else 0
    return table


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
