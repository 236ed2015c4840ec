"""What a scorer needs of a model, however it was loaded."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from eval.rules import Kind


@dataclass(frozen=True)
class LanguageModel:
    """A model with its tokenizer, ready to score: on its device, in evaluation mode."""

    name: str
    kind: Kind
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str  # of the weights, and of what changes their logits; 16 hex digits
    tokenizer_fingerprint: str
    language_id: int | None = None  # XLM's `langs`; None for every model without them
    decoding: str = ""  # what changes the logits that the weights give, in words; empty: nothing
    reserved: int = 0  # tokens that it puts in front of a sentence, at most

    @property
    def device(self) -> torch.device:
        device = self.model.device
        # Weights that accelerate keeps elsewhere are fetched for each pass; inputs go in by memory.
        return torch.device("cpu") if device.type == "meta" else device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def precision(self) -> str:
        """The dtype as it is written down: float32, bfloat16, …"""
        return str(self.dtype).removeprefix("torch.")

    def inputs(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """The keyword arguments of a forward pass over `input_ids`, (batch, tokens)."""
        given = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        if self.language_id is not None:
            given["langs"] = torch.full_like(input_ids, self.language_id)
        return given
