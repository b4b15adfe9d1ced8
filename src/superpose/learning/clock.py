"""How long things take, and whether it is time for something."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Clock:
    """Seconds of a run, those before it was last stopped included."""

    def __init__(self, before: dict[str, Any]) -> None:
        self._before = before
        self._start = time.perf_counter()
        self._evaluating = 0.0
        self._last: dict[str, float] = {}

    def due(self, what: str, every: float) -> bool:
        """Whether `every` seconds have passed since this was last true, or since the start."""
        now = time.perf_counter()
        if now - self._last.get(what, self._start) < every:
            return False
        self._last[what] = now
        return True

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count what happens here as evaluation."""
        start = time.perf_counter()
        yield
        self._evaluating += time.perf_counter() - start

    def left(self, done: int, rest: int) -> float:
        """How long the rest of the steps will take at the pace of those done since the start."""
        return (time.perf_counter() - self._start) / done * rest

    def timings(self) -> dict[str, Any]:
        """What goes into `timings.json`."""
        seconds = time.perf_counter() - self._start
        return {
            "seconds": self._before.get("seconds", 0.0) + seconds,
            "seconds_evaluating": self._before.get("seconds_evaluating", 0.0) + self._evaluating,
            "starts": self._before.get("starts", 0) + 1,
        }
