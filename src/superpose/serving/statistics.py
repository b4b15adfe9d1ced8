"""Counts and times of each task, as Triton's statistics have them, and of late for the page."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from superpose.serving.version import Result

DURATIONS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
COMPUTED = DURATIONS[3:6]
RECENT = 256  # requests whose latency is kept


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


@dataclass
class Counts:
    """What was asked of one task."""

    last_inference: int = 0  # milliseconds since the epoch
    rows: int = 0
    batches: int = 0
    durations: dict[str, Duration] = field(
        default_factory=lambda: {name: Duration() for name in DURATIONS}
    )
    by_batch: dict[int, dict[str, Duration]] = field(default_factory=dict)
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))  # latencies, ns

    def succeeded(self, rows: int, ns: int, results: Iterable[Result]) -> None:
        """Count a request that was answered."""
        self.last_inference = time.time_ns() // 1_000_000
        self.rows += rows
        self.recent.append(ns)
        self.durations["success"].add(ns)
        for result in results:
            self.batches += 1
            own = self.by_batch.get(result.batch_rows)
            if own is None:
                own = self.by_batch[result.batch_rows] = {name: Duration() for name in COMPUTED}
            self.durations["queue"].add(result.queue)
            for name in COMPUTED:
                took = getattr(result, name)
                self.durations[name].add(took)
                own[name].add(took)

    def failed(self, ns: int) -> None:
        """Count a request that was refused."""
        self.durations["fail"].add(ns)

    def add(self, other: Counts) -> None:
        """Count what another task was asked, too."""
        self.last_inference = max(self.last_inference, other.last_inference)
        self.rows += other.rows
        self.batches += other.batches
        self.recent.extend(other.recent)
        for name, own in other.durations.items():
            self.durations[name].plus(own)
        for size, durations in other.by_batch.items():
            mine = self.by_batch.setdefault(size, {name: Duration() for name in durations})
            for name, own in durations.items():
                mine[name].plus(own)

    def as_dict(self, name: str, version: str) -> dict[str, Any]:
        """As `GET /v2/models/NAME/stats` tells them."""
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference,
            "inference_count": self.rows,
            "execution_count": self.batches,
            "inference_stats": {n: vars(duration) for n, duration in self.durations.items()},
            "batch_stats": [
                {"batch_size": size, **{name: vars(took) for name, took in own.items()}}
                for size, own in sorted(self.by_batch.items())
            ],
        }

    def latency(self, share: float) -> float:
        """A quantile of recent latencies, in milliseconds; 0 if there was no request."""
        ordered = sorted(self.recent)
        return ordered[int(share * (len(ordered) - 1))] / 1e6 if ordered else 0.0
