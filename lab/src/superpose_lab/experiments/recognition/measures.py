"""Measures of recognition: accuracy by kind of evidence, rows of no task, numbers stored."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from superpose.learning import Stream
from superpose.recognition import Evidence, Inputs, Outputs
from superpose_lab.data import Turning
from superpose_lab.data.drawn import DrawnTasks
from superpose_lab.experiments.recognition.protocol import Measures, percent

EVIDENCE: dict[str, Callable[[], Evidence]] = {
    "inputs": Inputs,
    "log-sum-exp": Outputs,
    "entropy": lambda: Outputs("entropy"),
}
STATISTICS = "_input_"  # in the names of private tensors that tasks are recognised by


@dataclass
class Tally:
    """Counts over rows that were recognised one by one."""

    rows: int = 0
    labels: int = 0  # right ones
    tasks: int = 0  # right ones
    alarms: int = 0  # rows said to be of no task
    degrees: Counter[int] = field(default_factory=Counter)  # from the recognised to the right task


@torch.no_grad()
def tally(model: Any, stream: Stream, evidence: Evidence, rows: int, at_once: int = 250) -> Tally:
    """Recognise test rows of every task, one by one, and classify each in the recognised task.

    Where tasks have classes of their own, a label is right only in the right task.
    """
    counts = Tally()
    for task in range(stream.tasks):
        x, y = (tensor[:rows] for tensor in stream.test(task))
        for some, labels in zip(x.split(at_once), y.split(at_once), strict=True):
            recognised = model.recognise(some, evidence=evidence)
            same = torch.tensor([one == task for one in recognised.task])
            right = model(some, task=recognised.task).argmax(1) == labels
            if isinstance(stream, DrawnTasks):
                right &= same
            counts.rows += len(some)
            counts.labels += int(right.sum())
            counts.tasks += int(same.sum())
            if recognised.known is not None:
                counts.alarms += int((~recognised.known).sum())
            if isinstance(stream, Turning):
                counts.degrees.update(stream.degrees(one, task) for one in recognised.task)
    return counts


@torch.no_grad()
def accuracy_with_task(model: Any, stream: Stream, rows: int) -> float:
    """Accuracy on the same rows with the task given, in percent."""
    right = total = 0
    for task in range(stream.tasks):
        x, y = (tensor[:rows] for tensor in stream.test(task))
        right += int((model(x, task=task).argmax(1) == y).sum())
        total += len(y)
    return percent(right, total)


def by_evidence(
    model: Any, stream: Stream, kinds: Iterable[str], rows: int, at_once: int = 250
) -> Measures:
    """Accuracy and share of right tasks, with the task given ("told") and by each kind of evidence.

    Of `inputs` there are more measures: false alarms (known rows said to be of no task), and, of
    turned images, the degrees between the recognised task and the right one.
    """
    accuracy, right = {"told": accuracy_with_task(model, stream, rows)}, {}
    more: Measures = {}
    for kind in kinds:
        counts = tally(model, stream, EVIDENCE[kind](), rows, at_once)
        accuracy[kind] = percent(counts.labels, counts.rows)
        right[kind] = percent(counts.tasks, counts.rows)
        if kind == "inputs":
            more["false_alarms"] = percent(counts.alarms, counts.rows)
        if kind == "inputs" and counts.degrees:
            away = sum(degrees * count for degrees, count in counts.degrees.items())
            wrong = counts.rows - counts.degrees[0]
            more["degrees_off"] = round(away / counts.rows, 6)
            more["degrees_off_if_wrong"] = round(away / max(wrong, 1), 6)
            more["degrees"] = {str(d): counts.degrees[d] for d in sorted(counts.degrees)}
    return {"accuracy": accuracy, "task_right": right, **more}


def auroc(usual: Tensor, strange: Tensor) -> float:
    """The area under the ROC curve: how often a strange row surprises more than a usual one.

    >>> auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
    0.875
    """
    ordered = usual.sort().values
    below = torch.searchsorted(ordered, strange.contiguous())
    upto = torch.searchsorted(ordered, strange.contiguous(), right=True)
    return float((below + upto).double().mean() / (2 * len(usual)))


def stored(model: Any) -> Measures:
    """Numbers and bytes: of each task, how many of them for recognition alone, and of all."""
    cost = model.cost()
    private = model.private_tensors(model.tasks[0])
    kept = [tensor for name, tensor in private.items() if STATISTICS in name]
    return {
        "numbers_a_task": cost.private_per_task,
        "bytes_a_task": cost.private_bytes_per_task,
        "numbers_for_recognition": sum(tensor.numel() for tensor in kept),
        "bytes_for_recognition": sum(tensor.nbytes for tensor in kept),
        "bytes_of_all": cost.stored_bytes,
    }
