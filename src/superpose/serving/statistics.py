"""Counts and times of each task, as Triton's statistics have them, and of late for the page."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from superpose.serving.version import Result

LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)  # seconds
RECENT = 256  # requests whose latency is kept
_BOUNDS = tuple(int(seconds * 1e9) for seconds in LATENCIES)


@dataclass
class Duration:
    """How often something was, and how long it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Once more."""
        self.count += 1
        self.ns += ns

    def plus(self, other: Duration) -> None:
        """As often, and as long, more."""
        self.count += other.count
        self.ns += other.ns


@dataclass(slots=True)
class Steps:
    """How often batches of one size were run, and how long their steps took in all."""

    count: int = 0
    compute_input: int = 0
    compute_infer: int = 0
    compute_output: int = 0

    def add(self, count: int, compute_input: int, compute_infer: int, compute_output: int) -> None:
        """So many more."""
        self.count += count
        self.compute_input += compute_input
        self.compute_infer += compute_infer
        self.compute_output += compute_output

    def plus(self, other: Steps) -> None:
        """As many, and as long, more."""
        self.add(other.count, other.compute_input, other.compute_infer, other.compute_output)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Each step with its count."""
        steps = ("compute_input", "compute_infer", "compute_output")
        return {step: {"count": self.count, "ns": getattr(self, step)} for step in steps}


@dataclass
class Counts:
    """What was asked of one task."""

    last_inference: int = 0  # milliseconds since the epoch
    rows: int = 0
    batches: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    by_batch: dict[int, Steps] = field(default_factory=dict)
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))  # latencies, ns
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCIES) + 1))

    def succeeded(self, rows: int, ns: int, results: Iterable[Result]) -> None:
        """Count a request that was answered."""
        self.last_inference = time.time_ns() // 1_000_000
        self.rows += rows
        self.recent.append(ns)
        self.latencies[bisect_left(_BOUNDS, ns)] += 1
        self.success.add(ns)
        for result in results:
            self.batches += 1
            self.queue.add(result.queue)
            batch = result.batch
            steps = self.by_batch.get(batch.rows)
            if steps is None:
                steps = self.by_batch[batch.rows] = Steps()
            steps.add(1, batch.compute_input, batch.compute_infer, batch.compute_output)

    def failed(self, ns: int) -> None:
        """Count a request that was refused."""
        self.fail.add(ns)

    def add(self, other: Counts) -> None:
        """Count what another task was asked, too."""
        self.last_inference = max(self.last_inference, other.last_inference)
        self.rows += other.rows
        self.batches += other.batches
        self.success.plus(other.success)
        self.fail.plus(other.fail)
        self.queue.plus(other.queue)
        self.recent.extend(other.recent)
        self.latencies = [a + b for a, b in zip(self.latencies, other.latencies, strict=True)]
        for size, steps in other.by_batch.items():
            self.by_batch.setdefault(size, Steps()).plus(steps)

    def as_dict(self, name: str, version: str) -> dict[str, Any]:
        """As `GET /v2/models/NAME/stats` tells them."""
        whole = Steps()
        for steps in self.by_batch.values():
            whole.plus(steps)
        none = Duration()  # nothing is cached
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference,
            "inference_count": self.rows,
            "execution_count": self.batches,
            "inference_stats": {
                "success": vars(self.success),
                "fail": vars(self.fail),
                "queue": vars(self.queue),
                **whole.as_dict(),
                "cache_hit": vars(none),
                "cache_miss": vars(none),
            },
            "batch_stats": [
                {"batch_size": size, **steps.as_dict()}
                for size, steps in sorted(self.by_batch.items())
            ],
        }

    def latency(self, share: float) -> float:
        """A quantile of recent latencies, in milliseconds; 0 if there was no request."""
        ordered = sorted(self.recent)
        return ordered[int(share * (len(ordered) - 1))] / 1e6 if ordered else 0.0

    def as_shown(self) -> dict[str, Any]:
        """As the page shows it."""
        return {
            "requests": self.success.count,
            "errors": self.fail.count,
            "rows": self.rows,
            "p50_ms": round(self.latency(0.5), 2),
            "p99_ms": round(self.latency(0.99), 2),
        }


class Traffic:
    """What was asked of a server: by task, in the order in which they were asked first."""

    def __init__(self) -> None:
        self.tasks: dict[str, Counts] = {}
        self.requests = self.rows = 0  # of those that were answered
        self.errors: Counter[tuple[str | None, int]] = Counter()  # by task, if known, and status
        self.batches: Counter[int] = Counter()  # by their rows
        self.batch_rows_of_late = 0.0

    def succeeded(self, task: str, rows: int, ns: int, results: Iterable[Result]) -> None:
        """Count a request that was answered."""
        self.requests += 1
        self.rows += rows
        self._of(task).succeeded(rows, ns, results)

    def failed(self, task: str | None, status: int, ns: int) -> None:
        """Count a request that was refused; the task is none if there is no such task."""
        self.errors[task, status] += 1
        if task is not None:
            self._of(task).failed(ns)

    def batch(self, rows: int) -> None:
        """Count a batch, in the model's thread."""
        self.batches[rows] += 1
        self.batch_rows_of_late += 0.05 * (rows - self.batch_rows_of_late)

    def of(self, task: str) -> Counts:
        """What was asked of one task."""
        return self.tasks.get(task) or Counts()

    def all(self, tasks: Iterable[str]) -> Counts:
        """What was asked of several tasks; a batch of theirs is counted once."""
        total = Counts()
        for task in tasks:
            total.add(self.of(task))
        total.batches = self.batches.total()
        return total

    def totals(self) -> dict[str, int]:
        """Requests, rows and errors of all tasks."""
        return {"requests": self.requests, "rows": self.rows, "errors": self.errors.total()}

    def _of(self, task: str) -> Counts:
        found = self.tasks.get(task)
        if found is None:
            found = self.tasks[task] = Counts()
        return found
