"""What is counted of recognition: by hand, and against slow ways of counting."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.errors import SuperposeError
from superpose.lab.data import Turning, load
from superpose.lab.data.drawn import DrawnTasks, Split, Splits
from superpose.lab.experiments.recognition.measures import (
    GRADIENT_ROWS,
    auroc,
    by_evidence,
    stored,
    tally,
    told,
)
from superpose.lab.experiments.recognition.mixture import Mixture
from superpose.learning import TensorStream
from superpose.model import layers
from superpose.recognition import Inputs


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
    assert told(model, stream, 10) == pytest.approx(100 * 3 / 9, abs=1e-6)  # of task 1 alone
    assert told(model, stream, 2) == 50
    for at_once in (2, 250):
        found = tally(model, stream, Inputs(), 10, at_once)
        assert (found.rows, found.right, found.named, found.alarms) == (9, 4, 2 + 3, 3)
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
    assert (found.rows, found.named, found.right) == (12, 6, 6)
    assert told(First(), stream, 10) == 100


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


def test_few_rows_go_through_a_mixture(monkeypatch):
    seen = {}

    class Asked(Scripted):
        def recognise(self, x, evidence):
            seen[type(evidence)] = seen.get(type(evidence), 0) + len(x)
            return super().recognise(x, evidence)

    x, y = torch.ones(300, 3), torch.ones(300, dtype=torch.long)
    stream = TensorStream([(x, y, x, y), (x, y, x, y)], period=1, batch_size=1)
    by_evidence(Asked(), stream, ("inputs", "gradient"), 300)
    assert seen == {Inputs: 600, Mixture: 2 * GRADIENT_ROWS}


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


def test_a_mixture_is_the_slope_of_the_entropy():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 4, bias=False))
    model = sp.superpose(net.double(), "hadamard", 3, private="none").eval()
    x = torch.randn(5, 16, dtype=torch.double)

    def entropy(alpha):
        h = x
        for layer in layers(model):
            contexts = [layer.contexts["weight"].derive(k) for k in range(3)]
            mixed = sum(a * context.bind(h) for a, context in zip(alpha, contexts, strict=True))
            h = mixed @ layer.stored("weight").T
            h = h if layer is layers(model)[-1] else h.clamp_min(0)
        logs = h.log_softmax(1)
        return -(logs.exp() * logs).sum(1)

    scores = model.recognise(x, evidence=Mixture()).scores
    for k in range(3):
        ahead, behind = ([1 / 3 + (k == j) * e for j in range(3)] for e in (1e-6, -1e-6))
        slope = (entropy(ahead) - entropy(behind)) / 2e-6
        assert torch.allclose(scores[:, k], -slope, atol=1e-6)
    assert scores.std() > 1e-3


def test_a_mixture_refuses_what_it_would_leave_out():
    model = sp.superpose(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), "binary", 2)
    with pytest.raises(SuperposeError, match=r"leaves out .*0\.bias"):
        model.recognise(torch.randn(3, 4), evidence=Mixture())
