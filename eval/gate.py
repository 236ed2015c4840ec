"""What retention.json holds, read: the gate, sentences for a person, keys for a table of runs.

By kind of text (`neutral`, `general`, `corpus`): (pseudo-)perplexity, `kind`, `texts`, `tokens`,
`before`, `after`, `change_percent`, `ci_low`, `ci_high`. Beside them, under names of FURTHER:

- `grammar`, by language: minimal pairs right in percent, `pairs`, `clusters`, `before`, `after`,
  `change` (points), `ci_low`, `ci_high`, and the same by `phenomena`;
- `divergence`: mean Kullback-Leibler divergence of the predictions from those before, `nats`,
  over `places`;
- `tasks`, by task of lm-eval: `metric`, `before`, `after`, `change` (points), their errors;
- `untargeted`, by benchmark: distance from 50, `before`, `after`, `change`, `ci_low`, `ci_high`;
- `gate`: `max_worse`, `max_grammar_loss`, `degraded`, `reasons`.

Nothing here needs torch.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from eval.inference.sentences import signed

FURTHER = ("grammar", "divergence", "tasks", "untargeted", "gate")
LANGUAGES = {"de": "German", "en": "English", "nl": "Dutch"}
Noted = Mapping[str, Mapping[str, Any]]


def texts(noted: Noted) -> dict[str, Mapping[str, Any]]:
    """The rows of (pseudo-)perplexity, by kind of text, of those measured before and after."""
    return {
        name: row
        for name, row in noted.items()
        if name not in FURTHER and "before" in row and "after" in row
    }


def judged(noted: Noted, max_worse: float | None, max_grammar_loss: float | None) -> dict[str, Any]:
    """The gate's verdict, as retention.json has it under `gate`.

    The measured change is what counts, not an end of its interval: a gate that is set beforehand
    must not open because little was measured.
    """
    reasons = []
    for name, row in texts(noted).items():
        if max_worse is not None and not row["change_percent"] <= max_worse:
            reasons.append(
                f"{row['kind']} on {name} text changed by {signed(row['change_percent'])} % "
                f"(retention.max_worse={max_worse:g})"
            )
    for language, row in noted.get("grammar", {}).items():
        if (
            max_grammar_loss is not None
            and "change" in row
            and not -row["change"] <= (max_grammar_loss)
        ):
            reasons.append(
                f"grammatical minimal pairs in {LANGUAGES.get(language, language)}: "
                f"{signed(row['change'])} points right "
                f"(retention.max_grammar_loss={max_grammar_loss:g})"
            )
    return {
        "max_worse": max_worse,
        "max_grammar_loss": max_grammar_loss,
        "degraded": bool(reasons),
        "reasons": reasons,
    }


def degraded(noted: Noted) -> str:
    """The sentence that marks a run as degraded; empty where it isn't, or no gate was set."""
    reasons = noted.get("gate", {}).get("reasons", [])
    if not reasons:
        return ""
    return (
        f"Degraded: {'; '.join(reasons)}. The model has lost language, so its bias score says "
        "little of a mitigation."
    )


def sentences(noted: Noted) -> list[str]:
    """What is left of the language, a sentence a measure."""
    return list(_sentences(noted))


def _sentences(noted: Noted) -> Iterator[str]:
    for name, row in texts(noted).items():
        yield (
            f"{row['kind'].capitalize()} on {name} text: {row['before']:.2f} before, "
            f"{row['after']:.2f} after ({signed(row['change_percent'])} %{_ends(row)})."
        )
    for language, row in noted.get("grammar", {}).items():
        if "after" in row:
            yield (
                f"Grammatical minimal pairs in {LANGUAGES.get(language, language)}: "
                f"{row['before']:.1f} % right before, {row['after']:.1f} % after "
                f"({signed(row['change'])} points{_ends(row)})."
            )
    moved = noted.get("divergence", {})
    if "nats" in moved:
        yield (
            f"Predictions in neutral text moved by {moved['nats']:.4f} nats "
            f"(mean KL from the model before, {moved['places']} places)."
        )
    for name, row in noted.get("tasks", {}).items():
        if "after" in row:
            yield (
                f"lm-eval {name}, {row['metric']}: {row['before']:.4g} before, {row['after']:.4g} "
                f"after ({signed(row['change'], 4)})."
            )
    for name, row in noted.get("untargeted", {}).items():
        yield (
            f"{name}, not aimed at: {row['before']:.1f} points from 50 before, {row['after']:.1f} "
            f"after ({signed(row['change'])}{_ends(row)})."
        )


def _ends(row: Mapping[str, Any]) -> str:
    """The interval, where there is one."""
    low, high = (row.get(end) for end in ("ci_low", "ci_high"))
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    return f", interval {signed(low)} to {signed(high)}"


def summary(noted: Noted) -> dict[str, float]:
    """The numbers of it by key, for a table of runs: retention/grammar/de/change."""
    found: dict[str, float] = {}
    for name, row in noted.items():
        if name in ("grammar", "tasks", "untargeted"):
            for inner, values in row.items():
                found |= _numbers(f"retention/{name}/{inner}", values)
        elif name != "gate":
            found |= _numbers(f"retention/{name}", row)
    if "gate" in noted:
        found["retention/degraded"] = bool(noted["gate"]["degraded"])
    return found


def _numbers(place: str, row: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{place}/{key}": value
        for key, value in row.items()
        if isinstance(value, int | float) and not (isinstance(value, float) and math.isnan(value))
    }
