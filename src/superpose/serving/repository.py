"""The file that is served, and its changes while requests run.

A new version is loaded and tried beside the old one, and then put in its place at once: requests
that began with the old one end with it, and a load that fails changes nothing. The user's file is
never written to. What was changed is kept in a directory beside it, and holds after a restart until
the file itself is another one. Processes that share the directory follow each other's changes.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from superpose.checkpoint import load, save
from superpose.errors import SuperposeError
from superpose.packing import Packed
from superpose.serving.replicas import Replicas
from superpose.serving.request_error import RequestError
from superpose.serving.version import Options, Version, digest_of
from superpose.serving.weights import map_weights

STATE = "state.json"
FOLLOW = 30.0  # seconds that other processes have to follow a change


@dataclass(frozen=True)
class Listed:
    """A line of the repository's index."""

    name: str
    version: str
    ready: bool


class Repository:
    """The served model by name: the whole model has the file's name, each task its own."""

    def __init__(
        self,
        file: str | Path,
        make: Callable[[], nn.Module],
        options: Options | None = None,
        *,
        name: str | None = None,
        state: str | Path | None = None,
    ) -> None:
        self.file = file = Path(file)
        self.name = file.stem if name is None else name
        self.state = Path(state or file.with_name(f"{file.name}.serving"))
        self.unloaded: frozenset[str] = frozenset()
        self._make = make
        self._options = options or Options()
        self._changing = Lock()
        self._seen = _looks(file)
        self._source = ""  # the digest of the file, when it was read last
        self._model: str | None = None  # the file in the state's directory that is served, if any
        self._state_seen = _looks(self.state / STATE)
        self.replicas = Replicas(self.state)
        self.version = self._restored()

    def find(self, name: str, version: str = "") -> tuple[Version, str | None]:
        """The version that serves a name, and the task; none if it is the whole model."""
        current = self.version
        known = name == self.name or name in current.tasks
        if not known or name in self.unloaded or self.name in self.unloaded:
            raise RequestError(404, f"there is no model {name!r} that is loaded")
        if version and version != current.name:
            raise RequestError(
                404, f"model {name!r} has no version {version!r}: it is {current.name}"
            )
        return current, None if name == self.name else name

    def index(self) -> list[Listed]:
        """All names, ready or not."""
        current = self.version
        names = [self.name, *current.tasks]
        off = set(names) if self.name in self.unloaded else self.unloaded
        return [Listed(name, current.name, name not in off) for name in names]

    def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load the file anew, another file, or a task: an unloaded one, or one from a file.

        Parameters: `file`, the name of a file beside the served one. For the whole model it is one
        of `superpose.save`; for a task the plain weights of a model, which is added or put in the
        place of the task's (with `old`, the weights that are there now, where the packing method
        subtracts them). `calibration` is NAME=FILE,… for methods that need inputs.
        """
        given = dict(parameters or {})
        unknown = given.keys() - {"file", "old", "calibration"}
        if unknown:
            raise RequestError(400, f"there is no parameter {min(unknown)!r} of load")
        with self._alone():
            file = self._path(given["file"]) if "file" in given else None
            if name == self.name:
                self._switch(file or self.file)
            elif file is not None:
                self._store(name, file, given)
            elif name not in self.version.tasks:
                raise RequestError(404, f"there is no model {name!r}: give the file of its weights")
            self._set_unloaded(self.unloaded - {name})
        self._await_others()

    def unload(self, name: str) -> None:
        """Serve a name no longer; loading it again brings it back."""
        with self._alone():
            if name != self.name and name not in self.version.tasks:
                raise RequestError(404, f"there is no model {name!r}")
            self._set_unloaded(self.unloaded | {name})
        self._await_others()

    def reload_if_changed(self) -> bool:
        """Load the file again if it is another one than it was: tell whether it is."""
        looks = _looks(self.file)
        if looks is None or looks == self._seen:
            return False
        with self._alone():
            self._seen = looks  # a file that cannot be loaded is not tried again and again
            self._switch(self.file)
            self._set_unloaded(self.unloaded)
        return True

    def join(self) -> None:
        """Follow what other processes change, and let them follow."""
        self.replicas.join()
        if not self.follow():
            self.replicas.tell(self._state_text())

    def follow(self) -> bool:
        """Serve what another process changed: tell whether one did."""
        if not self.replicas.joined or _looks(self.state / STATE) == self._state_seen:
            return False
        with self._changing, _refusing():
            return self._catch_up()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time, of all processes, on top of the last one."""
        with self._changing, _refusing(), self.replicas.changing():
            self._catch_up()
            yield

    def _catch_up(self) -> bool:
        looks = _looks(self.state / STATE)
        if not self.replicas.joined or looks == self._state_seen:
            return False
        state = self._read_state()
        told = state.get("source")
        source = self._source if told == self._source else digest_of(self.file)
        if told == source:
            path = self.state / state["model"] if state["model"] else self.file
            if (state["model"], source) != (self._model, self._source):
                self.version = self._read(path)
            self._source, self._model = source, state["model"]
            self.unloaded = frozenset(state["unloaded"])
            self.replicas.tell(self._state_text())
        self._state_seen = looks
        return True

    def _await_others(self) -> None:
        """Wait until all processes have followed."""
        end = monotonic() + FOLLOW
        while behind := self.replicas.behind(self._state_text()):
            if monotonic() > end:
                raise RequestError(
                    503,
                    f"it is done here, and {len(behind)} other processes have not followed within "
                    f"{FOLLOW:g} s ({', '.join(sorted(behind)[:10])}): ask again whether they did",
                )
            sleep(0.01)
            self.follow()  # others may wait for this one

    def _store(self, task: str, file: Path, given: Mapping[str, Any]) -> None:
        """Add a task, or replace its model: in a copy, which is saved, read again and served."""
        if task == self.name or not task:
            raise RequestError(409, f"a task cannot be called {task!r} here: give it another name")
        if not isinstance(self.version.model, Packed):
            raise RequestError(
                409,
                "the served model was trained, not packed, so no model can be added to it: load a "
                "new file of the whole",
            )
        packed = copy.deepcopy(self.version.model).cpu()
        calibration = self._calibration(given.get("calibration"))
        net = self._plain(file)
        if task in self.version.tasks:
            old = self._plain(self._path(given["old"])) if "old" in given else None
            packed.replace(self.version.tasks[task], net, old, calibration)
        else:
            packed.add(task, net, calibration)
        self.state.mkdir(parents=True, exist_ok=True)
        made = self.state / "new.safetensors"
        save(packed, made)
        self._switch(made)

    def _switch(self, path: Path) -> None:
        """Serve another version; if it is not the file's own, it is kept for the next start."""
        version = self._read(path)
        model = None
        if path == self.file:
            self._source = version.digest
        else:
            self.state.mkdir(parents=True, exist_ok=True)
            model = f"{version.digest}.safetensors"
            beside = self.state / f".{model}.part"
            shutil.copyfile(path, beside)
            beside.replace(self.state / model)
        self._model = model
        self._write_state(self.unloaded)
        self.version = version

    def _set_unloaded(self, names: frozenset[str]) -> None:
        names &= {self.name, *self.version.tasks}
        if names != self.unloaded:
            self._write_state(names)
            self.unloaded = names

    def _read(self, path: Path) -> Version:
        before = _looks(path)
        model, digest = load(path, self._make()), digest_of(path)
        if self._options.map_weights:
            map_weights(model, self._copy(path, digest))
        version = Version(model, digest, self._options)
        if _looks(path) != before:
            raise SuperposeError(f"{path.name} was changed while it was read: try again")
        if self.name in version.tasks:
            raise SuperposeError(
                f"the whole model and a task are both called {self.name!r}: use another --name"
            )
        return version

    def _copy(self, path: Path, digest: str) -> Path:
        """A file of these bytes that nobody writes to."""
        folder = self.state / "mapped"
        copy = folder / f"{digest}.safetensors"
        if not copy.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            beside = folder / f".{digest}.{uuid4().hex}.part"
            try:
                shutil.copyfile(path, beside)
                if digest_of(beside) != digest:
                    raise SuperposeError(f"{path.name} was changed while it was read: try again")
                beside.replace(copy)
            finally:
                beside.unlink(missing_ok=True)
        return copy

    def _restored(self) -> Version:
        """The version of the last run, if the file is the one that it was."""
        if not self.file.is_file():
            raise SuperposeError(f"{self.file}: there is no such file")
        self._source = digest_of(self.file)
        state = self._read_state()
        if state.get("source") != self._source:
            return self._read(self.file)
        self.unloaded, self._model = frozenset(state["unloaded"]), state["model"]
        return self._read(self.state / self._model if self._model else self.file)

    def _read_state(self) -> dict[str, Any]:
        path = self.state / STATE
        try:
            return json.loads(path.read_text()) if path.is_file() else {}
        except ValueError as error:
            raise SuperposeError(f"{path} is damaged: remove it to serve {self.file}") from error

    def _state_text(self) -> str:
        path = self.state / STATE
        return path.read_text() if path.is_file() else ""

    def _write_state(self, unloaded: frozenset[str]) -> None:
        if not unloaded and self._model is None and not self.state.exists():
            return
        self.state.mkdir(parents=True, exist_ok=True)
        state = {"source": self._source, "unloaded": sorted(unloaded), "model": self._model}
        beside = self.state / f".{STATE}.part"
        with beside.open("w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.state / STATE)
        self._state_seen = _looks(self.state / STATE)
        self.replicas.tell(self._state_text())
        for old in self.state.glob("*.safetensors"):
            if old.name != self._model:
                old.unlink()
        served = self._model or f"{self._source}.safetensors"
        for old in self.state.glob("mapped/*.safetensors"):
            if old.name != served:
                old.unlink(missing_ok=True)

    def _path(self, name: Any) -> Path:
        """A file beside the served one, by its bare name."""
        if not isinstance(name, str) or name != Path(name).name or name.startswith("."):
            raise RequestError(
                400, f"file {name!r}: give the name of a file beside {self.file.name}"
            )
        path = self.file.parent / name
        if not path.is_file() or path.is_symlink():
            raise RequestError(404, f"there is no file {name!r} beside {self.file.name}")
        return path

    def _plain(self, path: Path) -> nn.Module:
        net = self._make()
        try:
            net.load_state_dict(load_file(path))
        except (SafetensorError, RuntimeError) as error:
            reason = str(error).partition("\n")[2].strip() or str(error)
            raise SuperposeError(f"{path.name} does not fit the network: {reason}") from error
        return net

    def _calibration(self, words: Any) -> dict[str, Any] | None:
        if words is None:
            return None
        pairs = [word.partition("=") for word in str(words).split(",")]
        files = {name: load_file(self._path(path)) for name, _, path in pairs}
        return {n: next(iter(t.values())) if len(t) == 1 else t for n, t in files.items()}


@contextmanager
def _refusing() -> Iterator[None]:
    """What is wrong with a file is told to the client who asked for it."""
    try:
        yield
    except (SuperposeError, OSError, SafetensorError) as error:
        raise RequestError(409, str(error)) from error


def _looks(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or put in the place of another."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
