"""The server's answers, whatever the protocol: inference, metadata, statistics, changes."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from time import perf_counter_ns, time
from typing import Any, NamedTuple

import numpy as np
import torch

from superpose.serving.batcher import Batcher
from superpose.serving.metrics import UNKNOWN, Traffic
from superpose.serving.repository import Repository
from superpose.serving.request_error import RequestError
from superpose.serving.tensors import TensorData
from superpose.serving.version import AUTO, Chunk, Result, Version

EXTENSIONS = "binary_tensor_data model_configuration model_repository parameters statistics"
PLATFORM = "pytorch_superpose"
REFUSE, NEAREST = "refuse", "nearest"  # what to do with rows that fit no task


@dataclass(frozen=True)
class Limits:
    """Limits of a server, in rows, bytes and seconds.

    `bodies_bytes` limits all requests together, `read_seconds` the time that a request takes to
    arrive, `drain_seconds` the time that accepted requests have after SIGTERM.
    """

    batch_rows: int = 64
    queue_rows: int = 4096
    body_bytes: int = 64 << 20
    bodies_bytes: int = 512 << 20
    read_seconds: float = 30.0
    drain_seconds: float = 30.0


class Answer(NamedTuple):
    """The outputs of a request, and the version and task that computed them."""

    outputs: dict[str, TensorData]
    version: str
    task: str  # if rows were recognised as different tasks, a JSON list of each row's
    unknown: str = ""  # a JSON list of the rows that fit no task and were given the nearest


Log = Callable[..., None]


def log_line(event: str, **facts: Any) -> None:
    """Write a line of JSON to standard error."""
    print(json.dumps({"time": round(time(), 3), "event": event, **facts}), file=sys.stderr)


class Service:
    """One served model: what HTTP and gRPC have in common.

    `log` is called with an event and facts, never with inputs.
    """

    def __init__(
        self, repository: Repository, limits: Limits | None = None, log: Log = log_line
    ) -> None:
        self.repository = repository
        self.limits = limits or Limits()
        self.log = log
        self.stopping = False
        batch_rows, queue_rows = self.limits.batch_rows, self.limits.queue_rows
        self.batcher = Batcher(self._run, batch_rows=batch_rows, queue_rows=queue_rows)
        self.traffic = Traffic(lambda: self.batcher.waiting_rows)

    async def infer(
        self,
        name: str,
        inputs: dict[str, TensorData],
        *,
        version: str = "",
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] = (),
    ) -> Answer:
        """Run a request's rows, in batches with those of other requests.

        `name` is a task, or the whole model with the parameter `task`; `outputs` are the wanted
        ones, all if none is named. Raises `RequestError`, also for what the network raises.
        """
        start = perf_counter_ns()
        task, unknown = UNKNOWN, ""
        try:
            options = parameters or {}
            model, task = self._choose_task(name, version, options.get("task"))
            timeout = _seconds(options.get("timeout"))
            nearest = _is_nearest(options.get("unknown", REFUSE))
            wanted = _checked_outputs(model, outputs)
            chunks = model.chunks(task, inputs, self.limits.batch_rows)
            rows = sum(chunk.rows for chunk in chunks)
            if rows > self.limits.queue_rows:
                most = self.limits.queue_rows
                raise RequestError(413, f"{rows} rows in a request, at most {most}: split it")
            results = await self._results(chunks, timeout)
            answered_by = task
            if task not in model.tasks:
                answered_by, unknown = self._recognised(results, nearest)
        except (RequestError, asyncio.CancelledError) as error:
            status = error.status if isinstance(error, RequestError) else 499
            self._count_failure(task, status, start)
            raise
        self.traffic.succeeded(task, rows, perf_counter_ns() - start, results)
        tensors = {name: _joined([result.outputs[name] for result in results]) for name in wanted}
        return Answer(tensors, model.name, answered_by, unknown)

    @contextmanager
    def counting_errors(self, name: str) -> Iterator[None]:
        """Count a request for a model that is refused while it is read."""
        start = perf_counter_ns()
        try:
            yield
        except RequestError as error:
            self._count_failure(name, error.status, start)
            raise

    def server_metadata(self) -> dict[str, Any]:
        """Return the server's name, version and extensions."""
        version = installed_version("superpose")
        return {"name": "superpose", "version": version, "extensions": EXTENSIONS.split()}

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return inputs and outputs of a task or of the whole model."""
        model, _ = self.repository.find(name, version)
        inputs, outputs = (
            [{"name": s.name, "datatype": s.datatype, "shape": [-1, *s.dims]} for s in specs]
            for specs in (model.signature.inputs, model.signature.outputs)
        )
        described = {"platform": PLATFORM, "inputs": inputs, "outputs": outputs}
        return {"name": name, "versions": [model.name], **described}

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """Return the configuration in Triton's form."""
        model, task = self.repository.find(name, version)
        inputs, outputs = (
            [{"name": s.name, "data_type": f"TYPE_{s.datatype}", "dims": s.dims} for s in specs]
            for specs in (model.signature.inputs, model.signature.outputs)
        )
        parameters = {"digest": {"string_value": model.digest}}
        if task is None:
            parameters["tasks"] = {"string_value": json.dumps(list(model.tasks))}
        return {
            "name": name,
            "platform": PLATFORM,
            "backend": "superpose",
            "max_batch_size": self.limits.queue_rows,
            "input": inputs,
            "output": outputs,
            "dynamic_batching": {"preferred_batch_size": [self.limits.batch_rows]},
            "parameters": parameters,
        }

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return Triton's statistics of a name, or of all tasks that are loaded."""
        names = [name] if name else [one["name"] for one in self.index(only_ready=True)]
        models = []
        for one in names:
            model, task = self.repository.find(one, version)
            if task is not None:
                counts = self.traffic.statistics([task])
            elif name:
                counts = self.traffic.statistics([*model.tasks, AUTO])
                counts["execution_count"] = self.traffic.batches.total()  # tasks share batches
            else:
                continue
            models.append({"name": one, "version": model.name, **counts})
        return {"model_stats": models}

    def index(self, only_ready: bool = False) -> list[dict[str, Any]]:
        """Return all names and their states, the whole model first."""
        version = self.repository.version.name
        states = {True: ("READY", ""), False: ("UNAVAILABLE", "unloaded")}
        return [
            {
                "name": name,
                "version": version,
                "state": states[ready][0],
                "reason": states[ready][1],
            }
            for name, ready in self.repository.names().items()
            if ready or not only_ready
        ]

    async def change(self, verb: str, name: str, parameters: Mapping[str, Any]) -> None:
        """Load or unload a name, in a thread: requests go on."""
        try:
            if verb == "load" and parameters:
                raise RequestError(400, f"load takes no parameter {min(parameters)!r}")
            change = self.repository.load if verb == "load" else self.repository.unload
            await asyncio.to_thread(change, name)
        except RequestError as error:
            self._count_change(verb, model=name, error=error.message)
            raise
        self._count_change(verb, model=name, version=self.repository.version.name)

    async def watch(self, seconds: float) -> None:
        """Load the file again whenever it changes."""
        while True:
            await asyncio.sleep(seconds)
            try:
                if await asyncio.to_thread(self.repository.reload_if_changed):
                    self._count_change("reload", version=self.repository.version.name)
            except RequestError as error:
                self._count_change("reload", error=error.message)

    async def _results(self, chunks: list[Chunk], timeout: float | None) -> list[Result]:
        try:
            async with asyncio.timeout(timeout):
                return await self.batcher.submit(chunks)
        except RequestError:
            raise
        except TimeoutError as error:
            raise RequestError(408, f"not computed within the timeout of {timeout} s") from error
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise RequestError(503, "there was no memory for it: try again", 1) from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            message = f"the network cannot compute these inputs ({reason})"
            raise RequestError(422, message) from error

    def _run(self, chunks: list[Chunk]) -> list[Result]:
        """Run a batch; called in the model's thread."""
        results = chunks[0].version.run(chunks)
        self.traffic.batches[results[0].batch_rows] += 1
        return results

    def _choose_task(self, name: str, version: str, parameter: Any) -> tuple[Version, str]:
        model, task = self.repository.find(name, version)
        if isinstance(parameter, bool) or not isinstance(parameter, (str, int, type(None))):
            raise RequestError(400, "parameter task: give the name of one task")
        if task is None:
            if parameter is None:
                detail = "name one as the parameter task"
                raise RequestError(400, f"{name!r} holds many tasks: {detail}")
            task = str(parameter)
            if task in model.tasks:
                self.repository.find(task)  # it may be unloaded
        elif parameter is not None and str(parameter) != task:
            whole = self.repository.name
            raise RequestError(400, f"model {task!r} is one task: ask {whole!r} for others")
        return model, task

    def _recognised(self, results: list[Result], nearest: bool) -> tuple[str, str]:
        """Return the rows' tasks and those that fit none, in the form of `Answer`."""
        tasks = [task for result in results for task in result.tasks]
        known = [fits for result in results for fits in result.known]
        unknown = [row for row, fits in enumerate(known) if not fits]
        if unknown and not nearest:
            hint = f"name a task, or send unknown={NEAREST!r} to have the nearest one's answer"
            raise RequestError(422, f"rows {_first_few(unknown)} fit none of the tasks: {hint}")
        unloaded = [row for row, task in enumerate(tasks) if task in self.repository.unloaded]
        if unloaded:
            task = f"task {tasks[unloaded[0]]!r} or another that is not loaded"
            raise RequestError(404, f"rows {_first_few(unloaded)} are of {task}")
        task = tasks[0] if len(set(tasks)) == 1 else json.dumps(tasks)
        return task, json.dumps(unknown) if unknown else ""

    def _count_change(self, event: str, **facts: Any) -> None:
        self.traffic.changes["failed" if "error" in facts else "done"] += 1
        self.log(event, **facts)

    def _count_failure(self, task: str, status: int, start: int) -> None:
        known = task if task in self.repository.version.tasks else UNKNOWN
        self.traffic.failed(known, status, perf_counter_ns() - start)


def _checked_outputs(model: Version, outputs: Sequence[str]) -> Sequence[str]:
    for name in outputs:
        if name not in model.outputs:
            known = ", ".join(model.outputs)
            raise RequestError(400, f"there is no output {name!r}: the outputs are {known}")
    return outputs or model.outputs


def _is_nearest(unknown: Any) -> bool:
    if unknown not in (REFUSE, NEAREST):
        raise RequestError(400, f"parameter unknown: give {REFUSE!r} or {NEAREST!r}")
    return bool(unknown == NEAREST)


def _first_few(rows: list[int]) -> str:
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
