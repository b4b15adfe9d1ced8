"""Several processes that serve one file, and change together through one directory.

Each process holds a lock on a file of its own there for as long as it lives, and writes to it which
state it serves. A change is made by one process at a time; the others see the new state, follow,
and say so in their files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from typing import IO
from uuid import uuid4

if sys.platform != "win32":
    import fcntl


class Replicas:
    """The processes at one directory; this one takes part after `join`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "replicas"
        self._own: IO[str] | None = None

    @property
    def joined(self) -> bool:
        """Whether this process takes part."""
        return self._own is not None

    def join(self) -> None:
        """Take part from now on, until the process ends; not on Windows, which has other locks."""
        if self._own is None and sys.platform != "win32":
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
            own = (self._folder / name).open("w+")
            fcntl.flock(own, fcntl.LOCK_EX)
            self._own = own

    def leave(self) -> None:
        """Take part no longer."""
        if self._own is not None:
            Path(self._own.name).unlink(missing_ok=True)
            self._own.close()
            self._own = None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One process at a time."""
        if self._own is None:
            yield
            return
        with (self._folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def tell(self, state: str) -> None:
        """Say which state this process serves."""
        if self._own is not None:
            self._own.seek(0)
            self._own.truncate()
            self._own.write(state)
            self._own.flush()

    def behind(self, state: str) -> list[str]:
        """The processes that live and do not serve this state yet."""
        if self._own is None:
            return []
        return [path.name for path in self._folder.iterdir() if not self._serves(path, state)]

    def _serves(self, path: Path, state: str) -> bool:
        """Whether a process serves a state; the file of one that ended is removed."""
        if self._own is not None and path == Path(self._own.name):
            return True
        try:
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return file.read() == state
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        return True
