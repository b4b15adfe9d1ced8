"""The served file: loaded again while requests run, and names that are taken out of service.

A new version is loaded and tried beside the old one and replaces it between two batches: requests
end on the version that they began with, and a load that fails changes nothing. A change holds for
this process, until it ends.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from safetensors import SafetensorError
from torch import nn

from superpose import SuperposeError, load
from superpose.serving.request_error import RequestError
from superpose.serving.version import Options, Version, digest_of


class Repository:
    """The served model by name: the whole model has the file's name (or `name`), each task its own.

    `make` returns the plain network. Raises `SuperposeError` if the file cannot be served.
    """

    def __init__(
        self,
        file: str | Path,
        make: Callable[[], nn.Module],
        options: Options | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.file = Path(file)
        self.name = self.file.stem if name is None else name
        self.unloaded: frozenset[str] = frozenset()
        self._make = make
        self._options = options or Options()
        self._changing = Lock()
        if not self.file.is_file():
            raise SuperposeError(f"{self.file}: there is no such file")
        self.version = self._read()

    def find(self, name: str, version: str = "") -> tuple[Version, str | None]:
        """Return the version that serves a name, and the task; no task for the whole model.

        Raises `RequestError` 404 if there is no such name or version, or it is unloaded.
        """
        current = self.version
        known = name == self.name or name in current.tasks
        if not known or name in self.unloaded or self.name in self.unloaded:
            raise RequestError(404, f"there is no model {name!r} that is loaded")
        if version and version != current.name:
            detail = f"has no version {version!r}: it is {current.name}"
            raise RequestError(404, f"model {name!r} {detail}")
        return current, None if name == self.name else name

    def names(self) -> dict[str, bool]:
        """Return all names, the whole model's first, and whether each is loaded."""
        names = [self.name, *self.version.tasks]
        unloaded = names if self.name in self.unloaded else self.unloaded
        return {name: name not in unloaded for name in names}

    def load(self, name: str) -> None:
        """Read the file again if `name` is the whole model, or serve an unloaded task again."""
        with self._changing:
            self._check_name(name)
            if name == self.name:
                self._reload()
            self.unloaded -= {name}

    def unload(self, name: str) -> None:
        """Serve a name no longer, until it is loaded."""
        with self._changing:
            self._check_name(name)
            self.unloaded |= {name}

    def reload_if_changed(self) -> bool:
        """Read the file again if it is another one than last time; return whether it was read."""
        with self._changing:
            if _fingerprint(self.file) in (None, self._seen):
                return False
            self._reload()
        return True

    def _check_name(self, name: str) -> None:
        if name != self.name and name not in self.version.tasks:
            raise RequestError(404, f"there is no model {name!r}")

    def _reload(self) -> None:
        try:
            self.version = self._read()
        except (SuperposeError, OSError, SafetensorError) as error:
            raise RequestError(409, str(error)) from error
        self.unloaded &= {self.name, *self.version.tasks}

    def _read(self) -> Version:
        self._seen = _fingerprint(self.file)  # first: a file that cannot be loaded is tried once
        version = Version(load(self.file, self._make()), digest_of(self.file), self._options)
        if _fingerprint(self.file) != self._seen:
            raise SuperposeError(f"{self.file.name} was changed while it was read: try again")
        if self.name in version.tasks:
            problem = f"the whole model and a task are both called {self.name!r}"
            raise SuperposeError(f"{problem}: use another --name")
        return version


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when a file is written or replaced; none if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
