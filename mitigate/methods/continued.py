"""Continued pretraining on community text: every weight, or some of them.

The German paper's mitigation (2608.30884, §3.4).
"""

from transformers import set_seed

from eval.scorers.model import LanguageModel
from mitigate.methods import Context, Trained, training, weights
from mitigate.settings import MethodSettings


def check(
    lm: LanguageModel, settings: MethodSettings, model_targets: list[str], processes: int
) -> None:
    """Refuse what can't be trained, before anything is scored or written.

    Raises:
        RequestError: see `training.check` and `weights.check`.
    """
    training.check(settings, lm, processes)
    weights.check(lm, settings, model_targets)


def train(context: Context) -> Trained:
    """Fine-tune the model on the corpus and return it with the best or last weights.

    Raises:
        RequestError: see `check`; or the corpus is smaller than a batch.
        RuntimeError: before the first step the model is not the one that was scored.
        TrainingError: the loss is not a number.
    """
    settings, lm = context.settings, context.lm
    check(lm, settings, context.lora_targets, context.processes)
    set_seed(context.seed)
    model = weights.prepare(lm, settings, context.lora_targets, context.say)
    facts = training.fit(context, model, context.train, context.valid)
    return Trained(model, settings.weights == "lora", facts)
