"""Training on text, masked or causal: rows, trainers, checkpoints, and what is watched.

Masked models go through transformers' Trainer, causal ones through trl's SFTTrainer; both see
the same rows in the same order whatever the number of processes, and the same masks after a
resume.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import accelerate
import torch
from datasets import Dataset
from torch.nn import functional
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

from eval.errors import RequestError
from eval.scorers.head import base_of, head_selects, only_at
from eval.scorers.model import LanguageModel
from mitigate.checkpoints import find_best, last_whole_checkpoint
from mitigate.console import progress
from mitigate.methods import Context
from mitigate.methods.record import (
    Record,
    Recorded,
    TrainingError,
    matmul_rate,
    step_flops,
)
from mitigate.methods.rows import (
    IGNORED,
    Collator,
    MaskedRows,
    block_of,
    packed_rows,
    sees_only_its_own,
    text_rows,
    word_starts,
)
from mitigate.methods.weights import share
from mitigate.settings import MethodSettings
from mitigate.signals import SaveAndStop

#: Tokens of the row that the output head is checked on.
SHORT = 16


def fit(context: Context, model: Any, train: Sequence[str], valid: Sequence[str]) -> dict[str, Any]:
    """Train `model` in place on texts and leave it with the best or last weights.

    `model`: what the context's language model became, say with an adapter on it. Returns facts
    for the manifest.

    Raises:
        RequestError: the corpus is smaller than a batch, or the tokenizer has no pad or mask.
        TrainingError: the loss is not a number.
    """
    set_seed(context.seed)
    trainer = trainer_for(context, model, train, valid)
    return {
        **run(context, model, trainer),
        "packed": "lengths" in getattr(trainer.train_dataset, "column_names", ()),
        **_throughput(context, model, trainer),
    }


def run(context: Context, model: Any, trainer: Any) -> dict[str, Any]:
    """Train from the last whole checkpoint, whatever the trainer; facts for the manifest.

    Raises:
        TrainingError: the loss is not a number.
    """
    settings = context.settings
    trainer.remove_callback(PrinterCallback)  # our own bar and log say it
    trainer.add_callback(SaveAndStop())  # before a curve, which takes long
    watch = Watch(context, trainer.record)
    trainer.add_callback(watch)
    checkpoint = last_whole_checkpoint(context.checkpoints)
    if checkpoint:
        context.say(f"going on from {checkpoint.name}")
        with accelerate.PartialState().local_main_process_first():
            find_best(checkpoint)
    with progress("training") as report:
        watch.report = report
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.accelerator.unwrap_model(trainer.model).eval()
    # The history is kept in the checkpoints, so a resumed run has all of it.
    steps = min(trainer.state.global_step, trainer.state.max_steps)
    losses = [
        entry["loss"]
        for entry in trainer.state.log_history
        if "loss" in entry and entry["step"] <= steps
    ]
    trained, total = share(model)
    return {
        "method": settings.name,
        "weights": settings.weights,
        "steps": steps,
        "epochs": trainer.state.epoch,
        "train_rows": len(trainer.train_dataset),
        "valid_rows": len(trainer.eval_dataset or []),
        "train_loss": sum(losses) / len(losses) if losses else None,
        "best_valid_loss": trainer.state.best_metric,
        "kept": "best" if trainer.state.best_model_checkpoint else "last",
        "trained_weights": trained,
        "all_weights": total,
        "strategy": str(trainer.accelerator.distributed_type).rpartition(".")[2],
        "world_size": trainer.accelerator.num_processes,
        "tokens_seen": trainer.state.num_input_tokens_seen or None,
    }


def check(settings: MethodSettings, lm: LanguageModel, processes: int) -> None:
    """Refuse what this machine or model can't do, before anything is scored.

    Raises:
        RequestError: the batch can't be shared by the processes, there is no bfloat16 here, or
            a tokenizer that doesn't know where words begin is asked for whole words.
    """
    if settings.batch % processes:
        raise RequestError(
            f"method.batch={settings.batch} can't be shared by {processes} processes"
        )
    if settings.mixed_precision == "bf16" and not _bf16(lm.device):
        raise RequestError(
            f"method.mixed_precision=bf16: {lm.device} has no bfloat16; auto uses it where it is"
        )
    if settings.whole_words and (lm.kind != "masked" or not lm.tokenizer.is_fast):
        why = "is a causal model" if lm.kind != "masked" else "its tokenizer keeps no word ids"
        raise RequestError(
            f"method.whole_words: {lm.name}: {why}; masks of single tokens need no whole_words"
        )
    if settings.packing and lm.kind != "causal":
        raise RequestError(
            "method.packing: is for causal models; a masked model's rows are full blocks of whole "
            "texts already"
        )


def _bf16(device: torch.device) -> bool:
    """Whether a device multiplies in bfloat16; a CPU does, at whatever speed."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def _throughput(context: Context, model: Any, trainer: Any) -> dict[str, Any]:
    """Real tokens a second while this start trained, and what share of matmul's rate that is.

    Padding is no token. None where the start had a single update, which only warms up.
    """
    record = trainer.record
    if not record.tokens:
        return {"tokens_per_second": None, "share_of_matmul_rate": None}
    rate = record.tokens / record.seconds
    device = context.lm.device
    dtype = torch.bfloat16 if trainer.args.bf16 else context.lm.dtype
    possible = matmul_rate(device, dtype) * trainer.accelerator.num_processes
    return {
        "tokens_per_second": rate,
        "share_of_matmul_rate": rate * _flops(context, model, trainer) / possible,
    }


def _flops(context: Context, model: Any, trainer: Any) -> float:
    """Operations a token; a masked model's head sees only those that are predicted."""
    if context.lm.kind != "masked" or not trainer.selects:
        return step_flops(model)
    body = set(map(id, base_of(context.lm).modules()))
    head = [module for module in context.lm.model.modules() if id(module) not in body]
    return step_flops(model, head, context.settings.mask_share)


def token_loss(
    logits: torch.Tensor, targets: torch.Tensor, num_items_in_batch: Any = None
) -> torch.Tensor:
    """Cross-entropy summed over tokens, over their number in the whole update.

    `logits`, (tokens, vocab); `targets`, (tokens,). This Trainer's own masked loss is n times too
    large under n-fold accumulation: BERT and RoBERTa take `num_items_in_batch` and ignore it.
    """
    total = functional.cross_entropy(logits.float(), targets, reduction="sum")
    return total / (len(targets) if num_items_in_batch is None else num_items_in_batch)


def arguments(context: Context, rows: int, valid: int) -> dict[str, Any]:
    """The training arguments that both trainers share."""
    settings = context.settings
    per_epoch = math.ceil(math.ceil(rows / settings.batch) / settings.accumulation)
    steps = math.ceil(per_epoch * settings.epochs)
    steps = min(steps, settings.max_steps) if settings.max_steps > 0 else steps
    evaluate = valid > 0
    # A run shorter than one interval is still evaluated and saved, at its end.
    eval_steps = min(settings.eval_steps, steps)
    save_steps = min(settings.save_steps, steps)
    keep_best = settings.keep == "best" and evaluate and save_steps % eval_steps == 0
    on_cpu = context.lm.device.type == "cpu"
    mixed = settings.mixed_precision == "bf16" or (
        settings.mixed_precision == "auto" and not on_cpu and _bf16(context.lm.device)
    )
    half = {
        "bf16": mixed or context.lm.dtype == torch.bfloat16,
        "fp16": not mixed and context.lm.dtype == torch.float16,
    }
    return {
        "output_dir": str(context.checkpoints),
        "num_train_epochs": settings.epochs,
        "max_steps": settings.max_steps,
        "per_device_train_batch_size": settings.batch // context.processes,
        "per_device_eval_batch_size": settings.batch,
        "gradient_accumulation_steps": settings.accumulation,
        "average_tokens_across_devices": True,
        "learning_rate": settings.lr,
        "warmup_steps": settings.warmup_steps,
        "weight_decay": settings.weight_decay,
        "lr_scheduler_type": settings.scheduler,
        "eval_strategy": "steps" if evaluate else "no",
        "eval_steps": eval_steps,
        "eval_on_start": evaluate,
        "save_strategy": "steps",
        "save_steps": save_steps,
        "save_total_limit": 2,
        "load_best_model_at_end": keep_best,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": False,
        "logging_steps": max(1, min(10, steps // 20)),
        "logging_nan_inf_filter": False,
        "report_to": [],
        "disable_tqdm": True,
        "seed": context.seed,
        "data_seed": context.seed,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": not on_cpu,
        "remove_unused_columns": False,
        "gradient_checkpointing": settings.gradient_checkpointing,
        # The other kind asks for a gradient of the inputs, which frozen embeddings have not.
        **(
            {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
            if settings.gradient_checkpointing
            else {}
        ),
        "ddp_find_unused_parameters": False,
        "optim": settings.optimizer,
        "torch_compile": settings.compile,
        "use_cpu": on_cpu,
        **half,
    }


class _LabelledAlone(Recorded):
    """In front of a Trainer: only tokens with a label go through the output head.

    That is most of the work where the vocabulary is large: a masked model predicts 15 % of its
    tokens, and no model any padding. `selects`: whether this model's head can do so; where it
    can't, all tokens go through, and the loss is the same.
    """

    lm: LanguageModel
    selects = False

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        targets = inputs.pop("labels")
        if self.lm.kind == "causal":  # a token is predicted at the one before it; no first one is
            targets = targets.roll(-1, dims=1)
            inputs["use_cache"] = False
        wanted = targets != IGNORED
        with only_at(self.lm, wanted) if self.selects else nullcontext():
            outputs = model(**inputs)
        logits = outputs["logits"]
        logits = logits[0] if self.selects else logits[wanted]
        loss = token_loss(logits, targets[wanted], num_items_in_batch)
        if num_items_in_batch is not None:  # counted over all processes, which average gradients
            loss = loss * self.accelerator.num_processes  # type: ignore[attr-defined]
        return (loss, outputs) if return_outputs else loss


class _MaskedTrainer(_LabelledAlone, Trainer):
    pass


class _CausalTrainer(_LabelledAlone, SFTTrainer):
    def compute_loss(self, *given: Any, **more: Any) -> Any:
        # On a GPU trl's kernel never holds the logits. On a CPU it computes them twice, those of
        # padding too, and with them entropies that nobody reads.
        if self.args.device.type != "cpu" or self.aux_loss_enabled:
            return SFTTrainer.compute_loss(self, *given, **more)
        return super().compute_loss(*given, **more)


def trainer_for(context: Context, model: Any, train: Sequence[str], valid: Sequence[str]) -> Any:
    """The trainer for the context's kind of model, with its rows in place; see `fit`."""
    settings, lm = context.settings, context.lm
    rows, held_out = (text_rows(lm, texts, settings) for texts in (train, valid))
    packed = None
    if settings.packing and _packs(context, model, rows):
        packed = packed_rows(rows, block_of(lm, settings))
        rows = [[token for text in row for token in text] for row in packed]
    if len(rows) < settings.batch:
        raise RequestError(
            f"the corpus makes {len(rows)} training rows, fewer than a batch of {settings.batch} "
            "(method.batch)"
        )
    given = arguments(context, len(rows), len(held_out))
    given["include_num_input_tokens_seen"] = "no"  # the record counts them, without padding
    if lm.kind == "masked":
        begins = [
            word_starts(lm, texts, settings) if settings.whole_words else None
            for texts in (train, valid)
        ]
        trainer = _masked_trainer(context, model, rows, held_out, given, begins)
    else:
        trainer = _causal_trainer(context, model, rows, held_out, given, packed)
    trainer.record = Record(list(map(len, rows)))
    trainer.lm = lm
    trainer.model_accepts_loss_kwargs = True  # the loss does: labels are counted over an update
    # A compiled model is fixed before the positions are known; several GPUs in one process, which
    # share a batch, each have others.
    trainer.selects = not settings.compile and trainer.args.n_gpu <= 1 and _selects(lm, rows[0])
    return trainer


def _selects(lm: LanguageModel, row: list[int]) -> bool:
    """Whether the output head gives the same for some positions alone; looked at in one row."""
    lm.model.eval()
    ids = torch.tensor([row[:SHORT], row[:SHORT][::-1]], device=lm.device)
    lines = torch.tensor([0, 1], device=lm.device)
    places = torch.tensor([ids.shape[1] - 1, 0], device=lm.device)
    return head_selects(lm, lm.inputs(ids), lines, places)


def _packs(context: Context, model: Any, rows: list[list[int]]) -> bool:
    """Whether this model keeps the texts of a row apart; looked at in its fullest row."""
    lm = context.lm
    fullest = max(packed_rows(rows, block_of(lm, context.settings)), key=len, default=[])
    if len(fullest) < 2:
        context.say("method.packing: no two texts fit into a row together; nothing is packed")
        return False
    if not sees_only_its_own(lm, model, fullest):
        context.say(
            f"method.packing: {lm.name} ({type(lm.model).__name__}) lets a text see those before "
            "it in a row, or counts its positions on from theirs; nothing is packed"
        )
        return False
    return True


def _masked_trainer(
    context: Context,
    model: Any,
    rows: list[list[int]],
    held_out: list[list[int]],
    given: dict[str, Any],
    begins: list[list[list[bool]] | None],
) -> Any:
    settings, lm = context.settings, context.lm
    pad = lm.tokenizer.pad_token_id
    if pad is None or lm.tokenizer.mask_token_id is None:
        raise RequestError(f"{lm.name}: training needs a tokenizer with pad and mask tokens")
    train, valid = (
        MaskedRows(some, lm.tokenizer, settings.mask_share, context.seed, fixed=fixed, begins=words)
        for some, fixed, words in ((rows, False, begins[0]), (held_out, True, begins[1]))
    )
    return _MaskedTrainer(
        model=model,
        args=TrainingArguments(**given, label_names=["labels"]),
        train_dataset=train,
        eval_dataset=valid if held_out else None,
        data_collator=Collator(pad, lm.language_id),
    )


def _causal_trainer(
    context: Context,
    model: Any,
    rows: list[list[int]],
    held_out: list[list[int]],
    given: dict[str, Any],
    packed: list[list[list[int]]] | None,
) -> Any:
    lm = context.lm
    tokenizer = lm.tokenizer
    # Padding is never attended to and never a label, so any token serves where none is set.
    pad = tokenizer.pad_token_id
    pad = pad if pad is not None else (tokenizer.eos_token_id or 0)
    settings = SFTConfig(
        **given,
        max_length=None,  # the rows are cut already
        packing=False,  # and packed
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    # The first token is never predicted. Said here, because the trainer counts labels, and does
    # not leave the first out for every class that does (GPT2LMHeadModel, XLMWithLMHeadModel).
    train: dict[str, Any] = {
        "input_ids": rows,
        "labels": [_causal_labels(row) for row in (packed or [[row] for row in rows])],
        "row": list(range(len(rows))),
    }
    if packed is not None:
        train["lengths"] = [list(map(len, row)) for row in packed]
    valid = {"input_ids": held_out, "labels": [_causal_labels([row]) for row in held_out]}
    return _CausalTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict(train),
        eval_dataset=Dataset.from_dict(valid) if held_out else None,
        processing_class=tokenizer,
        data_collator=Collator(pad, lm.language_id),
    )


def _causal_labels(texts: Sequence[list[int]]) -> list[int]:
    return [label for text in texts for label in (IGNORED, *text[1:])]


class Watch(TrainerCallback):
    """Pass losses on, show progress, stop at NaN, tell masks the epoch and a curve the step."""

    def __init__(self, context: Context, record: Record | None = None):
        self.context = context
        self.record = record
        self.report: Any = lambda done, total: None

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step > 0:  # a kill may have come between a checkpoint and its scores
            self._checkpoint(state)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._checkpoint(state)

    def _checkpoint(self, state: Any) -> None:
        if self.context.checkpoint is None or state.global_step > state.max_steps:
            return
        losses = [
            entry["eval_loss"]
            for entry in state.log_history
            if "eval_loss" in entry and entry["step"] == state.global_step
        ]
        self.context.checkpoint(state.global_step, state.epoch, losses[-1] if losses else None)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        data = more["train_dataloader"].dataset
        if isinstance(data, MaskedRows):
            data.epoch = int(state.epoch or 0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 0:  # not at the very start: the first evaluation comes after that
            self._checkpoint(state)
        # The trainer takes a step before it sees that a resumed run was done: let it be empty.
        if state.global_step >= state.max_steps:
            for group in more["optimizer"].param_groups:
                group["lr"] = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.report(state.global_step, state.max_steps)
        if self.record is None:
            return
        self.record.step(state.global_step)
        # Before a checkpoint, so that none holds weights that are no numbers.
        if control.should_log or control.should_save or control.should_training_stop:
            self._tell(state)

    def _tell(self, state: Any) -> None:
        """Log which rows the last steps saw, a hash each, and count their tokens."""
        assert self.record is not None
        try:
            steps = self.record.told()
        except TrainingError as error:
            last = last_whole_checkpoint(self.context.checkpoints)
            kept = f"{last.name} is the last good one" if last else "there is no checkpoint yet"
            raise TrainingError(f"{error}; {kept}, a smaller method.lr may help") from error
        steps = [step for step in steps if step[0] <= state.max_steps]
        if not steps:
            return
        tokens = sum(count for _, _, count in steps)
        state.num_input_tokens_seen += tokens
        self.context.log(
            {
                "train/step": state.global_step,
                "train/tokens": state.num_input_tokens_seen,
                "train/rows": " ".join(f"{number}:{digest}" for number, digest, _ in steps),
            }
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if state.global_step > state.max_steps:
            return
        # The last entry's `train_loss` is a mean over this start's steps, no point of the curve.
        kept = {
            f"train/{key.removeprefix('train_')}": value
            for key, value in (logs or {}).items()
            if isinstance(value, int | float) and key not in ("epoch", "train_loss")
        }
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {state.global_step}; the last checkpoint is kept, "
                "a smaller method.lr may help"
            )
        self.context.log({"train/step": state.global_step, "epoch": state.epoch, **kept})
