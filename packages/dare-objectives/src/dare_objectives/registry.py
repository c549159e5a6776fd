"""Objectives by name: those of this package, and those that other distributions announce.

A distribution announces a factory by an entry point of the group `dare_objectives`; nothing of it is imported before
it is asked for.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from dare_objectives import objectives
from dare_objectives._errors import suggest
from dare_objectives.objective import Objective

__all__ = ["GROUP", "get", "names"]

GROUP: Final = "dare_objectives"
"""The entry-point group of third-party objectives."""


def names() -> tuple[str, ...]:
    """The names `get` knows: the factories of `dare_objectives.objectives`, then those of other distributions.

    Raises:
        ValueError: if two distributions announce the same name, or one a name of this package.

    >>> "diffu_grpo" in names()
    True
    """
    found = _announced()
    for name in found:
        _the_only(name, found)
    return *objectives.__all__, *sorted(found)


def get(name: str, options: Mapping[str, Any] | None = None) -> Objective:
    """An objective by name.

    Args:
        name: one of `names()`, or `"package.module:factory"` for a factory of your own.
        options: keyword arguments of the factory.

    Returns:
        Objective.

    Raises:
        ValueError: for an unknown name or option (with the nearest known one), an option out of range, or a name that
            two distributions announce.
        ImportError: if what a distribution announces cannot be imported.
        TypeError: if what it announces makes no objective.

    >>> get("diffu_grpo", {"clip_high": 0.28}).needs
    frozenset({'old'})
    """
    factory = _factory(name)
    options = dict(options or {})
    known = inspect.signature(factory).parameters
    for option in options:
        if option not in known:
            raise ValueError(suggest(f"option of {name}", option, known))
    objective = factory(**options)
    if not isinstance(objective, Objective):
        kind = type(objective).__name__
        raise TypeError(f"{name}: expected a factory that returns an Objective, got {kind}; return one")
    return objective


def _factory(name: str) -> Callable[..., Any]:
    module, colon, attribute = name.partition(":")
    if colon:
        return _by_address(module, attribute)
    found = _announced()
    if name in found:
        return _load(_the_only(name, found))
    if name not in objectives.__all__:
        raise ValueError(suggest("objective", name, (*objectives.__all__, *found)))
    return getattr(objectives, name)


def _by_address(module: str, attribute: str) -> Callable[..., Any]:
    found = import_module(module)
    if not hasattr(found, attribute):
        raise ValueError(suggest(f"factory of {module}", attribute, vars(found)))
    return getattr(found, attribute)


def _announced() -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _the_only(name: str, found: Mapping[str, list[EntryPoint]]) -> EntryPoint:
    owners = [*(["dare-objectives"] if name in objectives.__all__ else []), *map(_owner, found[name])]
    if len(owners) > 1:
        raise ValueError(
            f"objective {name!r}: expected one distribution to announce it, got {' and '.join(owners)}; uninstall one, "
            f"or ask for the address {found[name][-1].value!r}"
        )
    return found[name][0]


def _owner(point: EntryPoint) -> str:
    return "an unnamed distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _load(point: EntryPoint) -> Callable[..., Any]:
    try:
        factory = point.load()
    except Exception as error:
        raise ImportError(
            f"objective {point.name!r} of {_owner(point)}: expected a factory at {point.value!r}, got "
            f"{type(error).__name__}: {error}; correct or uninstall that distribution"
        ) from error
    if not callable(factory):
        raise TypeError(
            f"objective {point.name!r} of {_owner(point)}: expected a factory at {point.value!r}, got a "
            f"{type(factory).__name__}; point at a function that returns an Objective"
        )
    return factory
