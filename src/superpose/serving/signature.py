"""Inputs and outputs of a served network: name, datatype and shape of one row each.

A dimension that varies from request to request has a name and a limit, as in
`input_ids=INT64[tokens<=128]`. Inputs and outputs with the same name have the same size.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from superpose import SuperposeError
from superpose.serving.request_error import RequestError
from superpose.serving.tensors import DATATYPES, NAMES, TensorData

SPEC = re.compile(r"(?P<name>\w+)=(?P<datatype>\w+)(\[(?P<shape>[^\]]*)\])?")
VARYING = re.compile(r"(?P<name>[A-Za-z_]\w*)<=(?P<limit>\d+)")
TRIAL_ROWS = 3


@dataclass(frozen=True)
class Varying:
    """A dimension that varies. It has no name if it is an output's and follows no input."""

    name: str | None
    limit: int

    def __str__(self) -> str:
        return f"{self.name}<={self.limit}"


Size = int | Varying


@dataclass(frozen=True)
class TensorSpec:
    """Name, datatype and shape of one row of an input or output."""

    name: str
    datatype: str
    shape: tuple[Size, ...]

    def __str__(self) -> str:
        return f"{self.name}={self.datatype}[{','.join(map(str, self.shape))}]"

    @property
    def dims(self) -> list[int]:
        """The shape in the protocol, without the rows: -1 for a dimension that varies."""
        return [size if isinstance(size, int) else -1 for size in self.shape]

    @property
    def varying(self) -> list[Varying]:
        """The dimensions that vary."""
        return [size for size in self.shape if isinstance(size, Varying)]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a declaration as it is written on the command line.

        >>> str(TensorSpec.parse("image=FP32[3,height<=64,width<=64]"))
        'image=FP32[3,height<=64,width<=64]'
        """
        match = SPEC.fullmatch(text.replace(" ", ""))
        if not match or match["datatype"] not in DATATYPES:
            hint = "write it as NAME=TYPE[SIZES], such as x=FP32[784] or ids=INT64[tokens<=128]"
            types = ", ".join(DATATYPES)
            raise SuperposeError(f"input {text!r}: {hint}; types are {types}")
        sizes = [size for size in (match["shape"] or "").split(",") if size]
        return cls(match["name"], match["datatype"], tuple(_size(text, size) for size in sizes))


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a network."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def check(self, tensors: Mapping[str, TensorData]) -> dict[str, int]:
        """Return the sizes of a request's dimensions that vary, and its `rows`.

        Raises `RequestError` 400 if the tensors do not fit the inputs.
        """
        names = [spec.name for spec in self.inputs]
        for name in tensors:
            if name not in names:
                known = ", ".join(names)
                raise RequestError(400, f"there is no input {name!r}: the inputs are {known}")
        sizes: dict[str, int] = {}
        for spec in self.inputs:
            if spec.name not in tensors:
                raise RequestError(400, f"input {spec.name!r} is missing")
            _check_tensor(spec, tensors[spec.name], sizes)
        return sizes


def _check_tensor(spec: TensorSpec, tensor: TensorData, sizes: dict[str, int]) -> None:
    shape = list(tensor.shape)

    def refuse(detail: str) -> RequestError:
        return RequestError(400, f"input {spec.name!r} {detail}")

    if tensor.datatype != spec.datatype:
        raise refuse(f"is {tensor.datatype}, and the network takes {spec.datatype}")
    expected = [Varying("rows", max(shape[0], 1)) if shape else 0, *spec.shape]
    pairs = list(zip(expected, shape, strict=False))
    if len(shape) != len(expected) or any(a != b for a, b in pairs if isinstance(a, int)):
        raise refuse(f"has shape {shape}: it takes {[-1, *spec.dims]}")
    for dimension, size in pairs:
        if isinstance(dimension, int):
            continue
        if not 1 <= size <= dimension.limit:
            limits = "at least 1" + (f", at most {dimension.limit}" if size else "")
            raise refuse(f"has shape {shape}: {dimension.name} is {limits}")
        other = sizes.setdefault(str(dimension.name), size)
        if other != size:
            raise refuse(f"has {size} {dimension.name}, another input {other}")


Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def signature_of(net: nn.Module, declared: Iterable[TensorSpec], run: Run) -> Signature:
    """Return the inputs as declared, and the outputs of trial passes by `run`.

    Without a declaration, a network with one argument and a linear layer first takes a vector.
    """
    inputs = tuple(declared)
    if not inputs:
        return _guess(net, run)
    names = [spec.name for spec in inputs]
    if len(set(names)) < len(names):
        raise SuperposeError(f"inputs {names}: one of them is declared twice")
    return Signature(inputs, _outputs(inputs, run))


def _guess(net: nn.Module, run: Run) -> Signature:
    parameters = list(inspect.signature(net.forward).parameters.values())
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    first = next((m for m in net.modules() if next(m.parameters(False), None) is not None), None)
    width = getattr(first, "in_features", None)
    if len(needed) == 1 and isinstance(width, int):
        inputs = (TensorSpec(needed[0], "FP32", (width,)),)
        try:
            return Signature(inputs, _outputs(inputs, run))
        except Exception:  # a network may raise anything for an input that it does not take
            pass
    example = " ".join(f"{name}=FP32[3,32,32]" for name in needed) or "x=FP32[784]"
    hint = f"declare them, as in --inputs {example}"
    raise SuperposeError(f"the inputs of {type(net).__name__} are not known: {hint}")


def _outputs(inputs: tuple[TensorSpec, ...], run: Run) -> tuple[TensorSpec, ...]:
    """Run the network twice, with different sizes: outputs' sizes that differ vary."""
    varying: dict[str, Varying] = {}
    for size in (size for spec in inputs for size in spec.varying):
        if varying.setdefault(str(size.name), size) != size:
            raise SuperposeError(f"inputs: {size.name} is given with two different limits")
    large = {name: size.limit for name, size in varying.items()}
    small = {name: size.limit - 1 - place for place, (name, size) in enumerate(varying.items())}
    for name in small:
        if small[name] < 1:
            raise SuperposeError(f"inputs: {name}<={large[name]}: give a larger limit")
    first = run(_noise(inputs, large, TRIAL_ROWS))
    second = run(_noise(inputs, small, TRIAL_ROWS - 1))
    if not first:
        raise SuperposeError("the network returns no tensor that could be served")
    by_sizes = {(large[name], small[name]): varying[name] for name in varying}
    return tuple(_output(name, first[name], second[name], by_sizes) for name in first)


def _output(name: str, first: Tensor, second: Tensor, by_sizes: Mapping[Any, Size]) -> TensorSpec:
    rows = (TRIAL_ROWS, TRIAL_ROWS - 1)
    if first.ndim != second.ndim or not first.ndim or (len(first), len(second)) != rows:
        problem = f"output {name!r} is {tuple(first.shape)} for {TRIAL_ROWS} rows"
        raise SuperposeError(f"{problem}: rows have to be in the first dimension")
    if first.dtype not in NAMES:
        raise SuperposeError(f"output {name!r} is {first.dtype}, which the protocol does not know")
    shape: list[Size] = []
    for pair in zip(first.shape[1:], second.shape[1:], strict=True):
        fixed = pair[0] == pair[1]
        shape.append(pair[0] if fixed else by_sizes.get(pair, Varying(None, pair[0])))
    return TensorSpec(name, NAMES[first.dtype], tuple(shape))


def _noise(inputs: tuple[TensorSpec, ...], sizes: dict[str, int], rows: int) -> dict[str, Tensor]:
    """Noise for floating-point inputs, zeros for integers, which may be indices."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for spec in inputs:
        shape = [rows, *(s if isinstance(s, int) else sizes[str(s.name)] for s in spec.shape)]
        dtype = DATATYPES[spec.datatype]
        if dtype.is_floating_point:
            tensors[spec.name] = torch.randn(shape, generator=generator).to(dtype)
        else:
            tensors[spec.name] = torch.zeros(shape, dtype=dtype)
    return tensors


def _size(text: str, size: str) -> Size:
    if size.isdecimal() and int(size) > 0:
        return int(size)
    match = VARYING.fullmatch(size)
    if not match:
        hint = "a size that varies has a name and a limit, as in tokens<=128"
        raise SuperposeError(f"input {text!r}: {size} is no size; {hint}")
    return Varying(match["name"], int(match["limit"]))
