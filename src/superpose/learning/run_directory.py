"""The directory of a run: what it was, what it measured, and where it can go on from.

- `config.json`: everything that decides the numbers, and where they were made;
- `metrics.jsonl`: a record a line, appended as the run goes;
- `checkpoint.pt`: all that the next step depends on, and how long `metrics.jsonl` was then;
- `result.json`: the end; a run that has it is finished;
- `timings.json`: all that differs between two runs that are otherwise the same.

A file is written beside its place and renamed, so it is there whole or not at all. A run that is
killed goes on from its checkpoint with the records that were written by then.
"""

import hashlib
import io
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import torch

from superpose.errors import SuperposeError
from superpose.learning.metrics import Record

RunState = dict[str, Any]


class RunDirectory:
    """One run's files. `records` has what was measured before, when a run goes on."""

    def __init__(self, path: str | os.PathLike[str], config: dict[str, Any], resume: bool) -> None:
        self.path = Path(path)
        self.records: list[Record] = []
        self.state: RunState | None = None
        with ExitStack() as stack, _complaining(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(self.path))
            for left in self.path.glob(".*.new"):  # by a process that was killed while it wrote
                left.unlink()
            if (self.path / "config.json").exists():
                self._go_on(config, resume)
            elif (self.path / "result.json").exists():
                raise SuperposeError(
                    f"{self.path} holds a result that is not one run's, such as that of several "
                    "seeds: choose another directory"
                )
            else:
                write(self.path / "config.json", _json({**config, **environment()}))
            self._metrics = stack.enter_context((self.path / "metrics.jsonl").open("ab"))
            self._open = stack.pop_all()

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run ended with, if it did."""
        return self._read("result.json") if (self.path / "result.json").exists() else None

    @property
    def timings(self) -> dict[str, Any]:
        """How long the run has taken until it was last saved."""
        return self._read("timings.json") if (self.path / "timings.json").exists() else {}

    def append(self, record: Record) -> None:
        """Add a line to the metrics."""
        with _complaining(self.path):
            self._metrics.write(json.dumps(record).encode() + b"\n")
            self._metrics.flush()

    def save(self, state: RunState, timings: dict[str, Any]) -> None:
        """Write the checkpoint, once the records that belong to it are safe."""
        with _complaining(self.path):
            os.fsync(self._metrics.fileno())
            contents = checkpoint({**state, "metrics_bytes": self._metrics.tell()})
            write(self.path / "checkpoint.pt", contents)
            write(self.path / "timings.json", _json(timings))

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result; the checkpoint stays, for the trained model."""
        with _complaining(self.path):
            write(self.path / "result.json", _json(result))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def _go_on(self, config: dict[str, Any], resume: bool) -> None:
        if not resume:
            raise SuperposeError(
                f"{self.path} holds a run already: add --resume (resume=True) to continue it, "
                "or choose another directory"
            )
        self._check_same(config)
        if (self.path / "checkpoint.pt").exists():
            self.state = read_checkpoint(self.path / "checkpoint.pt")
        elif (self.path / "result.json").exists():
            raise SuperposeError(
                f"{self.path} holds a run that has ended, without its trained model: its numbers "
                "are in result.json; choose another directory to learn it again"
            )
        kept = self.state["metrics_bytes"] if self.state else 0
        metrics = self.path / "metrics.jsonl"
        if metrics.exists() or kept:
            written = metrics.stat().st_size if metrics.exists() else 0
            if written < kept:
                raise SuperposeError(
                    f"{metrics} has {written} bytes, but {kept} when the checkpoint was saved: "
                    "it was changed since, so the run cannot continue: start it in a new directory"
                )
            os.truncate(metrics, kept)
            self.records = [json.loads(line) for line in metrics.read_bytes().splitlines()]

    def _check_same(self, config: dict[str, Any]) -> None:
        now: dict[str, Any] = json.loads(json.dumps({**config, **environment()}))
        saved = self._read("config.json")
        for name in (*config, *DECISIVE):
            if saved.get(name) != now[name]:
                was, is_ = _difference(saved.get(name), now[name], name)
                was = was.removeprefix("about.").removeprefix("options.")
                raise SuperposeError(
                    f"{self.path} was started with {was}, not {is_}: "
                    "resume with the same settings, or choose another directory"
                )

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.path / name).read_text())
        except ValueError as error:
            raise SuperposeError(f"{self.path / name} is damaged: {error}") from error
        return found


def checkpoint(state: RunState) -> bytes:
    """The state as bytes, and after them their SHA-256."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue() + hashlib.sha256(buffer.getbuffer()).digest()


def read_checkpoint(path: Path) -> RunState:
    """What `checkpoint` made a file of; nothing in it is run, and a damaged one is refused."""
    contents = path.read_bytes()
    state, digest = contents[:-DIGEST], contents[-DIGEST:]
    if hashlib.sha256(state).digest() != digest:
        raise SuperposeError(
            f"{path} is damaged, and nothing was changed: put a copy of it back, or start in "
            "another directory"
        )
    found: RunState = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    return found


DIGEST = hashlib.sha256().digest_size
DECISIVE = ("torch", "threads")  # with another of these, the numbers may differ in their last bits


def environment() -> dict[str, Any]:
    """Where a run is made."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "superpose": version("superpose"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def write(path: Path, contents: bytes | memoryview) -> None:
    """Put a whole file in its place: written beside it, flushed to the disk and renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _flush_names(path.parent)


def _flush_names(folder: Path) -> None:
    """Make a rename last, where the system has a way to ask for it."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _json(contents: dict[str, Any]) -> bytes:
    return (json.dumps(contents, indent=2) + "\n").encode()


def _difference(was: Any, now: Any, name: str) -> tuple[str, str]:
    """Name the innermost setting that differs."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in (*was, *now):
            if was.get(key) != now.get(key):
                return _difference(was.get(key), now.get(key), f"{name}.{key}")
    return f"{name}={was!r}", repr(now)


@contextmanager
def _complaining(path: Path) -> Iterator[None]:
    """Tell what cannot be written, and that nothing is lost."""
    try:
        yield
    except OSError as error:
        raise SuperposeError(
            f"{path} cannot be used: {error.strerror or error}; "
            "what was saved before is untouched, so the run can be resumed from it"
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep a second process out; the lock ends with the process that holds it."""
    descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no such locks on Windows
        pass
    except OSError as error:
        raise SuperposeError(f"{path} is in use by another process: wait for it to end") from error


def _commit() -> str | None:
    """The commit of the checkout that this package runs from, if it is one."""
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
