"""What a person sees of a run: a live table, lines, or nothing."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table


@dataclass(frozen=True)
class Progress:
    """How far a run is; accuracies are of the last evaluation, None before the first."""

    label: str
    task: int
    tasks: int
    step: int
    steps: int
    loss: float
    current: float | None
    first: float | None
    seconds_left: float | None = None
    evaluated: bool = False


class Display(Protocol):
    """Shows progress; used in a `with`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def show(self, progress: Progress) -> None:
        """Take notice of how far a run is."""


class Quiet:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def show(self, progress: Progress) -> None:
        """Nothing."""


class Lines(Quiet):
    """A line for an evaluation now and then, and for the last one: for a log file.

    Lines of a run are at least `interval` seconds apart, and a tenth of the time that it has been
    shown: the log of an hour has some fifty lines.
    """

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        self._first: dict[str, float] = {}
        self._next: dict[str, float] = {}
        self._ended: set[str] = set()

    def show(self, progress: Progress) -> None:
        """Print a line if it is time."""
        now, label = time.monotonic(), progress.label
        done = progress.step == progress.steps
        if label in self._ended and not done:
            self._ended.remove(label)  # another run of the same name
        if not progress.evaluated or label in self._ended:
            return
        if done or now >= self._next.get(label, now):
            shown = now - self._first.setdefault(label, now)
            self._next[label] = now + max(self._interval, shown / 10)
            print(line(progress), flush=True)
        if done:
            self._ended.add(label)


class LiveTable:
    """A table that is redrawn, a row for each run."""

    COLUMNS = ("run", "", "task", "step", "loss", "this task", "first task", "left")

    def __init__(self, labels: Sequence[str] = (), console: Console | None = None) -> None:
        self._rows: dict[str, Progress | None] = dict.fromkeys(labels)
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._table)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, progress: Progress) -> None:
        """Renew the row of a run."""
        self._rows[progress.label] = progress

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for number, name in enumerate(self.COLUMNS):
            table.add_column(name, justify="left" if number < 2 else "right")
        for label, p in self._rows.items():
            if p is None:
                table.add_row(label, ProgressBar(1, 0, width=20), *["–"] * 6)
                continue
            cells = (f"{p.task + 1}/{p.tasks}", f"{p.step:,}", f"{p.loss:.3f}")
            accuracies = percent(p.current), percent(p.first)
            bar = ProgressBar(p.steps, p.step, width=20)
            table.add_row(label, bar, *cells, *accuracies, clock(p.seconds_left))
        return table


def for_terminal(labels: Sequence[str] = (), quiet: bool = False) -> Display:
    """The display that suits where output goes."""
    if quiet:
        return Quiet()
    return LiveTable(labels) if sys.stdout.isatty() else Lines()


def line(p: Progress) -> str:
    """A progress as one line of text.

    >>> line(Progress("binary", 2, 10, 3000, 10000, 0.213, 0.9507, None, 75.0))
    'binary: task 3/10, step 3,000: this task 95.1 %, first task –, 1:15 left'
    """
    left = f"{clock(p.seconds_left)} left" if p.step < p.steps else "done"
    return (
        f"{p.label}: task {p.task + 1}/{p.tasks}, step {p.step:,}: "
        f"this task {percent(p.current)}, first task {percent(p.first)}, {left}"
    )


def percent(share: float | None) -> str:
    """A share in percent, – if there is none.

    >>> percent(0.9507), percent(None)
    ('95.1 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


def clock(seconds: float | None) -> str:
    """Seconds as h:mm:ss or m:ss.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
