"""Prometheus metrics: by task, with a bounded number of labels."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)  # seconds
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # rows
OTHER = "_other"  # the label of tasks that came after the limit
NONE = "_none"  # of requests that name no task that there is


class Metrics:
    """Counters of one server; the first `most_tasks` tasks that are asked have a label each."""

    def __init__(self, most_tasks: int = 200) -> None:
        self.most_tasks = most_tasks
        self._labels: set[str] = set()
        self._children: dict[str, Any] = {}
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "superpose_requests", "Requests that were answered.", ["task"], registry=registry
        )
        self._rows = Counter(
            "superpose_rows", "Rows that were computed.", ["task"], registry=registry
        )
        self._errors = Counter(
            "superpose_errors", "Requests that failed.", ["task", "status"], registry=registry
        )
        self._latency = Histogram(
            "superpose_latency_seconds",
            "From the whole request read to its answer.",
            ["task"],
            buckets=LATENCIES,
            registry=registry,
        )
        self._batches = Histogram(
            "superpose_batch_rows", "Rows in a batch.", buckets=BATCHES, registry=registry
        )
        self.queue_rows = Gauge("superpose_queue_rows", "Rows that wait.", registry=registry)
        self._changes = Counter(
            "superpose_changes", "Loads and unloads.", ["outcome"], registry=registry
        )

    def succeeded(self, task: str, rows: int, seconds: float) -> None:
        """Count a request that was answered."""
        requests, counted, latency = self._of(self._label(task))
        requests.inc()
        counted.inc(rows)
        latency.observe(seconds)

    def failed(self, task: str | None, status: int) -> None:
        """Count a request that was refused; the task is none if there is no such task."""
        self._errors.labels(NONE if task is None else self._label(task), str(status)).inc()

    def batch(self, rows: int) -> None:
        """Count a batch."""
        self._batches.observe(rows)

    def changed(self, done: bool) -> None:
        """Count a load or unload."""
        self._changes.labels("done" if done else "failed").inc()

    def text(self) -> bytes:
        """What a scrape is given."""
        return generate_latest(self._registry)

    def _of(self, label: str) -> tuple[Counter, Counter, Histogram]:
        found = self._children.get(label)
        if found is None:
            several = (self._requests, self._rows, self._latency)
            found = self._children[label] = tuple(one.labels(label) for one in several)
        return found

    def _label(self, task: str) -> str:
        if task not in self._labels:
            if len(self._labels) >= self.most_tasks:
                return OTHER
            self._labels.add(task)
        return task
