"""The inputs and outputs of a served network: names, types of numbers, shapes of a row.

A row's shape is numbers, and names of sizes that vary from request to request, with the largest
that is served: `input_ids=INT64[tokens<=128]`. A name is one size in all inputs and outputs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.serving.request_error import RequestError
from superpose.serving.tensors import DATATYPES, NAMES, TensorData

DECLARED = re.compile(r"(?P<name>\w+)=(?P<datatype>\w+)(\[(?P<shape>[^\]]*)\])?")
SIZE = re.compile(r"(?P<name>[A-Za-z_]\w*)<=(?P<most>\d+)")
ROWS = 3  # of the trial pass


@dataclass(frozen=True)
class Varying:
    """A size that varies; one without a name is an output's that no input has."""

    name: str | None
    most: int

    def __str__(self) -> str:
        return f"{self.name}<={self.most}"


Size = int | Varying


@dataclass(frozen=True)
class TensorSpec:
    """What one input or output is, for one row."""

    name: str
    datatype: str
    shape: tuple[Size, ...]

    def __str__(self) -> str:
        return f"{self.name}={self.datatype}[{','.join(map(str, self.shape))}]"

    @property
    def dims(self) -> list[int]:
        """The shape as the protocol writes it, without the rows: -1 for a size that varies."""
        return [size if isinstance(size, int) else -1 for size in self.shape]

    @classmethod
    def parse(cls, word: str) -> TensorSpec:
        """An input as it is declared on the command line.

        >>> str(TensorSpec.parse("image=FP32[3,height<=64,width<=64]"))
        'image=FP32[3,height<=64,width<=64]'
        """
        found = DECLARED.fullmatch(word.replace(" ", ""))
        if not found or found["datatype"] not in DATATYPES:
            raise SuperposeError(
                f"input {word!r}: write it as NAME=TYPE[SIZES], such as x=FP32[784] or "
                f"input_ids=INT64[tokens<=128]; types are {', '.join(DATATYPES)}"
            )
        sizes = [size for size in (found["shape"] or "").split(",") if size]
        return cls(found["name"], found["datatype"], tuple(_size(word, size) for size in sizes))


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a network."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def sizes_of(self, inputs: Mapping[str, TensorData]) -> dict[str, int]:
        """Check a request's tensors against the inputs: the sizes that vary, and the `rows`."""
        if inputs.keys() != self._names.keys():
            self._refuse(inputs)
        found: dict[str, int] = {}
        for spec in self.inputs:
            self._check(spec, inputs[spec.name], found)
        return found

    @cached_property
    def _names(self) -> dict[str, None]:
        return dict.fromkeys(spec.name for spec in self.inputs)

    def _refuse(self, inputs: Mapping[str, TensorData]) -> None:
        """Tell which names are wrong."""
        for name in inputs:
            if name not in self._names:
                known = ", ".join(self._names)
                raise RequestError(400, f"there is no input {name!r}: the inputs are {known}")
        missing = next(name for name in self._names if name not in inputs)
        raise RequestError(400, f"input {missing!r} is missing")

    def _check(self, spec: TensorSpec, tensor: TensorData, found: dict[str, int]) -> None:
        wanted, given = spec.datatype, tensor.datatype
        if wanted != given:
            raise RequestError(
                400, f"input {spec.name!r} is {given}, and the network takes {wanted}"
            )
        sizes_given = tensor.shape
        if sizes_given[1:] == spec.shape and sizes_given:  # no size varies but the rows
            rows = sizes_given[0]
            if 1 <= rows == found.setdefault("rows", rows):
                return
        shape = list(sizes_given)
        if len(shape) != len(spec.shape) + 1:
            raise RequestError(
                400, f"input {spec.name!r} has shape {shape}: it takes {[-1, *spec.dims]}"
            )
        sizes: tuple[Size, ...] = (Varying("rows", shape[0]), *spec.shape)
        for size, own in zip(sizes, shape, strict=True):
            if isinstance(size, int):
                if own != size:
                    raise RequestError(
                        400, f"input {spec.name!r} has shape {shape}: it takes {[-1, *spec.dims]}"
                    )
                continue
            if not 1 <= own <= size.most:
                raise RequestError(
                    400,
                    f"input {spec.name!r} has shape {shape}: {size.name} is at least 1"
                    + (f", at most {size.most}" if own else ""),
                )
            if found.setdefault(str(size.name), own) != own:
                raise RequestError(
                    400,
                    f"input {spec.name!r} has {own} {size.name}, another input "
                    f"{found[str(size.name)]}",
                )


Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def signature_of(net: nn.Module, declared: Iterable[TensorSpec], run: Run) -> Signature:
    """Inputs as declared, or found if there is one and it is a vector; outputs by a trial pass."""
    inputs = tuple(declared)
    if not inputs:
        return _found(net, run)
    names = [spec.name for spec in inputs]
    if len(set(names)) < len(names):
        raise SuperposeError(f"inputs {names}: one of them is declared twice")
    return Signature(inputs, _outputs(inputs, run))


def _found(net: nn.Module, run: Run) -> Signature:
    """One input, as wide as the first linear layer: taken if the network runs with it."""
    parameters = list(inspect.signature(net.forward).parameters.values())
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    first = next((m for m in net.modules() if next(m.parameters(False), None) is not None), None)
    width = getattr(first, "in_features", None)
    if len(needed) == 1 and isinstance(width, int):
        inputs = (TensorSpec(needed[0], "FP32", (width,)),)
        try:
            return Signature(inputs, _outputs(inputs, run))
        except Exception:  # whatever a network does with a vector where it takes something else
            pass
    example = " ".join(f"{name}=FP32[3,32,32]" for name in needed) or "x=FP32[784]"
    raise SuperposeError(
        f"the inputs of {type(net).__name__} are not known: declare them, as in --inputs {example}"
    )


def _outputs(inputs: tuple[TensorSpec, ...], run: Run) -> tuple[TensorSpec, ...]:
    """Run the network twice, with other sizes, and see which sizes of the outputs follow."""
    varying: dict[str, Varying] = {}
    for size in (size for spec in inputs for size in spec.shape if isinstance(size, Varying)):
        if varying.setdefault(str(size.name), size) != size:
            raise SuperposeError(f"inputs: {size.name} is given with two different limits")
    first = {name: size.most for name, size in varying.items()}
    second = {name: size.most - 1 - place for place, (name, size) in enumerate(varying.items())}
    for name, least in second.items():
        if least < 1:
            raise SuperposeError(f"inputs: {name}<={first[name]}: give a larger limit")
    large, small = run(_trial(inputs, first, ROWS)), run(_trial(inputs, second, ROWS - 1))
    if not large:
        raise SuperposeError("the network returns no tensor that could be served")
    names = {(first[name], second[name]): varying[name] for name in varying}
    return tuple(_output(name, large[name], small[name], names) for name in large)


def _output(name: str, a: Tensor, b: Tensor, names: Mapping[Any, Varying]) -> TensorSpec:
    if a.ndim != b.ndim or not a.ndim or (len(a), len(b)) != (ROWS, ROWS - 1):
        raise SuperposeError(
            f"output {name!r} is {tuple(a.shape)} for {ROWS} rows: rows have to be in the first "
            "dimension"
        )
    if a.dtype not in NAMES:
        raise SuperposeError(f"output {name!r} is {a.dtype}, which the protocol does not know")
    shape: list[Size] = []
    for pair in zip(a.shape[1:], b.shape[1:], strict=True):
        shape.append(pair[0] if pair[0] == pair[1] else names.get(pair, Varying(None, pair[0])))
    return TensorSpec(name, NAMES[a.dtype], tuple(shape))


def _trial(inputs: tuple[TensorSpec, ...], sizes: dict[str, int], rows: int) -> dict[str, Tensor]:
    """Noise for numbers, zeros for what may be an index."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for spec in inputs:
        shape = [rows, *(s if isinstance(s, int) else sizes[str(s.name)] for s in spec.shape)]
        dtype = DATATYPES[spec.datatype]
        if dtype.is_floating_point:
            made[spec.name] = torch.randn(shape, generator=generator).to(dtype)
        else:
            made[spec.name] = torch.zeros(shape, dtype=dtype)
    return made


def _size(word: str, size: str) -> Size:
    if size.isdecimal() and int(size) > 0:
        return int(size)
    found = SIZE.fullmatch(size)
    if not found:
        raise SuperposeError(
            f"input {word!r}: {size} is no size; a size that varies has a name and a limit, as in "
            "tokens<=128"
        )
    return Varying(found["name"], int(found["most"]))
