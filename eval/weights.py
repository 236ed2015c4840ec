"""A model's weights as a name: two models with the same fingerprint are the same."""

import hashlib
from collections.abc import Iterable

import torch


def fingerprint(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hash weights, given in the order of their names, by name and bytes (16 hex digits)."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in weights:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
