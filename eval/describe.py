"""What a benchmark is made of: counts and labels of a Pair table, never its sentences.

`describe` counts; `tables` lays it out for the terminal, `as_dict` for JSON. Names of stereotypes
and sentences may be slurs, and aren't in it.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from eval.metrics import groups_of
from eval.pairs import Pairs

if TYPE_CHECKING:  # seconds of import that counting needs not
    from transformers import PreTrainedTokenizerBase

SENTENCES = ("sent_more", "sent_less")
#: A label longer than this may be a sentence, and is counted but not printed.
LONGEST_LABEL = 30
#: Of templates and counterfactuals, so many are printed; the others are one row.
MOST_ROWS = 30
#: How the two sentences of a pair may differ, word by word.
DIFFERENCES = ("one span", "several spans", "no word in common", "only case or blanks")

#: Sentences that a tokenizer gets at once.
_CHUNK = 4096


@dataclass(frozen=True)
class Description:
    """What `describe` counted. Shares are percent of the pairs, harm is −1 … 4.

    Tables that a benchmark has nothing for are empty. Where pairs name several groups, a pair
    counts in each of them.
    """

    name: str
    language: str
    hash: str
    facts: dict[str, int | float]  # what is counted once for all pairs
    left_out: pd.DataFrame  # reason, rows
    groups: pd.DataFrame  # group, pairs, share, stereotypes, tier 1 … (stereotypes), harm …
    tiers: pd.DataFrame  # tier, pairs, share, stereotypes
    origins: pd.DataFrame  # origin, pairs, share, stereotypes
    counterfactuals: pd.DataFrame  # counterfactual, pairs, share, stereotypes
    templates: pd.DataFrame  # template, pairs, share, stereotypes
    lengths: pd.DataFrame  # unit (words, tokens), side, min, median, max
    differences: pd.DataFrame  # difference, pairs, share
    shared: pd.DataFrame  # group × group: stereotypes that both have; the diagonal: all it has
    other: pd.DataFrame  # what, in common, of this (percent), of the other (percent)
    other_name: str = ""


def describe(
    pairs: Pairs,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    other: Pairs | None = None,
) -> Description:
    """Count what a benchmark is made of.

    With a tokenizer, lengths are in tokens too, special ones apart. `other` is a second benchmark
    to look for the same sentences, pairs and stereotypes in. Sentences are compared with runs of
    blanks as one.
    """
    table = pairs.table
    return Description(
        name=pairs.name,
        language=", ".join(sorted(set(table["language"]))),
        hash=pairs.hash,
        facts=_facts(pairs),
        left_out=_left_out(pairs),
        groups=_groups(table),
        tiers=_counted(table, "tier"),
        origins=_counted(table, "origin"),
        counterfactuals=_counted(table, "counterfactual"),
        templates=_counted(table, "template"),
        lengths=_lengths(table, tokenizer),
        differences=_differences(table),
        shared=_shared(table),
        other=pd.DataFrame() if other is None else _in_common(table, other.table),
        other_name="" if other is None else other.name,
    )


def tables(description: Description) -> list[tuple[str, pd.DataFrame]]:
    """The titled tables of a description, those with something in them, in order of reading."""
    counts = pd.Series(list(description.facts.values()), dtype=object)  # whole ones stay whole
    facts = pd.DataFrame({"what": list(description.facts), "how many": counts})
    titled = [
        (f"{description.name} ({description.language or 'no language said'})", facts),
        ("Left out", description.left_out),
        ("Groups", description.groups),
        ("Tiers of relevance", description.tiers),
        ("Origins", description.origins),
        ("Counterfactuals", _most(description.counterfactuals)),
        ("Templates", _most(description.templates)),
        ("Lengths", description.lengths),
        ("How the two sentences of a pair differ", description.differences),
        ("Stereotypes that two groups share", description.shared),
        (f"In common with {description.other_name}", description.other),
    ]
    return [(title, frame) for title, frame in titled if len(frame)]


def as_dict(description: Description) -> dict[str, Any]:
    """A description for JSON: each table a list of rows, None where a number is missing."""
    frames = {
        name: [
            {key: _plain(value) for key, value in row.items()} for row in frame.to_dict("records")
        ]
        for name, frame in vars(description).items()
        if isinstance(frame, pd.DataFrame)
    }
    said = {name: getattr(description, name) for name in ("name", "language", "hash", "other_name")}
    return {**said, "facts": description.facts, **frames}


def numbers(table: pd.DataFrame, column: str) -> pd.Series:
    """A column as numbers, NaN where there is none; a CSV file has them as text. (pairs,) float"""
    return pd.to_numeric(table[column], errors="coerce").astype("float64")


def stereotypes_by_group(table: pd.DataFrame) -> dict[str, set[str]]:
    """The stereotypes of each group; a pair that names several counts in each."""
    ids = table["stereotype_id"].to_numpy()
    return {group: set(ids[rows]) for group, rows in groups_of(table).items()}


def _facts(pairs: Pairs) -> dict[str, int | float]:
    table = pairs.table
    sizes = table["stereotype_id"].value_counts()
    sentences = pd.concat([table[side] for side in SENTENCES])
    repeats = sentences.value_counts()
    both = table["sent_more"] + "\n" + table["sent_less"]
    shared = pd.Series([one for ids in stereotypes_by_group(table).values() for one in ids])
    facts: dict[str, int | float] = {
        "pairs": len(table),
        "stereotypes (clusters)": len(sizes),
        "stereotypes with one pair": int((sizes == 1).sum()),
        "stereotypes in several groups": int((shared.value_counts() > 1).sum()),
        "pairs of a stereotype, median": float(sizes.median()),
        "rows left out": len(pairs.left_out),
        "distinct sentences": len(repeats),
        "times the median sentence stands there": float(repeats.median()),
        "times the most frequent sentence stands there": int(repeats.max()),
        "pairs that stand there more than once": int(both.duplicated(keep=False).sum()),
        "pairs with doubled blanks": int(both.str.contains(r"[^\S\n]{2}", regex=True).sum()),
        "pairs with doubled stops": int(both.str.contains(r"(?<!\.)\.\.(?!\.)", regex=True).sum()),
    }
    if "harm_mean" in table:
        harm = _harm(table)
        facts["stereotypes with a harm rating"] = int(harm.notna().sum())
        facts["stereotypes with harm of 0 or less"] = int((harm <= 0).sum())
    return facts


def _left_out(pairs: Pairs) -> pd.DataFrame:
    counts = (
        pairs.left_out["reason"].value_counts() if len(pairs.left_out) else pd.Series(dtype=int)
    )
    return pd.DataFrame({"reason": counts.index, "rows": counts.to_numpy()})


def _harm(table: pd.DataFrame) -> pd.Series:
    """The mean harm of each stereotype, the index; NaN where nobody rated it."""
    return numbers(table, "harm_mean").groupby(table["stereotype_id"]).mean()


def _groups(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each group, the largest first."""
    tiers = _text(table, "tier")
    rows = []
    for group, at in groups_of(table).items():
        own = table.iloc[at]
        row: dict[str, Any] = {
            "group": group,
            "pairs": len(own),
            "share": 100 * len(own) / len(table),
            "stereotypes": own["stereotype_id"].nunique(),
        }
        for tier in sorted({*tiers} - {""}, key=_by_number):
            row[f"tier {tier}"] = own["stereotype_id"][tiers.iloc[at] == tier].nunique()
        if "harm_mean" in table:
            harm = _harm(own)
            row |= {f"harm {name}": getattr(harm, name)() for name in ("mean", "min", "max")}
        rows.append(row)
    rows.sort(key=lambda row: -row["pairs"])
    return pd.DataFrame(rows)


def _counted(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """The values of a column, in the order of their names; empty if there are none."""
    names = ["pairs", "share", "stereotypes"]
    values = _text(table, column)
    if not (values != "").any():
        return pd.DataFrame(columns=[column, *names])
    found = table.groupby(values.rename(column))["stereotype_id"].agg(["size", "nunique"])
    found.insert(1, "share", 100 * found["size"] / len(table))
    found.columns = pd.Index(names)
    order = sorted({*values}, key=_by_number)
    found = found.loc[order].reset_index()
    return found.assign(**{column: _labels(found[column].tolist(), column)})


def _text(table: pd.DataFrame, column: str) -> pd.Series:
    """A column's values as labels, empty where there is none; (pairs,) str."""
    if column not in table:
        return pd.Series("", index=table.index)
    return table[column].astype(object).where(table[column].notna(), "").map(str)


def _by_number(label: str) -> tuple[int, float, str]:
    """1, 2, 11, 1/3, name, and what has no label last."""
    if label.isdecimal():
        return 0, float(label), label
    return (1 if label else 2), 0.0, label


def _labels(values: Iterable[str], column: str) -> list[str]:
    """Labels fit to be printed: what may be a sentence is called by its number instead."""
    return [
        f"{column} no. {at}" if len(value) > LONGEST_LABEL else value or "none"
        for at, value in enumerate(values, 1)
    ]


def _lengths(table: pd.DataFrame, tokenizer: "PreTrainedTokenizerBase | None") -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for side in SENTENCES:
        sentences = table[side].tolist()
        counts = {"words": np.array([len(sentence.split()) for sentence in sentences])}
        if tokenizer is not None:
            counts["tokens"] = _tokens(sentences, tokenizer)
        for unit, lengths in counts.items():
            rows.append(
                {
                    "unit": unit,
                    "side": side,
                    "min": int(lengths.min()),
                    "median": float(np.median(lengths)),
                    "max": int(lengths.max()),
                }
            )
    rows.sort(key=lambda row: row["unit"] == "tokens")
    return pd.DataFrame(rows)


def _tokens(sentences: Sequence[str], tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """How many tokens each sentence has, special ones apart; (sentences,) int."""
    distinct = list(dict.fromkeys(sentences))
    lengths: dict[str, int] = {}
    for start in range(0, len(distinct), _CHUNK):
        chunk = distinct[start : start + _CHUNK]
        ids = tokenizer(chunk, add_special_tokens=False)["input_ids"]
        lengths.update(zip(chunk, map(len, ids), strict=True))
    return np.array([lengths[sentence] for sentence in sentences])


def difference(more: str, less: str) -> str:
    """How two sentences differ, word by word: one of DIFFERENCES.

    A span is a run of words that the other sentence lacks, has others for, or has more of.
    """
    one, other = more.split(), less.split()
    if [word.casefold() for word in one] == [word.casefold() for word in other]:
        return "only case or blanks"
    ends = 0
    for at in (0, -1):  # most pairs need no diff: one word has gone between words that stay
        while one and other and one[at] == other[at]:
            del one[at], other[at]
            ends += 1
    if not {*one} & {*other}:
        return "one span" if ends else "no word in common"
    matcher = difflib.SequenceMatcher(a=one, b=other, autojunk=False)
    spans = [kind for kind, *_ in matcher.get_opcodes() if kind != "equal"]
    return "one span" if len(spans) == 1 else "several spans"


def _differences(table: pd.DataFrame) -> pd.DataFrame:
    found = pd.Series(
        [difference(*both) for both in zip(table["sent_more"], table["sent_less"], strict=True)]
    )
    counts = found.value_counts().reindex([kind for kind in DIFFERENCES if kind in set(found)])
    return pd.DataFrame(
        {
            "difference": counts.index,
            "pairs": counts.to_numpy(),
            "share": 100 * counts.to_numpy() / len(table),
        }
    )


def _shared(table: pd.DataFrame) -> pd.DataFrame:
    """Group × group; empty if no two groups share a stereotype."""
    own = stereotypes_by_group(table)
    square = {one: [len(ids & others) for others in own.values()] for one, ids in own.items()}
    frame = pd.DataFrame({"group": list(own), **square})
    shares_any = sum(map(sum, square.values())) > sum(map(len, own.values()))
    return frame if shares_any else frame.iloc[:0]


def _in_common(table: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Distinct sentences, pairs and stereotypes that stand in both."""

    def parts(frame: pd.DataFrame) -> dict[str, set[Any]]:
        more, less = (frame[side].str.split().str.join(" ") for side in SENTENCES)
        named = frame["stereotype_id"] != frame["pair_id"]  # else it is a cluster by itself
        return {
            "distinct sentences": {*more, *less},
            "distinct pairs": {*zip(more, less, strict=True)},
            "stereotypes, by name": {*frame["stereotype_id"][named]},
        }

    mine, theirs = parts(table), parts(other)
    return pd.DataFrame(
        {
            "what": what,
            "in common": len(mine[what] & theirs[what]),
            "of this": _percent(len(mine[what] & theirs[what]), len(mine[what])),
            "of the other": _percent(len(mine[what] & theirs[what]), len(theirs[what])),
        }
        for what in mine
    )


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else float("nan")


def _most(frame: pd.DataFrame) -> pd.DataFrame:
    """The largest MOST_ROWS rows in their order, and the others as one."""
    if len(frame) <= MOST_ROWS:
        return frame
    kept = frame.nlargest(MOST_ROWS - 1, "pairs").index.sort_values()
    others = frame.drop(kept)
    last = {
        frame.columns[0]: f"{len(others)} others",
        "pairs": others["pairs"].sum(),
        "share": others["share"].sum(),
        "stereotypes": None,
    }
    return pd.concat([frame.loc[kept].astype(object), pd.DataFrame([last])], ignore_index=True)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if pd.isna(value) else value
