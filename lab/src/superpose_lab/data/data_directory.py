"""The data directory: an argument, else `SUPERPOSE_DATA`, else the user's cache."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

VARIABLE = "SUPERPOSE_DATA"


class Directory(NamedTuple):
    """The data directory, and the setting that it came from."""

    path: Path
    chosen_by: str


def directory(data_dir: str | os.PathLike[str] | None = None) -> Directory:
    """Find the data directory; nothing is created.

    >>> str(directory("sets").path), directory("sets").chosen_by
    ('sets', 'argument')
    """
    if data_dir is not None:
        return Directory(Path(data_dir).expanduser(), "argument")
    if named := os.environ.get(VARIABLE):
        return Directory(Path(named).expanduser(), VARIABLE)
    return Directory(_cache() / "superpose", "user cache")


def _cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification of this variable says that a relative path is to be ignored.
    return named if named.is_absolute() else Path.home() / ".cache"
