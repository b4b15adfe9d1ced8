"""Run experiments: one in this process, or several side by side."""

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from superpose import SuperposeError
from superpose.learning import Display, Interrupted, Outcome, Progress, Quiet, method
from superpose_lab.checks import at_least_one
from superpose_lab.experiments.settings import EXPERIMENTS, Settings, device
from superpose_lab.experiments.training import learn

SUMMARY = (
    "first_task",
    "last_task",
    "mean_last_ten",
    "mean_all",
    "mean_when_learned",
    "forgetting",
    "backward_transfer",
)


OF_THE_LOOP = (
    "optimiser",
    "lr",
    "rank_lr",
    "schedule",
    "reset",
    "label_smoothing",
    "evaluate_every",
    "matrix",
    "seed",
)


class Work(Protocol):
    """A long computation that shows its progress and can be stopped."""

    @property
    def label(self) -> str: ...

    def run(self, display: Display, stop: Callable[[], bool] | None = None) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Job:
    """One run of an experiment: its settings, its directory, and its name on the screen."""

    settings: Settings
    out: Path | None
    label: str
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, display: Display, stop: Callable[[], bool] | None = None) -> dict[str, Any]:
        outcome = run(self, display, stop)
        return {**outcome.result, "timings": outcome.timings}


def run(job: Job, display: Display, stop: Callable[[], bool] | None = None) -> Outcome:
    """Run one experiment in this process."""
    experiment = EXPERIMENTS[job.settings.experiment]
    settings = experiment.complete(job.settings)
    torch.set_num_threads(settings.threads)
    chosen = method(
        settings.method,
        strength=settings.strength,
        learnable=settings.learnable,
        **experiment.layers(settings),
    )
    stream = experiment.stream(settings)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        net = experiment.network(settings, stream).to(device())
        for weight in net.parameters():
            weight.detach().mul_(settings.gain)
    return learn(
        net,
        stream,
        chosen,
        tasks_known=not settings.tasks_found,
        **{name: getattr(settings, name) for name in OF_THE_LOOP},
        about=about(settings),
        out=job.out,
        label=job.label,
        display=display,
        stop=stop,
        **job.options,
    )


def about(settings: Settings) -> dict[str, Any]:
    """The settings that a run is recorded with: no paths, and later ones only if they are used."""
    given = asdict(settings)
    del given["data_dir"]
    return {k: v for k, v in given.items() if v or k not in ("tasks_found", "rank_lr")}


def side_by_side(
    jobs: Sequence[Work], at_once: int, display: Display, keep_going: bool = False
) -> list[dict[str, Any]]:
    """Do several jobs: one after the other, or `at_once` of them in a process each.

    Ctrl-C, and the end of this process, stops them at the end of their step, saved. So does the
    error of one of them, unless `keep_going`: then it is raised when the others have ended.
    """
    at_least_one(jobs=at_once)
    if at_once > 1:
        return _in_processes(jobs, at_once, display, keep_going)
    results, errors = [], []
    with display:
        for job in jobs:
            try:
                results.append(job.run(_Inside(display)))
            except SuperposeError as error:
                errors.append(error)
                if not keep_going:
                    break
    if errors:
        raise errors[0]
    return results


class _Inside(Quiet):
    """A display that is open already."""

    def __init__(self, shown: Display) -> None:
        self._shown = shown

    def show(self, progress: Progress) -> None:
        self._shown.show(progress)


def _in_processes(
    jobs: Sequence[Work], at_once: int, display: Display, keep_going: bool
) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    progress: Any = context.Queue()
    stop = context.Event()
    stopped = False
    with display:
        with ProcessPoolExecutor(at_once, context, _Worker.start, (progress, stop)) as pool:
            futures = [pool.submit(_Worker.run, job, os.getpid()) for job in jobs]
            running = set(futures)
            try:
                while running:
                    done, running = wait(running, timeout=0.1)
                    _show(progress, display)
                    if not keep_going and any(_error(each) for each in done):
                        break
            except KeyboardInterrupt:
                stopped = True
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
        _show(progress, display)
        ended = [each for each in futures if not each.cancelled() and _error(each) is None]
        for _, last in (each.result() for each in ended):
            if last is not None:
                display.show(last)
    errors = [error for each in futures if (error := _error(each)) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Interrupted)):
        if isinstance(error, BrokenProcessPool):
            raise SuperposeError(
                "the process of a run was killed, perhaps because memory ran out; its checkpoint "
                "is safe: continue with the same command and fewer --jobs (run and demo need "
                "--resume)"
            ) from error
        raise error
    if stopped or len(ended) < len(futures):
        raise Interrupted("stopped between two runs")
    return [each.result()[0] for each in futures]


class _Worker(Quiet):
    """A process that runs jobs; as a display it sends progress to the parent."""

    progress: ClassVar[Any]
    stop: ClassVar[Any]
    last: Progress | None = None

    @classmethod
    def start(cls, progress: Any, stop: Any) -> None:
        cls.progress, cls.stop = progress, stop
        progress.cancel_join_thread()  # unread progress must not keep this process alive
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent

    @classmethod
    def run(cls, job: Work, parent: int) -> tuple[dict[str, Any], Progress | None]:
        """Run a job; the last progress is returned too, since the queue may lose it at the end."""
        worker = cls()
        asked = False

        def stop() -> bool:
            nonlocal asked
            asked = cls.stop.is_set() or os.getppid() != parent
            return asked

        if stop():  # the pool had taken the job before it could be cancelled
            raise Interrupted(f"stopped before {job.label} began")
        try:
            return job.run(worker, stop), worker.last
        except Interrupted:
            if not asked:  # a signal to this process: a worker that got it may have held a lock
                os._exit(1)
            raise

    def show(self, progress: Progress) -> None:
        self.last = progress
        self.progress.put(progress)


def _show(progress: Any, display: Display) -> None:
    while True:
        try:
            display.show(progress.get_nowait())
        except queue.Empty:
            return


def _error(future: Future[Any]) -> BaseException | None:
    return None if not future.done() or future.cancelled() else future.exception()
