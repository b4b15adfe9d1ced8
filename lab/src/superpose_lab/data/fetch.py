"""Fetching a data set: from the first place that has it, verified before it gets its name."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from superpose import SuperposeError
from superpose_lab.data.archives import UnusableError
from superpose_lab.data.catalogue import find
from superpose_lab.data.data_directory import VARIABLE, directory
from superpose_lab.data.files import File
from superpose_lab.data.places import ByHand, Package, Place, Report, Web

SCRATCH = ".fetching-"
STALE_SECONDS = 24 * 3600
# What no other place can mend: the disk is full, or not ours to write to.
LOCAL = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


class Holding(Protocol):
    """Files, and the places that they can be fetched from."""

    @property
    def name(self) -> str: ...

    @property
    def files(self) -> tuple[File, ...]: ...

    @property
    def places(self) -> tuple[Web | Package, ...]: ...

    @property
    def official(self) -> Web | None: ...


def fetch(name: str, data_dir: str | os.PathLike[str] | None = None) -> str | None:
    """Bring the missing and damaged files of a data set; return the place they came from, if any.

    Processes may do this at the same time: a file is complete and verified when it gets its name.
    """
    return bring(find(name), directory(data_dir).path)


def bring(entry: Holding, root: Path) -> str | None:
    """Fetch anything that has files and places, as `fetch` does."""
    lacking = [file for file in entry.files if not _whole(file, root)]
    if not lacking:
        return None
    reasons = []
    with _local_errors(entry, root), _scratch(root) as scratch, _progress() as report:
        for place in _places(entry, root):
            try:
                verified = _receive(place, entry, scratch, report)
            except (UnusableError, OSError) as error:
                if isinstance(error, OSError) and error.errno in LOCAL:
                    raise
                reasons.append(f"  {place.name}: {error}")
                continue
            for file in lacking:
                target = root / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                (verified / file.path).replace(target)
            return place.name
    tried = "\n".join(reasons)
    raise SuperposeError(
        f"{entry.name} is in none of the places tried:\n{tried}\n{_advice(entry, root)}"
    )


def _whole(file: File, root: Path) -> bool:
    try:
        file.read(root)
    except (UnusableError, OSError):
        return False
    return True


def _places(entry: Holding, root: Path) -> Iterator[Place]:
    if web := entry.official:
        by_hand = ByHand(web, root)
        if all(path.is_file() for path in by_hand.paths):
            yield by_hand
    yield from entry.places


def _receive(place: Place, entry: Holding, scratch: Path, report: Report) -> Path:
    """Write every file of the data set below a new folder of `scratch`, or raise."""
    arrived, verified = (Path(tempfile.mkdtemp(dir=scratch)) for _ in range(2))
    expected = {file.path: file for file in entry.files}
    try:
        for path, contents in place.files(arrived, report):
            try:
                expected.pop(path).check(np.frombuffer(contents, np.uint8))
            except UnusableError as error:
                raise UnusableError(f"{path}: {error}") from error
            target = verified / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.write_bytes(contents)
            except OSError as error:  # writing, unlike opening, does not say to what
                raise OSError(error.errno, error.strerror, path) from error
    finally:
        shutil.rmtree(arrived)
    if expected:
        raise UnusableError(f"no {', '.join(expected)} there")
    return verified


def _advice(entry: Holding, root: Path) -> str:
    web = entry.official
    if web is None:
        return f"To do it by hand, put {' '.join(f.path for f in entry.files)} into {root}"
    downloads = " ".join(web.downloads)
    return f"To do it by hand, put {downloads} from {web.base} into {root / web.by_hand}"


@contextmanager
def _local_errors(entry: Holding, root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in LOCAL:
            raise
        size = sum(file.size for file in entry.files) >> 20
        raise SuperposeError(
            f"{root / (error.filename or '')}: {error.strerror}; {entry.name} needs up to "
            f"{3 * size} MB in a folder you may write to: make room there, "
            f"or choose another with --data-dir or {VARIABLE}"
        ) from error


@contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    """Make a folder on the disk of the data directory, so that renaming out of it is atomic."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(f"{SCRATCH}*"):  # by a process that was killed
        with suppress(FileNotFoundError):  # of another process that ends just now
            if left.stat().st_mtime < time.time() - STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=root) as scratch:
        yield Path(scratch)


@contextmanager
def _progress() -> Iterator[Report]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown as progress:
        task = progress.add_task("")

        def report(what: str, done: int, total: int | None) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield report
