"""Counters of each task and of the server, counted once.

Prometheus and the page read them as metrics, Triton's clients as statistics.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from superpose.serving.version import Result

LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)  # seconds
BATCH_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
OTHERS = "_other"  # the label of tasks beyond the limit
UNKNOWN = "_none"  # the label of requests that name no task of the model
STEPS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass
class TaskCounts:
    """Counters of one task: Triton's durations, errors by status, a histogram of latencies."""

    last_inference: int = 0  # milliseconds since the epoch
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    ns: Counter[str] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)
    latencies: Counter[int] = field(default_factory=Counter)  # by place in LATENCIES


class Traffic:
    """Counters of a server.

    `waiting_rows` returns the rows in the queue. In the metrics the first `most_labels` tasks that
    are requested have a label each, the others share one.
    """

    def __init__(self, waiting_rows: Callable[[], int], most_labels: int = 200) -> None:
        self.most_labels = most_labels
        self.tasks = defaultdict(TaskCounts, {UNKNOWN: TaskCounts()})
        self.batches: Counter[int] = Counter()  # by rows
        self.changes = Counter(done=0, failed=0)
        self._waiting_rows = waiting_rows
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def succeeded(self, task: str, rows: int, ns: int, results: Iterable[Result]) -> None:
        counts = self.tasks[task]
        counts.last_inference = time.time_ns() // 1_000_000
        counts.rows += rows
        counts.counts["success"] += 1
        counts.ns["success"] += ns
        counts.latencies[bisect_left(LATENCIES, ns / 1e9)] += 1
        for result in results:
            for step, step_ns in zip(STEPS, (result.queue_ns, *result.compute_ns), strict=True):
                counts.counts[step] += 1
                counts.ns[step] += step_ns

    def failed(self, task: str, status: int, ns: int) -> None:
        """Count a request that was refused."""
        counts = self.tasks[task]
        counts.errors[status] += 1
        counts.counts["fail"] += 1
        counts.ns["fail"] += ns

    def statistics(self, tasks: Iterable[str]) -> dict[str, Any]:
        """Return the counters of tasks, together, as Triton's statistics of one model."""
        total = _total(self.tasks[task] for task in tasks if task in self.tasks)
        names = ("success", "fail", *STEPS, "cache_hit", "cache_miss")
        return {
            "last_inference": total.last_inference,
            "inference_count": total.rows,
            "execution_count": total.counts["queue"],
            "inference_stats": {
                name: {"count": total.counts[name], "ns": total.ns[name]} for name in names
            },
            "batch_stats": [],
        }

    def metrics(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics: the interface of a collector of `prometheus_client`."""
        requests, rows, errors, changes = (
            CounterMetricFamily(f"superpose_{name}", text, labels=labels)
            for name, text, labels in (
                ("requests", "Answered requests.", ["task"]),
                ("rows", "Computed rows.", ["task"]),
                ("errors", "Requests that failed.", ["task", "status"]),
                ("changes", "Loads and unloads.", ["outcome"]),
            )
        )
        text = "From a request that was read to its answer."
        latency = HistogramMetricFamily("superpose_latency_seconds", text, labels=["task"])
        for label, counts in self._labelled().items():
            for status, count in counts.errors.items():
                errors.add_metric([label, str(status)], count)
            if label != UNKNOWN:
                requests.add_metric([label], counts.counts["success"])
                rows.add_metric([label], counts.rows)
                buckets = _buckets(LATENCIES, counts.latencies)
                latency.add_metric([label], buckets, counts.ns["success"] / 1e9)
        sizes: Counter[int] = Counter()
        batches = self.batches.copy()  # the model's thread goes on
        for size, count in batches.items():
            sizes[bisect_left(BATCH_ROWS, size)] += count
        batch = HistogramMetricFamily("superpose_batch_rows", "Rows in a batch.")
        total = sum(size * count for size, count in batches.items())
        batch.add_metric([], _buckets(BATCH_ROWS, sizes), total)
        queue = GaugeMetricFamily("superpose_queue_rows", "Rows that wait.", self._waiting_rows())
        for outcome, count in self.changes.items():
            changes.add_metric([outcome], count)
        yield from (requests, rows, errors, latency, batch, queue, changes)

    def _labelled(self) -> dict[str, TaskCounts]:
        tasks = list(self.tasks.items())
        end = 1 + self.most_labels  # the first is UNKNOWN
        labelled = dict(tasks[:end])
        if tasks[end:]:
            labelled[OTHERS] = _total(counts for _, counts in tasks[end:])
        return labelled


def _total(parts: Iterable[TaskCounts]) -> TaskCounts:
    total = TaskCounts()
    for part in parts:
        total.last_inference = max(total.last_inference, part.last_inference)
        total.rows += part.rows
        for name in ("counts", "ns", "errors", "latencies"):
            getattr(total, name).update(getattr(part, name))
    return total


def _buckets(bounds: Iterable[float], counts: Counter[int]) -> list[tuple[str, float]]:
    ends = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(ends, accumulate(counts[place] for place in range(len(ends))), strict=True))
