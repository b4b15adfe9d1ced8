"""Tasks found while learning: when contexts begin, are taken up again, and end."""

import json
from dataclasses import replace

import pytest
import torch
from learning.problems import make_net, make_stream, stop_after
from torch import nn

import superpose as sp
from superpose.learning import GUARDS, Guard, Interrupted, Quiet, method, train
from superpose.learning.shuffle import ORDER, shuffle

SAME = ("metrics.jsonl", "result.json")


class Recurring:
    """Tasks that come back; their inputs are turned apart, and their labels contradict."""

    tasks = contexts = 3

    def __init__(self, order=(0, 1, 0, 2, 1), period=20, rows=256, dim=8):
        self.order, self.period = order, period
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, dim, generator=generator)
        shifts = torch.randn(3, dim, generator=generator) * 3
        self.data = [(x + shifts[k], ((x[:, k] > 0) ^ (k == 1)).long()) for k in range(3)]

    def __len__(self):
        return self.period * len(self.order)

    def task_at(self, step):
        return self.order[step // self.period]

    def batch(self, step):
        x, y = self.data[self.task_at(step)]
        rows = shuffle(len(y), 0, ORDER, step)[:32]
        return x[rows], y[rows], self.task_at(step), self.task_at(step)

    def test(self, task):
        return self.data[task]


def learn(out=None, method="binary", stream=None, **options):
    options = {"lr": 1e-2, "display": Quiet(), "evaluate_every": 7, "resume": True, **options}
    stream = stream or Recurring()
    return train(make_net(dropout=0.2), stream, method, out=out, tasks="found", **options)


def test_contexts_are_begun_at_changes_and_taken_up_again():
    outcome = learn(stream=Recurring(period=60))
    found = outcome.result["found"]
    assert found["contexts"] == 3
    assert found["begun"] == [
        {"context": 0, "step": 0, "task": 0},
        {"context": 1, "step": 60, "task": 1},
        {"context": 2, "step": 180, "task": 2},
    ]
    assert [span[:3] for span in found["spans"]] == [
        [0, 0, 60], [1, 60, 120], [0, 120, 180], [2, 180, 240], [1, 240, 300],
    ]  # fmt: skip
    assert [span[3] for span in found["spans"]] == [{str(k): 60} for k in (0, 1, 0, 2, 1)]
    assert found["joinable"] == []
    assert outcome.result["mean_all"] > 0.8
    assert outcome.model.tasks == [0, 1, 2]
    assert outcome.model.recognisable == [0, 1, 2]


def test_the_tasks_of_the_stream_are_never_told():
    class Liar(Recurring):
        """The same batches, under other numbers."""

        def batch(self, step):
            x, y, _, _ = super().batch(step)
            return x, y, step % 3, step % 2

    honest, liar = learn(), learn(stream=Liar())
    assert honest.result["final"] == liar.result["final"]
    for name, tensor in honest.model.state_dict().items():
        assert torch.equal(tensor, liar.model.state_dict()[name])
    assert liar.result["found"]["spans"][0][3] == {"0": 7, "1": 7, "2": 6}


@pytest.mark.parametrize("name", ["hadamard", "hadamard+projection+doubt"])
def test_contexts_that_start_from_a_base_begin_as_they_are_found(name):
    chosen = method(name, base=True, rank=1)
    outcome = learn(method=chosen, stream=Recurring(period=60))
    assert [span[0] for span in outcome.result["found"]["spans"]] == [0, 1, 0, 2, 1]
    assert outcome.model.begun == outcome.model.tasks == [0, 1, 2]
    assert outcome.result["mean_all"] > 0.8


class Ended(Guard):
    """Takes note of what it is told to remember."""

    def __init__(self, model):
        super().__init__(model)
        self.seen = []

    def remember(self, task, batches, run):
        x = next(iter(batches))[0]
        torch.testing.assert_close(run([x]), self.model(x, task=task))
        self.seen.append((task, [x for x, *_ in batches]))


def test_guards_remember_a_context_when_it_ends():
    stream, chosen = Recurring(), replace(method("binary"), guard=lambda model, seed: Ended(model))
    seen = learn(method=chosen, stream=stream).guard.seen
    assert [task for task, _ in seen] == [0, 1, 0, 2]
    assert all(len(batches) == 20 for _, batches in seen)
    latest, first = seen[1][1][0], seen[1][1][-1]
    assert torch.equal(latest, stream.batch(39)[0])
    assert torch.equal(first, stream.batch(20)[0])


def test_tests_are_recognised_row_by_row():
    model = learn(stream=Recurring(period=60)).model.eval()
    rows = torch.cat([Recurring().test(task)[0][:50] for task in range(3)])
    assert model.recognise(rows).task == [0] * 50 + [1] * 50 + [2] * 50


@pytest.mark.parametrize(
    "name", [*sp.contexts.FAMILIES, *(f"hadamard+{guard}" for guard in GUARDS)]
)
def test_every_family_and_guard_finds_the_same_tasks(name):
    found = learn(method=name).result["found"]
    if name == "hadamard+replay":  # which shows contexts their rows again
        assert found["contexts"] == 3
    else:
        assert [span[0] for span in found["spans"]] == [0, 1, 0, 2, 1]


@pytest.mark.parametrize("name", ["binary", "hadamard+projection", "binary+ewc+replay"])
def test_stopped_and_resumed_is_bit_for_bit_the_same(tmp_path, name):
    whole = learn(tmp_path / "whole", name, reset=True)
    for steps in (3, 17, 1, 25):
        with pytest.raises(Interrupted, match="stopped after"):
            learn(tmp_path / "stopped", name, stop=stop_after(steps), reset=True)
    resumed = learn(tmp_path / "stopped", name, reset=True)
    for file in SAME:
        own, other = (tmp_path / each / file for each in ("whole", "stopped"))
        assert own.read_bytes() == other.read_bytes()
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key])
    again = learn(tmp_path / "whole", name, reset=True)
    assert again.model.tasks == whole.model.tasks == [0, 1, 2]
    lines = (tmp_path / "whole" / SAME[0]).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["context"] for record in records if record["end"]] == [0, 1, 0, 2, 1]


def test_a_run_goes_on_as_it_was_started(tmp_path):
    with pytest.raises(Interrupted):
        learn(tmp_path, method("binary", recognise=True), stop=stop_after(5))
    options = {"lr": 1e-2, "display": Quiet(), "evaluate_every": 7, "resume": True}
    told = method("binary", recognise=True)
    with pytest.raises(sp.SuperposeError, match="started with tasks='found', not None"):
        train(make_net(dropout=0.2), Recurring(), told, out=tmp_path, **options)


def test_inputs_that_drift_begin_new_contexts():
    class Drifting(Recurring):
        def batch(self, step):
            x, y = self.data[0]
            rows = shuffle(len(y), 0, ORDER, step)[:32]
            return x[rows] + step / 20, y[rows], 0, 0

    found = learn(stream=Drifting(order=(0,) * 10)).result["found"]
    assert 3 <= found["contexts"] <= 20


def test_tasks_that_see_the_same_are_told_and_joined():
    model = sp.superpose(make_net(), tasks=["a", "b", "c"])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 8, generator=generator)
    for name, rows in (("a", x[:300]), ("b", x[300:]), ("c", x + 3)):
        model.remember(rows, task=name)
    assert sp.recognition.duplicates(model) == [("a", "b")]
    outputs = model.eval()(x, task="a")
    sp.recognition.join(model, "a", "b")
    assert model.tasks == ["a", "c"]
    own = model.private_tensors("a")
    torch.testing.assert_close(own["0.weight_input_mean"], x.mean(0), rtol=1e-4, atol=1e-5)
    variance = x.var(0, correction=0)
    torch.testing.assert_close(own["0.weight_input_variance"], variance, rtol=1e-4, atol=1e-5)
    assert own["0.weight_input_rows"] == 600
    torch.testing.assert_close(model(x, task="a"), outputs)
    with pytest.raises(sp.SuperposeError, match="are one task"):
        sp.recognition.join(model, "a", "a")


def test_joined_directions_are_those_of_all_rows():
    model = sp.superpose(nn.Linear(8, 2), tasks=2, recognise=sp.nn.Statistics(rank=8))
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    model.remember(x[:50], task=0)
    model.remember(x[50:] + 1, task=1)
    sp.recognition.join(model, 0, 1)
    basis = model.private_tensors(0)["weight_input_basis"]
    every = torch.cat([x[:50], x[50:] + 1])
    torch.testing.assert_close(basis.T @ basis, every.T.cov(correction=0), rtol=1e-3, atol=1e-4)


class Single(Recurring):
    def batch(self, step):
        x, y, *tasks = super().batch(step)
        return x[:1], y[:1], *tasks


class Jumping(Recurring):
    """Inputs of which no two batches are alike."""

    def batch(self, step):
        x, y, *tasks = super().batch(step)
        return x + 100 * step, y, *tasks


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"method": "standard"}, "needs a superposed network"),
        ({"method": "separate"}, "needs a superposed network"),
        ({"schedule": "cosine"}, "use 'constant'"),
        ({"stream": Single()}, "larger batch_size"),
    ],
)
def test_wrong_use_is_told(options, told):
    with pytest.raises(sp.SuperposeError, match=told):
        learn(**options)


@pytest.mark.parametrize("names", [[1, 0, 2], [0, 1, 5], ["a", "b", "c", "d"]])
def test_contexts_that_are_not_in_order_are_refused(names):
    model = sp.superpose(make_net(), "binary", tasks=names)
    if isinstance(names[0], str):
        model.remove_task("b")
    with pytest.raises(sp.SuperposeError, match="in the order of their numbers"):
        train(model, make_stream(), tasks="found", lr=1e-3, display=Quiet())


def test_contexts_do_not_proliferate_without_end(monkeypatch):
    monkeypatch.setattr("superpose.learning.loop.MOST_CONTEXTS", 5)
    with pytest.raises(sp.SuperposeError, match="all 5 contexts were begun"):
        learn(stream=Jumping())


def test_tasks_are_told_or_found():
    with pytest.raises(sp.SuperposeError, match="use 'told' or 'found'"):
        train(make_net(), make_stream(), tasks="guessed", display=Quiet())


def shifted(*shifts):
    """A task for each shift of its inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=generator)
    y = (x[:, 0] > 0).long()
    data = [(x + shift, y, x + shift, y) for shift in shifts]
    return sp.learning.TensorStream(data, period=40, batch_size=64)


def go_on(model, *shifts):
    return train(model, shifted(*shifts), tasks="found", lr=1e-3, display=Quiet())


def test_a_model_that_has_learned_goes_on_and_keeps_its_tasks():
    model = sp.superpose(make_net(), "hadamard", tasks=["a", "b", "c"], recognise=True)
    train(model, shifted(0, 5, 10), lr=1e-3, display=Quiet())
    found = go_on(model, 5).result["found"]
    assert [span[0] for span in found["spans"]] == [1]
    assert model.tasks == ["a", "b", "c"]
    found = go_on(model, -5, 10, -10).result["found"]
    assert [span[0] for span in found["spans"]] == [3, 2, 4]
    assert model.tasks == ["a", "b", "c", 3, 4]
    found = go_on(model, -20, -10).result["found"]
    assert [span[0] for span in found["spans"]] == [5, 4]


def test_a_declared_task_of_a_model_that_has_learned_stays():
    model = sp.superpose(make_net(), "hadamard", tasks=["a", "b", "c"], recognise=True)
    train(model, shifted(0, 5), lr=1e-3, display=Quiet())
    assert [span[0] for span in go_on(model, 5).result["found"]["spans"]] == [1]
    assert model.tasks == ["a", "b", "c"]


def test_a_run_that_found_its_tasks_goes_on():
    model = train(make_net(), shifted(0, 5), "hadamard", tasks="found", display=Quiet()).model
    assert model.tasks == [0, 1]
    found = go_on(model, 10, 0).result["found"]
    assert [span[0] for span in found["spans"]] == [2, 0]
    assert model.tasks == [0, 1, 2]


def test_tasks_that_learned_and_of_whose_inputs_nothing_is_known_are_told():
    model = sp.superpose(make_net(), "hadamard", tasks=3)
    train(model, shifted(0, 5, 10), lr=1e-3, display=Quiet())
    with pytest.raises(sp.SuperposeError, match="tasks 0, 1, 2 learned before, and nothing is"):
        go_on(model, 0)
    model = sp.superpose(make_net(), "hadamard", tasks=3)
    model.remember(torch.randn(9, 8), task=2)
    with pytest.raises(sp.SuperposeError, match="task 2 have inputs, and are not the first"):
        go_on(model, 0)
    model.remove_task(2)
    model.remember(torch.randn(9, 8), task=0)
    with pytest.raises(sp.SuperposeError, match="2 was that of a task that was removed"):
        go_on(model, 0)


def test_doubt_leaves_contexts_alone_that_have_not_begun():
    outcome = train(make_net(), shifted(0, 5, 10), "hadamard+doubt", tasks="found", lr=1e-3,
                    display=Quiet())  # fmt: skip
    asked = set()
    model = sp.superpose(make_net(), "hadamard", tasks=1000, recognise=True)
    model.register_forward_pre_hook(
        lambda module, given, named: asked.update(
            named["task"] if isinstance(named["task"], list) else [named["task"]]
        ),
        with_kwargs=True,
    )
    train(model, shifted(0, 5, 10), "doubt", tasks="found", lr=1e-3, display=Quiet())
    assert asked == {0, 1, 2}
    assert outcome.result["numbers"]["stored"] == outcome.model.cost().stored
