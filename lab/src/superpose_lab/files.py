"""Files written whole or not at all, and JSON that is read with its errors explained."""

import json
import os
from pathlib import Path
from typing import Any

from superpose import SuperposeError


def write(path: Path, contents: bytes | memoryview) -> None:
    """Write a file beside its place, flush it to the disk and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
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


def write_json(path: Path, contents: dict[str, Any]) -> None:
    """Write an indented JSON object."""
    write(path, (json.dumps(contents, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise an error that names the file."""
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SuperposeError(f"{path} is damaged: {error}") from error


def parsed(text: str) -> dict[str, Any]:
    """Parse one JSON object; `ValueError` if it is anything else."""
    contents = json.loads(text)
    if not isinstance(contents, dict):
        raise ValueError("it is not a JSON object")
    return contents
