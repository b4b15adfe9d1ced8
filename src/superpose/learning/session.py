"""A session: what goes on beside learning. Tests, files, the screen, other processes, and stops."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.learning import display as displays
from superpose.learning.clock import Clock
from superpose.learning.display import Display, Progress
from superpose.learning.evaluation import Timetable, accuracy
from superpose.learning.finder import Finder
from superpose.learning.interrupt import Interrupted, stop_at_step
from superpose.learning.methods import numbers_stored
from superpose.learning.metrics import Record, summarise
from superpose.learning.replicas import replicas
from superpose.learning.run_directory import RunDirectory
from superpose.learning.state import Training
from superpose.learning.streams import Segment, Stream, Told
from superpose.learning.tensorboard import TensorBoard, writer_class

SHOW_EVERY = 0.2  # seconds
CHECK_EVERY = 100  # steps


class Session:
    """A run of the loop, from where it was left to its result; used in a `with`."""

    def __init__(
        self,
        training: Training,
        stream: Stream,
        source: Told | Finder,
        timetable: Timetable,
        config: dict[str, Any],
        *,
        out: str | os.PathLike[str] | None,
        resume: bool,
        save_every: float,
        label: str | None,
        display: Display | None,
        tensorboard: bool,
        stop: Callable[[], bool] | None,
    ) -> None:
        if tensorboard:
            writer_class()
        self.training, self.stream, self.source, self.timetable = (
            training,
            stream,
            source,
            timetable,
        )
        self.config, self.out, self.resume, self.save_every = config, out, resume, save_every
        self.label, self.display, self.tensorboard = label or config["method"], display, tensorboard
        self.stop = stop

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Random numbers of the loop (dropout, say) are its own, and leave the caller's alone.
            stack.enter_context(torch.random.fork_rng())
            torch.manual_seed(self.config["seed"])
            self.processes = stack.enter_context(replicas())
            if isinstance(self.source, Finder) and self.processes.count > 1:
                raise SuperposeError("tasks='found' is for one process: start it without torchrun")
            out, leads, common = self.out, self.processes.leads, self.processes.common
            run: RunDirectory | None = None
            if leads and out is not None:
                run = stack.enter_context(RunDirectory(out, self.config, self.resume))
            self.run = run
            self.records: list[Record] = common([] if run is None else run.records)
            state, self.ended = common((None, None) if run is None else (run.state, run.result))
            self.clock = Clock({} if run is None else run.timings)
            if state is not None:
                if state["step"] < len(self.stream):
                    self.ended = None
                self.training.load(state, to_go_on=self.ended is None)
            self.logs: list[Callable[[Record], None]] = [] if run is None else [run.append]
            if self.ended is None:
                if self.tensorboard and leads:
                    folder = Path("runs" if out is None else out) / "tensorboard"
                    self.logs.append(stack.enter_context(TensorBoard(folder, self.training.step)))
                shown = displays.for_terminal() if self.display is None else self.display
                self.shown = stack.enter_context(shown if leads else displays.Quiet())
                self.stopping = stack.enter_context(stop_at_step(self.stop))
            self.started_at = self.training.step
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def after_step(self, part: Segment, loss: Tensor) -> None:
        """Test, log, show, save and stop, each if it is time."""
        training, done, clock = self.training, self.training.step, self.clock
        due = self.timetable.due(part, done)
        if due or done % CHECK_EVERY == 0:
            training.check()
        if due:
            self._test(part, due)
        if due or clock.due("show", SHOW_EVERY):
            left = clock.left(done - self.started_at, len(self.stream) - done)
            self.shown.show(replace(self._progress(part, loss), seconds_left=left))
        wanted = (
            self.stopping.requested,
            self.run is not None and clock.due("save", self.save_every),
        )
        stops, saves = self.processes.any(wanted, done)
        stops = stops and done < len(self.stream)
        if stops or saves:
            self.processes.agree(training.model)
            if self.run is not None:
                self.run.save(training.save(), clock.timings())
        if stops:
            where = "nothing is saved" if self.run is None else f"{self.run.path} is saved"
            raise Interrupted(f"stopped after {done:,} of {len(self.stream):,} steps; {where}")

    def _test(self, part: Segment, due: list[int]) -> None:
        self.processes.agree(self.training.model)
        with self.clock.evaluating():
            found = {str(task): self._accuracy(task) for task in due}
        self.records.append(self.training.record(part.task, found, self.training.step == part.stop))
        if isinstance(self.source, Finder):
            self.records[-1]["context"] = self.source.context
        for log in self.logs:
            log(self.records[-1])

    def _accuracy(self, task: int, together: bool = False) -> float:
        """The accuracy on the test set of a task."""
        x, y = self.stream.test(task)
        if isinstance(self.source, Finder):
            finder = self.source
            return accuracy(
                self.training.model, x, y, lambda part: finder.recognise(part, together)
            )
        return accuracy(self.training.model, x, y, None if self.source.select == "none" else task)

    def _progress(self, part: Segment, loss: Tensor) -> Progress:
        records, step = self.records, self.training.step
        known = records[-1]["accuracy"] if records else {}
        return Progress(
            label=self.label,
            task=part.task,
            tasks=self.stream.tasks,
            step=step,
            steps=len(self.stream),
            loss=loss.item(),
            current=known.get(str(part.task)),
            first=known.get(str(records[0]["task"]) if records else ""),
            evaluated=bool(records) and records[-1]["step"] == step,
        )

    def finish(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Write the result, and give it and the timings; of a run that had ended, what it was."""
        model, finder = self.training.model, self.source
        if self.ended is not None:
            if isinstance(finder, Finder):
                finder.trim()
            return self.ended, {} if self.run is None else self.run.timings
        last = self.training.save()
        found: dict[str, Any] = {}
        if isinstance(finder, Finder):
            together = [self._accuracy(task, together=True) for task in range(self.stream.tasks)]
            found["found"] = finder.summary(together)
            finder.trim()
        result = {
            "method": self.config["method"],
            **summarise(self.records, self.stream.tasks),
            "numbers": {**numbers_stored(model), "penalty": self.training.guard.numbers},
            **found,
        }
        timings = self.clock.timings()
        if self.run is not None:
            self.run.save(last, timings)
            self.run.finish(result)
        return result, timings
