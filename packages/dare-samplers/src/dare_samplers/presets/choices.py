"""What several presets choose alike."""

from collections.abc import Mapping
from typing import Final, Literal, TypeVar

from dare_samplers.caches import Dual, NoCache, Prefix
from dare_samplers.filters import Order
from dare_samplers.parts import CachePolicy, Proposer
from dare_samplers.proposers import Categorical, Greedy

__all__ = ["CACHES", "CacheName", "one_of", "proposer"]

T = TypeVar("T")
CacheName = Literal["none", "prefix", "dual"]

CACHES: Final[Mapping[str, CachePolicy]] = {"none": NoCache(), "prefix": Prefix(), "dual": Dual()}


def proposer(
    temperature: float,
    top_p: float | None = None,
    top_k: int | None = None,
    order: Order = "top_k_first",
) -> Proposer:
    """The most probable token at temperature 0, a draw otherwise.

    >>> proposer(0)
    Greedy(top_k=None, top_p=None, order='top_k_first', nucleus='first_above')
    """
    if temperature == 0:
        return Greedy(top_k, top_p, order)
    return Categorical(temperature, top_k, top_p, order)


def one_of(name: str, word: str, choices: Mapping[str, T]) -> T:
    """The choice that `word` names.

    Raises:
        ValueError: for a word that is none of them.
    """
    if word not in choices:
        raise ValueError(f"`{name}`: expected one of {', '.join(choices)}, got {word!r}")
    return choices[word]
