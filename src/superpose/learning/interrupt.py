"""Ctrl-C that waits for the end of the step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was stopped and, if it has a directory, saved."""


class Stop:
    """Whether someone asked to stop: by a signal, or by a function that is asked."""

    def __init__(self, also: Callable[[], bool] | None) -> None:
        self._asked = False
        self._also = also

    @property
    def requested(self) -> bool:
        """Whether to stop."""
        return self._asked or (self._also is not None and self._also())

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Stop at the end of the step; asked again, stop at once."""
        if self._asked:
            raise Interrupted("stopped at once")
        self._asked = True


@contextmanager
def stop_at_step(also: Callable[[], bool] | None = None) -> Iterator[Stop]:
    """Turn Ctrl-C and a polite kill into a wish, while this lasts.

    Signals belong to the main thread: in another one they do what they did before.
    """
    stop = Stop(also)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = [signal.signal(number, stop.ask) for number in SIGNALS]
    try:
        yield stop
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
