"""Continued pretraining with dropout raised: what models forget first are rare associations.

Webster et al. 2020 (2010.06032, §5), with the values that bias-bench takes (Meade et al. 2022,
ACL): 0.20 after layers and 0.15 in attention for BERT and RoBERTa, 0.15 throughout for GPT-2.
The mitigation is in the training alone: what is saved has the model's own dropout again.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from eval.errors import RequestError
from eval.scorers.model import LanguageModel
from mitigate.methods import Context, Trained, continued
from mitigate.settings import DropoutSettings, MethodSettings

#: Attributes of modules that hold a share as a number: of attention, and of everything else.
ATTENTION = (
    "attention_probs_dropout_prob",
    "attention_dropout",
    "attn_pdrop",
    "attention_dropout_prob",
)
HIDDEN = (
    "hidden_dropout_prob",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "dropout",
    "embedding_dropout",
    "mlp_dropout",
)


def check(
    lm: LanguageModel, settings: MethodSettings, model_targets: list[str], processes: int
) -> None:
    """Refuse what can't be trained; see `continued.check`.

    Raises:
        RequestError: the model has no dropout to raise, or as there.
    """
    continued.check(lm, settings, model_targets, processes)
    if not list(places(lm.model)):
        raise RequestError(
            f"method={settings.name}: {type(lm.model).__name__} has no dropout to raise; "
            "method=full trains it as it is"
        )


def train(context: Context) -> Trained:
    """Train as `continued.train` does, with dropout raised meanwhile.

    Raises:
        RequestError: as `check` and `continued.train`.
        TrainingError: the loss is not a number.
    """
    settings = context.settings.dropout or DropoutSettings()
    before = raise_dropout(context.lm.model, settings)
    count = {
        kind: sum(place.attention == (kind == "attention") for place, _ in before)
        for kind in ("hidden", "attention")
    }
    context.say(
        f"dropout raised to {settings.hidden} in {count['hidden']} places and to "
        f"{settings.attention} in {count['attention']} of attention"
    )
    trained = continued.train(context)
    for place, share in before:
        place.put(share)
    facts = {**trained.facts, "dropout": {**dataclasses.asdict(settings), "places": count}}
    return dataclasses.replace(trained, facts=facts)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a share of dropout stands: a Dropout's `p`, or a module's own number."""

    owner: Any
    key: str
    attention: bool

    def get(self) -> float:
        return float(getattr(self.owner, self.key))

    def put(self, share: float) -> None:
        setattr(self.owner, self.key, share)


def places(model: torch.nn.Module) -> Iterator[Place]:
    """Every place in a model where dropout is applied."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            parts = name.split(".")
            parent = type(model.get_submodule(".".join(parts[:-1]))).__name__.lower()
            within = parts[-1] in ("attn_dropout", "attention_dropout") or (
                # BERT's and DistilBERT's own attention calls its dropout just that.
                parts[-1] == "dropout" and "selfattention" in parent
            )
            yield Place(module, "p", within)
            continue
        within_attention = "attention" in type(module).__name__.lower()
        for key in (*ATTENTION, *HIDDEN):
            share = vars(module).get(key)
            if isinstance(share, int | float) and not isinstance(share, bool):
                # OPT, XLM, Llama and others keep the share as a number and call the function.
                yield Place(module, key, key in ATTENTION or within_attention)


def raise_dropout(model: torch.nn.Module, settings: DropoutSettings) -> list[tuple[Place, float]]:
    """Set every share of dropout, in place; returns what each place held before."""
    before = [(place, place.get()) for place in places(model)]
    for place, _ in before:
        place.put(settings.attention if place.attention else settings.hidden)
    return before
