"""Random numbers that depend on a text alone: the same in every process, and no global generator is touched."""

from __future__ import annotations

import hashlib

import torch

__all__ = ["generator", "number"]


def number(key: str) -> int:
    """Return a number of 56 bits that a text decides.

    >>> number("0/model.embed_tokens.weight") % 100
    26
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")


def generator(key: str) -> torch.Generator:
    """Return a generator on the CPU that a text seeds."""
    return torch.Generator().manual_seed(number(key))
