"""Measures of recognition: accuracy by kind of evidence, rows of no task, numbers stored."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from superpose.lab.data import Turning
from superpose.lab.data.drawn import DrawnTasks
from superpose.lab.experiments.recognition.mixture import Mixture
from superpose.lab.experiments.recognition.protocol import Found, percent
from superpose.learning.streams import Stream
from superpose.model import private_state
from superpose.nn.flat import RECOGNITION
from superpose.recognition import Evidence, Inputs, Outputs, Shortlist

EVIDENCE: dict[str, Callable[[], Evidence]] = {
    "inputs": Inputs,
    "shortlist": Shortlist,
    "log-sum-exp": Outputs,
    "entropy": lambda: Outputs("entropy"),
    "gradient": Mixture,
}
GRADIENT_ROWS = 100  # of each task, at most: all contexts are bound for each row


@dataclass
class Tally:
    """Rows that were recognised, and what came of them."""

    rows: int = 0
    right: int = 0  # labels
    named: int = 0  # tasks
    alarms: int = 0  # rows that were told to be of no task
    degrees: Counter[int] = field(default_factory=Counter)  # that the task found is turned too far


@torch.no_grad()
def tally(model: Any, stream: Stream, evidence: Evidence, rows: int, at_once: int = 250) -> Tally:
    """Recognise test rows of every task, one by one, and classify each in the task found.

    Where tasks have classes of their own, a label is right only in the right task.
    """
    found = Tally()
    for task in range(stream.tasks):
        x, y = (tensor[:rows] for tensor in stream.test(task))
        for some, labels in zip(x.split(at_once), y.split(at_once), strict=True):
            told = model.recognise(some, evidence=evidence)
            named = torch.tensor([one == task for one in told.task])
            right = model(some, task=told.task).argmax(1) == labels
            if isinstance(stream, DrawnTasks):
                right &= named
            found.rows += len(some)
            found.right += int(right.sum())
            found.named += int(named.sum())
            if told.known is not None:
                found.alarms += int((~told.known).sum())
            if isinstance(stream, Turning):
                found.degrees.update(stream.degrees(one, task) for one in told.task)
    return found


@torch.no_grad()
def told(model: Any, stream: Stream, rows: int) -> float:
    """Accuracy on the same rows with the task told, in percent."""
    right = total = 0
    for task in range(stream.tasks):
        x, y = (tensor[:rows] for tensor in stream.test(task))
        right += int((model(x, task=task).argmax(1) == y).sum())
        total += len(y)
    return percent(right, total)


def by_evidence(
    model: Any, stream: Stream, kinds: Iterable[str], rows: int, at_once: int = 250
) -> Found:
    """Accuracy and share of tasks that are right, told and by each kind of evidence.

    Of `inputs` there are more measures: false alarms (rows that are wrongly told to be of no task),
    and, of turned images, how often the task found is turned by how many degrees too much.
    """
    accuracy, right = {"told": told(model, stream, rows)}, {}
    more: Found = {}
    for kind in kinds:
        most = min(rows, GRADIENT_ROWS) if kind == "gradient" else rows
        found = tally(model, stream, EVIDENCE[kind](), most, at_once)
        accuracy[kind] = percent(found.right, found.rows)
        right[kind] = percent(found.named, found.rows)
        if kind == "inputs":
            more["false_alarms"] = percent(found.alarms, found.rows)
        if kind == "inputs" and found.degrees:
            away = sum(degrees * count for degrees, count in found.degrees.items())
            wrong = found.rows - found.degrees[0]
            more["degrees_off"] = round(away / found.rows, 6)
            more["degrees_off_if_wrong"] = round(away / max(wrong, 1), 6)
            more["degrees"] = {str(d): found.degrees[d] for d in sorted(found.degrees)}
    return {"accuracy": accuracy, "task_right": right, **more}


def surprise(model: Any, rows: Iterable[Tensor]) -> Tensor:
    """How surprising rows are in the task that they look most like."""
    found: Tensor = model.recognise(torch.cat(list(rows)), evidence="inputs").surprise
    return found


def auroc(usual: Tensor, strange: Tensor) -> float:
    """The area under the ROC curve: how often a strange row surprises more than a usual one.

    >>> auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
    0.875
    """
    ordered = usual.sort().values
    below = torch.searchsorted(ordered, strange.contiguous())
    upto = torch.searchsorted(ordered, strange.contiguous(), right=True)
    return float((below + upto).double().mean() / (2 * len(usual)))


def stored(model: Any) -> Found:
    """Numbers and bytes: of each task, how many of them for recognition alone, and of all."""
    cost = model.cost()
    kept = [g.start for g in private_state(model).groups.values() if g.kind == RECOGNITION]
    return {
        "numbers_a_task": cost.private_per_task,
        "bytes_a_task": cost.private_bytes_per_task,
        "numbers_for_recognition": sum(start.numel() for start in kept),
        "bytes_for_recognition": sum(start.nbytes for start in kept),
        "bytes_of_all": cost.stored_bytes,
    }
