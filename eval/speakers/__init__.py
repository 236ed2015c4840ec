"""Speakers: whatever answers a prompt, a model in memory or one behind an API.

Prompted choice and completion ask a speaker, and don't know which kind it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Ask:
    """One prompt: a persona for the system's turn, empty for none, and the user's turn.

    With `chat=False` the user's turn is plain text that the model goes on from.
    """

    user: str
    system: str = ""
    chat: bool = True


class NoLogProbsError(Exception):
    """The speaker gives no log-probabilities; it can only be asked to write."""


class Speaker(Protocol):
    """Answers prompts."""

    name: str
    fingerprint: str  # of the weights, or of address and name where the weights aren't ours
    chats: bool  # whether it knows turns; else `Ask.chat` prompts are refused

    def log_probs(
        self,
        asks: Sequence[Ask],
        options: Sequence[str],
        *,
        report: Callable[[int, int], None] | None = None,
    ) -> np.ndarray:
        """log P(option | prompt) in nats for each option as the answer's start. (asks, options)

        Raises:
            NoLogProbsError: it gives none.
            RequestError: an option has no token of its own.
        """
        ...

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

        Greedily (then `samples` is 1), or drawn at the model's own temperature; a prompt's draw
        depends on `seed` and the prompt alone, not on its batch. (asks, samples)
        """
        ...
