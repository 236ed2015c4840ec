"""Preference training: the counter-stereotyped sentence of a pair before the stereotyped one.

Direct preference optimisation (Rafailov et al. 2023, eq. 7) through trl's DPOTrainer, for causal
models. What is preferred is a likelihood as the scorer has it: of the tokens that both sentences
share, each given those before. The identity and its counterpart themselves are never preferred
or dispreferred, else a model could satisfy every pair by no longer naming the identity at all.

DPO knows no target: it goes on past 50 towards the counter-stereotype. `loss: indifference` aims
at 50 instead: a squared loss as in IPO (Azar et al. 2023, §5), but on the policy's own margin and
with target 0, so that neither sentence is preferred; a second term holds both where they were.
"""

import copy
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from transformers import set_seed
from trl import DPOConfig, DPOTrainer

from eval.errors import RequestError
from eval.pairs import Pairs
from eval.rules import SCORERS, ScoreSettings
from eval.scorers import score
from eval.scorers.model import LanguageModel
from eval.scorers.plan import plan
from mitigate.methods import Context, Trained, training, weights
from mitigate.methods.record import Record, Recorded, TrainingError
from mitigate.methods.rows import IGNORED
from mitigate.settings import MethodSettings

#: The published measure, and nothing beside it.
SCORE = ScoreSettings(scorer="shared", terms=False, reuse=False)
#: How far policy and reference may be apart before the first step, in nats a pair.
AT_START = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 0.5, torch.bfloat16: 2.0}


def check(
    lm: LanguageModel, settings: MethodSettings, model_targets: list[str], processes: int
) -> None:
    """Refuse what can't be trained, before anything is scored or written.

    Raises:
        RequestError: a masked model, a recipe without `method.preference`, a batch that the
            processes can't share, or adapters that fit nowhere.
    """
    if lm.kind != "causal":
        raise RequestError(
            f"method={settings.name}: {lm.name} is a masked model, which gives a sentence no "
            "likelihood to prefer; take a causal one, or method=full or method=dropout"
        )
    if settings.preference is None:
        raise RequestError(f"method={settings.name}: method.preference is missing; method=dpo")
    if settings.packing:
        raise RequestError("method.packing: preferences are pairs, a row each; leave it out")
    training.check(settings, lm, processes)
    weights.check(lm, settings, model_targets)


def train(context: Context) -> Trained:
    """Train the model on the context's pairs and return it with the best or last weights.

    Raises:
        RequestError: as `check`; no pairs, or fewer than a batch.
        TrainingError: the loss is not a number, or policy and reference differ before a step.
    """
    settings, lm = context.settings, context.lm
    check(lm, settings, context.lora_targets, context.processes)
    assert settings.preference is not None
    if context.pairs is None:
        raise RequestError(f"method={settings.name}: there are no pairs to prefer by")
    set_seed(context.seed)
    begun_with = getattr(lm.model.config, "pad_token_id", None)
    # The reference is the model as it is now: no second copy of it is kept in memory.
    rows, held_out = (preferences(lm, pairs) if len(pairs) else None for pairs in context.pairs)
    if rows is None or len(rows) < settings.batch:
        raise RequestError(
            f"{len(rows or [])} preference pairs, fewer than a batch of {settings.batch} "
            "(method.batch)"
        )
    model = weights.prepare(lm, settings, context.lora_targets, context.say)
    named = _NAMES[settings.preference.loss]
    context.say(f"{named} on {len(rows):,} pairs, beta {settings.preference.beta}")
    trainer = make_trainer(context, model, rows, held_out)
    trainer.check_start(AT_START[lm.dtype])
    facts = training.run(context, model, trainer)
    lm.model.config.pad_token_id = begun_with  # which trl sets to the tokenizer's
    return Trained(model, settings.weights == "lora", {**facts, "loss": settings.preference.loss})


def preferences(lm: LanguageModel, pairs: Pairs) -> Dataset:
    """The pairs as rows for the trainer, with the model's own likelihoods as the reference.

    Columns: `chosen`, `rejected` (token ids, one BOS in front), `chosen_scored`,
    `rejected_scored` (1 for tokens that both sentences share), `ref_chosen_logps`,
    `ref_rejected_logps` (nats, by the scorer). Chosen is the counter-stereotyped sentence.

    Raises:
        RequestError: a sentence is over the model's length, or no pair shares a token.
    """
    planned = plan(lm, pairs, SCORERS["shared"], SCORE)
    requests, uses = planned.requests, planned.scored
    columns: dict[str, list[list[int]]] = {}
    for side, name in enumerate(("rejected", "chosen")):
        ids: list[list[int]] = [[] for _ in planned.kept]
        scored: list[list[int]] = [[] for _ in planned.kept]
        mine = uses.side == side
        for pair, request in zip(uses.pair[mine], uses.what[mine], strict=True):
            if not ids[pair]:
                ids[pair] = requests.tokens[requests.rows[request]].tolist()
                scored[pair] = [0] * len(ids[pair])
            scored[pair][requests.places[request]] = 1
        columns |= {name: ids, f"{name}_scored": scored}
    table = score(lm, pairs, SCORE, noise=False).table
    return Dataset.from_dict(
        {
            **columns,
            "ref_chosen_logps": table["score_less"].to_numpy(np.float64),
            "ref_rejected_logps": table["score_more"].to_numpy(np.float64),
        }
    )


def indifference(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Mean over pairs of margin² + beta · drift². All (pairs,), nats

    The margin is the policy's own, log p(chosen) − log p(rejected), and its target 0: neither
    sentence likelier, which is a bias score of 50. The drift is how far both have moved from the
    reference on average, which the margin leaves free.
    """
    margin = chosen - rejected
    drift = ((chosen - ref_chosen) + (rejected - ref_rejected)) / 2
    return (margin**2 + beta * drift**2).mean()


class Collator:
    """Pad pairs to the batch's longest sentence: the chosen first, then the rejected."""

    def __init__(self, pad: int, language_id: int | None):
        self.pad = pad
        self.language_id = language_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        sentences = [
            (row[side], row[f"{side}_scored"]) for side in ("chosen", "rejected") for row in rows
        ]
        longest = max(len(ids) for ids, _ in sentences)
        shape = (len(sentences), longest)
        batch = {
            "input_ids": torch.full(shape, self.pad),
            "attention_mask": torch.zeros(shape, dtype=torch.long),
            "completion_mask": torch.zeros(shape, dtype=torch.long),
        }
        for line, (ids, scored) in enumerate(sentences):
            batch["input_ids"][line, : len(ids)] = torch.tensor(ids)
            batch["attention_mask"][line, : len(ids)] = 1
            batch["completion_mask"][line, : len(ids)] = torch.tensor(scored)
        if "row" in rows[0]:
            batch["rows"] = torch.tensor([row["row"] for row in rows])
        if self.language_id is not None:
            batch["langs"] = torch.full(shape, self.language_id)
        for name in ("ref_chosen_logps", "ref_rejected_logps"):
            batch[name] = torch.tensor([row[name] for row in rows], dtype=torch.float32)
        return batch


class PreferenceTrainer(Recorded, DPOTrainer):
    """trl's trainer on rows that are tokenized and carry their reference already."""

    indifferent = False

    def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset

    def log_likelihoods(self, model: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """The policy's log-likelihood of the shared tokens: chosen, rejected. Each (pairs,)"""
        given = {
            name: value
            for name, value in inputs.items()
            if name not in ("completion_mask", "ref_chosen_logps", "ref_rejected_logps", "rows")
        }
        labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, IGNORED)
        found = model(**given, labels=labels, use_cache=False, fused_lm_head=True)
        chosen, rejected = found.log_probs.sum(dim=1).chunk(2)
        return chosen, rejected

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        if not self.indifferent:
            return super()._compute_loss(model, inputs, return_outputs)
        chosen, rejected = self.log_likelihoods(model, inputs)
        reference = inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
        loss = indifference(chosen, rejected, *reference, self.beta)
        margins = self.accelerator.gather((chosen - rejected).detach())
        mode = "train" if model.training else "eval"
        self._metrics[mode]["margin"].append(margins.mean().item())
        self._metrics[mode]["margin_size"].append(margins.abs().mean().item())
        return (loss, None) if return_outputs else loss

    @torch.no_grad()
    def check_start(self, tolerance: float) -> float:
        """Check that policy and reference are one model before the first step.

        Returns how far they are apart on a batch, in nats a pair at most.

        Raises:
            TrainingError: by more than `tolerance`.
        """
        rows, model = cast(Dataset, self.train_dataset), cast(torch.nn.Module, self.model)
        size = min(len(rows), self.args.per_device_train_batch_size)
        batch = self._prepare_inputs(self.data_collator([rows[row] for row in range(size)]))
        model.eval()
        found = self.log_likelihoods(model, batch)
        reference = batch["ref_chosen_logps"], batch["ref_rejected_logps"]
        pairs = zip(found, reference, strict=True)
        apart = max(float((mine - theirs).abs().max()) for mine, theirs in pairs)
        if not apart <= tolerance:
            raise TrainingError(
                f"before the first step, policy and reference differ by {apart:.3g} nats a pair "
                f"(at most {tolerance}): the adapter or the model's forward pass is not neutral"
            )
        return apart


_NAMES = {"dpo": "DPO", "indifference": "indifference, a squared margin with target 0,"}


def make_trainer(
    context: Context, model: Any, rows: Dataset, held_out: Dataset | None
) -> PreferenceTrainer:
    """The trainer for `rows`; `model` is trained in place."""
    settings, lm = context.settings, context.lm
    assert settings.preference is not None
    pad = lm.tokenizer.pad_token_id
    pad = pad if pad is not None else (lm.tokenizer.eos_token_id or 0)
    given = training.arguments(context, len(rows), len(held_out or []))
    given["include_num_input_tokens_seen"] = "no"  # the record counts them, without padding
    rows = rows.add_column("row", list(range(len(rows))))
    trainer = PreferenceTrainer(
        model=model,
        args=DPOConfig(
            **given,
            beta=settings.preference.beta,
            max_length=None,
            precompute_ref_log_probs=True,  # by the scorer: see `preferences`
        ),
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=copy.deepcopy(lm.tokenizer),  # trl gives it a pad token
        data_collator=Collator(pad, lm.language_id),
    )
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")  # trl's copy, which would be saved too; the rows have it
    trainer.indifferent = settings.preference.loss == "indifference"
    lengths = zip(rows["chosen"], rows["rejected"], strict=True)
    trainer.record = Record([len(chosen) + len(rejected) for chosen, rejected in lengths])
    return trainer
