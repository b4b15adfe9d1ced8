"""What a person sees of a run while it goes on."""

import io
from dataclasses import replace

from rich.console import Console

from superpose.learning import Lines, LiveTable, Progress

PROGRESS = Progress("binary", 2, 10, 3000, 10000, 0.213, 0.9507, 0.9612, 75.0, evaluated=True)


def test_the_live_table_tells_how_far_each_run_is():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with LiveTable(["binary", "standard"], console) as table:
        table.show(PROGRESS)
    drawn = console.file.getvalue()
    for text in ("binary", "3/10", "3,000", "0.213", "95.1 %", "96.1 %", "1:15", "standard"):
        assert text in drawn


def test_lines_are_not_too_many(capsys):
    with Lines(interval=60) as lines:
        lines.show(PROGRESS)
        lines.show(PROGRESS)
        lines.show(Progress("other", 0, 1, 5, 9, 0.1, None, None, 1.0))
    assert capsys.readouterr().out.count("\n") == 1


def test_lines_of_a_long_run_are_further_apart(capsys, monkeypatch):
    clock = iter(range(0, 36000, 5))
    monkeypatch.setattr("superpose.learning.display.time.monotonic", lambda: next(clock))
    lines = Lines()
    for _ in range(720):
        lines.show(PROGRESS)
    told = capsys.readouterr().out.splitlines()
    assert 40 <= len(told) <= 60
    assert (
        told[0] == "binary: task 3/10, step 3,000: this task 95.1 %, first task 96.1 %, 1:15 left"
    )


def test_the_live_table_fits_eighty_columns():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    late = Progress("standard", 9, 10, 10000, 10000, 0.213, 0.9507, 0.9612, 3675.0)
    with LiveTable(["standard"], console) as table:
        table.show(late)
    drawn = console.file.getvalue()
    for text in ("10/10", "10,000", "0.213", "95.1 %", "96.1 %", "1:01:15", "first task"):
        assert text in drawn


def test_the_end_of_a_run_is_told_once(capsys):
    lines = Lines()
    for step in (9000, 10000, 10000):
        lines.show(replace(PROGRESS, step=step))
    told = capsys.readouterr().out.splitlines()
    assert [line.endswith(", done") for line in told] == [False, True]
