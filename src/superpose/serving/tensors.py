"""Tensors as the protocol writes them: lists of numbers in JSON, or raw little-endian bytes.

The event loop handles them as NumPy arrays. An operation of PyTorch gives up the interpreter's lock
for a moment, which the thread of the model then holds for long.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, NamedTuple

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
MOST_SIZES = 64  # of a shape, as in NumPy
NAMES = {dtype: name for name, dtype in DATATYPES.items()}
ARRAYS = {
    name: np.dtype("int16" if name == "BF16" else str(dtype).removeprefix("torch."))
    for name, dtype in DATATYPES.items()
}
"""NumPy has no BF16: an array has its bits."""


class TensorData(NamedTuple):
    """Numbers of a type of the protocol."""

    datatype: str
    array: np.ndarray[Any, Any]

    @classmethod
    def of(cls, tensor: Tensor) -> TensorData:
        """Of a tensor on the CPU, whose memory it shares.

        >>> TensorData.of(torch.zeros(2, 3)).shape
        (2, 3)
        """
        bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        return cls(NAMES[tensor.dtype], bits.numpy())

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return self.array.shape

    def tensor(self) -> Tensor:
        """As PyTorch has it; a copy, if the array is not to be written to."""
        own = self.array if self.array.flags.writeable else self.array.copy()
        made = torch.from_numpy(own)
        return made.view(torch.bfloat16) if self.datatype == "BF16" else made

    def to_list(self) -> list[Any]:
        """The numbers in row-major order."""
        if self.datatype == "BF16":
            return self.tensor().reshape(-1).tolist()
        return self.array.reshape(-1).tolist()

    def to_bytes(self) -> bytes:
        """The bytes in row-major order."""
        return self.array.tobytes()


def from_list(name: str, datatype: Any, shape: Any, data: Any) -> TensorData:
    """The numbers of a JSON list, flat or nested.

    >>> from_list("x", "FP32", [1, 2], [[1, 2.5]]).array
    array([[1. , 2.5]], dtype=float32)
    """
    _check_known(datatype)
    sizes, kind = checked_shape(shape), DATATYPES[datatype]
    if not isinstance(data, list):
        raise RequestError(400, f"input {name!r}: data is not a list")
    numbers = _flat(name, data)
    _check_count(name, sizes, len(numbers))
    allowed = {bool} if kind == torch.bool else {int, float} if kind.is_floating_point else {int}
    if other := set(map(type, numbers)) - allowed:
        given = next(iter(other)).__name__
        raise RequestError(400, f"input {name!r}: data of type {given} does not fit {datatype}")
    try:
        array = _floats(numbers, datatype) if kind.is_floating_point else _whole(numbers, datatype)
    except OverflowError as error:
        raise RequestError(400, f"input {name!r}: a number does not fit {datatype}") from error
    return TensorData(datatype, _shaped(name, array, sizes))


def from_bytes(name: str, datatype: Any, shape: Any, data: bytes | memoryview) -> TensorData:
    """The numbers of raw bytes, where they are: the array is not to be written to.

    >>> from_bytes("x", "INT16", [2], b"\\x01\\x00\\x02\\x00").array
    array([1, 2], dtype=int16)
    """
    _check_known(datatype)
    sizes, kind = checked_shape(shape), ARRAYS[datatype]
    if len(data) % kind.itemsize:
        raise RequestError(
            400, f"input {name!r}: {len(data)} bytes are no whole number of {datatype}"
        )
    _check_count(name, sizes, len(data) // kind.itemsize)
    if datatype == "BOOL" and any(byte > 1 for byte in set(data)):
        raise RequestError(400, f"input {name!r}: a byte of BOOL is 0 or 1")
    return TensorData(datatype, _shaped(name, np.frombuffer(data, kind), sizes))


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape that a client gave: a list of whole numbers, not too many and none below 0.

    The product of very many would take minutes.
    """
    whole = type(shape) is list and len(shape) <= MOST_SIZES and set(map(type, shape)) <= {int}
    if not whole or min(shape, default=0) < 0 or max(shape, default=0) >= 1 << 63:
        raise RequestError(400, f"shape {_short(shape)} is not a list of whole numbers")
    return tuple(shape)


def _check_known(datatype: Any) -> None:
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        known = ", ".join(DATATYPES)
        raise RequestError(400, f"datatype {_short(datatype)} is not served: use one of {known}")


def _whole(numbers: list[Any], datatype: str) -> np.ndarray[Any, Any]:
    kind = ARRAYS[datatype]
    if kind.kind != "b" and numbers:
        limits = np.iinfo(kind)
        if not limits.min <= min(numbers) <= max(numbers) <= limits.max:
            raise OverflowError
    return np.array(numbers, kind)


def _floats(numbers: list[Any], datatype: str) -> np.ndarray[Any, Any]:
    array = np.array(numbers, np.float64)
    if datatype == "BF16":
        made = torch.from_numpy(array).to(torch.bfloat16)
        finite, array = bool(made.isfinite().all()), TensorData.of(made).array
    else:
        with np.errstate(over="ignore"):
            array = array.astype(ARRAYS[datatype])
        finite = bool(np.isfinite(array).all())
    if not finite:
        raise OverflowError
    return array


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


def _shaped(name: str, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    try:
        return array.reshape(shape)
    except (
        ValueError,
        OverflowError,
    ) as error:  # a size that is too large, of none
        raise RequestError(
            400, f"input {name!r}: shape {_short(list(shape))} is not served: {error}"
        ) from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
