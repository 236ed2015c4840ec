"""VADER: sentiment of English by a lexicon and rules (Hutto and Gilbert 2014).

The compound score, -1 to 1; a word that the lexicon lacks is 0. (QueerGen, 2601.20731, §4.3)
"""

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from eval.judges.settings import VADER_PACKAGE


class Vader:
    """Judges sentiment; `columns` is what `rate` gives."""

    columns = ("sentiment",)

    def __init__(self) -> None:
        self.version = version(VADER_PACKAGE)
        self._analyzer = SentimentIntensityAnalyzer()

    def rate(self, texts: Sequence[str]) -> np.ndarray:
        """Compound scores. (texts, 1)"""
        scores = [self._analyzer.polarity_scores(text)["compound"] for text in texts]
        return np.asarray(scores, dtype=float).reshape(-1, 1)
