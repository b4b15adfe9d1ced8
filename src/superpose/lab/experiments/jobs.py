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
from statistics import fmean, stdev
from typing import Any, ClassVar, Protocol

import torch

from superpose.errors import SuperposeError, at_least_one
from superpose.lab.experiments.settings import EXPERIMENTS, Settings, device
from superpose.learning import Display, Interrupted, Outcome, Progress, Quiet, method, train
from superpose.learning.interrupt import stop_at_step

SUMMARY = (
    "first_task",
    "last_task",
    "mean_last_ten",
    "mean_all",
    "mean_when_learned",
    "forgetting",
    "backward_transfer",
)


class Work(Protocol):
    """Something that takes long, shows how far it is, and can be stopped."""

    @property
    def label(self) -> str:
        """What it is called on the screen."""

    def run(self, display: Display, stop: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Do it; what came of it."""


@dataclass(frozen=True)
class Job:
    """One run of an experiment: what, where to, and what it is called on the screen."""

    settings: Settings
    out: Path | None
    label: str
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, display: Display, stop: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Run it in this process."""
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
    return train(
        net,
        stream,
        chosen,
        optimiser=settings.optimiser,
        lr=settings.lr,
        rank_lr=settings.rank_lr,
        schedule=settings.schedule,
        reset=settings.reset,
        label_smoothing=settings.label_smoothing,
        evaluate_every=settings.evaluate_every,
        matrix=settings.matrix,
        seed=settings.seed,
        about=_about(settings),
        tasks="found" if settings.tasks_found else "told",
        out=job.out,
        label=job.label,
        display=display,
        stop=stop,
        **job.options,
    )


def _about(settings: Settings) -> dict[str, Any]:
    """What a run is noted by: not where data are, nor settings of later days that are not used."""
    told = asdict(settings)
    del told["data_dir"]
    for name in ("tasks_found", "rank_lr"):
        if not told[name]:
            del told[name]
    return told


def side_by_side(
    jobs: Sequence[Work], at_once: int, display: Display, keep_going: bool = False
) -> list[dict[str, Any]]:
    """Do several jobs, `at_once` of them at a time, each in a process of its own.

    Ctrl-C, and the end of this process, stops them at the end of their step, saved. So does the
    error of one of them, unless `keep_going`: then it is raised when the others have ended.
    """
    at_least_one(jobs=at_once)
    context = multiprocessing.get_context("spawn")
    progress: Any = context.Queue()
    stop = context.Event()
    with display, stop_at_step() as stopping:
        with ProcessPoolExecutor(at_once, context, _Worker.start, (progress, stop)) as pool:
            futures = [pool.submit(_Worker.run, job, os.getpid()) for job in jobs]
            running = set(futures)
            try:
                while running and not stopping.requested:
                    done, running = wait(running, timeout=0.1)
                    _show(progress, display)
                    if not keep_going and any(_error(each) for each in done):
                        break
            finally:  # a second Ctrl-C comes this way too
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
        _show(progress, display)
        for each in futures:
            if each.done() and not each.cancelled() and each.exception() is None:
                _, last = each.result()
                display.show(last) if last is not None else None
    errors = [error for each in futures if (error := _error(each)) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Interrupted)):
        if isinstance(error, BrokenProcessPool) and stopping.requested:
            raise Interrupted("stopped; the last checkpoint is saved") from error
        if isinstance(error, BrokenProcessPool):
            raise SuperposeError(
                "the process of a run was killed, perhaps because memory ran out; its checkpoint "
                "is safe: continue with the same command and fewer --jobs (run and demo need "
                "--resume)"
            ) from error
        raise error
    if any(each.cancelled() for each in futures):
        raise Interrupted("stopped between two runs")
    return [each.result()[0] for each in futures]


def spread(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation of what several runs measured.

    >>> spread([{"mean_all": 0.5}, {"mean_all": 0.7}])["mean_all"]["mean"]
    0.6
    """
    found = {}
    for name in SUMMARY:
        values = [result[name] for result in results if name in result]
        if values:
            deviation = stdev(values) if len(values) > 1 else 0.0
            found[name] = {"mean": fmean(values), "deviation": deviation}
    return found


class _Worker(Quiet):
    """A process that runs jobs; as a display it hands progress to the process that shows it."""

    progress: ClassVar[Any]
    asked: ClassVar[Any]
    last: Progress | None = None

    @classmethod
    def start(cls, progress: Any, asked: Any) -> None:
        """Keep what this process was given; Ctrl-C is for the parent to answer."""
        cls.progress, cls.asked = progress, asked
        progress.cancel_join_thread()  # what nobody reads any more must not keep this process alive
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    @classmethod
    def run(cls, job: Work, parent: int) -> tuple[dict[str, Any], Progress | None]:
        """Run a job until it ends, or the parent wants or meets its own end.

        The last progress is returned too: the queue may lose it when this process ends.
        """
        worker = cls()
        told = False

        def stop() -> bool:
            nonlocal told
            told = cls.asked.is_set() or os.getppid() != parent
            return told

        if cls.asked.is_set():  # the pool had taken the job before it could be cancelled
            raise Interrupted(f"stopped before {job.label} began")
        try:
            result = job.run(worker, stop)
        except Interrupted:
            if not told:  # a signal to this process: others that got it may have died with a lock
                os._exit(1)
            raise
        return result, worker.last

    def show(self, progress: Progress) -> None:
        """Send it."""
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
