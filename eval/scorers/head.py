"""The output head on the positions that are asked for, whatever the architecture.

Between a model's base (`base_model`, what is left without the head) and its head there is one
tensor, the last hidden state. It is replaced by the wanted positions alone, and the model's own
forward does the rest: transformations, projections, biases, scaling, capping. Nothing is known of
how the head is built; so `Head.checked` compares with the full forward pass, and where the two
differ every position goes through the head as usual.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from eval.scorers.batching import Effort, logit_rows, out_of_memory
from eval.scorers.model import LanguageModel

Inputs = dict[str, Any]

#: How far logits may be apart, relative to the largest: rounding, but no other computation.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}

#: What a head raises that can't do with a selection of positions.
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)


@dataclass(frozen=True)
class Head:
    """How the logits of some positions of a batch are computed."""

    lm: LanguageModel
    fault: str = ""  # why all positions must go through the head; empty where they need not

    @classmethod
    def checked(cls, lm: LanguageModel, inputs: Inputs, rows: Tensor, places: Tensor) -> "Head":
        """The head of a model, after a look at a small batch: see `fault`."""
        return cls(lm, fault(lm, inputs, rows, places))

    @property
    def arrangement(self) -> str:
        """In words, for the result's metadata."""
        if self.fault:
            return f"every position through the output head: {self.fault}"
        return "only wanted positions through the output head"

    def logits(
        self, inputs: Inputs, rows: Tensor, places: Tensor, effort: Effort
    ) -> Iterator[Tensor]:
        """Logits at zip(rows, places), rows ascending, as blocks of (≤ logit_rows, vocab).

        `effort` counts what was done: a pass that fails isn't counted.
        """
        most = logit_rows(self.lm)
        batch, length = inputs["input_ids"].shape
        if not self.fault:
            yield from _selected(self.lm, inputs, rows, places, most)
            effort.passes += 1
            effort.tokens += batch * length
            effort.head_rows += len(rows)
            return
        size = max(1, most // length)
        for start in range(0, batch, size):
            part = {
                name: value[start : start + size] if isinstance(value, Tensor) else value
                for name, value in inputs.items()
            }
            mine = (rows >= start) & (rows < start + size)
            yield self.lm.model(**part).logits[rows[mine] - start, places[mine]]
            effort.passes += 1
            effort.tokens += part["input_ids"].numel()
            effort.head_rows += part["input_ids"].numel()


def selected_logits(lm: LanguageModel, inputs: Inputs, rows: Tensor, places: Tensor) -> Tensor:
    """Logits at the positions zip(rows, places), which alone go through the head. (n, vocab)

    `inputs`: the forward pass's keyword arguments, for (batch, tokens) input ids.

    Raises:
        ValueError: the model has no base model that gives one hidden state a token.
    """
    return torch.cat(list(_selected(lm, inputs, rows, places, logit_rows(lm))))


@contextmanager
def only_at(lm: LanguageModel, wanted: Tensor) -> Iterator[None]:
    """In it, the positions where `wanted`, (batch, tokens), is true alone go through the head.

    A forward pass has logits (1, n, vocab) for them, row by row, and may be trained through. Only
    for models of which `head_selects` holds.
    """

    def select(module: nn.Module, args: Any, output: Any) -> Any:
        return _with_hidden(output, output[0][wanted.to(output[0].device)])

    hook = base_of(lm).register_forward_hook(select)
    try:
        yield
    finally:
        hook.remove()


def head_selects(lm: LanguageModel, inputs: Inputs, rows: Tensor, places: Tensor) -> bool:
    """Whether `selected_logits` equals the full forward pass, up to rounding."""
    return not fault(lm, inputs, rows, places)


def fault(lm: LanguageModel, inputs: Inputs, rows: Tensor, places: Tensor) -> str:
    """Why `selected_logits` can't be used for a model; empty where it equals the full pass."""
    with torch.inference_mode():
        expected = lm.model(**inputs).logits[rows, places]
        try:
            found = selected_logits(lm, inputs, rows, places)
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return f"it raises {(str(error).splitlines() or [type(error).__name__])[0]!r}"
        if found.shape != expected.shape:
            return f"it gives logits of {tuple(found.shape)}"
        # A model that gives NaN gives it in both; whoever scores with it says so.
        apart = (found - expected).abs().nan_to_num(nan=0.0).max().item()
        differ = bool((found.isnan() != expected.isnan()).any())
        scale = expected.abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).max().item()
        if differ or apart > TOLERANCE[expected.dtype] * max(1.0, scale):
            return f"its logits differ by {apart:.2g} on selected positions"
    return ""


def log_probs_at(blocks: Iterator[Tensor], of: Tensor, targets: Tensor) -> Tensor:
    """Log-softmax of logits that come in blocks, at (of[i], targets[i]), in nats. (n,) float64

    `of`: row numbers over all blocks together, ascending. The blocks are overwritten.
    """
    found, begin = [], 0
    for block in blocks:
        first, last = torch.searchsorted(of, of.new_tensor([begin, begin + len(block)])).tolist()
        row, target = of[first:last] - begin, targets[first:last]
        logits = block.float() if block.dtype != torch.float64 else block
        row, target = row.to(logits.device), target.to(logits.device)
        # The largest is taken off first: so the sum is right to 1e-7 in float32, and neither the
        # token's own logit nor the difference is ever rounded to it.
        largest = logits.amax(-1, keepdim=True)
        own = logits[row, target].double() - largest[row, 0].double()
        normaliser = logits.sub_(largest).exp_().sum(-1).double().log_()
        found.append(own - normaliser[row])
        begin += len(block)
    return torch.cat(found)


def _selected(
    lm: LanguageModel, inputs: Inputs, rows: Tensor, places: Tensor, most: int
) -> Iterator[Tensor]:
    base = base_of(lm)
    shape = inputs["input_ids"].shape
    given: list[Any] = []
    waiting: list[Tensor] = []

    def select(module: nn.Module, args: Any, output: Any) -> Any:
        hidden = output[0]
        if given or hidden.shape[:2] != shape:
            raise ValueError(f"the base model gives {tuple(hidden.shape)} for {tuple(shape)}")
        given.append(output)
        chosen = hidden[rows.to(hidden.device), places.to(hidden.device)]
        waiting.extend(chosen.split(most))
        return _with_hidden(output, waiting.pop(0))

    hook = base.register_forward_hook(select)
    try:
        logits = lm.model(**inputs).logits
    finally:
        hook.remove()
    if not given:
        raise ValueError("the base model is not called")
    yield logits[0]
    del logits
    # Where the vocabulary is large, the head goes on alone: the base answers with the next block.
    for block in waiting:
        with _answering(base, _with_hidden(given[0], block)):
            yield lm.model(**inputs).logits[0]


def base_of(lm: LanguageModel) -> nn.Module:
    """The model without its head; inside an adapter's wrapper, where there is one.

    Raises:
        ValueError: the model names none.
    """
    unwrap = getattr(lm.model, "get_base_model", None)
    model: Any = unwrap() if unwrap else lm.model
    base = getattr(model, "base_model", model)
    if base is model:
        raise ValueError("the model names no base model")
    children = list(base.children())
    while len(children) == 1 and isinstance(children[0], PreTrainedModel):
        base = children[0]  # OPT's head passes by the base, which is but a wrapper of a decoder
        children = list(base.children())
    return base


def _with_hidden(output: Any, hidden: Tensor) -> Any:
    """A base model's output with (n, hidden) as its last hidden state, a batch of one row."""
    row = hidden[None]
    if isinstance(output, tuple):
        return (row, *output[1:])
    first = next(iter(output))
    return type(output)(**{**output, first: row})


@contextmanager
def _answering(module: nn.Module, answer: Any) -> Iterator[None]:
    """The module computes nothing and returns `answer`."""
    before = module.__dict__.get("forward")
    module.forward = lambda *args, **given: answer
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before
