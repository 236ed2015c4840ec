"""What drives pseudo-likelihood beside the meaning: length and frequency of the changed words.

A longer or rarer identity term changes a sentence's likelihood by itself (Salazar et al. 2020;
Kaneko and Bollegala 2022, §3). The correlations here say how far margins go along with that;
they are no correction.
"""

import functools
import warnings
from collections import Counter
from typing import Any

import numpy as np
from wordfreq import available_languages, tokenize, zipf_frequency

from eval.scores import Scores


def confounds(scores: Scores) -> dict[str, Any]:
    """Pearson's r of margins with differences (stereotyped sentence minus the other).

    `length_r`: with the difference in tokens. `frequency_r`: with the difference in the mean
    log10 frequency (Zipf scale, wordfreq) of the words that only one of the sentences has;
    None where the language has no frequencies or a difference is the same in all pairs.
    `frequency_pairs`: pairs whose changed words on both sides are known.
    """
    table = scores.table
    length = (table["length_more"] - table["length_less"]).to_numpy(float)
    frequency = np.full(len(table), np.nan)
    known = available_languages()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wordfreq loads its data as it always has
        for row, (language, more, less) in enumerate(
            zip(table["language"], table["sent_more"], table["sent_less"], strict=True)
        ):
            if language in known:
                frequency[row] = _frequency_difference(more, less, language)
    there = np.isfinite(frequency)
    return {
        "length_r": _pearson(scores.margin, length),
        "frequency_r": _pearson(scores.margin[there], frequency[there]),
        "frequency_pairs": int(there.sum()),
    }


def _frequency_difference(more: str, less: str, language: str) -> float:
    words = [_words(text, language) for text in (more, less)]
    changed = words[0] - words[1], words[1] - words[0]
    means = []
    for side in changed:
        found = [zipf_frequency(word, language) for word in side.elements()]
        found = [value for value in found if value > 0]
        if not found:
            return np.nan
        means.append(np.mean(found))
    return float(means[0] - means[1])


@functools.lru_cache(maxsize=100_000)  # template sentences come again and again
def _words(text: str, language: str) -> Counter[str]:
    return Counter(tokenize(text, language))


def _pearson(left: np.ndarray, right: np.ndarray) -> float | None:
    """Pearson's r; None where one of the two doesn't vary."""
    if len(left) < 3 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return None
    return float(np.corrcoef(left, right)[0, 1])
