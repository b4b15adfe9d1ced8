"""What the server can be asked, whatever the protocol: REST and gRPC translate to and from it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from time import perf_counter_ns, time
from typing import Any, NamedTuple

import numpy as np
import torch

from superpose.serving.batcher import Batcher
from superpose.serving.metrics import Metrics
from superpose.serving.repository import Repository
from superpose.serving.request_error import RequestError
from superpose.serving.statistics import Traffic
from superpose.serving.tensors import TensorData
from superpose.serving.version import Result, Rows, Version

EXTENSIONS = [
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
]
PLATFORM = "pytorch_superpose"
REFUSE, NEAREST = "refuse", "nearest"


@dataclass(frozen=True)
class Limits:
    """How much the server takes on."""

    batch_rows: int = 64
    queue_rows: int = 4096
    longest_wait: float = 0.0  # seconds
    body_bytes: int = 64 << 20  # of one request
    bodies_bytes: int = 512 << 20  # of all requests at a time
    read_seconds: float = 30.0  # for a request to arrive whole
    drain_seconds: float = 30.0  # for requests to end after SIGTERM


class Answer(NamedTuple):
    """The outputs of a request, and what served them."""

    outputs: dict[str, TensorData]
    version: str
    task: str  # the one of all rows, or where several were recognised a JSON list
    unknown: str = ""  # a JSON list of the rows that fit no task, and have the nearest one's answer


Log = Callable[..., None]


def log_line(event: str, **facts: Any) -> None:
    """One line of JSON on standard error; never an input."""
    print(json.dumps({"time": round(time(), 3), "event": event, **facts}), file=sys.stderr)


class Service:
    """One served model: inference, what there is, how it does, changes."""

    def __init__(
        self, repository: Repository, limits: Limits | None = None, log: Log = log_line
    ) -> None:
        self.repository = repository
        self.limits = limits or Limits()
        self.log = log
        self.traffic = Traffic()
        self.stopping = False
        self.batcher: Batcher[Rows, Result] = Batcher(
            self._run,
            batch_rows=self.limits.batch_rows,
            queue_rows=self.limits.queue_rows,
            longest_wait=self.limits.longest_wait,
        )
        self.metrics = Metrics(self.traffic, lambda: self.batcher.waiting_rows)

    async def infer(
        self,
        name: str,
        inputs: dict[str, TensorData],
        *,
        version: str = "",
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] = (),
    ) -> Answer:
        """Run the rows of a request under its task, together with those of others."""
        began = perf_counter_ns()
        task, unknown = None, ""
        try:
            given = parameters or {}
            serving, task, timeout = self._asked(name, version, given)
            nearest = _nearest(given.get("unknown", REFUSE))
            wanted = _wanted(serving, outputs)
            works = serving.rows_of(task, inputs, self.limits.batch_rows)
            rows = works[0].rows if len(works) == 1 else sum(work.rows for work in works)
            if rows > self.limits.queue_rows:
                raise RequestError(
                    413, f"{rows} rows in a request, at most {self.limits.queue_rows}: split it"
                )
            results = await self._results(works, timeout)
            served = task
            if task not in serving.tasks:
                served, unknown = self._recognised(results, nearest)
        except RequestError as refusal:
            self._failed(task, refusal.status, began)
            raise
        except asyncio.CancelledError:
            self._failed(task, 499, began)
            raise
        self.traffic.succeeded(task, rows, perf_counter_ns() - began, results)
        given_back = {one: _joined([result.outputs[one] for result in results]) for one in wanted}
        return Answer(given_back, serving.name, served, unknown)

    def counting(self, name: str) -> Counting:
        """Count a request that is refused while it is read."""
        return Counting(self, name)

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions."""
        return {
            "name": "superpose",
            "version": installed_version("superpose"),
            "extensions": EXTENSIONS,
        }

    def ready(self) -> bool:
        """Whether the server takes requests."""
        return not self.stopping

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Inputs and outputs of a task, or of the whole model."""
        serving, _ = self.repository.find(name, version)

        def described(specs: Any) -> list[dict[str, Any]]:
            return [{"name": s.name, "datatype": s.datatype, "shape": [-1, *s.dims]} for s in specs]

        return {
            "name": name,
            "versions": [serving.name],
            "platform": PLATFORM,
            "inputs": described(serving.signature.inputs),
            "outputs": described(serving.signature.outputs),
        }

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """The configuration as Triton writes it."""
        serving, task = self.repository.find(name, version)

        def described(specs: Any) -> list[dict[str, Any]]:
            return [
                {"name": s.name, "data_type": f"TYPE_{s.datatype}", "dims": s.dims} for s in specs
            ]

        return {
            "name": name,
            "platform": PLATFORM,
            "backend": "superpose",
            "max_batch_size": self.limits.queue_rows,
            "input": described(serving.signature.inputs),
            "output": described(serving.signature.outputs),
            "dynamic_batching": {
                "preferred_batch_size": [self.limits.batch_rows],
                "max_queue_delay_microseconds": int(self.limits.longest_wait * 1e6),
            },
            "parameters": {
                "digest": {"string_value": serving.digest},
                **(
                    {"tasks": {"string_value": json.dumps(list(serving.tasks))}} if not task else {}
                ),
            },
        }

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Counts of one name, or of all that are ready."""
        ready = [one.name for one in self.repository.index() if one.ready]
        names = [name] if name else [one for one in ready if one != self.repository.name]
        told = []
        for one in names:
            serving, task = self.repository.find(one, version)
            counts = self.traffic.of(task) if task else self.traffic.all(serving.tasks)
            told.append(counts.as_dict(one, serving.name))
        return {"model_stats": told}

    def index(self, ready: bool = False) -> list[dict[str, Any]]:
        """All names with their state; only those that are ready, if so asked."""
        return [
            {
                "name": one.name,
                "version": one.version,
                "state": "READY" if one.ready else "UNAVAILABLE",
                "reason": "" if one.ready else "unloaded",
            }
            for one in self.repository.index()
            if one.ready or not ready
        ]

    async def change(self, verb: str, name: str, parameters: Mapping[str, Any]) -> None:
        """Load or unload, in a thread of its own: requests go on."""
        change = (
            (lambda: self.repository.load(name, parameters))
            if verb == "load"
            else (lambda: self.repository.unload(name))
        )
        try:
            await asyncio.to_thread(change)
        except RequestError as refusal:
            self.metrics.changed(False)
            self.log(verb, model=name, error=refusal.message)
            raise
        self.metrics.changed(True)
        self.log(verb, model=name, version=self.repository.version.name)

    async def tell_every_second(self) -> None:
        """A line of the log for each second in which there were requests."""
        before = self.traffic.totals()
        while True:
            await asyncio.sleep(1)
            now = self.traffic.totals()
            if now != before:
                facts = {name: now[name] - before[name] for name in now}
                waiting, size = self.batcher.waiting_rows, round(self.traffic.batch_rows_of_late, 1)
                self.log("traffic", **facts, queue_rows=waiting, batch_rows=size)
            before = now

    async def look(self, look: Callable[[], bool]) -> None:
        """Follow another process, or the file, if it was changed."""
        try:
            changed = await asyncio.to_thread(look)
        except RequestError as refusal:
            self.metrics.changed(False)
            self.log("reload", error=refusal.message)
        else:
            if changed:
                self.metrics.changed(True)
                self.log("reload", version=self.repository.version.name)

    def live(self) -> dict[str, Any]:
        """What the page shows: traffic of each task, and the batches of late."""
        return {
            "model": self.repository.name,
            "version": self.repository.version.name,
            "queue_rows": self.batcher.waiting_rows,
            "batch_rows": round(self.traffic.batch_rows_of_late, 1),
            "tasks": [
                {"name": one.name, "ready": one.ready, **self.traffic.of(one.name).as_shown()}
                for one in self.repository.index()
                if one.name != self.repository.name
            ],
        }

    async def _results(self, works: list[Rows], timeout: float | None) -> list[Result]:
        try:
            if timeout is None:
                return await self.batcher.submit(works)
            async with asyncio.timeout(timeout):
                return await self.batcher.submit(works)
        except TimeoutError as error:
            raise RequestError(408, f"not computed within the timeout of {timeout} s") from error
        except (RequestError, asyncio.CancelledError):
            raise
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise RequestError(503, "there was no memory for it: try again", 1) from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            raise RequestError(
                422, f"the network cannot compute these inputs ({reason})"
            ) from error

    def _run(self, works: list[Rows]) -> list[Result]:
        """A batch, in the model's thread."""
        results = works[0].version.run(works)
        self.traffic.batch(results[0].batch_rows)
        return results

    def _asked(
        self, name: str, version: str, parameters: Mapping[str, Any]
    ) -> tuple[Version, str, float | None]:
        serving, task = self.repository.find(name, version)
        told = parameters.get("task")
        if told is not None and (isinstance(told, bool) or not isinstance(told, (str, int))):
            raise RequestError(400, "parameter task: give the name of one task")
        if task is None:
            if told is None:
                raise RequestError(
                    400, f"{name!r} holds many tasks: name one as the parameter task"
                )
            task = str(told)
            if task in serving.tasks:
                self.repository.find(task)  # it may be unloaded
        elif told is not None and str(told) != task:
            raise RequestError(
                400, f"model {task!r} is one task: ask {self.repository.name!r} for others"
            )
        return serving, task, _seconds(parameters.get("timeout"))

    def _recognised(self, results: list[Result], nearest: bool) -> tuple[str, str]:
        """The tasks of rows, and those that fit none: refused, if not told otherwise."""
        found = [task for result in results for task in result.tasks]
        fits = [fit for result in results for fit in result.known]
        unknown = [row for row, fit in enumerate(fits) if not fit]
        if unknown and not nearest:
            raise RequestError(
                422,
                f"rows {_few(unknown)} fit none of the tasks: name a task, or send the parameter "
                f"unknown={NEAREST!r} to have the answer of the nearest one",
            )
        off = [row for row, task in enumerate(found) if task in self.repository.unloaded]
        if off:
            raise RequestError(
                404, f"rows {_few(off)} are of task {found[off[0]]!r} or another that is not loaded"
            )
        every = found[0] if len(set(found)) == 1 else json.dumps(found)
        return every, json.dumps(unknown) if unknown else ""

    def _failed(self, task: str | None, status: int, began: int) -> None:
        known = task if task in self.repository.version.tasks else None
        self.traffic.failed(known, status, perf_counter_ns() - began)


class Counting:
    """Counts a request if what is done in a `with` block refuses it."""

    __slots__ = ("_began", "_name", "_service")

    def __init__(self, service: Service, name: str) -> None:
        self._service, self._name, self._began = service, name, perf_counter_ns()

    def __enter__(self) -> None:
        """It began when it was made."""

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        if isinstance(problem, RequestError):
            self._service._failed(self._name, problem.status, self._began)


def _wanted(serving: Version, outputs: Sequence[str]) -> Sequence[str]:
    known = serving.outputs
    for name in outputs:
        if name not in known:
            raise RequestError(
                400, f"there is no output {name!r}: the outputs are {', '.join(known)}"
            )
    return outputs or known


def _nearest(unknown: Any) -> bool:
    """The parameter `unknown`: what is done with rows that fit no task."""
    if unknown not in (REFUSE, NEAREST):
        raise RequestError(400, f"parameter unknown: give {REFUSE!r} or {NEAREST!r}")
    return unknown == NEAREST


def _few(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:10])) + (f", … ({len(rows)} in all)" if rows[10:] else "")


def _seconds(timeout: Any) -> float | None:
    """The parameter `timeout` is in microseconds, as Triton's; 0 is none."""
    if timeout is None or timeout == 0:
        return None
    if type(timeout) is not int or not 0 < timeout < 1 << 63:
        raise RequestError(400, "parameter timeout: give a whole number of microseconds")
    return timeout / 1e6


def _joined(parts: list[TensorData]) -> TensorData:
    if len(parts) == 1:
        return parts[0]
    return TensorData(parts[0].datatype, np.concatenate([part.array for part in parts]))
