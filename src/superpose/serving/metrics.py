"""Prometheus metrics: by task, with a bounded number of labels.

They are made of what the server counts anyway, when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from superpose.serving.statistics import LATENCIES, Counts, Traffic

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # rows
OTHER = "_other"  # the label of tasks that came after the limit
INFINITY = float("inf")
NONE = "_none"  # of requests that name no task that there is


class Metrics:
    """What one server counts; the first `most_tasks` tasks that are asked have a label each."""

    def __init__(
        self, traffic: Traffic, waiting_rows: Callable[[], int], most_tasks: int = 200
    ) -> None:
        self.most_tasks = most_tasks
        self._traffic = traffic
        self._waiting_rows = waiting_rows
        self._changes = {"done": 0, "failed": 0}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def changed(self, done: bool) -> None:
        """Count a load or unload."""
        self._changes["done" if done else "failed"] += 1

    def text(self) -> bytes:
        """What a scrape is given."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All of them, as they are now."""
        traffic, by_task = self._traffic, ["task"]
        requests = CounterMetricFamily(
            "superpose_requests", "Requests that were answered.", labels=by_task
        )
        rows = CounterMetricFamily("superpose_rows", "Rows that were computed.", labels=by_task)
        latency = HistogramMetricFamily(
            "superpose_latency_seconds",
            "From the whole request read to its answer.",
            labels=by_task,
        )
        for label, counts in self._labelled().items():
            requests.add_metric([label], counts.success.count)
            rows.add_metric([label], counts.rows)
            buckets = _buckets(LATENCIES, accumulate(counts.latencies))
            latency.add_metric([label], buckets, counts.success.ns / 1e9)
        errors = CounterMetricFamily(
            "superpose_errors", "Requests that failed.", labels=["task", "status"]
        )
        for (label, status), count in self._errors().items():
            errors.add_metric([label, str(status)], count)
        sizes = dict(traffic.batches)  # a copy: the model's thread goes on
        below = (sum(n for s, n in sizes.items() if s <= end) for end in (*BATCHES, INFINITY))
        batches = HistogramMetricFamily("superpose_batch_rows", "Rows in a batch.")
        batches.add_metric([], _buckets(BATCHES, below), sum(n * s for s, n in sizes.items()))
        waiting = GaugeMetricFamily("superpose_queue_rows", "Rows that wait.", self._waiting_rows())
        changes = CounterMetricFamily("superpose_changes", "Loads and unloads.", labels=["outcome"])
        for outcome, count in self._changes.items():
            changes.add_metric([outcome], count)
        yield from (requests, rows, errors, latency, batches, waiting, changes)

    def _labelled(self) -> dict[str, Counts]:
        """The counts of each label."""
        tasks = self._traffic.tasks
        found = dict(islice(tasks.items(), self.most_tasks))
        if len(tasks) > self.most_tasks:
            found[OTHER] = Counts()
            for counts in islice(tasks.values(), self.most_tasks, None):
                found[OTHER].add(counts)
        return found

    def _errors(self) -> dict[tuple[str, int], int]:
        """How often each label had each status."""
        own = set(islice(self._traffic.tasks, self.most_tasks))
        found: dict[tuple[str, int], int] = {}
        for (task, status), count in self._traffic.errors.items():
            label = NONE if task is None else task if task in own else OTHER
            found[label, status] = found.get((label, status), 0) + count
        return found


def _buckets(bounds: Iterable[float], below: Iterable[int]) -> list[tuple[str, float]]:
    """A histogram's: how many are below each bound, and in all."""
    ends = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(ends, below, strict=True))
