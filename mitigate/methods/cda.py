"""Counterfactual augmentation: the corpus with its identities exchanged, then trained on.

Two-sided, each text that names an identity stands beside its counterfactual (Zhao et al. 2018,
§4); one-sided, the counterfactual stands in its place (Webster et al. 2020, §5.1). The exchange
is `mitigate.methods.counterfactuals`, with agreement (Zmigrod et al. 2019). Training itself is
continued pretraining, of whatever weights the recipe says.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from corpora import language as languages
from eval.errors import RequestError
from eval.scorers.model import LanguageModel
from mitigate.methods import Context, Trained, continued
from mitigate.methods.counterfactuals import LANGUAGES, Counts, table
from mitigate.settings import CdaSettings, MethodSettings

#: Below this confidence a text of a mixed corpus is left as it is.
CONFIDENCE = 0.5


@dataclass(frozen=True)
class Augmented:
    """A corpus with counterfactuals, and what was done."""

    train: list[str]
    valid: list[str]
    facts: dict[str, Any]  # for the manifest


def check(
    lm: LanguageModel, settings: MethodSettings, model_targets: list[str], processes: int
) -> None:
    """Refuse what can't be trained; see `continued.check`.

    Raises:
        RequestError: there is no table for one of `method.cda.languages`, or as there.
    """
    _known((settings.cda or CdaSettings()).languages)
    continued.check(lm, settings, model_targets, processes)


def train(context: Context) -> Trained:
    """Augment the corpus, say how much of it, and train on it.

    Raises:
        RequestError: no table for the corpus's language, no text that can be exchanged, or as
            `continued.train`.
    """
    settings = context.settings.cda or CdaSettings()
    codes = _known(settings.languages or [context.language])
    made = augment(context.train, context.valid, codes, sides=settings.sides, seed=context.seed)
    facts = made.facts
    if not facts["changed_train"]:
        raise RequestError(
            f"method.cda: none of {len(context.train)} texts names an identity that can be "
            f"exchanged ({', '.join(codes)}); corpus.groups chooses texts that do"
        )
    share = facts["changed_train"] / facts["texts_train"]
    context.say(
        f"counterfactuals ({settings.sides}-sided): {facts['changed_train']:,} of "
        f"{facts['texts_train']:,} texts ({100 * share:.0f} %), {facts['exchanged']:,} words"
    )
    trained = continued.train(dataclasses.replace(context, train=made.train, valid=made.valid))
    return dataclasses.replace(trained, facts={**trained.facts, "cda": facts})


def augment(
    train: Sequence[str],
    valid: Sequence[str],
    codes: Sequence[str],
    *,
    sides: str = "two",
    seed: int = 0,
) -> Augmented:
    """A corpus with counterfactuals, both parts once, neither holding a text of the other.

    Two-sided, the counterfactuals come after all the texts: rows of training are filled with
    texts as they come, and a counterfactual in the row of its original could be copied from it.
    A training counterfactual that is held out, as it is or as a counterfactual, is left out; so
    is a held-out one that is a training text. A text without an identity stays once.

    Args:
        codes: the languages; with several, each text's own is told by its label.
        sides: two, or one.
    """
    counts = Counts()
    dropped = 0
    parts: dict[str, list[str]] = {}
    changed: dict[str, int] = {}
    # Held-out texts first: what they become decides what may be trained on.
    made = {
        "valid": _counterfactuals(valid, codes, seed, Counts()),
        "train": _counterfactuals(train, codes, seed, counts),
    }
    originals = {"valid": list(valid), "train": list(train)}
    held_out = set(valid)
    for part, forbidden in (("valid", set(train)), ("train", held_out)):
        kept: list[str] = []
        copies: list[str] = []
        for text, other in zip(originals[part], made[part], strict=True):
            usable = other is not None and other not in forbidden
            dropped += other is not None and not usable
            if other is not None and usable:
                copies.append(other)
                if part == "valid":
                    held_out.add(other)
            if sides == "two" or not usable:
                kept.append(text)
        random.Random(f"cda {part} {seed}").shuffle(copies)
        parts[part], changed[part] = kept + copies, len(copies)
    facts = {
        "sides": sides,
        "languages": list(codes),
        "texts_train": len(train),
        "texts_valid": len(valid),
        "changed_train": changed["train"],
        "changed_valid": changed["valid"],
        "augmented_train": len(parts["train"]),
        "augmented_valid": len(parts["valid"]),
        "in_the_other_part": dropped,
        # Of the training texts:
        "sentences_with_identity": counts.sentences,
        "sentences_exchanged": counts.swapped_sentences,
        "exchanged": counts.swapped.total(),
        "by_concept": dict(counts.swapped.most_common()),
        "left": dict(counts.left.most_common()),
    }
    return Augmented(parts["train"], parts["valid"], facts)


def _counterfactuals(
    texts: Sequence[str], codes: Sequence[str], seed: int, counts: Counts
) -> list[str | None]:
    """Each text's counterfactual; None where it has none."""
    said: Iterable[str] = [codes[0]] * len(texts)
    if len(codes) > 1:
        said = (code for code, _ in languages.label(texts, codes, CONFIDENCE))
    seen: Counter[str] = Counter()  # a text that counts twice gets two draws
    found: list[str | None] = []
    for text, code in zip(texts, said, strict=True):
        seen[text] += 1
        other = text
        if code in codes:
            other = table(code).swap(text, f"{seed} {seen[text]} {text}", counts)
        found.append(None if other == text else other)
    return found


def _known(codes: Sequence[str]) -> list[str]:
    for code in codes:
        if code not in LANGUAGES:
            said = f"language '{code}'" if code else "a corpus without a language"
            raise RequestError(
                f"method.cda.languages: no counterfactuals for {said}; there are: "
                f"{', '.join(LANGUAGES)}"
            )
    return list(codes)
