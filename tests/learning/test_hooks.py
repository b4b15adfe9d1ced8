"""Hooks: what they see and may change, and methods that a user would write with them."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from learning.problems import make_net, make_stream, same_weights
from torch import nn

import superpose as sp
from superpose.errors import SuperposeError
from superpose.learning import (
    EWC,
    Hook,
    Hooks,
    Interrupted,
    Labelled,
    Method,
    Quiet,
    method,
    shared_parameters,
    train,
)

QUIET = {"display": Quiet(), "lr": 1e-2}


def plain(hook):
    """The network as it comes, with a hook."""
    return replace(method("standard"), hook=hook)


def test_hooks_are_called_in_their_order():
    class Noting(Hook):
        def __init__(self):
            self.calls = []

        def begin(self, model):
            self.calls.append(f"begin {len(list(model.parameters()))}")
            self.parameter = next(model.parameters())

        def end(self):
            self.calls.append("end")

        def before_forward(self, batch):
            assert (batch.x.shape, batch.select) == ((16, 8), "none")
            self.calls.append(f"before {batch.task} {batch.context}")
            return batch

        def after_forward(self, batch, logits, loss):
            torch.testing.assert_close(F.cross_entropy(logits, batch.y), loss)
            self.calls.append("forward")
            return loss

        def after_backward(self):
            assert self.parameter.grad is not None
            self.before = self.parameter.detach().clone()
            self.calls.append("backward")

        def after_step(self):
            assert not torch.equal(self.before, self.parameter)
            self.calls.append("step")

        def after_task(self, batches, generator):
            assert [tuple(each.x.shape) for each in batches] == [(16, 8)] * 2
            assert len(list(batches)) == 2, "they can be asked for again"
            self.calls.append("task")

    noting = Noting()
    train(make_net(), make_stream(period=2), Method("n", lambda n, c, s: n, hook=noting), **QUIET)
    steps = [2 * [f"before {k} {k}", "forward", "backward", "step"] for k in range(3)]
    assert noting.calls == ["begin 4", *steps[0], "task", *steps[1], "task", *steps[2], "end"]


def test_a_hook_sets_the_pace_and_sees_the_latest_batches_first():
    seen = []

    class Slower(Hook):
        pace = 0.5

        def begin(self, model):
            self.model = model

        def after_task(self, batches, generator):
            assert not self.model.training
            latest = next(iter(batches)).through(self.model)
            seen.append((latest.detach(), generator.initial_seed()))

    stream = make_stream(tasks=2, period=3)
    options = {"optimiser": "sgd", "display": Quiet()}
    slow = Method("slow", lambda n, c, s: n, hook=Slower())
    half = train(make_net(), stream, slow, lr=0.2, **options)
    assert same_weights(half.model, train(make_net(), stream, lr=0.1, **options).model)
    first = replace(stream, data=stream.data[:1])
    learned = train(make_net(), first, lr=0.1, **options).model
    torch.testing.assert_close(seen[0][0], learned(stream.batch(2).x))
    third = make_stream(tasks=3, period=3)
    train(make_net(), third, slow, lr=0.2, **options)
    assert len({seed for _, seed in seen[1:]}) == 2, "each task has draws of its own"


class Distilled(Hook):
    """Learning without forgetting: in the contexts of earlier tasks, say what was said before."""

    def __init__(self, strength):
        self.strength, self.teacher, self.tasks = strength, None, []

    def begin(self, model):
        self.model, self.teacher, self.tasks = model, None, []

    def after_forward(self, batch, logits, loss):
        for task in self.tasks:
            asked = replace(batch, task=task, context=task)
            with torch.no_grad():
                said = asked.through(self.teacher)
            loss = loss + self.strength * F.mse_loss(asked.through(self.model), said)
        return loss

    def after_task(self, batches, generator):
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)
        self.tasks.append(next(iter(batches)).task)

    def state_dict(self):
        teacher = None if self.teacher is None else self.teacher.state_dict()
        return {"tasks": self.tasks, "teacher": teacher}

    def load_state_dict(self, state):
        self.tasks = state["tasks"]
        if state["teacher"] is not None:
            self.teacher = copy.deepcopy(self.model).eval().requires_grad_(False)
            self.teacher.load_state_dict(state["teacher"])


class Surgery(Hook):
    """A-GEM: a gradient that would raise the loss of earlier rows has that part removed."""

    def __init__(self, rows):
        self.rows, self.kept, self.turned = rows, None, 0

    def begin(self, model):
        self.model, self.parameters, self.kept = model, shared_parameters(model), None

    def after_backward(self):
        if self.kept is None:
            return
        loss = F.cross_entropy(self.kept.through(self.model), self.kept.y)
        before = torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.parameters)])
        own = torch.cat([p.grad.flatten() for p in self.parameters])
        if own @ before < 0:
            own = own - (own @ before) / (before @ before) * before
            self.turned += 1
            assert abs(own @ before) < 1e-4
        for parameter, new in zip(
            self.parameters, own.split([p.numel() for p in self.parameters]), strict=True
        ):
            parameter.grad.copy_(new.view_as(parameter))

    def after_task(self, batches, generator):
        some = next(iter(batches))[: self.rows].by_row()
        self.kept = some if self.kept is None else self.kept.beside(some)

    def state_dict(self):
        kept = None if self.kept is None else dict(vars(self.kept), rows=None)
        return {"kept": kept}

    def load_state_dict(self, state):
        if state["kept"] is not None:
            self.kept = Labelled(**{**state["kept"], "rows": slice(None)})

    @property
    def numbers(self):
        return 0 if self.kept is None else self.kept.x.numel()


def narrow():
    return make_net(units=12)


def test_distillation_is_a_hook():
    stream = make_stream(tasks=3)

    def learned(hook):
        return train(narrow(), stream, replace(method("binary"), hook=hook), **QUIET)

    none, zero, held = learned(Hooks()), learned(Distilled(0.0)), learned(Distilled(3.0))
    assert same_weights(none.model, zero.model)
    assert held.result["forgetting"] < none.result["forgetting"] - 0.05
    assert held.result["mean_all"] > none.result["mean_all"]


def test_gradient_surgery_is_a_hook():
    surgery = Surgery(rows=16)

    def learned(hook):
        options = {"optimiser": "sgd", "lr": 0.3, "display": Quiet()}
        chosen = replace(method("multihead"), hook=hook)
        return train(make_net(units=4), make_stream(period=120), chosen, **options).result

    without, result = learned(Hooks()), learned(surgery)
    assert surgery.turned > 10
    assert result["forgetting"] < 0.5 * without["forgetting"]
    assert result["numbers"]["penalty"] == 2 * 16 * 8


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(method("multihead"), hook=Surgery(8)),
        lambda: replace(method("binary"), hook=Distilled(1.0)),
        lambda: method("binary+ewc+replay", strength=3.0, samples=20),
    ],
)
def test_hooks_of_ones_own_are_stopped_and_resumed_exactly(tmp_path, make):
    def learn(out, after=None):
        asked = iter(range(1000))
        stop = None if after is None else (lambda: next(asked) + 1 >= after)
        options = {"out": tmp_path / out, "resume": True, "stop": stop, **QUIET}
        return train(make_net(dropout=0.2), make_stream(period=20), make(), **options)

    whole = learn("whole")
    for steps in (7, 13, 25):
        with pytest.raises(Interrupted):
            learn("stopped", steps)
    assert same_weights(learn("stopped").model, whole.model)


def test_several_hooks_act_in_their_order():
    calls = []

    class Noting(Hook):
        def __init__(self, name, pace):
            self.name, self.pace = name, pace

        def note(self, what):
            calls.append(f"{what} {self.name}")

        def begin(self, model):
            self.note("begin")

        def before_forward(self, batch):
            self.note("before")
            return batch.beside(batch[:1])

        def after_forward(self, batch, logits, loss):
            self.note(f"forward {len(batch)} {len(logits)}")
            return 3 * loss if self.name == "a" else loss + 1

        def after_backward(self):
            self.note("backward")

        def after_step(self):
            self.note("step")

        def after_task(self, batches, generator):
            self.note(f"task {len(list(batches))}")

        def end(self):
            self.note("end")

        @property
        def numbers(self):
            return len(self.name)

    both = Hooks(Noting("a", 0.5), Noting("bb", 0.25))
    outcome = train(make_net(), make_stream(tasks=2, period=1), plain(both), **QUIET)
    step = [f"{what} {n}" for what in ("before", "forward 18 18", "backward", "step")
            for n in ("a", "bb")]  # fmt: skip
    each = {what: [f"{what} a", f"{what} bb"] for what in ("begin", "task 1", "end")}
    assert calls == [*each["begin"], *step, *each["task 1"], *step, *each["end"]]
    assert both.pace == 0.125
    assert outcome.result["numbers"]["penalty"] == 3
    x = torch.tensor(2.0)
    assert both.after_forward(Labelled(x[None], x[None], 0, 0), x[None], x) == 3 * 2 + 1
    assert both.describe() == {"hooks": [{"name": "Noting"}] * 2}


def test_a_loss_that_a_hook_changes_is_the_one_that_is_lowered():
    class Double(Hook):
        def after_forward(self, batch, logits, loss):
            return 2 * loss

    stream, options = make_stream(), {"optimiser": "sgd", "display": Quiet()}
    doubled = train(make_net(), stream, plain(Double()), lr=0.1, **options)
    twice = train(make_net(), stream, lr=0.2, **options)
    assert same_weights(doubled.model, twice.model)
    assert doubled.result["loss"][0][1] == pytest.approx(2 * twice.result["loss"][0][1])


def test_names_of_hooks_are_joined():
    assert isinstance(method("binary").hook, Hooks)
    assert method("binary").hook.describe() == {}
    assert isinstance(method("ewc").hook, EWC)
    chosen = method("ewc+replay", strength=7, samples=30)
    assert (chosen.name, chosen.select) == ("ewc+replay", "none")
    ewc, replay = chosen.hook.hooks
    assert (ewc.strength, ewc.samples, replay.samples) == (7, 30, 30)
    for name in ("binary+", "+ewc", "ewc+binary", "binary+ewc+l2", ""):
        with pytest.raises(SuperposeError, match=r"unknown method .* binary\+ewc"):
            method(name)
    with pytest.raises(SuperposeError, match="share nothing that ewc and replay could hold"):
        method("separate+ewc+replay")


def test_rows_of_several_tasks_are_each_told_their_own():
    model = sp.superpose(nn.Sequential(nn.Linear(4, 3)), "binary", tasks=3)
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    one = Labelled(x[:2], y[:2], task=9, context=2, select="context")
    mixed = one.beside(Labelled(x[2:], y[2:], 8, torch.tensor([0, 2, 1])))
    assert mixed.context.tolist() == [2, 2, 0, 2, 1]
    assert mixed.task.tolist() == [9, 9, 8, 8, 8]
    assert torch.equal(mixed.y, y)
    rows = zip(x.split(1), mixed.context.tolist(), strict=True)
    alone = torch.cat([model(row, task=context) for row, context in rows])
    torch.testing.assert_close(mixed.through(model), alone)
    assert (alone - model(x, task=2)).abs().max() > 1e-2
    last = mixed[torch.tensor([4, 2])]
    torch.testing.assert_close(last.through(model), alone[[4, 2]])
    parts = list(mixed.split(2))
    assert [len(part) for part in parts] == [2, 2, 1]
    torch.testing.assert_close(torch.cat([part.through(model) for part in parts]), alone)
    told = replace(mixed, select="task", task=torch.tensor([0, 1, 2, 0, 1]))
    torch.testing.assert_close(told.through(model)[1:2], model(x[1:2], task=1))


@pytest.mark.parametrize("name", ["standard", "separate", "ewc"])
@pytest.mark.parametrize("option", [{"rank": 2}, {"rnak": 2}, {"base": True}, {"centre": "rows"}])
def test_options_that_nothing_takes_are_told(name, option):
    with pytest.raises(SuperposeError, match=f"nothing superposed that {next(iter(option))}"):
        method(name, **option)


@pytest.mark.parametrize("name", ["standard", "hadamard"])
def test_only_multihead_has_a_head(name):
    with pytest.raises(SuperposeError, match=r"head='0' names the layer of multihead"):
        method(name, head="0")
