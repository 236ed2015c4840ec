"""Published answers of prompted choice, read as Score tables.

`answers_arlms.csv` of Dutch CrowS-Pairs (2507.16442, §3.3, Table 4): a row a pair, its index, the
prompts as they were sent, and a column of answers (1 or 2) a model and persona: `answer_geitje`,
`answers_mistral`, `answer_geitjebad`, … The stereotyped sentence stood first in every prompt, so
that 1 names it; no pair was asked the other way round. Over a hundred prompts hold other sentences
than the pairs file has in that row: rows are joined by their index, never by their text.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from eval.errors import RequestError
from eval.pairs import benchmark_hash, pair_id
from eval.scores import FIRST, ORDER, PAIR_OF, PUBLISHED_ID, Scores

INDEX, GROUP, DIRECTION = "Index", "bias_type", "stereo_antistereo"
_COLUMN = re.compile(r"answers?_(?P<model>.+?)_?(?P<persona>bad|good)?", re.IGNORECASE)
_SENTENCES = re.compile(r"Zin A: (?P<first>.*?) / Zin B: (?P<second>.*)", re.DOTALL)
#: The column of prompts that goes with each persona.
_PROMPTS = {"none": "prompts", "bad": "prompts_bad", "good": "prompts_good"}


def read(path: Path) -> dict[str, Scores]:
    """Every column of answers as a Score table, by the column's name, in the file's order.

    `score_more` is 0 where the stereotyped sentence was chosen and -1 where not, `score_less` the
    other way round: bias, the soft score among them, is a share of choices, and margins mean
    nothing. Pairs are named by their index alone, so that columns and files are paired by it.

    Raises:
        RequestError: the file is missing, holds no answers, an index twice, or an answer that is
            neither 1 nor 2.
    """
    path = Path(path)
    if not path.is_file():
        raise RequestError(f"no file of answers {path}")
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not a file of answers: {str(error).strip()}") from error
    missing = [column for column in (INDEX, GROUP) if column not in rows]
    columns = {name: found for name in rows if (found := _COLUMN.fullmatch(str(name)))}
    if missing or not columns:
        raise RequestError(
            f"{path} is not a file of published answers: no column "
            f"{', '.join([*missing, *([] if columns else ['answer_MODEL'])])}; there are: "
            f"{', '.join(map(str, rows.columns))}"
        )
    if rows.empty:
        raise RequestError(f"{path}: a file of answers without a row")
    twice = rows[INDEX].duplicated()
    if twice.any():
        raise RequestError(f"{path}: index {rows[INDEX][twice].iloc[0]} stands twice")
    return {str(name): _scores(path, rows, str(name), found) for name, found in columns.items()}


def is_published(path: Path) -> bool:
    """Whether a file's first line is that of published answers."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.readline().strip().split(",")
    return INDEX in head and any(_COLUMN.fullmatch(name) for name in head)


def choose(path: Path, column: str) -> Scores:
    """One column's Score table.

    Raises:
        RequestError: there is none of that name; see `read` too.
    """
    found = read(path)
    if column not in found:
        raise RequestError(f"{path}: no column {column}; there are: {', '.join(found)}")
    return found[column]


def by_model(tables: dict[str, Scores]) -> dict[str, dict[str, Scores]]:
    """Tables of `read`, by model and persona."""
    models: dict[str, dict[str, Scores]] = {}
    for scores in tables.values():
        models.setdefault(scores.meta["model"], {})[scores.meta["persona"]] = scores
    return models


def _scores(path: Path, rows: pd.DataFrame, column: str, found: re.Match[str]) -> Scores:
    answers = rows[column].str.strip()
    wrong = answers.index[~answers.isin(["1", "2"])]
    if len(wrong):
        raise RequestError(
            f"{path}: {column} is neither 1 nor 2 in {len(wrong)} of {len(rows):,} rows, the first "
            f"is index {rows[INDEX][wrong[0]]} ({answers[wrong[0]]!r})"
        )
    name, persona = "published", (found["persona"] or "none").lower()
    ids = [pair_id(name, int(row), "", "") for row in _numbers(path, rows[INDEX])]
    prompts = rows.get(_PROMPTS[persona], pd.Series("", index=rows.index))
    said = prompts.map(_sentences_of)
    chosen = (answers == "1").to_numpy()
    table = pd.DataFrame(
        {
            "pair_id": ids,
            "benchmark": name,
            "language": "nl",
            "group": rows[GROUP].str.strip(),
            "group_label": rows[GROUP].str.strip(),
            "counterfactual": "",
            "stereotype_id": ids,  # the file names no stereotype: each pair stands alone
            "template": "",
            "sent_more": [first for first, _ in said],
            "sent_less": [second for _, second in said],
            "score_more": np.where(chosen, 0.0, -1.0),
            "score_less": np.where(chosen, -1.0, 0.0),
            "shared_tokens": 0,
            "length_more": 0,
            "length_less": 0,
            PUBLISHED_ID: rows[INDEX],
            PAIR_OF: ids,
            ORDER: FIRST,
            "persona": persona,
        }
    )
    if DIRECTION in rows:
        table[DIRECTION] = rows[DIRECTION].str.strip()
    meta = {
        "scorer": "published",
        "scorer_version": "dutch-crows-pairs-answers",
        "benchmark": name,
        "benchmark_hash": benchmark_hash(table["pair_id"]),
        "model": found["model"],
        "persona": persona,
        "answer": "generate",
        "options": ["1", "2"],
    }
    return Scores(table, meta)


def _numbers(path: Path, index: pd.Series) -> list[int]:
    numbers = pd.to_numeric(index, errors="coerce")
    wrong = index[numbers.isna()]
    if len(wrong):
        raise RequestError(f"{path}: the index {wrong.iloc[0]!r} is no number")
    return [int(number) for number in numbers]


def _sentences_of(prompt: str) -> tuple[str, str]:
    """The two sentences of a published prompt; empty where it isn't built as they are."""
    found = _SENTENCES.search(prompt)
    return (found["first"].strip(), found["second"].strip()) if found else ("", "")
