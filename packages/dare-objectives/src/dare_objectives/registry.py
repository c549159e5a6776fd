"""Objectives by name."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from dare_objectives import objectives
from dare_objectives._errors import suggest
from dare_objectives.objective import Objective

__all__ = ["get", "names"]


def names() -> tuple[str, ...]:
    """The names `get` knows: the factories that `dare_objectives.objectives` exports.

    >>> "diffu_grpo" in names()
    True
    """
    return tuple(objectives.__all__)


def get(name: str, options: Mapping[str, Any] | None = None) -> Objective:
    """An objective by name.

    Args:
        name: one of `names()`, or `"package.module:factory"` for a factory of your own.
        options: keyword arguments of the factory.

    Returns:
        Objective.

    Raises:
        ValueError: for an unknown name or option (with the nearest known one), or an option out of range.

    >>> get("diffu_grpo", {"clip_high": 0.28}).needs
    frozenset({'old'})
    """
    factory = _factory(name)
    options = dict(options or {})
    known = inspect.signature(factory).parameters
    for option in options:
        if option not in known:
            raise ValueError(suggest(f"option of {name}", option, known))
    return factory(**options)


def _factory(name: str) -> Callable[..., Objective]:
    if name in objectives.__all__:
        return getattr(objectives, name)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(suggest("objective", name, objectives.__all__))
    found = import_module(module)
    if not hasattr(found, attribute):
        raise ValueError(suggest(f"factory of {module}", attribute, vars(found)))
    return getattr(found, attribute)
