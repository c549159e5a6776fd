"""Hashes of stored tensors, one by one, so that a changed value can be called by name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import safe_open

__all__ = ["hash_tensors"]


def hash_tensors(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Return a sha256 over dtype, shape and values of each tensor, as the file holds it.

    A file is mapped and read once, tensor by tensor on several threads, so that no copy of the weights is made.

    Args:
        folder: holds the weight files.
        files: name of a tensor -> file that holds it.

    Returns:
        The hashes by name, in the order of `files`.
    """
    by_file: dict[str, list[str]] = {}
    for name, file in files.items():
        by_file.setdefault(file, []).append(name)
    found: dict[str, str] = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for file, names in by_file.items():
            with safe_open(folder / file, framework="pt") as tensors:
                found |= zip(names, pool.map(lambda name: _hash(tensors.get_tensor(name)), names), strict=True)  # noqa: B023
    return {name: found[name] for name in files}


def _hash(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
    digest.update(tensor.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
