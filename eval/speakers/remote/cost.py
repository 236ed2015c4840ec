"""What asking costs: estimated before, counted while it goes on, and never over the ceiling."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: Characters a token, where no tokenizer is named. A rule of thumb for English; German and Dutch
#: words make more tokens of as many characters.
CHARACTERS = 4
#: Tokens that a turn takes besides its text: about what the frames of chat templates come to.
FRAME = 4


@dataclass(frozen=True)
class Used:
    """Tokens of prompts, and of answers."""

    prompt: int = 0
    answer: int = 0

    def __add__(self, other: "Used") -> "Used":
        return Used(self.prompt + other.prompt, self.answer + other.answer)


@dataclass(frozen=True)
class Prices:
    """What a million tokens cost, in the currency that the user thinks in; None: not known."""

    prompt: float | None = None
    answer: float | None = None

    def of(self, used: Used) -> float | None:
        """The price of so many tokens; None where prices aren't known."""
        if self.prompt is None or self.answer is None:
            return None
        return (used.prompt * self.prompt + used.answer * self.answer) / 1e6


def rule_of_thumb(text: str) -> int:
    """About how many tokens a text has."""
    return -(-len(text) // CHARACTERS)


def prompt_tokens(texts: Iterable[str], count: Callable[[str], int] = rule_of_thumb) -> int:
    """About how many tokens the turns of a prompt have."""
    return sum(count(text) + FRAME for text in texts)


class Meter:
    """Counts what was spent, and holds back what calls on their way may yet cost.

    Where calls turn out dearer than estimated, those to come are taken to be so too. What came
    to nothing (a cut connection, an answer that is none) counts as it was estimated, since it may
    have been charged.
    """

    def __init__(self, prices: Prices, ceiling: float | None):
        self.prices = prices
        self.ceiling = ceiling
        self.used = Used()
        self.lost = Used()
        self._held = Used()
        self._settled = Used()  # estimates of the calls that are done
        self._charged = Used()  # what they came to
        self._lock = threading.Lock()

    @property
    def spent(self) -> float | None:
        """What was spent; None where prices aren't known."""
        return self.prices.of(self.used + self.lost)

    def fits(self, more: Used) -> bool:
        """Whether so many tokens more stay below the ceiling, with what is on its way."""
        spent, to_come = self.spent, self.prices.of(self._held + more)
        if self.ceiling is None or spent is None or to_come is None:
            return True
        return spent + to_come * self._dearer() <= self.ceiling

    def _dearer(self) -> float:
        """How many times as dear as estimated calls were; 1 at least."""
        estimated, charged = self.prices.of(self._settled), self.prices.of(self._charged)
        return max(1.0, charged / estimated) if estimated and charged else 1.0

    def hold(self, estimate: Used) -> bool:
        """Hold back what a call may cost; False where the ceiling forbids it."""
        with self._lock:
            if not self.fits(estimate):
                return False
            self._held += estimate
            return True

    def settle(self, estimate: Used, used: Used) -> None:
        """Count what a call cost, in place of what was held back for it."""
        with self._lock:
            self._held += Used(-estimate.prompt, -estimate.answer)
            self._settled += estimate
            self._charged += used
            self.used += used

    def count(self, used: Used) -> None:
        """Count what earlier work has paid for the same answers."""
        with self._lock:
            self.used += used

    def lose(self, estimate: Used) -> None:
        """Count a request without an answer."""
        with self._lock:
            self.lost += estimate
