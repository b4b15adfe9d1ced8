"""Activations that `torch.utils.checkpoint` computes again have the task that they had."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import superpose as sp
from superpose.nn import recomputing

MODES = {
    "reentrant": {"use_reentrant": True},
    "not": {"use_reentrant": False},
    "same task": {"use_reentrant": False, "context_fn": sp.same_task},
}


class Again(nn.Module):
    """Two layers, of which one is called, and one is read."""

    def __init__(self, mode):
        super().__init__()
        self.mode = mode
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def part(self, x):
        return nn.functional.linear(self.first(x).relu(), self.second.weight, self.second.bias)

    def forward(self, x):
        return checkpoint(self.part, x, **self.mode) if self.mode else self.part(x)


def made(mode, **options):
    torch.manual_seed(0)
    return sp.superpose(Again(mode), tasks=["a", "b"], **options)


def gradients(model, x, run):
    """Of all that learns, and of what the model is given."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    run(model, x)
    own = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {**own, "x": x.grad}


def alone(model, x):
    model(x, task="a").square().sum().backward()


def chosen(model, x):
    with model.task("a"):
        model(x).square().sum().backward()


def inside_another(model, x):
    with model.task("b"):
        model(x, task="a").square().sum().backward()


def after_another(model, x):
    with model.task("a"):
        y = model(x)
    with model.task("b"):
        model(x)
        y.square().sum().backward()


def one_by_one(model, x):
    first, second = model(x, task="a"), model(x, task="b")
    first.square().sum().backward()
    with model.task("a"):
        second.square().sum().backward()


@pytest.mark.parametrize("options", [{}, {"centre": "task"}], ids=str)
@pytest.mark.parametrize("run", [alone, chosen, inside_another, after_another, one_by_one])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_without(mode, run, options):
    x = torch.randn(5, 6)
    plain, again = made(None, **options), made(MODES[mode], **options)
    wanted, found = gradients(plain, x, run), gradients(again, x, run)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient)
    for task in "ab":  # means, which a second time would move once more
        for name, tensor in again.private_tensors(task).items():
            torch.testing.assert_close(tensor, plain.private_tensors(task)[name])


@pytest.mark.filterwarnings("ignore:None of the inputs")  # where a way is tried out
@pytest.mark.parametrize("mode", ["reentrant", "not"])
def test_several_tasks_in_one_gradient_are_refused(mode):
    model, x = made(MODES[mode]), torch.randn(5, 6, requires_grad=True)
    both = model(x, task="a").sum() + model(x, task="b").square().sum()
    with pytest.raises(sp.SuperposeError, match=r"several tasks.*context_fn=superpose.same_task"):
        both.backward()
    assert not recomputing._backward  # nothing is left of it
    wanted, found = gradients(made(None), x.detach(), alone), gradients(model, x.detach(), alone)
    torch.testing.assert_close(found, wanted)
    assert not recomputing._backward
    rows = model(x, task=["a", "b", "a", "b", "a"])  # grouped, as the second layer is read
    with pytest.raises(sp.SuperposeError, match="activations of several tasks"), model.task("a"):
        rows.sum().backward()


def test_several_tasks_in_one_gradient_are_told_apart_by_context_fn():
    x, found = torch.randn(5, 6), []
    for mode in (None, MODES["same task"]):
        model = made(mode)

        def both(model, x):
            (model(x, task="a").sum() + model(x, task="b").square().sum()).backward()

        found.append(gradients(model, x, both))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


@pytest.mark.parametrize("mode", MODES)
def test_two_models_in_one_gradient(mode):
    x, found = torch.randn(5, 6), []
    for kind in (None, MODES[mode]):
        one, other = made(kind), made(kind)

        def both(one, x, other=other):
            y = one(x, task="a")
            with other.task("a"), one.task("b"):
                (y + other(x, task="b").square()).sum().backward()

        first = gradients(one, x, both)
        second = {name: p.grad for name, p in other.named_parameters() if p.grad is not None}
        found.append([first, second])
    for wanted, again in zip(*found, strict=True):
        assert wanted.keys() == again.keys()
        for name, gradient in wanted.items():
            torch.testing.assert_close(again[name], gradient)


class Nested(Again):
    def part(self, x):
        first = checkpoint(self.first, x, **self.mode) if self.mode else self.first(x)
        return nn.functional.linear(first.relu(), self.second.weight, self.second.bias)


@pytest.mark.parametrize("run", [alone, inside_another])
@pytest.mark.parametrize("mode", MODES)
def test_activations_inside_activations(mode, run):
    x, found = torch.randn(5, 6), []
    for kind in (None, MODES[mode]):
        torch.manual_seed(0)
        found.append(gradients(sp.superpose(Nested(kind), tasks=["a", "b"]), x, run))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


def test_a_tensor_that_is_read_by_a_hook_of_the_gradient_is_that_of_the_pass():
    model, seen = made(None), []
    x = torch.randn(5, 6, requires_grad=True)
    y = model(x, task="a")
    x.register_hook(lambda _: seen.append(model.second.weight))
    y.sum().backward()
    assert torch.equal(seen[0], sp.unsuperpose(model, "a").second.weight)
    assert isinstance(model.second.weight, nn.Parameter)  # and after it, that of the layer


class Failing(torch.autograd.Function):
    """Has no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("out of memory")


def test_a_backward_that_fails_keeps_nothing():
    """What it went back through would be held for ever, and be taken for that of later ones."""
    model, x = made(MODES["reentrant"]), torch.randn(5, 6, requires_grad=True)
    known = weakref.ref(model)
    with pytest.raises(ValueError, match="out of memory"):
        model(Failing.apply(x), task="b").sum().backward()
    assert not recomputing._backward
    alone(model, x)
    del model
    gc.collect()
    assert known() is None


def test_a_pass_leaves_no_garbage():
    """Looking for it would stop training again and again."""
    model, x = sp.superpose(nn.Linear(6, 3), tasks=2), torch.randn(5, 6)
    model(x, task=0)
    gc.collect()
    gc.disable()
    try:
        model(x, task=0).sum().backward()
        assert gc.collect() == 0
    finally:
        gc.enable()
