"""Tensors as the protocol writes them: lists of numbers in JSON, or raw little-endian bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from superpose.serving.request_error import RequestError

DATATYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
NAMES = {dtype: name for name, dtype in DATATYPES.items()}


def dtype_of(datatype: Any) -> torch.dtype:
    """The type of numbers by the protocol's name.

    >>> dtype_of("FP32")
    torch.float32
    """
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        known = ", ".join(DATATYPES)
        raise RequestError(400, f"datatype {_short(datatype)} is not served: use one of {known}")
    return DATATYPES[datatype]


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape that a client gave: a list of whole numbers, none below 0."""
    whole = isinstance(shape, Sequence) and not isinstance(shape, str)
    if not whole or not all(type(size) is int and size >= 0 for size in shape):
        raise RequestError(400, f"shape {_short(shape)} is not a list of whole numbers")
    return tuple(shape)


def from_list(name: str, datatype: Any, shape: Any, data: Any) -> Tensor:
    """A tensor of a JSON list, flat or nested.

    >>> from_list("x", "FP32", [1, 2], [[1, 2.5]])
    tensor([[1.0000, 2.5000]])
    """
    dtype, sizes = dtype_of(datatype), checked_shape(shape)
    if not isinstance(data, list):
        raise RequestError(400, f"input {name!r}: data is not a list")
    numbers = _flat(name, data)
    _check_count(name, sizes, len(numbers))
    allowed = {bool} if dtype == torch.bool else {int, float} if dtype.is_floating_point else {int}
    if other := set(map(type, numbers)) - allowed:
        kind = next(iter(other)).__name__
        raise RequestError(400, f"input {name!r}: data of type {kind} does not fit {datatype}")
    if dtype.is_floating_point:
        tensor = _floats(name, numbers, dtype)
    else:
        limits = None if dtype == torch.bool else torch.iinfo(dtype)
        if limits and numbers and not limits.min <= min(numbers) <= max(numbers) <= limits.max:
            raise RequestError(400, f"input {name!r}: a number does not fit {datatype}")
        tensor = torch.tensor(numbers, dtype=dtype)
    return tensor.reshape(sizes)


def from_bytes(name: str, datatype: Any, shape: Any, data: bytes | memoryview) -> Tensor:
    """A tensor of raw bytes, which are copied.

    >>> from_bytes("x", "INT16", [2], b"\\x01\\x00\\x02\\x00")
    tensor([1, 2], dtype=torch.int16)
    """
    dtype, sizes = dtype_of(datatype), checked_shape(shape)
    if len(data) % dtype.itemsize:
        raise RequestError(
            400, f"input {name!r}: {len(data)} bytes are no whole number of {datatype}"
        )
    _check_count(name, sizes, len(data) // dtype.itemsize)
    raw = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    if dtype == torch.bool and raw.numel() and raw.max() > 1:
        raise RequestError(400, f"input {name!r}: a byte of BOOL is 0 or 1")
    return raw.view(dtype).reshape(sizes)


def to_list(tensor: Tensor) -> list[Any]:
    """The numbers of a tensor in row-major order."""
    return tensor.reshape(-1).tolist()


def to_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor in row-major order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _floats(name: str, numbers: list[Any], dtype: torch.dtype) -> Tensor:
    try:
        tensor = torch.from_numpy(np.array(numbers, dtype=np.float64)).to(dtype)
    except OverflowError as error:
        raise RequestError(400, f"input {name!r}: a number does not fit {NAMES[dtype]}") from error
    if not tensor.isfinite().all():
        raise RequestError(400, f"input {name!r}: a number does not fit {NAMES[dtype]}")
    return tensor


def _flat(name: str, data: list[Any]) -> list[Any]:
    while data and isinstance(data[0], list):
        if not all(type(part) is list for part in data):
            raise RequestError(400, f"input {name!r}: lists and numbers stand side by side in data")
        data = list(chain.from_iterable(data))
    return data


def _check_count(name: str, shape: tuple[int, ...], count: int) -> None:
    if math.prod(shape) != count:
        raise RequestError(
            400, f"input {name!r}: shape {list(shape)} has {math.prod(shape)} numbers, data {count}"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
