"""Comparisons for the bench on a clock of its own."""

from types import SimpleNamespace

import pytest

from superpose.lab import timing


@pytest.fixture
def pair(monkeypatch):
    """Comparisons whose actions take the time they are told, on a clock of their own."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(timing, "time", clock)

    def taking(seconds):
        return lambda: now.__setitem__(0, now[0] + seconds)

    def make(action, baseline, goal, rounds=9):
        return timing.Comparison("a", "b", goal, rounds, lambda: (taking(action), taking(baseline)))

    return make
