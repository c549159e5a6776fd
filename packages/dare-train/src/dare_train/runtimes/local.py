"""The `local` runtime: one worker, in this process."""

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["LocalRuntime"]

W = TypeVar("W")
R = TypeVar("R")


class _LocalGroup(Generic[W]):
    def __init__(self, worker: W) -> None:
        self._worker = worker

    def run(self, fn: Callable[[W], R]) -> list[R]:
        return [fn(self._worker)]


class LocalRuntime:
    """Runs everything in the calling process; the oracle for every other runtime."""

    def spawn(self, factory: Callable[[int, int], W]) -> _LocalGroup[W]:
        """Build the only worker, here."""
        return _LocalGroup(factory(0, 1))

    def close(self) -> None:
        """Nothing to end."""
