"""A version of the served model: one file, loaded and tried."""

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

from superpose import Superposed, SuperposeError
from superpose.serving.request_error import RequestError
from superpose.serving.signature import Signature, TensorSpec, Varying, signature_of
from superpose.serving.tensors import Array, TensorData

AUTO = "auto"  # in the place of a task: recognise it
TRIAL_TASKS = 3
TaskName = str | int


@dataclass(frozen=True)
class Options:
    """How a file is served.

    `inputs` declares the network's inputs, `pad` has the value that fills up an input of which
    rows of different sizes share a batch, `device` is where the model runs.
    """

    inputs: tuple[TensorSpec, ...] = ()
    pad: Mapping[str, float] = field(default_factory=dict)
    device: str = "cpu"


@dataclass(eq=False)
class Chunk:
    """Rows of one request that run together: a job of the batcher."""

    version: Version
    task: str
    inputs: dict[str, TensorData]
    sizes: dict[str, int]  # of dimensions that vary
    kind: Hashable
    rows: int
    arrived_ns: int = field(default_factory=perf_counter_ns)


class Result(NamedTuple):
    """Outputs of a chunk, and how its batch was computed."""

    outputs: dict[str, TensorData]
    tasks: list[str]  # of each row
    known: list[bool]  # of each row: false if recognition found that it fits no task
    queue_ns: int
    batch_rows: int
    compute_ns: tuple[int, int, int]  # put together, run, take apart


class Version:
    """A model that is ready to serve. It never changes; another file is another version."""

    def __init__(self, model: Superposed, digest: str, options: Options) -> None:
        self.model = model.eval().to(options.device)
        self.digest = digest
        self.name = digest[:16]  # of the version, in the protocol
        self.device = torch.device(options.device)
        self.pad = dict(options.pad)
        self.tasks = _by_protocol_name(model.tasks)
        self.recognises = len(model.tasks) > 1 and set(model.recognisable) == set(model.tasks)
        first = next(iter(self.tasks.values()))
        self.signature = signature_of(model, options.inputs, lambda x: self._forward(x, first))
        self.outputs = [spec.name for spec in self.signature.outputs]
        self.padded = _padded_sizes(self.signature, self.pad)
        self._try_mixed_batch()

    def chunks(self, task: str, inputs: dict[str, TensorData], max_rows: int) -> list[Chunk]:
        """Check a request's inputs and split them into chunks of `max_rows` at most."""
        if task not in self.tasks:
            if task != AUTO:
                raise RequestError(404, f"there is no task {task!r}")
            if not self.recognises:
                reason = "it remembers no inputs of some of them (model.remember)"
                raise RequestError(400, f"cannot recognise tasks, as {reason}: name the task")
        sizes = self.signature.check(inputs)
        rows = sizes.pop("rows")
        kind = (id(self), *(size for size in sizes.items() if size[0] not in self.padded))
        if rows <= max_rows:
            return [Chunk(self, task, inputs, sizes, kind, rows)]
        chunks = []
        for start in range(0, rows, max_rows):
            end = min(start + max_rows, rows)
            part = {n: TensorData(t.datatype, t.array[start:end]) for n, t in inputs.items()}
            chunks.append(Chunk(self, task, part, sizes, kind, end - start))
        return chunks

    def run(self, chunks: Sequence[Chunk]) -> list[Result]:
        """Run chunks of one kind as one batch."""
        start = perf_counter_ns()
        inputs = {spec.name: self._concatenated(spec, chunks) for spec in self.signature.inputs}
        tasks, known = self._tasks(chunks, inputs)
        ready = perf_counter_ns()
        outputs = self._forward(inputs, tasks[0] if len(set(tasks)) == 1 else tasks)
        computed = perf_counter_ns()
        arrays = [
            (spec, TensorData.of(outputs[spec.name]).array) for spec in self.signature.outputs
        ]
        ends = accumulate(chunk.rows for chunk in chunks)
        rows = [slice(end - chunk.rows, end) for chunk, end in zip(chunks, ends, strict=True)]
        parts = [
            {spec.name: self._part(spec, array, cut, chunk) for spec, array in arrays}
            for chunk, cut in zip(chunks, rows, strict=True)
        ]
        names = list(map(str, tasks))
        ns = (ready - start, computed - ready, perf_counter_ns() - computed)
        return [
            Result(part, names[cut], known[cut], start - chunk.arrived_ns, len(tasks), ns)
            for chunk, cut, part in zip(chunks, rows, parts, strict=True)
        ]

    @torch.no_grad()
    def _tasks(
        self, chunks: Sequence[Chunk], inputs: dict[str, Tensor]
    ) -> tuple[list[TaskName], list[bool]]:
        tasks = [self.tasks.get(chunk.task) for chunk in chunks for _ in range(chunk.rows)]
        known = [True] * len(tasks)
        rows = [row for row, task in enumerate(tasks) if task is None]
        if rows:
            model: Any = self.model
            recognised = model.recognise(**{name: x[rows] for name, x in inputs.items()})
            fits = recognised.known.tolist()
            for row, task, fit in zip(rows, recognised.task, fits, strict=True):
                tasks[row], known[row] = task, fit
        return [task for task in tasks if task is not None], known

    def _concatenated(self, spec: TensorSpec, chunks: Sequence[Chunk]) -> Tensor:
        arrays = [chunk.inputs[spec.name].array for chunk in chunks]
        if spec.name in self.pad and len({array.shape[1:] for array in arrays}) > 1:
            arrays = _filled(arrays, self.pad[spec.name])
        array = np.concatenate(arrays)  # a copy: arrays of a request are its bytes, unaligned
        return TensorData(spec.datatype, array).tensor().to(self.device)

    def _part(self, spec: TensorSpec, array: Array, rows: slice, chunk: Chunk) -> TensorData:
        """The rows of one chunk, without what padding added."""
        cuts = [rows]
        for size in spec.shape if self.padded else ():
            padded = isinstance(size, Varying) and size.name in self.padded
            cuts.append(slice(chunk.sizes[str(size.name)] if padded else None))  # type: ignore[union-attr]
        return TensorData(spec.datatype, array[tuple(cuts)])

    @torch.no_grad()
    def _forward(self, inputs: dict[str, Tensor], task: Any) -> dict[str, Tensor]:
        outputs = _named(self.model(**inputs, task=task))
        return {name: tensor.detach().cpu() for name, tensor in outputs.items()}

    def _try_mixed_batch(self) -> None:
        """Run a mixed batch of the largest sizes: an error, or a slow first pass, comes here."""
        tasks = list(self.tasks.values())[:TRIAL_TASKS]

        def run(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            rows = len(next(iter(inputs.values())))
            return self._forward(inputs, [tasks[row % len(tasks)] for row in range(rows)])

        if len(tasks) > 1:
            signature_of(self.model, self.signature.inputs, run)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _by_protocol_name(tasks: Sequence[TaskName]) -> dict[str, TaskName]:
    names: dict[str, TaskName] = {}
    for task in tasks:
        if str(task) in names:
            raise SuperposeError(f"tasks {task!r} and {str(task)!r} have one name in the protocol")
        names[str(task)] = task
    return names


def _named(value: Any) -> dict[str, Tensor]:
    """The tensors that a network returns, by name; caches and the like are left out."""
    if isinstance(value, Tensor):
        return {"output": value}
    if isinstance(value, (tuple, list)):
        value = {f"output_{place}": item for place, item in enumerate(value)}
    items = value.items() if isinstance(value, Mapping) else ()
    return {str(name): item for name, item in items if isinstance(item, Tensor)}


def _padded_sizes(signature: Signature, pad: Mapping[str, float]) -> frozenset[str | None]:
    """Names of the dimensions in which rows of a batch may differ."""
    inputs = {spec.name: spec for spec in signature.inputs}
    for name in pad:
        if name not in inputs:
            raise SuperposeError(f"pad: there is no input {name!r}: they are {', '.join(inputs)}")
        if not inputs[name].varying:
            raise SuperposeError(f"pad: no size of input {name!r} varies")
    padded = frozenset(size.name for name in pad for size in inputs[name].varying)
    for name, spec in inputs.items():
        for size in spec.varying:
            if size.name in padded and name not in pad:
                raise SuperposeError(f"pad: input {name!r} has {size.name} too: pad it as well")
    for spec in signature.outputs if padded else ():
        if any(size.name is None for size in spec.varying):
            problem = f"output {spec.name!r} has a size that no input has, and cannot be cut"
            raise SuperposeError(f"pad: {problem}: serve without")
    return padded


def _filled(arrays: Sequence[Array], value: float) -> list[Array]:
    """Pad arrays to the largest size of each dimension but the first."""
    largest = [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)]
    filled = []
    for array in arrays:
        added = [(0, size - old) for size, old in zip(largest, array.shape[1:], strict=True)]
        filled.append(np.pad(array, [(0, 0), *added], constant_values=value))
    return filled
