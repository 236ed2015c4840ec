"""Scores that were had elsewhere, such as Perspective's before it closed, read from a file."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from eval.errors import RequestError


class Saved:
    """Judges toxicity by looking texts up; NaN for a text that the file lacks."""

    columns = ("toxicity",)

    def __init__(self, path: str) -> None:
        """Read a .jsonl or .csv with the columns text and score (0 to 1).

        Raises:
            RequestError: another ending, a missing column, a score that is none, or one text
                with two scores.
        """
        file = Path(path)
        self.version = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        self._scores = _read(file)

    def rate(self, texts: Sequence[str]) -> np.ndarray:
        """Saved scores. (texts, 1)"""
        return self._scores.reindex(list(texts)).to_numpy(float).reshape(-1, 1)


def _read(file: Path) -> pd.Series:
    if file.suffix not in (".jsonl", ".csv"):
        raise RequestError(f"{file}: saved scores are a .jsonl or a .csv, with text and score")
    try:
        if file.suffix == ".jsonl":
            table = pd.read_json(file, lines=True, dtype=False)
        else:
            # A completed sentence may well end in the word "null".
            table = pd.read_csv(file, keep_default_na=False, dtype=str)
    except (ValueError, UnicodeDecodeError) as error:
        said = str(error).split("\n")[0]
        raise RequestError(f"{file}: can't be read: {said}") from error
    missing = [name for name in ("text", "score") if name not in table]
    if missing:
        there = ", ".join(map(str, table.columns))
        raise RequestError(f"{file}: no column {', '.join(missing)}; there are: {there}")
    score = pd.to_numeric(table["score"], errors="coerce")
    wrong = np.flatnonzero(~score.between(0, 1))
    if len(wrong):
        raise RequestError(f"{file}: entry {wrong[0] + 1}: its score is no number from 0 to 1")
    scores = pd.Series(score.to_numpy(float), index=table["text"].astype(str))
    distinct = scores.groupby(level=0)
    two = (distinct.max() - distinct.min()) > 0
    if two.any():
        raise RequestError(f"{file}: {int(two.sum()):,} texts stand there with two scores")
    return distinct.first()
