"""Scorers: a Pair table and a model in, a Score table out."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from eval.errors import RequestError
from eval.pairs import Pairs, benchmark_hash
from eval.scorers import causal, masked
from eval.scorers.batching import share_out
from eval.scorers.model import LanguageModel
from eval.scorers.spans import Encoded, encode, lower, shared
from eval.scores import Scores

#: Results of different versions are never compared: raise it with every change of a score.
SCORER_VERSION = "1"


@dataclass
class ScoreSettings:
    """What changes the measure, or its cost."""

    alignment: str = "tokens"  # tokens: the published rule; words: pieces of a word never shared
    lowercase: str = "auto"  # auto: as the tokenizer does; true: the Dutch paper's scripts; false
    batch_tokens: int = 8192  # tokens in a forward pass, at most
    overlong: str = "error"  # sentences over the model's length: error, skip, truncate


class ScoringError(RuntimeError):
    """A model gave no number where there must be one."""


def score(
    lm: LanguageModel,
    pairs: Pairs,
    settings: ScoreSettings,
    *,
    report: Callable[[int, int], None] | None = None,
) -> Scores:
    """Score every pair: the summed log-likelihood of the shared tokens of both sentences.

    Under torch.distributed the distinct sentences are shared out; every process returns the
    whole table. `report(done, total)` counts this process's requests.

    Raises:
        RequestError: a sentence is over the model's length, a masked model's tokenizer has no
            mask token, or no pair shares a token.
        ScoringError: the model gave NaN; names the pair.
    """
    report = report or (lambda done, total: None)
    if lm.kind == "masked" and lm.tokenizer.mask_token_id is None:
        raise RequestError(f"{lm.name}: a masked scorer needs a tokenizer with a mask token")
    table = pairs.table
    more = lower(table["sent_more"].tolist(), settings.lowercase)
    less = lower(table["sent_less"].tolist(), settings.lowercase)
    sentences = list(dict.fromkeys([*more, *less]))
    number = {sentence: index for index, sentence in enumerate(sentences)}
    encoded = encode_all(lm, sentences, settings.alignment)
    _warn_of_folding(lm, sentences)

    spans = [
        shared(encoded[number[left]], encoded[number[right]])
        for left, right in zip(more, less, strict=True)
    ]
    unusable = _unusable(lm, encoded, spans, more, less, number, settings)
    kept = [index for index in range(len(table)) if index not in unusable]
    if not kept:
        raise RequestError(f"benchmark {pairs.name}: no pair has shared tokens to score")
    wanted: list[set[int]] = [set() for _ in sentences]
    for index in kept:
        wanted[number[more[index]]].update(spans[index][0])
        wanted[number[less[index]]].update(spans[index][1])
    values = _values(lm, encoded, wanted, settings, report)

    total = np.empty((len(kept), 2))
    for line, index in enumerate(kept):
        for side, sentence in enumerate((more[index], less[index])):
            of = values[number[sentence]]
            total[line, side] = sum(of[place] for place in spans[index][side])
        if not np.isfinite(total[line]).all():
            raise ScoringError(
                f"{lm.name} gave {total[line].tolist()} for pair "
                f"{table['pair_id'].iloc[index]} of {pairs.name}"
            )
    scored = table.iloc[kept].reset_index(drop=True)
    scored["score_more"], scored["score_less"] = total[:, 0], total[:, 1]
    scored["shared_tokens"] = [len(spans[index][0]) for index in kept]
    scored["length_more"] = [encoded[number[more[index]]].length for index in kept]
    scored["length_less"] = [encoded[number[less[index]]].length for index in kept]
    reasons = pd.Series([*unusable.values(), *pairs.left_out["reason"]], dtype=object)
    return Scores(scored, _meta(lm, pairs, scored, settings, reasons))


def encode_all(
    lm: LanguageModel, sentences: Sequence[str], alignment: str = "tokens"
) -> list[Encoded]:
    """Tokenize; for a causal model on ids alone, with exactly one BOS in front.

    Raises:
        RequestError: `alignment=words` with a tokenizer that can't tell words apart.
    """
    words = alignment == "words"
    try:
        encoded = [encode(lm.tokenizer, sentence, words=words) for sentence in sentences]
    except ValueError as error:
        raise RequestError(f"{lm.name}: {error}") from error
    if lm.kind == "causal":
        _, bos = causal.bos_policy(lm)
        encoded = [_with_one_bos(sentence, bos) for sentence in encoded]
    return encoded


def _with_one_bos(sentence: Encoded, bos: int | None) -> Encoded:
    """Drop whatever special tokens the tokenizer added and put one BOS in front."""
    keep = [index for index, special in enumerate(sentence.special) if not special]
    front = () if bos is None else (bos,)
    ids = (*front, *(sentence.ids[index] for index in keep))
    words = sentence.words
    if words is not None:
        words = (*(-1 for _ in front), *(words[index] for index in keep))
    return Encoded(ids, (*(True for _ in front), *(False for _ in keep)), words)


def max_length(lm: LanguageModel) -> int:
    """Tokens, special ones included, that the model reads at most."""
    limits = [lm.tokenizer.model_max_length]
    config = lm.model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or getattr(
        config, "n_positions", None
    )
    if positions:
        # RoBERTa's positions, and CamemBERT's, begin after the padding id.
        offset = (config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
        offset = offset or (
            (config.pad_token_id or 0) + 1 if config.model_type == "camembert" else 0
        )
        limits.append(positions - offset)
    return int(min(limits))


def _unusable(
    lm: LanguageModel,
    encoded: list[Encoded],
    spans: list[tuple[list[int], list[int]]],
    more: list[str],
    less: list[str],
    number: dict[str, int],
    settings: ScoreSettings,
) -> dict[int, str]:
    """Pairs that can't be scored, by index, with the reason; truncates where that is asked."""
    longest = max_length(lm)
    unusable: dict[int, str] = {}
    overlong = [index for index, sentence in enumerate(encoded) if len(sentence.ids) > longest]
    if overlong and settings.overlong == "error":
        raise RequestError(
            f"{len(overlong)} sentences are longer than the {longest} tokens {lm.name} reads, the "
            f"longest {max(len(encoded[index].ids) for index in overlong)}; "
            "score.overlong=skip or score.overlong=truncate"
        )
    too_long = set(overlong)
    for index, (left, right) in enumerate(zip(more, less, strict=True)):
        numbers = number[left], number[right]
        if too_long.intersection(numbers):
            if settings.overlong == "skip":
                unusable[index] = "over the model's length"
                continue
            # A shared token that one side would lose is dropped on both.
            first_lost = [_first_lost(encoded[sentence], longest) for sentence in numbers]
            spans[index] = _cut(spans[index], *first_lost)
        if lm.kind == "causal":
            spans[index] = _with_context(spans[index])
        if not spans[index][0]:
            unusable[index] = "no shared token"
    for index in overlong:
        encoded[index] = _truncated(encoded[index], longest)
    return unusable


def _first_lost(sentence: Encoded, longest: int) -> int:
    """The first position that truncation takes away; the closing special tokens stay."""
    if len(sentence.ids) <= longest:
        return longest
    closing = itertools.takewhile(bool, reversed(sentence.special))
    return longest - len(list(closing))


def _truncated(sentence: Encoded, longest: int) -> Encoded:
    """Cut a sentence to `longest` tokens, its closing special tokens ([SEP]) among them."""
    end = _first_lost(sentence, longest)
    places = [*range(end), *range(len(sentence.ids) - (longest - end), len(sentence.ids))]
    words = sentence.words
    return Encoded(
        tuple(sentence.ids[place] for place in places),
        tuple(sentence.special[place] for place in places),
        None if words is None else tuple(words[place] for place in places),
    )


def _cut(span: tuple[list[int], list[int]], left: int, right: int) -> tuple[list[int], list[int]]:
    """Only the shared tokens that stand before `left` and `right` in their sentences."""
    kept = [(a, b) for a, b in zip(*span, strict=True) if a < left and b < right]
    return [a for a, _ in kept], [b for _, b in kept]


def _with_context(span: tuple[list[int], list[int]]) -> tuple[list[int], list[int]]:
    """Without a BOS, the first token has nothing before it and is scored on neither side."""
    kept = [(a, b) for a, b in zip(*span, strict=True) if a > 0 and b > 0]
    return [a for a, _ in kept], [b for _, b in kept]


def _values(
    lm: LanguageModel,
    encoded: list[Encoded],
    wanted: list[set[int]],
    settings: ScoreSettings,
    report: Callable[[int, int], None],
) -> list[dict[int, float]]:
    """Log-probabilities at the wanted positions of every sentence, the work shared out."""

    def work(mine: list[int]) -> list[dict[int, float]]:
        sequences = [encoded[index].ids for index in mine]
        if lm.kind == "masked":
            return masked.token_log_probs(
                lm,
                sequences,
                [sorted(wanted[index]) for index in mine],
                batch_tokens=settings.batch_tokens,
                report=report,
            )
        rows = causal.token_log_probs(
            lm, sequences, batch_tokens=settings.batch_tokens, report=report
        )
        return [
            {place: row[place] for place in wanted[index]}
            for index, row in zip(mine, rows, strict=True)
        ]

    needed = [index for index, places in enumerate(wanted) if places]
    lengths = [len(encoded[index].ids) for index in needed]
    found = share_out(lengths, lambda mine: work([needed[index] for index in mine]))
    values: list[dict[int, float]] = [{} for _ in encoded]
    for index, row in zip(needed, found, strict=True):
        values[index] = row
    return values


def _warn_of_folding(lm: LanguageModel, sentences: list[str]) -> None:
    """Warn where the tokenizer makes one of two words of the benchmark (möchte, mochte)."""
    words = sorted({word for sentence in sentences for word in sentence.lower().split()})
    seen: dict[tuple[int, ...], str] = {}
    folded = []
    unknown = lm.tokenizer.unk_token_id
    for word, ids in zip(
        words, lm.tokenizer(words, add_special_tokens=False)["input_ids"], strict=True
    ):
        if unknown in ids:
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


def _meta(
    lm: LanguageModel,
    pairs: Pairs,
    scored: pd.DataFrame,
    settings: ScoreSettings,
    left_out: pd.Series,
) -> dict[str, Any]:
    folds = bool(getattr(lm.tokenizer, "do_lower_case", False))
    return {
        "scorer": "pll" if lm.kind == "masked" else "shared",
        "scorer_version": SCORER_VERSION,
        "alignment": settings.alignment,
        "lowercase": settings.lowercase,
        "tokenizer_lowercases": folds,
        "overlong": settings.overlong,
        "benchmark": pairs.name,
        "benchmark_hash": benchmark_hash(scored["pair_id"]),
        "model": lm.name,
        "kind": lm.kind,
        "model_fingerprint": lm.fingerprint,
        "tokenizer_fingerprint": lm.tokenizer_fingerprint,
        "bos_policy": causal.bos_policy(lm)[0] if lm.kind == "causal" else "none: masked",
        "language_id": lm.language_id,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "rows_used": len(scored),
        "rows_left_out": {str(why): int(count) for why, count in left_out.value_counts().items()},
        "source": pairs.source,
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
    }
