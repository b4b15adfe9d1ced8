"""Tensors of requests and answers: lists of numbers in JSON, or raw little-endian bytes.

The event loop handles them as NumPy arrays: an operation of PyTorch releases the interpreter's
lock, which the model's thread then keeps for long.
"""

import math
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from superpose.serving.request_error import RequestError

Array = np.ndarray[Any, Any]
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
NUMPY = {  # which has no BF16: an array holds its bits
    name: np.dtype("int16" if name == "BF16" else str(dtype).removeprefix("torch."))
    for name, dtype in DATATYPES.items()
}
MAX_DIMENSIONS = 64  # as in NumPy


class TensorData(NamedTuple):
    """An array, and its datatype in the protocol."""

    datatype: str
    array: Array

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """Wrap a tensor on the CPU; its memory is shared.

        >>> TensorData.of(torch.zeros(2, 3)).shape
        (2, 3)
        """
        bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        return cls(NAMES[tensor.dtype], bits.numpy())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, rows first."""
        return self.array.shape

    def tensor(self) -> Tensor:
        """Return a PyTorch tensor; a copy if the array is read-only."""
        writeable = self.array if self.array.flags.writeable else self.array.copy()
        tensor = torch.from_numpy(writeable)
        return tensor.view(torch.bfloat16) if self.datatype == "BF16" else tensor

    def to_list(self) -> list[Any]:
        """Return the numbers as a flat list in row-major order."""
        if self.datatype == "BF16":
            return self.tensor().reshape(-1).tolist()
        return self.array.reshape(-1).tolist()

    def to_bytes(self) -> bytes:
        """Return the numbers as bytes in row-major order."""
        return self.array.tobytes()


def from_list(name: str, datatype: Any, shape: Any, data: Any) -> TensorData:
    """Read the numbers of a JSON list, flat or nested, of the input `name`.

    >>> from_list("x", "FP32", [1, 2], [[1, 2.5]]).array
    array([[1. , 2.5]], dtype=float32)
    """
    dtype = _dtype(datatype)
    if not isinstance(data, list):
        raise RequestError(400, f"input {name!r}: data is not a list")
    numbers = _flat(name, data)
    allowed = {bool} if dtype == torch.bool else {int, float} if dtype.is_floating_point else {int}
    if others := set(map(type, numbers)) - allowed:
        wrong = next(iter(others)).__name__
        raise RequestError(400, f"input {name!r}: data of type {wrong} does not fit {datatype}")
    try:
        array = _floats(numbers, datatype) if dtype.is_floating_point else _ints(numbers, datatype)
    except OverflowError as error:
        raise RequestError(400, f"input {name!r}: a number does not fit {datatype}") from error
    return _shaped(name, datatype, shape, array)


def from_bytes(name: str, datatype: Any, shape: Any, data: bytes | memoryview) -> TensorData:
    """Read the raw bytes of the input `name`; the array is a read-only view of them.

    >>> from_bytes("x", "INT16", [2], b"\\x01\\x00\\x02\\x00").array
    array([1, 2], dtype=int16)
    """
    _dtype(datatype)
    if len(data) % NUMPY[datatype].itemsize:
        size = len(data)
        raise RequestError(400, f"input {name!r}: {size} bytes are no whole number of {datatype}")
    if datatype == "BOOL" and any(byte > 1 for byte in set(data)):
        raise RequestError(400, f"input {name!r}: a byte of BOOL is 0 or 1")
    return _shaped(name, datatype, shape, np.frombuffer(data, NUMPY[datatype]))


def _dtype(datatype: Any) -> torch.dtype:
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        known = ", ".join(DATATYPES)
        raise RequestError(400, f"datatype {_short(datatype)} is not served: use one of {known}")
    return DATATYPES[datatype]


def _flat(name: str, data: list[Any]) -> list[Any]:
    while data and isinstance(data[0], list):
        if not all(type(part) is list for part in data):
            raise RequestError(400, f"input {name!r}: lists and numbers stand side by side in data")
        data = list(chain.from_iterable(data))
    return data


def _ints(numbers: list[Any], datatype: str) -> Array:
    dtype = NUMPY[datatype]
    if dtype.kind != "b" and numbers:
        limits = np.iinfo(dtype)
        if not limits.min <= min(numbers) <= max(numbers) <= limits.max:
            raise OverflowError
    return np.array(numbers, dtype)


def _floats(numbers: list[Any], datatype: str) -> Array:
    array = np.array(numbers, np.float64)
    if datatype == "BF16":
        rounded = torch.from_numpy(array).to(torch.bfloat16)
        finite, array = bool(rounded.isfinite().all()), TensorData.of(rounded).array
    else:
        with np.errstate(over="ignore"):
            array = array.astype(NUMPY[datatype])
        finite = bool(np.isfinite(array).all())
    if not finite:
        raise OverflowError
    return array


def _shaped(name: str, datatype: str, shape: Any, array: Array) -> TensorData:
    # dimensions are counted first: the product of very many long numbers would take minutes
    whole = type(shape) is list and len(shape) <= MAX_DIMENSIONS and set(map(type, shape)) <= {int}
    if not whole or min(shape, default=0) < 0 or max(shape, default=0) >= 1 << 63:
        raise RequestError(400, f"shape {_short(shape)} is not a list of whole numbers")
    count = math.prod(shape)
    if count != array.size:
        detail = f"shape {shape} has {count} numbers, data {array.size}"
        raise RequestError(400, f"input {name!r}: {detail}")
    try:
        return TensorData(datatype, array.reshape(shape))
    except (ValueError, OverflowError) as error:  # no numbers, and a huge dimension
        detail = f"shape {_short(shape)} is not served: {error}"
        raise RequestError(400, f"input {name!r}: {detail}") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
