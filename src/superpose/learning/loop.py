"""The training loop: one for all streams, models and methods."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.learning import display as displays
from superpose.learning.clock import Clock
from superpose.learning.display import Display, Progress
from superpose.learning.evaluation import Timetable, accuracy
from superpose.learning.finder import FOUND, MOST_CONTEXTS, Finder, FoundBatches
from superpose.learning.hooks import Hook
from superpose.learning.interrupt import Interrupted, stop_at_step
from superpose.learning.labelled import Labelled, Select
from superpose.learning.methods import Method, as_method, numbers_stored
from superpose.learning.metrics import Record, summarise
from superpose.learning.optimisers import SCHEDULES, Optimiser, make_optimiser, named
from superpose.learning.replicas import replicas
from superpose.learning.run_directory import RunDirectory
from superpose.learning.state import Training
from superpose.learning.streams import Segment, Stream, described, segments
from superpose.learning.tensorboard import TensorBoard, writer_class
from superpose.model import Superposed, private_state

SHOW_EVERY = 0.2  # seconds
CHECK_EVERY = 100  # steps


@dataclass
class Outcome:
    """A trained model, what its run measured (`result.json`) and how long that took."""

    model: nn.Module
    result: dict[str, Any]
    timings: dict[str, Any]


def train(
    model: nn.Module,
    stream: Stream,
    method: str | Method = "standard",
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
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    save_every: float = 30.0,
    about: dict[str, Any] | None = None,
    label: str | None = None,
    display: Display | None = None,
    tensorboard: bool = False,
    stop: Callable[[], bool] | None = None,
    tasks: str = "told",
) -> Outcome:
    """Learn a stream, task after task, and measure what is kept of each.

    `method` is a name (see `method`) or a `Method`. A plain network is made what the method needs;
    a superposed model is taken as it is. `rank_lr` is the learning rate of low-rank parts, which
    want a larger one than weights; without it, it is `lr`. Both follow the `schedule` within each
    task: constant, cosine, warm-cosine (which rises in the first tenth) or linear; `reset=True`
    starts each task with a fresh optimiser state. `label_smoothing` is that of PyTorch's
    cross-entropy.

    The first and the current task are tested every `evaluate_every` steps and when a task ends,
    all of them at the end. `matrix="full"` tests all tasks learned so far whenever one ends,
    "ends" does not, and "auto" is "full" up to 20 tasks.

    With `tasks="found"`, nothing is told of tasks: where the inputs change, the context changes, to
    a new one or to the one that they had before, and each test row is recognised by its inputs.
    The result says in `found` when each context began, and which task of the stream it met.

    With `out`, the run is written to a directory, saved every `save_every` seconds, and can be
    resumed to end with the very numbers of a run that was never stopped. `about` is noted in its
    `config.json`. Ctrl-C, or a `stop` that returns True, ends the run after the step, saved.

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
    if not 0 <= label_smoothing <= 1:
        raise SuperposeError(f"label_smoothing={label_smoothing}: it is a share, from 0 to 1")
    if tensorboard:
        writer_class()
    if tasks not in ("told", FOUND):
        raise SuperposeError(f"tasks={tasks!r}: use 'told' or {FOUND!r}")
    if tasks == FOUND and schedule != "constant":
        raise SuperposeError(
            f"schedule={schedule!r} falls within each task, and of tasks that are found nobody "
            "knows how long they are: use 'constant'"
        )
    chosen = as_method(method, model)
    factor = named("schedule", SCHEDULES, schedule)
    parts = segments(stream)
    timetable = Timetable(stream, parts, matrix, evaluate_every)
    count = stream.contexts if chosen.select == "context" else stream.tasks
    model = chosen.make(model, MOST_CONTEXTS if tasks == FOUND else count, seed)
    finder = Finder(model) if tasks == FOUND else None
    select: Select = chosen.select if finder is None else "found"
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = _groups(model, trained, optimiser, lr, rank_lr)
    updates = make_optimiser(optimiser, groups, lr)
    rates = [group["lr"] for group in updates.param_groups]
    private = _private(model)
    is_private = [all(id(p) in private for p in group["params"]) for group in updates.param_groups]
    hook = chosen.hook
    hook.begin(model)
    training = Training(model, updates, hook, finder)
    config = {
        "about": about or {},
        "method": chosen.name,
        "penalty": hook.describe(),
        "model": repr(model),
        "conversion": model.superposition.conversion.described()
        if isinstance(model, Superposed)
        else None,
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

    with ExitStack() as stack:
        stack.callback(hook.end)
        # The loop's random numbers (dropout, say) are its own, and leave the caller's alone.
        stack.enter_context(torch.random.fork_rng())
        torch.manual_seed(seed)
        together = stack.enter_context(replicas())
        if finder is not None and together.count > 1:
            raise SuperposeError("tasks='found' is for one process: start it without torchrun")
        if not together.leads:
            out, display, tensorboard = None, displays.Quiet(), False
        run = None if out is None else stack.enter_context(RunDirectory(out, config, resume))
        records = together.agree([] if run is None else run.records)
        state, finished = together.agree((None, None) if run is None else (run.state, run.result))
        clock = Clock({} if run is None else run.timings)
        if state is not None:
            ended = finished is not None and state["step"] == len(stream)
            training.load(state, to_go_on=not ended)
            if ended:
                if finder is not None:
                    finder.trim()
                return Outcome(model, finished, {} if run is None else run.timings)
        logs = [] if run is None else [run.append]
        if tensorboard:
            folder = Path("runs" if out is None else out) / "tensorboard"
            logs.append(stack.enter_context(TensorBoard(folder, training.step)))
        shown = stack.enter_context(displays.for_terminal() if display is None else display)
        stopping = stack.enter_context(stop_at_step(stop))
        started_at = training.step
        model.train()

        for part in parts:
            for step in range(max(part.start, training.step), part.stop):
                given = stream.batch(step)
                if finder is None:
                    labelled, begins = Labelled(*given, select=chosen.select), step == part.start
                else:
                    ended = finder.find(given[0], step, given[2])
                    if ended is not None:
                        consolidate(hook, model, FoundBatches(stream, ended), seed)
                    own, begins = finder.context, finder.spans[-1].start == step
                    labelled = Labelled(given[0], given[1], own, own, "context")
                if reset and begins:
                    updates.state.clear()
                share = factor((step - part.start) / (part.stop - part.start))
                for group, rate, alone in zip(updates.param_groups, rates, is_private, strict=True):
                    pace = 1.0 if alone else hook.pace
                    group["lr"] = rate * (pace * share)

                batch = together.share(hook.before_forward(labelled))
                logits = batch.through(model)
                loss = F.cross_entropy(logits, batch.y, label_smoothing=label_smoothing)
                loss = hook.after_forward(batch, logits, loss)
                updates.zero_grad()
                loss.backward()
                together.average(trained)
                hook.after_backward()
                updates.step()
                hook.after_step()
                training.count(loss)

                done = step + 1
                if finder is None and done == part.stop and done < len(stream):
                    consolidate(hook, model, Learned(stream, part, chosen.select), seed)
                due = timetable.due(part, done)
                if due or done % CHECK_EVERY == 0:
                    training.check()
                if due:
                    with clock.evaluating():
                        tests = (Labelled(*stream.test(k), k, k, select) for k in due)
                        found = {str(test.task): accuracy(model, test) for test in tests}
                    records.append(training.record(part.task, found, end=done == part.stop))
                    if finder is not None:
                        records[-1]["context"] = finder.context
                    for log in logs:
                        log(records[-1])
                if due or clock.due("show", SHOW_EVERY):
                    now = progress(label or chosen.name, part, stream, done, loss, records)
                    left = clock.left(done - started_at, len(stream) - done)
                    shown.show(replace(now, seconds_left=left))
                stops = together.any(stopping.requested, done) and done < len(stream)
                if run is not None and (stops or clock.due("save", save_every)):
                    run.save(training.save(), clock.timings())
                if stops:
                    where = "nothing is saved" if run is None else f"{run.path} is saved"
                    raise Interrupted(f"stopped after {done:,} of {len(stream):,} steps; {where}")

        last = training.save()
        more: dict[str, Any] = {}
        if finder is not None:
            more["found"] = finder.summary(_together(model, stream))
            finder.trim()
        result = {
            "method": chosen.name,
            **summarise(records, stream.tasks),
            "numbers": {**numbers_stored(model), "penalty": hook.numbers},
            **more,
        }
        timings = clock.timings()
        if run is not None:
            run.save(last, timings)
            run.finish(result)
        return Outcome(model, result, timings)


@dataclass(frozen=True)
class Learned:
    """The batches of a task that was learned, the latest first, each made when it is asked for."""

    stream: Stream
    part: Segment
    select: Select

    def __iter__(self) -> Iterator[Labelled]:
        for step in reversed(range(self.part.start, self.part.stop)):
            yield Labelled(*self.stream.batch(step), select=self.select)


def _groups(
    model: nn.Module,
    trained: list[nn.Parameter],
    optimiser: Optimiser,
    lr: float,
    rank_lr: float | None,
) -> list[Any]:
    """What an optimiser is given: what tasks share, what is their own, and their low-rank parts.

    A callable is given parameters to group as it likes; low-rank parts are apart if they have a
    rate.
    """
    low_rank: list[dict[str, Any]] = []
    if rank_lr is not None:
        if not isinstance(model, Superposed) or not model.summary().low_rank:
            raise SuperposeError(
                f"rank_lr={rank_lr}: the model has no low-rank parts: give the method rank=…, or "
                "leave rank_lr out"
            )
        if not 0 < rank_lr < float("inf"):
            raise SuperposeError(f"rank_lr={rank_lr}: a learning rate is a number above 0")
        low_rank = model.parameter_groups(lr, rank_lr=rank_lr)[1:]
    apart = {id(p) for group in low_rank for p in group["params"]}
    rest = [p for p in trained if id(p) not in apart]
    if not isinstance(optimiser, str):
        return [{"params": rest}, *low_rank] if low_rank else rest
    own = _private(model)
    shared = {"params": [p for p in rest if id(p) not in own]}
    private = {"params": [p for p in rest if id(p) in own]}
    return [group for group in (shared, private, *low_rank) if group["params"]]


def _private(model: nn.Module) -> set[int]:
    """The identities of the parameters that are a task's own."""
    state = private_state(model) if isinstance(model, Superposed) else nn.Module()
    return {id(parameter) for parameter in state.parameters()}


def _together(model: nn.Module, stream: Stream) -> list[float]:
    """The accuracy on each test set if it is known that all of its rows are of one task."""
    tests = (Labelled(*stream.test(k), k, k, "together") for k in range(stream.tasks))
    return [accuracy(model, test) for test in tests]


def consolidate(hook: Hook, model: nn.Module, learned: Learned | FoundBatches, seed: int) -> None:
    """Let the hook remember a task, for which it may see its batches again."""
    model.eval()
    hook.after_task(learned, torch.Generator().manual_seed(seed + learned.part.stop))
    model.train()


def progress(
    label: str, part: Segment, stream: Stream, step: int, loss: Tensor, records: list[Record]
) -> Progress:
    """Tell how far a run is, with the accuracies that were measured last."""
    known = records[-1]["accuracy"] if records else {}
    first = str(records[0]["task"]) if records else ""
    return Progress(
        label=label,
        task=part.task,
        tasks=stream.tasks,
        step=step,
        steps=len(stream),
        loss=loss.item(),
        current=known.get(str(part.task)),
        first=known.get(first),
        evaluated=bool(records) and records[-1]["step"] == step,
    )
