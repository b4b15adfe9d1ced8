"""The training loop: one for all streams, models and methods."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import nn

from superpose.errors import SuperposeError
from superpose.learning.display import Display
from superpose.learning.evaluation import Timetable
from superpose.learning.finder import FOUND, MOST_CONTEXTS, Finder
from superpose.learning.guards import Guard, shared_parameters
from superpose.learning.methods import Method, as_method
from superpose.learning.optimisers import SCHEDULES, Optimiser, make_optimiser, named
from superpose.learning.session import Session
from superpose.learning.state import Training
from superpose.learning.streams import Stream, Told, described, logits_of, part_at, segments
from superpose.model import Name, Superposed


@dataclass
class Outcome:
    """A trained model, what its run measured (`result.json`), how long that took, and its guard."""

    model: nn.Module
    result: dict[str, Any]
    timings: dict[str, Any]
    guard: Guard


def train(
    model: nn.Module,
    stream: Stream,
    method: str | Method | Guard = "standard",
    *,
    optimiser: Optimiser = "rmsprop",
    lr: float = 1e-4,
    rank_lr: float | None = None,
    schedule: str = "constant",
    reset: bool = False,
    label_smoothing: float = 0.0,
    evaluate_every: int = 500,
    matrix: str = "auto",
    seed: int = 0,
    tasks: str = "told",
    about: dict[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    save_every: float = 30.0,
    label: str | None = None,
    display: Display | None = None,
    tensorboard: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Learn a stream, task after task, and measure what is kept of each.

    `method` is a name (see `method`), a `Method`, or a guard of this model. A plain network is made
    what the method needs; a superposed model is taken as it is, and its tasks begin as they come.
    `rank_lr` is the learning rate of low-rank parts, which want a larger one than weights; without
    it, it is `lr`. Both follow the `schedule` within each task: constant, cosine, warm-cosine
    (which rises in the first tenth) or linear; `reset=True` starts each task with a fresh optimiser
    state. `label_smoothing` is that of PyTorch's cross-entropy.

    The first and the current task are tested every `evaluate_every` steps and when a task ends,
    all of them at the end. `matrix="full"` tests all tasks learned so far whenever one ends,
    "ends" does not, and "auto" is "full" up to 20 tasks.

    With `tasks="found"`, nothing is told of tasks: where the inputs change, the context changes, to
    a new one or to the one that they had before, and each test row is recognised by its inputs.
    The result says in `found` when each context began, and which task of the stream it met.

    With `out`, the run is written to a directory, saved every `save_every` seconds, and can be
    resumed to end with the very numbers of a run that was never stopped. `about` is noted in its
    `config.json`. Ctrl-C, or a `stop` that returns True, ends the run after the step, saved.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(64, 4)
    >>> y = (x[:, 0] > 0).long()
    >>> from superpose.learning import Quiet, TensorStream
    >>> stream = TensorStream([(x, y, x, y), (-x, y, -x, y)], period=100, batch_size=16)
    >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> outcome = train(net, stream, "binary", lr=1e-2, display=Quiet())
    >>> outcome.result["mean_all"] > 0.9
    True
    """
    chosen, parts = as_method(method, model), segments(stream)
    factor = _schedule(schedule, label_smoothing, tasks)
    timetable = Timetable(stream, parts, matrix, evaluate_every)
    count = stream.contexts if chosen.select == "context" else stream.tasks
    model = chosen.make(model, MOST_CONTEXTS if tasks == FOUND else count, seed)
    finder = Finder(model, stream) if tasks == FOUND else None
    source = Told(stream, parts, chosen.select) if finder is None else finder
    guard = chosen.guard(model, seed)
    updates = make_optimiser(optimiser, guard, lr, rank_lr)
    rates = [(group["lr"], _is_shared(model, group)) for group in updates.param_groups]
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = Training(model, updates, guard, finder)
    config = {
        "about": about or {},
        "method": chosen.name,
        "penalty": guard.describe(),
        "model": repr(model),
        "options": _options(model),
        "stream": described(stream),
        "optimiser": optimiser if isinstance(optimiser, str) else repr(updates),
        "lr": lr,
        "rank_lr": rank_lr,
        "schedule": schedule,
        "reset": reset,
        "label_smoothing": label_smoothing,
        "evaluate_every": evaluate_every,
        "matrix": timetable.matrix,
        "seed": seed,
        "tasks": None if finder is None else tasks,
    }
    session = Session(
        training, stream, source, timetable, config, out=out, resume=resume, save_every=save_every,
        label=label, display=display, tensorboard=tensorboard, stop=stop,
    )  # fmt: skip

    with session:
        model.train()
        for step in range(training.step, len(stream)):
            batch = stream.batch(step)
            ended = source.look(step, batch)
            if ended is not None:
                guard.end(ended.task, ended, ended.through(model))
            part = part_at(parts, step)
            share = factor((step - part.start) / (part.stop - part.start))
            for group, (rate, is_shared) in zip(updates.param_groups, rates, strict=True):
                group["lr"] = rate * (guard.pace if is_shared else 1.0) * share
            if reset and source.begins:
                updates.state.clear()
            _begin(model, source.now)

            task, x, y = guard.rows(source.now, batch[0], batch[1])
            task, x, y = session.processes.share(task, x, y)
            logits = logits_of(model, x, task)
            loss = F.cross_entropy(logits, y, label_smoothing=label_smoothing)
            loss = loss + guard.penalty(task, x, logits)
            updates.zero_grad()
            loss.backward()
            session.processes.average(learns)
            guard.after_backward()
            updates.step()
            guard.after_step()
            training.count(loss)
            session.after_step(part, loss)
        return Outcome(model, *session.finish(), guard)


def _schedule(schedule: str, label_smoothing: float, tasks: str) -> Callable[[float], float]:
    """The schedule, and a check of what it has to go with."""
    if not 0 <= label_smoothing <= 1:
        raise SuperposeError(f"label_smoothing={label_smoothing}: it is a share, from 0 to 1")
    if tasks not in ("told", FOUND):
        raise SuperposeError(f"tasks={tasks!r}: use 'told' or {FOUND!r}")
    if tasks == FOUND and schedule != "constant":
        raise SuperposeError(
            f"schedule={schedule!r} falls within each task, and of tasks that are found nobody "
            "knows how long they are: use 'constant'"
        )
    factor: Callable[[float], float] = named("schedule", SCHEDULES, schedule)
    return factor


def _is_shared(model: nn.Module, group: dict[str, Any]) -> bool:
    """Whether a group of an optimiser has parameters that tasks share."""
    shared = {id(parameter) for parameter in shared_parameters(model)}
    return any(id(parameter) in shared for parameter in group["params"])


def _begin(model: nn.Module, task: Name | None) -> None:
    """Open the superposed weights to a task that starts from a base."""
    if not isinstance(model, Superposed) or task is None:
        return
    if not model.is_open(model.superposition.number(task)):
        model.begin(task)


def _options(model: nn.Module) -> dict[str, Any]:
    return model.superposition.options.described() if isinstance(model, Superposed) else {}
