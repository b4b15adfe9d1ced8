"""Guards: when they are called, methods that a user would write with them, and what is kept."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from learning.problems import make_net, make_stream, same_weights, stop_after
from torch import nn

import superpose as sp
from superpose.errors import SuperposeError
from superpose.learning import (
    EWC,
    Guard,
    Guards,
    Interrupted,
    Quiet,
    Replay,
    method,
    shared_parameters,
    train,
)

QUIET = {"display": Quiet(), "lr": 1e-2}


def guarded(name, make):
    """A method with a guard of one's own."""
    return replace(method(name), guard=lambda model, seed: make(model))


def test_guards_are_called_in_their_order():
    calls = []

    class Noting(Guard):
        def rows(self, task, x, y):
            assert x.shape == (16, 8)
            calls.append("rows")
            return task, x, y

        def penalty(self, task, x, output):
            assert output.shape == (16, 2)
            calls.append("penalty")
            return 0.0

        def after_backward(self):
            self.parameter = next(self.model.parameters())
            assert self.parameter.grad is not None
            self.before = self.parameter.detach().clone()
            calls.append("backward")

        def after_step(self):
            assert not torch.equal(self.before, self.parameter)
            calls.append("step")

        def remember(self, task, batches, run):
            assert not self.model.training
            assert [tuple(x.shape) for x, *_ in batches] == [(16, 8)] * 2
            assert len(list(batches)) == 2, "they can be read again"
            latest = next(iter(batches))
            ended = 1 + sum(call.startswith("end") for call in calls)
            assert torch.equal(latest[0], make_stream(period=2).batch(2 * ended - 1).x)
            torch.testing.assert_close(run(latest), self.model(latest[0]))
            calls.append(f"end {task}")

    train(make_net(), make_stream(period=2), guarded("standard", Noting), **QUIET)
    steps = 2 * ["rows", "penalty", "backward", "step"]
    assert calls[:9] == [*steps, "end None"]
    assert len(calls) == 3 * 8 + 2, "the last task is not ended"


def test_a_guard_sets_the_pace_of_what_tasks_share():
    class Slower(Guard):
        pace = 0.5

    stream, options = make_stream(tasks=2, period=3), {"optimiser": "sgd", "display": Quiet()}
    half = train(make_net(), stream, guarded("standard", Slower), lr=0.2, **options)
    assert same_weights(half.model, train(make_net(), stream, lr=0.1, **options).model)
    model = sp.superpose(make_net(), "hadamard", tasks=2, base=True, rank=2)
    every = Slower(model).parameter_groups(lr=1.0, rank_lr=3.0)
    assert [group["lr"] for group in every] == [0.5, 1.0, 3.0]
    assert [len(group["params"]) for group in every] == [2, 2, 2]
    (weights, own, low_rank) = Slower(model).parameter_groups(1, lr=1.0)
    assert [id(p) for p in weights["params"]] == [id(p) for p in shared_parameters(model)]
    assert [*own["params"], *low_rank["params"]] == model.private_parameters(1)
    assert (weights["lr"], own["lr"], low_rank["lr"]) == (0.5, 1.0, 1.0)


class Distilled(Guard):
    """Learning without forgetting: in the contexts of earlier tasks, say what was said before."""

    def __init__(self, model, strength=3.0):
        super().__init__(model)
        self.strength, self.teacher, self.tasks = strength, None, []

    def penalty(self, task, x, output):
        loss = 0.0
        for earlier in self.tasks:
            with torch.no_grad():
                said = self.teacher(x, task=earlier)
            loss = loss + self.strength * F.mse_loss(self.model(x, task=earlier), said)
        return loss

    def remember(self, task, batches, run):
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)
        self.tasks.append(task)

    def state_dict(self):
        teacher = None if self.teacher is None else self.teacher.state_dict()
        return {"tasks": self.tasks, "teacher": teacher}

    def load_state_dict(self, state):
        self.tasks = state["tasks"]
        if state["teacher"] is not None:
            self.teacher = copy.deepcopy(self.model).eval().requires_grad_(False)
            self.teacher.load_state_dict(state["teacher"])


class Surgery(Guard):
    """A-GEM: a gradient that would raise the loss of earlier rows has that part removed."""

    def __init__(self, model, rows=16):
        super().__init__(model)
        self.count, self.kept, self.turned = rows, [], 0
        self.parameters = shared_parameters(model)

    def after_backward(self):
        if not self.kept:
            return
        losses = [F.cross_entropy(self.model(x, task=task), y) for task, x, y in self.kept]
        loss = sum(losses) / len(losses)
        before = torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.parameters)])
        own = torch.cat([p.grad.flatten() for p in self.parameters])
        if own @ before < 0:
            own = own - (own @ before) / (before @ before) * before
            self.turned += 1
            assert abs(own @ before) < 1e-4
        parts = own.split([p.numel() for p in self.parameters])
        for parameter, new in zip(self.parameters, parts, strict=True):
            parameter.grad.copy_(new.view_as(parameter))

    def remember(self, task, batches, run):
        x, y, *_ = next(iter(batches))
        self.kept.append((task, x[: self.count], y[: self.count]))

    def state_dict(self):
        return {"kept": [list(each) for each in self.kept]}

    def load_state_dict(self, state):
        self.kept = [tuple(each) for each in state["kept"]]

    @property
    def numbers(self):
        return sum(x.numel() for _, x, _ in self.kept)


def narrow():
    return make_net(units=12)


def test_distillation_is_a_guard():
    def learned(strength):
        chosen = guarded("binary", lambda model: Distilled(model, strength))
        return train(narrow(), make_stream(tasks=3), chosen, **QUIET)

    none = train(narrow(), make_stream(tasks=3), "binary", **QUIET)
    zero, held = learned(0.0), learned(3.0)
    assert same_weights(none.model, zero.model)
    assert held.result["forgetting"] < none.result["forgetting"] - 0.05
    assert held.result["mean_all"] > none.result["mean_all"]


def test_gradient_surgery_is_a_guard():
    def learned(make):
        options = {"optimiser": "sgd", "lr": 0.3, "display": Quiet()}
        chosen = guarded("multihead", make)
        return train(make_net(units=4), make_stream(period=120), chosen, **options)

    without, surgery = learned(Guard), learned(Surgery)
    assert surgery.guard.turned > 10
    assert surgery.result["forgetting"] < 0.5 * without.result["forgetting"]
    assert surgery.result["numbers"]["penalty"] == 2 * 16 * 8


@pytest.mark.parametrize(
    "make",
    [
        lambda: guarded("multihead", Surgery),
        lambda: guarded("binary", Distilled),
        lambda: method("binary+ewc+replay", strength=3.0, samples=20),
    ],
)
def test_guards_of_ones_own_are_stopped_and_resumed_exactly(tmp_path, make):
    def learn(out, after=None):
        stop = None if after is None else stop_after(after)
        options = {"out": tmp_path / out, "resume": True, "stop": stop, **QUIET}
        return train(make_net(dropout=0.2), make_stream(period=20), make(), **options)

    whole = learn("whole")
    for steps in (7, 13, 25):
        with pytest.raises(Interrupted):
            learn("stopped", steps)
    assert same_weights(learn("stopped").model, whole.model)


def test_several_guards_act_in_their_order():
    calls = []

    class Noting(Guard):
        def __init__(self, model, name, pace):
            super().__init__(model)
            self.name, self.pace = name, pace

        def rows(self, task, x, y):
            calls.append(f"rows {self.name} {len(x)}")
            return task, torch.cat([x, x[:1]]), torch.cat([y, y[:1]])

        def penalty(self, task, x, output):
            calls.append(f"penalty {self.name} {len(x)} {len(output)}")
            return len(self.name)

        def after_backward(self):
            calls.append(f"backward {self.name}")

        def after_step(self):
            calls.append(f"step {self.name}")

        def remember(self, task, batches, run):
            calls.append(f"end {self.name} {len(list(batches))}")

        def state_dict(self):
            return {"name": self.name}

        def load_state_dict(self, state):
            assert state == {"name": self.name}

        @property
        def numbers(self):
            return len(self.name)

    def both(model):
        return Guards(Noting(model, "a", 0.5), Noting(model, "bb", 0.25))

    outcome = train(make_net(), make_stream(tasks=2, period=1), guarded("standard", both), **QUIET)
    step = ["rows a 16", "rows bb 17", "penalty a 18 18", "penalty bb 18 18", "backward a",
            "backward bb", "step a", "step bb"]  # fmt: skip
    assert calls == [*step, "end a 1", "end bb 1", *step]
    assert outcome.guard.pace == 0.125
    assert outcome.result["numbers"]["penalty"] == 3
    assert outcome.guard.penalty(None, torch.ones(1), torch.ones(1)) == 3
    assert outcome.guard.describe() == {"guards": [{"name": "Noting"}] * 2}
    outcome.guard.load_state_dict(outcome.guard.state_dict())


def test_a_penalty_is_added_to_the_loss_that_is_lowered():
    class Double(Guard):
        def penalty(self, task, x, output):
            return F.cross_entropy(output, (x[:, 0] > 0).long())

    stream, options = make_stream(tasks=1), {"optimiser": "sgd", "display": Quiet()}
    doubled = train(make_net(), stream, guarded("standard", Double), lr=0.1, **options)
    twice = train(make_net(), stream, lr=0.2, **options)
    for one, other in zip(doubled.model.parameters(), twice.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert doubled.result["loss"][0][1] == pytest.approx(2 * twice.result["loss"][0][1])


def test_names_of_guards_are_joined():
    net = make_net()
    assert type(method("binary").guard(net, 0)) is Guard
    assert isinstance(method("ewc").guard(net, 0), EWC)
    chosen = method("ewc+replay", strength=7, samples=30)
    assert (chosen.name, chosen.select) == ("ewc+replay", "none")
    ewc, replay = chosen.guard(net, 5).guards
    assert (ewc.strength, ewc.samples, replay.samples) == (7, 30, 30)
    assert ewc.seed == replay.seed == 5
    for name in ("binary+", "+ewc", "ewc+binary", "binary+ewc+l2", "binary+projection-means", ""):
        with pytest.raises(SuperposeError, match=r"unknown method .* binary\+ewc"):
            method(name)
    with pytest.raises(SuperposeError, match="share nothing that ewc and replay could hold"):
        method("separate+ewc+replay")


def test_a_guard_that_was_made_before_is_taken_by_the_loop():
    model = sp.superpose(make_net(), "binary", tasks=3)
    guard = EWC(model, strength=2.0, samples=16)
    outcome = train(model, make_stream(period=5), guard, **QUIET)
    assert outcome.guard is guard
    assert guard.active
    again = train(make_net(), make_stream(period=5), method("binary+ewc", strength=2.0, samples=16),
                  **QUIET)  # fmt: skip
    assert same_weights(outcome.model, again.model)
    with pytest.raises(SuperposeError, match="guards another model"):
        train(make_net(), make_stream(), guard, **QUIET)
    net = make_net()
    train(net, make_stream(period=5), Replay(net), **QUIET)


def test_a_task_that_has_not_begun_has_nothing_to_be_remembered():
    model = sp.superpose(make_net(), "hadamard", tasks=["a", "b"], base=True)
    guard = sp.learning.Projection(model)
    with pytest.raises(SuperposeError, match=r"'b' has not begun.*model.begin\('b'\)"):
        guard.end("b", [torch.randn(4, 8)])
    model.begin("b")
    guard.end("b", [torch.randn(4, 8)])


@pytest.mark.parametrize("make", [sp.learning.Projection, sp.learning.EWC])
def test_batches_that_are_used_up_are_told(make):
    model = sp.superpose(make_net(), "hadamard", tasks=2)
    with pytest.raises(SuperposeError, match="can be read again"):
        make(model).end(0, [])


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make_net()

    def forward(self, inputs, *, shift=0.0, labels=None):
        return self.net(inputs + shift)


@pytest.mark.parametrize("name", ["projection", "ewc"])
def test_batches_are_tensors_tuples_dicts_or_run_by_a_function(name):
    x, y = torch.randn(12, 8), torch.zeros(12, dtype=torch.int64)
    found = []
    runs = [
        ([x], None),
        ([(x, y)], None),
        ([[x[:6], y[:6]], [x[6:], y[6:]]], None),
        ([{"inputs": x - 1, "shift": 1.0, "labels": y}], None),
        ([{"rows": x, "other": "text"}], lambda b: model(b["rows"], task=1)),
    ]
    for batches, run in runs:
        model = sp.superpose(Named(), "hadamard", tasks=2)
        guard = method(f"hadamard+{name}").guard(model, 0)
        guard.end(1, batches, run)
        found.append(guard.state_dict())
    for one in found[1:]:
        for what in ("needed",) if name == "projection" else ("tensors",):
            one_, other = one[what], found[0][what]
            flat = [t for part in (one_, other) for t in [torch.utils._pytree.tree_leaves(part)]]
            for a, b in zip(*flat, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_network_that_has_a_part_called_module_is_guarded_whole():
    net = nn.Sequential()
    net.module, net.last = nn.Linear(4, 4), nn.Linear(4, 2)
    assert EWC(net).names == ["module.weight", "module.bias", "last.weight", "last.bias"]


def test_a_state_of_another_network_is_refused():
    for make in (EWC, sp.learning.Projection):
        layers = [[nn.Flatten(), nn.ReLU(), nn.Tanh(), nn.Linear(n, 4)] for n in (8, 16)]
        models = [sp.superpose(nn.Sequential(*each), "binary", tasks=2) for each in layers]
        state = make(models[0]).state_dict()
        with pytest.raises(SuperposeError, match=r"another network: '3.weight' is"):
            make(models[1]).load_state_dict(state)


@pytest.mark.parametrize("name", ["standard", "separate", "ewc"])
@pytest.mark.parametrize("option", [{"rank": 2}, {"rnak": 2}, {"base": True}, {"centre": "rows"}])
def test_options_that_nothing_takes_are_told(name, option):
    with pytest.raises(SuperposeError, match=f"nothing superposed that {next(iter(option))}"):
        method(name, **option)


@pytest.mark.parametrize("name", ["standard", "hadamard"])
def test_only_multihead_has_a_head(name):
    with pytest.raises(SuperposeError, match=r"head='0' names the layer of multihead"):
        method(name, head="0")
