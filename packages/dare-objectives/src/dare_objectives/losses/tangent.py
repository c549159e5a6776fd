"""exp and expm1 that follow their tangent beyond x = 40: neither value nor slope overflows, and the slope stays.

Up to 40 they are the functions themselves, bit by bit. Beyond, exp(40) (x - 40) is added to the value at 40, so the
slope is exp(40), about 2.4e17.
"""

from math import exp
from typing import Final

from torch import Tensor

__all__ = ["tangent_exp", "tangent_expm1"]

_BOUND: Final = 40.0
_SLOPE: Final = exp(_BOUND)


def tangent_exp(x: Tensor) -> Tensor:
    """exp(x) for x <= 40, its tangent at 40 beyond."""
    return x.clamp(max=_BOUND).exp() + _beyond(x)


def tangent_expm1(x: Tensor) -> Tensor:
    """exp(x) - 1 for x <= 40, its tangent at 40 beyond."""
    return x.clamp(max=_BOUND).expm1() + _beyond(x)


def _beyond(x: Tensor) -> Tensor:
    # relu, not clamp: at x = 40 its slope is 0, so that there the slopes of the two terms add up to exp(40)
    return _SLOPE * (x - _BOUND).relu()
