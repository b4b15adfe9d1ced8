"""What is counted of recognition: by hand, and against slow ways of counting."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.learning import TensorStream
from superpose.recognition import Inputs
from superpose_lab.data import Turning, load
from superpose_lab.data.drawn import DrawnTasks, Split, Splits
from superpose_lab.experiments.recognition.measures import (
    accuracy_with_task,
    auroc,
    by_evidence,
    stored,
    tally,
)


def test_the_area_is_the_share_of_pairs_in_order_and_half_of_ties():
    generator = torch.Generator().manual_seed(0)
    usual = torch.randint(0, 6, (40,), generator=generator).double()
    strange = torch.randint(3, 9, (30,), generator=generator).double()
    pairs = [
        1.0 if b > a else 0.5 if b == a else 0.0
        for a, b in product(usual.tolist(), strange.tolist())
    ]
    assert auroc(usual, strange) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert auroc(strange, usual) == pytest.approx(1 - auroc(usual, strange), abs=1e-12)


@dataclass
class Answers:
    """What `recognise` returns."""

    task: list[int]
    known: torch.Tensor | None


class Scripted:
    """A model whose rows say which task is found, whether they are known, and the label.

    A row is (task that is found, 1 if it is known, label): the label is right in task 1 alone.
    """

    def recognise(self, x, evidence):
        return Answers([int(task) for task in x[:, 0]], x[:, 1] > 0)

    def __call__(self, x, task):
        tasks = torch.tensor(task if isinstance(task, list) else [task] * len(x))
        label = torch.where(tasks == 1, x[:, 2].long(), 2)
        return nn.functional.one_hot(label, 3).float()


def scripted():
    x = torch.tensor([[0.0, 1, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 1]])
    y = torch.tensor([0, 0, 1, 0, 1])
    return TensorStream([(x, y, x, y), (x, y, x[:4], y[:4])], period=1, batch_size=1)


def test_rows_are_counted_in_the_task_that_was_found():
    model, stream = Scripted(), scripted()
    assert accuracy_with_task(model, stream, 10) == pytest.approx(
        100 * 3 / 9, abs=1e-6
    )  # of task 1 alone
    assert accuracy_with_task(model, stream, 2) == 50
    for at_once in (2, 250):
        found = tally(model, stream, Inputs(), 10, at_once)
        assert (found.rows, found.labels, found.tasks, found.alarms) == (9, 4, 2 + 3, 3)
    assert tally(model, stream, Inputs(), 2).rows == 4
    measures = by_evidence(model, stream, ("inputs", "entropy"), 10)
    assert measures["task_right"] == dict.fromkeys(("inputs", "entropy"), 55.555556)
    assert measures["accuracy"]["inputs"] == 44.444444
    assert measures["false_alarms"] == 33.333333
    assert "degrees" not in measures


def test_a_label_of_another_tasks_classes_is_not_right():
    class First:
        """Every row is found to be of task 0, and has the label that it says."""

        def recognise(self, x, evidence):
            return Answers([0] * len(x), None)

        def __call__(self, x, task):
            return nn.functional.one_hot(x[:, 0].long() % 2, 2).float()

    y = torch.arange(4).repeat(3)
    parts = Split(y.float().unsqueeze(1), y)
    stream = DrawnTasks("small", Splits(parts, parts, parts), 2, 2, period=1, batch_size=1)
    object.__setattr__(stream, "sets", [[0, 1], [2, 3]])
    found = tally(First(), stream, Inputs(), 10)
    assert (found.rows, found.tasks, found.labels) == (12, 6, 6)
    assert accuracy_with_task(First(), stream, 10) == 100


def test_degrees_are_counted_for_turned_images():
    class Late(Scripted):
        """The task found is two turns too far, or, for the last row, right."""

        def recognise(self, x, evidence):
            return Answers([(self.task + 2) % 36] * (len(x) - 1) + [self.task], None)

    stream, model = Turning(load("digits"), tasks=36, period=1), Late()
    tests = [stream.test(task) for task in range(36)]

    def test(task):
        model.task = task
        return tests[task][0][:5, :3], tests[task][1][:5]

    object.__setattr__(stream, "test", test)
    found = by_evidence(model, stream, ("inputs",), 5)
    assert found["degrees"] == {"0": 36, "20": 36 * 4}
    assert found["degrees_off"] == 16
    assert found["degrees_off_if_wrong"] == 20
    assert found["task_right"]["inputs"] == 20


def test_numbers_for_recognition_are_apart_from_the_others():
    net = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    statistics = sp.nn.Statistics(rank=2)
    model = sp.superpose(net, "binary", 4, recognise=statistics, centre="task")
    found = stored(model)
    own = 2 * 12 + 3 + 2 * 12
    assert (found["numbers_for_recognition"], found["bytes_for_recognition"]) == (own, 4 * own)
    without = stored(sp.superpose(net, "binary", 4, centre="task"))
    assert without["numbers_for_recognition"] == 0
    assert found["numbers_a_task"] - without["numbers_a_task"] == own
    assert without["numbers_a_task"] > 8 + 3  # biases, and means
    bare = sp.superpose(net, "binary", 4, private="none", recognise=statistics)
    assert stored(bare)["numbers_a_task"] == own
