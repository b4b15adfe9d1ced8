"""A version of the served model: one file, loaded, checked and tried."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed
from superpose.recognition import Found
from superpose.serving.request_error import RequestError
from superpose.serving.signature import Signature, TensorSpec, Varying, signature_of
from superpose.serving.tensors import TensorData

Array = np.ndarray[Any, Any]
AUTO = "auto"  # the task is found from the input


@dataclass(frozen=True)
class Options:
    """How a file is served."""

    inputs: tuple[TensorSpec, ...] = ()
    pad: Mapping[str, float] = field(default_factory=dict)  # inputs that may be of different sizes
    device: str = "cpu"
    map_weights: bool = False  # from a copy in the state's directory: many processes, one memory


@dataclass(eq=False)
class Rows:
    """Rows of one request, or of a part of it: the work of the batcher."""

    version: Version
    task: str
    inputs: dict[str, TensorData]
    sizes: dict[str, int]  # those that vary
    kind: Hashable  # rows of one version share a batch if their shapes agree, or can be padded
    rows: int
    arrived: int = field(default_factory=perf_counter_ns)


class Ran(NamedTuple):
    """A batch that was run: its rows, and how long it took, in nanoseconds."""

    rows: int
    compute_input: int
    compute_infer: int
    compute_output: int


class Result(NamedTuple):
    """The outputs of rows, and how they came about."""

    outputs: dict[str, TensorData]
    tasks: list[str]  # of each row
    known: list[bool]  # of each row: false if its task was to be recognised, and none fits
    queue: int  # nanoseconds
    batch: Ran

    @property
    def batch_rows(self) -> int:
        """The rows of its batch, of all requests."""
        return self.batch.rows


class Version:
    """A model that is ready to serve; it never changes."""

    def __init__(self, model: Superposed, digest: str, options: Options) -> None:
        self.model = model.eval().to(options.device)
        self.digest = digest
        self.device = torch.device(options.device)
        self.pad = dict(options.pad)
        self.tasks = _by_text(model.tasks)
        self.recognises = len(model.tasks) > 1 and set(model.recognisable) == set(model.tasks)
        first = next(iter(self.tasks.values()))
        self.signature = signature_of(model, options.inputs, lambda x: self._pass(x, first))
        self.outputs = [spec.name for spec in self.signature.outputs]
        self.padded = _padded(self.signature, self.pad)
        self._try_mixed()

    @property
    def name(self) -> str:
        """The version that clients see: the first digits of the file's digest."""
        return self.digest[:16]

    def rows_of(self, task: str, inputs: dict[str, TensorData], most: int) -> list[Rows]:
        """The works of a request, checked, of at most so many rows each."""
        if task not in self.tasks:
            if task != AUTO:
                raise RequestError(404, f"there is no task {task!r}")
            if not self.recognises:
                raise RequestError(
                    400,
                    "this model cannot recognise tasks, because it remembers no inputs of some of "
                    "them (model.remember): name the task",
                )
        sizes = self.signature.sizes_of(inputs)
        rows = sizes.pop("rows")
        kind = (id(self), *(size for size in sizes.items() if size[0] not in self.padded))
        if rows <= most:
            return [Rows(self, task, inputs, sizes, kind, rows)]
        works = []
        for at in range(0, rows, most):
            part = {n: TensorData(t.datatype, t.array[at : at + most]) for n, t in inputs.items()}
            works.append(Rows(self, task, part, sizes, kind, min(most, rows - at)))
        return works

    def run(self, works: Sequence[Rows]) -> list[Result]:
        """One pass for all of the works, and for each its own rows."""
        began = perf_counter_ns()
        inputs = {spec.name: self._joined(spec, works) for spec in self.signature.inputs}
        tasks, known = self._tasks(works, inputs)
        ready = perf_counter_ns()
        outputs = self._pass(inputs, tasks[0] if len(set(tasks)) == 1 else tasks)
        passed = perf_counter_ns()
        arrays = {spec: TensorData.of(outputs[spec.name]).array for spec in self.signature.outputs}
        ends = list(accumulate(work.rows for work in works))
        own = [
            {spec.name: self._part(spec, array, end, work) for spec, array in arrays.items()}
            for work, end in zip(works, ends, strict=True)
        ]
        ran = Ran(len(tasks), ready - began, passed - ready, perf_counter_ns() - passed)
        names = list(map(str, tasks))
        return [
            Result(
                outputs,
                names[end - work.rows : end],
                known[end - work.rows : end],
                began - work.arrived,
                ran,
            )
            for work, end, outputs in zip(works, ends, own, strict=True)
        ]

    @torch.no_grad()
    def _tasks(
        self, works: Sequence[Rows], inputs: dict[str, Tensor]
    ) -> tuple[list[Name], list[bool]]:
        """The task of each row, told or recognised, and whether the row fits it."""
        told = [self.tasks.get(work.task) for work in works for _ in range(work.rows)]
        known = [True] * len(told)
        rows = [row for row, task in enumerate(told) if task is None]
        if rows:
            model: Any = self.model
            found: Found = model.recognise(**{name: x[rows] for name, x in inputs.items()})
            assert found.known is not None  # `recognises`: it goes by what inputs look like
            for row, task, fits in zip(rows, found.task, found.known.tolist(), strict=True):
                told[row], known[row] = task, fits
        return [task for task in told if task is not None], known

    def _joined(self, spec: TensorSpec, works: Sequence[Rows]) -> Tensor:
        arrays = [work.inputs[spec.name].array for work in works]
        if spec.name in self.pad and len({array.shape[1:] for array in arrays}) > 1:
            arrays = _filled(arrays, self.pad[spec.name])
        joined = np.concatenate(arrays)  # a copy: arrays of a request are its bytes, unaligned
        return TensorData(spec.datatype, joined).tensor().to(self.device)

    def _part(self, spec: TensorSpec, array: Array, end: int, work: Rows) -> TensorData:
        """The rows of one work, without what padding added."""
        if not self.padded:
            return TensorData(spec.datatype, array[end - work.rows : end])
        cuts = [slice(end - work.rows, end)]
        for size in spec.shape:
            if isinstance(size, Varying) and size.name in self.padded:
                cuts.append(slice(work.sizes[size.name]))
            else:
                cuts.append(slice(None))
        return TensorData(spec.datatype, array[tuple(cuts)])

    @torch.no_grad()
    def _pass(self, inputs: dict[str, Tensor], task: Any) -> dict[str, Tensor]:
        return {
            name: tensor.detach().cpu()
            for name, tensor in _named(self.model(**inputs, task=task)).items()
        }

    def _try_mixed(self) -> None:
        """The first mixed batch finds out how such batches are computed: not at a user's cost."""
        some = list(self.tasks.values())[:3]
        if len(some) > 1:
            signature_of(
                self.model, self.signature.inputs, lambda x: self._pass(x, _repeated(some, x))
            )


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _by_text(names: Sequence[Name]) -> dict[str, Name]:
    """Tasks by what they are called in a URL."""
    known: dict[str, Name] = {}
    for name in names:
        if str(name) in known:
            raise SuperposeError(
                f"the tasks {name!r} and {str(name)!r} have one name in the protocol"
            )
        known[str(name)] = name
    return known


def _named(value: Any) -> dict[str, Tensor]:
    """The tensors that a network returns, by name; caches and the like are not served."""
    if isinstance(value, Tensor):
        return {"output": value}
    items = (
        value.items()
        if isinstance(value, Mapping)
        else ((f"output_{place}", one) for place, one in enumerate(value))
        if isinstance(value, (tuple, list))
        else ()
    )
    return {str(name): one for name, one in items if isinstance(one, Tensor)}


def _padded(signature: Signature, pad: Mapping[str, float]) -> frozenset[str]:
    """The sizes that rows of a batch need not share; checked."""
    inputs = {spec.name: spec for spec in signature.inputs}
    for name in pad:
        if name not in inputs:
            raise SuperposeError(f"pad: there is no input {name!r}: they are {', '.join(inputs)}")
        if not any(isinstance(size, Varying) for size in inputs[name].shape):
            raise SuperposeError(f"pad: no size of input {name!r} varies")
    sizes = {s.name for n in pad for s in inputs[n].shape if isinstance(s, Varying)}
    for name, spec in inputs.items():
        for size in spec.shape:
            if isinstance(size, Varying) and size.name in sizes and name not in pad:
                raise SuperposeError(
                    f"pad: input {name!r} has {size.name} too: tell what it is padded with"
                )
    for spec in signature.outputs if sizes else ():
        if any(isinstance(size, Varying) and size.name is None for size in spec.shape):
            raise SuperposeError(
                f"pad: output {spec.name!r} has a size that is no input's, so what padding adds "
                "to it cannot be taken away: serve without"
            )
    return frozenset(str(name) for name in sizes)


def _filled(arrays: Sequence[Array], value: float) -> list[Array]:
    """Arrays that are made as large as the largest, at the end of each dimension but the first."""
    largest = [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)]
    filled = []
    for array in arrays:
        more = [(0, size - own) for size, own in zip(largest, array.shape[1:], strict=True)]
        filled.append(np.pad(array, [(0, 0), *more], constant_values=value))
    return filled


def _repeated(names: Sequence[Name], inputs: Mapping[str, Tensor]) -> list[Name]:
    rows = len(next(iter(inputs.values())))
    return [names[row % len(names)] for row in range(rows)]
