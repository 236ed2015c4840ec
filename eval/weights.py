"""A model's weights as a name: two models with the same fingerprint are the same."""

import hashlib
from collections.abc import Iterable

import torch


def fingerprint(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hash weights, given in the order of their names, by name and bytes (16 hex digits)."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in weights:
        digest.update(name.encode())
        flat = tensor.detach().cpu().reshape(-1).contiguous()  # a single number has no view
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
