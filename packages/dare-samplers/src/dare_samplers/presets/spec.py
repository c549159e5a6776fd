"""The strategy that a checkpoint's publisher decodes with."""

import inspect
import math
from collections.abc import Mapping
from typing import Any, Protocol

from dare_samplers.config import SamplerConfig
from dare_samplers.presets.choices import one_of

__all__ = ["Described", "for_spec"]


class Described(Protocol):
    """What is asked of a model's description, such as `dare_models.ModelSpec`."""

    @property
    def attention(self) -> str:
        """`full` or `block_causal`."""
        ...

    @property
    def block_length(self) -> int | None:
        """Positions per block; None where any is legal."""
        ...

    @property
    def generation(self) -> Mapping[str, Any]:
        """The name of a preset under `preset`, and its arguments; empty where nobody has published any."""
        ...


def for_spec(spec: Described) -> SamplerConfig:
    """The preset that a model's description names, with the model's block length; `.replace` what should differ.

    Smaller blocks inside the model's shrink to a size that divides its.
    Without a name it is `llada` under full attention and `sdar` under block-causal attention.

    Args:
        spec: of the model.

    Raises:
        ValueError: for a name or an argument that no preset has.

    >>> from types import SimpleNamespace
    >>> for_spec(SimpleNamespace(attention="block_causal", block_length=8, generation={})).block_length
    8
    """
    from dare_samplers import presets  # noqa: PLC0415 - this module is a part of it

    settings = dict(spec.generation)
    name = settings.pop("preset", "sdar" if spec.attention == "block_causal" else "llada")
    factory = one_of("preset", name, {known: getattr(presets, known) for known in presets.NAMES})
    known = inspect.signature(factory).parameters
    if spec.block_length is not None and "block_length" in known:
        settings["block_length"] = spec.block_length
    if unknown := sorted(settings.keys() - known.keys()):
        raise ValueError(f"`generation`: expected arguments of presets.{name} ({', '.join(known)}), got {unknown}")
    config = factory(**settings)
    inner = math.gcd(config.longest, spec.block_length or 0)
    return config if inner == config.longest else config.replace(block_length=inner)
