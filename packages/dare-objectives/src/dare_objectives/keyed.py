"""Keyed randomness: every draw is a pure hash of integers.

A draw depends on (key, purpose, index words) and on nothing else: not on the device, the batch, the rank, the order of
calls or a global generator. The hash is the finaliser of SplitMix64 (Steele, Lea & Flood, 2014) in wrapping int64
tensor arithmetic, which all torch devices carry out alike.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

__all__ = ["PURPOSES", "fold", "make_key", "row_keys", "uniform"]

PURPOSES: Final = {
    "mask": 5242079255225611356,
    "level": 36441784573580925,
    "prompt": -3528823956428362925,
    "token": 4343333289610212819,
    "order": 4533856636440994831,
    "data": 4210496735630961799,
    "eval": 1998779390530403561,
}
"""The streams of randomness. Draws for different purposes are independent under the same key.

The numbers are the first 8 bytes of SHA-256 of the names: far apart, so that small keys such as 0, 1, 2 share none.
"""

_GOLDEN: Final = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer
_MIX_1: Final = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2: Final = -7723592293110705685  # 0x94D049BB133111EB
_WORD: Final = 1 << 64


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical (zero-filling) right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def fold(key: Tensor, *words: int | Tensor) -> Tensor:
    """Mix integer words into keys, one after the other.

    Args:
        key: int64 keys of any shape.
        words: integers, or integer tensors that broadcast against `key`.

    Returns:
        int64 tensor of the broadcast shape.
    """
    for word in words:
        key = _mix((key ^ word) + _GOLDEN)
    return key


def make_key(*words: int) -> int:
    """Fold Python integers of any size into one key in the int64 range.

    >>> make_key(0, 17) == make_key(0, 17), make_key(0, 17) == make_key(17, 0)
    (True, False)
    """
    key = torch.zeros((), dtype=torch.int64)
    for word in words:
        signed = (word + _WORD // 2) % _WORD - _WORD // 2
        key = fold(key, torch.tensor(signed, dtype=torch.int64))
    return int(key)


def row_keys(seed: int, uids: Sequence[int] | Tensor, *words: int) -> Tensor:
    """One key per row from a seed, the rows' sample ids and shared words (step, iteration, …).

    Args:
        seed: the run's seed.
        uids: `[B]` integers that name the samples.
        words: integers shared by all rows.

    Returns:
        int64 `[B]` on the device of `uids` (CPU for a sequence).
    """
    ids = torch.as_tensor(uids, dtype=torch.int64)
    return fold(torch.full_like(ids, make_key(seed, *words)), ids)


def uniform(key: Tensor, purpose: str, *words: int | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers in the open interval (0, 1), one per broadcast element of key and words.

    Args:
        key: int64 keys.
        purpose: a name in `PURPOSES`.
        words: further integers or integer tensors (step, stream, position, …).
        dtype: float32 uses 23 random bits, float64 52. The two agree to 2**-23.

    Raises:
        KeyError: for an unknown purpose.
    """
    bits = 52 if dtype == torch.float64 else 23
    mixed = fold(key, PURPOSES[purpose], *words)
    # (integer + 1/2) needs one bit more than the integer, so that the largest value stays below 1
    return (_shift_right(mixed, 64 - bits).to(dtype) + 0.5) * 2.0**-bits
