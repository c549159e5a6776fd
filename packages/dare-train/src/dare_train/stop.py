"""Ask a run to stop: the first signal is polite, the second is not."""

import signal
import threading
from types import FrameType
from typing import Any, Self

__all__ = ["StopFlag"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopFlag:
    """Context manager that turns the first SIGINT or SIGTERM into a flag; a second one interrupts at once."""

    def __init__(self) -> None:
        self.raised = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers, where this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in _SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        """Give the handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.raised:
            raise KeyboardInterrupt
        self.raised = signal.Signals(number).name
