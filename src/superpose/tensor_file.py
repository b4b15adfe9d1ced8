"""A safetensors file of the library: written whole or not at all, and checked as it is read."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from superpose.errors import SuperposeError

FORMAT = 7
HEADER = "superpose"  # what the tensors mean, as JSON in the metadata


def write(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file, whole or not at all."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        beside.touch()
        mode = beside.stat().st_mode  # as the user's other files; safetensors lets no one else read
        save_file(tensors, beside, metadata)
        beside.chmod(mode)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(target)
    except (OSError, SafetensorError) as error:
        raise SuperposeError(f"cannot write {target}: {error}; nothing was changed") from error
    finally:
        beside.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file says of itself and its tensors, checked."""
    if not Path(path).is_file():
        raise SuperposeError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise SuperposeError(
            f"{path} is damaged or not a safetensors file ({error}): take another copy of it"
        ) from error
    if HEADER not in metadata:
        raise SuperposeError(
            f"{path} was not written by superpose.save, so it names no tasks: `superpose pack` "
            "stores plain weights"
        )
    try:
        header = json.loads(metadata[HEADER])
        found = int(header["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise SuperposeError(f"{path}: its header is damaged: take another copy of it") from error
    if found != FORMAT:
        way = "upgrade superpose" if found > FORMAT else "make it anew with this superpose"
        raise SuperposeError(
            f"{path} has file format {found}, and this superpose reads {FORMAT}: {way}"
        )
    saved = header.pop("checksum", None)
    if saved != checksum(header, tensors):
        raise SuperposeError(f"{path} was changed after it was saved: take another copy of it")
    return header, tensors


def checksum(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Of the header, and of the names, types and bits of all tensors."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
