"""The lock of a model: passes run side by side in several threads, a trial of ways runs alone.

A trial puts noise where weights are zero, and takes back what passes leave in the network. A pass
of another thread would compute with that noise.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from weakref import WeakKeyDictionary

from torch import nn


class Lock:
    """Any number of passes at once, or one trial, whose own passes need no place.

    `with lock.shared:` runs a pass, `with lock.alone():` a trial.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passing: dict[int, int] = {}  # by thread: a pass may have another one in it
        self._trial: int | None = None  # the thread that runs one, or waits for its turn
        self.shared = Shared(self)

    def enter(self) -> None:
        """Begin a pass, when no other thread has a trial."""
        thread = threading.get_ident()
        with self._changed:
            before = self._passing.get(thread, 0)
            if not before and self._trial is not None:
                self._changed.wait_for(lambda: self._trial in (None, thread))
            self._passing[thread] = before + 1

    def leave(self) -> None:
        """End a pass."""
        thread = threading.get_ident()
        with self._changed:
            self._passing[thread] -= 1
            if not self._passing[thread]:
                del self._passing[thread]
                if self._trial is not None:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run a trial, when no other thread has a pass; at once inside a pass, which would wait."""
        thread = threading.get_ident()
        with self._changed:
            nested = thread in self._passing or self._trial == thread
        if nested:
            yield
            return
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._trial is None)
                self._trial = thread
                self._changed.wait_for(lambda: not self._passing)
            yield
        finally:  # also if it was interrupted while it waited
            with self._changed:
                if self._trial == thread:
                    self._trial = None
                    self._changed.notify_all()


class Shared(AbstractContextManager[None]):
    """A pass, as often as it is entered; quicker than a generator, as every pass needs it."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.enter()

    def __exit__(self, *error: object) -> None:
        self._lock.leave()


_locks: WeakKeyDictionary[nn.Module, Lock] = WeakKeyDictionary()
_making = threading.Lock()


def lock_of(model: nn.Module) -> Lock:
    """The lock of a model, which its copies do not share."""
    found = _locks.get(model)
    if found is None:
        with _making:
            found = _locks.setdefault(model, Lock())
    return found
