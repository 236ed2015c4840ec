"""Continued pretraining on community text: every weight, or a LoRA adapter.

The German paper's mitigation (2608.30884, §3.4). Masked models go through transformers'
Trainer, causal ones through trl's SFTTrainer; both see the same rows in the same order
whatever the number of processes, and the same masks after a resume.
"""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from eval.errors import RequestError
from eval.scorers import causal, max_length
from eval.scorers.model import LanguageModel
from mitigate.console import progress
from mitigate.methods import Context, Trained
from mitigate.settings import MethodSettings

#: Labels of tokens that are not predicted.
IGNORED = -100


class TrainingError(RuntimeError):
    """Training can't go on: the loss is not a number, or no weight moved."""


def check(
    lm: LanguageModel, settings: MethodSettings, model_targets: list[str], processes: int
) -> None:
    """Refuse what can't be trained, before anything is scored or written.

    Raises:
        RequestError: the batch can't be shared by the processes, or LoRA's targets match
            nothing or a tied output layer.
    """
    if settings.batch % processes:
        raise RequestError(
            f"method.batch={settings.batch} can't be shared by {processes} processes"
        )
    if settings.lora is not None:
        _lora_modules(lm, settings.lora.targets or model_targets)


def train(context: Context) -> Trained:
    """Fine-tune the model on the corpus and return it with the best or last weights.

    Raises:
        RequestError: the batch can't be shared by the processes, the corpus is smaller than a
            batch, or LoRA's targets match nothing or a tied output layer.
        TrainingError: the loss is not a number.
    """
    settings, lm = context.settings, context.lm
    check(lm, settings, context.lora_targets, context.processes)
    set_seed(context.seed)
    model = lm.model
    if settings.lora is not None:
        model = _with_lora(lm, settings, context.lora_targets, context.say)
    rows, held_out = (_rows(lm, texts, settings) for texts in (context.train, context.valid))
    if len(rows) < settings.batch:
        raise RequestError(
            f"the corpus makes {len(rows)} training rows, fewer than a batch of {settings.batch} "
            "(method.batch)"
        )
    make = _masked_trainer if lm.kind == "masked" else _causal_trainer
    trainer = make(context, model, rows, held_out)
    trainer.remove_callback(PrinterCallback)  # our own bar and log say it
    watch = _Watch(context)
    trainer.add_callback(watch)
    checkpoint = last_whole_checkpoint(context.checkpoints)
    if checkpoint:
        context.say(f"going on from {checkpoint.name}")
    with progress("training") as report:
        watch.report = report
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    # The history is kept in the checkpoints, so a resumed run has all of it.
    steps = min(trainer.state.global_step, trainer.state.max_steps)
    losses = [
        entry["loss"]
        for entry in trainer.state.log_history
        if "loss" in entry and entry["step"] <= steps
    ]
    facts = {
        "method": settings.name,
        "steps": steps,
        "epochs": trainer.state.epoch,
        "train_rows": len(rows),
        "valid_rows": len(held_out),
        "train_loss": sum(losses) / len(losses) if losses else None,
        "best_valid_loss": trainer.state.best_metric,
        "kept": "best" if trainer.state.best_model_checkpoint else "last",
        "trained_weights": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "all_weights": sum(p.numel() for p in model.parameters()),
        "strategy": str(trainer.accelerator.distributed_type).rpartition(".")[2],
        "world_size": trainer.accelerator.num_processes,
        "tokens_seen": trainer.state.num_input_tokens_seen or None,
    }
    return Trained(model, settings.lora is not None, facts)


def _lora_modules(lm: LanguageModel, targets: list[str]) -> list[str]:
    """The full names of the modules that the targets match, all of which LoRA may change."""
    if not targets:
        raise RequestError(
            "method.lora.targets: this model has no defaults; name modules, such as "
            f"{', '.join(_linear_names(lm.model)[:6])}"
        )
    modules = dict(lm.model.named_modules())
    found = {
        target: [name for name in modules if name == target or name.endswith(f".{target}")]
        for target in targets
    }
    nothing = [target for target in targets if not found[target]]
    if nothing:
        raise RequestError(
            f"method.lora.targets: {', '.join(nothing)} match nothing in {lm.name}; there are: "
            f"{', '.join(_linear_names(lm.model))}"
        )
    matched = [name for name in modules if any(name in names for names in found.values())]
    output = lm.model.get_output_embeddings()
    for name in matched:
        if modules[name] is output or getattr(modules[name], "weight", None) is output.weight:
            raise RequestError(
                f"method.lora.targets: {name} is the output layer or shares its weights; where "
                "they are tied to the embeddings, an adapter merges into both"
            )
    return matched


def _with_lora(
    lm: LanguageModel, settings: MethodSettings, model_targets: list[str], say: Any
) -> Any:
    """Put LoRA on the model and say what it trains."""
    assert settings.lora is not None
    targets = settings.lora.targets or model_targets
    matched = _lora_modules(lm, targets)
    # No task type: peft knows none for masked models, and the default wraps nothing away.
    config = LoraConfig(
        r=settings.lora.r,
        lora_alpha=settings.lora.alpha,
        lora_dropout=settings.lora.dropout,
        target_modules=targets,
        bias="none",
        task_type="CAUSAL_LM" if lm.kind == "causal" else None,
    )
    model = get_peft_model(lm.model, config)
    trained, total = model.get_nb_trainable_parameters()
    say(
        f"LoRA on {len(matched)} modules ({', '.join(targets)}): "
        f"{trained:,} of {total:,} weights, {100 * trained / total:.2f} %"
    )
    return model


def _linear_names(model: Any) -> list[str]:
    """The last parts of the names of all linear layers but the output, each once."""
    head = model.get_output_embeddings()
    kinds = ("Linear", "Conv1D")
    names = (
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if type(module).__name__ in kinds and module is not head
    )
    return list(dict.fromkeys(names))


def _rows(lm: LanguageModel, texts: Sequence[str], settings: MethodSettings) -> list[list[int]]:
    """Token ids of training rows, special tokens included, none longer than a block.

    Masked models: whole texts are grouped until a block is full, and only a text longer than
    a block is cut. Causal models: a text a row with BOS and EOS, cut where it is too long;
    unpacked, so that no text sees another.
    """
    block = min(settings.block, max_length(lm))
    tokenizer = lm.tokenizer
    plain = (
        tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        if texts
        else []
    )
    if lm.kind == "causal":
        _, bos = causal.bos_policy(lm)
        front = [] if bos is None else [bos]
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        room = block - len(front)
        return [
            front + piece
            for ids in plain
            for piece in _cut(ids + end, room)
            if len(front) + len(piece) > 1
        ]
    front, between, end = _frame(tokenizer)
    return [front + row + end for row in _grouped(plain, block - len(front) - len(end), between)]


def _frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[int]]:
    """The special tokens before a text, between two and after, as the tokenizer sets them."""
    empty = tokenizer("")["input_ids"]
    between = tokenizer.sep_token_id
    if len(empty) == 2:
        return [empty[0]], [] if between is None else [between], [empty[1]]
    return [], [] if between is None else [between], list(empty)


def _grouped(texts: Sequence[list[int]], room: int, between: list[int]) -> Iterator[list[int]]:
    row: list[int] = []
    for ids in texts:
        for piece in _cut(ids, room):
            if row and len(row) + len(between) + len(piece) > room:
                yield row
                row = []
            row = row + between + piece if row else piece
    if row:
        yield row


def _cut(ids: list[int], room: int) -> Iterator[list[int]]:
    for start in range(0, len(ids), room):
        yield ids[start : start + room]


class MaskedRows(torch.utils.data.Dataset):
    """Rows with masks drawn anew each epoch from (seed, epoch, row) and nothing else.

    So two processes mask as one does, a resumed run as an undisturbed one, and with a fixed
    epoch the evaluation is the same each time. 80 % [MASK], 10 % a random token, 10 % kept
    (Devlin et al. 2019, §3.1).
    """

    def __init__(
        self,
        rows: Sequence[list[int]],
        tokenizer: PreTrainedTokenizerBase,
        share: float,
        seed: int,
        *,
        fixed: bool,
    ):
        self.rows = rows
        self.share = share
        self.seed = seed
        self.epoch = 0
        self.fixed = fixed
        self._special = np.array(tokenizer.all_special_ids)
        self._mask = int(tokenizer.mask_token_id)
        self._vocabulary = len(tokenizer)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        ids = np.array(self.rows[index])
        epoch = 2**31 if self.fixed else self.epoch
        draw = np.random.default_rng((self.seed, epoch, index))
        open_ = np.flatnonzero(~np.isin(ids, self._special))
        # At least one, so that no row is without a label.
        count = max(1, round(self.share * len(open_)))
        chosen = draw.choice(open_, min(count, len(open_)), replace=False)
        labels = np.full(len(ids), IGNORED)
        labels[chosen] = ids[chosen]
        kind = draw.random(len(chosen))
        ids[chosen[kind < 0.8]] = self._mask
        random = chosen[kind >= 0.9]
        ids[random] = draw.integers(self._vocabulary, size=len(random))
        return {"input_ids": ids.tolist(), "labels": labels.tolist()}


class _Collator:
    """Pad a batch of masked rows to its longest; `langs` for XLM."""

    def __init__(self, pad: int, language_id: int | None):
        self.pad = pad
        self.language_id = language_id

    def __call__(self, rows: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        shape = (len(rows), longest)
        batch = {
            "input_ids": torch.full(shape, self.pad),
            "attention_mask": torch.zeros(shape, dtype=torch.long),
            "labels": torch.full(shape, IGNORED),
        }
        for line, row in enumerate(rows):
            length = len(row["input_ids"])
            batch["input_ids"][line, :length] = torch.tensor(row["input_ids"])
            batch["labels"][line, :length] = torch.tensor(row["labels"])
            batch["attention_mask"][line, :length] = 1
        if self.language_id is not None:
            batch["langs"] = torch.full(shape, self.language_id)
        return batch


def token_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Cross-entropy summed over labelled tokens, over their number in the whole update.

    This Trainer's own masked loss is n times too large under n-fold accumulation: BERT and
    RoBERTa take `num_items_in_batch` and ignore it.
    """
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    total = functional.cross_entropy(
        logits.view(-1, logits.size(-1)).float(),
        labels.view(-1),
        ignore_index=IGNORED,
        reduction="sum",
    )
    count = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return total / count


def _arguments(context: Context, rows: int, valid: int) -> dict[str, Any]:
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
    half = {"bf16": context.lm.dtype == torch.bfloat16, "fp16": context.lm.dtype == torch.float16}
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
        "gradient_checkpointing": False,
        "ddp_find_unused_parameters": False,
        "include_num_input_tokens_seen": "all",
        "use_cpu": on_cpu,
        **half,
    }


def _masked_trainer(
    context: Context, model: Any, rows: list[list[int]], held_out: list[list[int]]
) -> Trainer:
    settings, lm = context.settings, context.lm
    pad = lm.tokenizer.pad_token_id
    if pad is None or lm.tokenizer.mask_token_id is None:
        raise RequestError(f"{lm.name}: training needs a tokenizer with pad and mask tokens")
    data = {
        part: MaskedRows(some, lm.tokenizer, settings.mask_share, context.seed, fixed=fixed)
        for part, some, fixed in (("train", rows, False), ("valid", held_out, True))
    }
    return Trainer(
        model=model,
        args=TrainingArguments(
            **_arguments(context, len(rows), len(held_out)), label_names=["labels"]
        ),
        train_dataset=data["train"],
        eval_dataset=data["valid"] if held_out else None,
        data_collator=_Collator(pad, lm.language_id),
        compute_loss_func=token_loss,
    )


class _CausalCollator:
    """trl's own collator, and `langs` for XLM."""

    def __init__(self, pad: int, language_id: int | None):
        self._collate = DataCollatorForLanguageModeling(pad_token_id=pad)
        self.language_id = language_id

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = dict(self._collate(rows))
        if self.language_id is not None:
            batch["langs"] = torch.full_like(batch["input_ids"], self.language_id)
        return batch


def _causal_trainer(
    context: Context, model: Any, rows: list[list[int]], held_out: list[list[int]]
) -> Trainer:
    lm = context.lm
    tokenizer = lm.tokenizer
    # Padding is never attended to and never a label, so any token serves where none is set.
    pad = tokenizer.pad_token_id
    pad = pad if pad is not None else (tokenizer.eos_token_id or 0)
    arguments = SFTConfig(
        **_arguments(context, len(rows), len(held_out)),
        max_length=None,  # the rows are cut already
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    # The first token is never predicted. Said here, because the trainer counts labels, and does
    # not leave the first out for every class that does (GPT2LMHeadModel, XLMWithLMHeadModel).
    data = {
        part: Dataset.from_dict(
            {"input_ids": some, "labels": [[IGNORED, *row[1:]] for row in some]}
        )
        for part, some in (("train", rows), ("valid", held_out))
    }
    return SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=data["train"],
        eval_dataset=data["valid"] if held_out else None,
        processing_class=tokenizer,
        data_collator=_CausalCollator(pad, lm.language_id),
    )


class _Watch(TrainerCallback):
    """Pass losses on, show progress, stop at NaN, tell masks the epoch and a curve the step."""

    def __init__(self, context: Context):
        self.context = context
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


def last_whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; torn ones are removed.

    The trainer writes `trainer_state.json` last: a checkpoint that has a readable one is whole.
    """
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[-1]))
    for checkpoint in reversed(found):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            shutil.rmtree(checkpoint)
            continue
        return checkpoint
    return None
