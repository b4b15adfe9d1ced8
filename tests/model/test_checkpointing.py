"""Activations that `torch.utils.checkpoint` computes again have the task that they had."""

import gc
from functools import partial

import pytest
import torch
from checks import learned_gradients, scramble, whole_state
from torch import nn
from torch.utils.checkpoint import checkpoint

import superpose as sp

SAME = partial(checkpoint, use_reentrant=False, context_fn=sp.same_task)
OPTIONS = [{}, {"centre": "task"}, {"base": True, "rank": 1}, {"recognise": True}]


class Again(nn.Module):
    """Two layers and a norm, of which one is called, and one is read."""

    def __init__(self, again=None):
        super().__init__()
        self.again = again
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def part(self, x):
        x = self.norm(self.first(x)).relu()
        return nn.functional.linear(x, self.second.weight, self.second.bias)

    def forward(self, x):
        return self.again(self.part, x) if self.again else self.part(x)


class Nested(Again):
    def part(self, x):
        first = self.again(self.first, x) if self.again else self.first(x)
        x = self.norm(first).relu()
        return nn.functional.linear(x, self.second.weight, self.second.bias)


def made(again, kind=Again, **options):
    torch.manual_seed(0)
    return scramble(sp.superpose(kind(again), "hadamard", tasks=["a", "b"], **options)).train()


def alone(model, x):
    model(x, task="a").square().sum().backward()


def inside_another(model, x):
    with model.task("b"):
        model(x, task="a").square().sum().backward()


def after_another(model, x):
    with model.task("a"):
        y = model(x)
    with model.task("b"):
        model(x)
        y.square().sum().backward()


def several(model, x):
    """In one gradient, which goes back through them in another order, twice."""
    y = model(x, task="a").sum() + model(x, task="b").square().sum()
    y.backward(retain_graph=True)
    y.backward()


def mixed(model, x):
    model(x, task=["a", "b", "a", "b", "a", "b"]).square().sum().backward()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("run", [alone, inside_another, after_another, several, mixed])
@pytest.mark.parametrize("kind", [Again, Nested])
def test_gradients_and_statistics_are_those_without(kind, run, options):
    found = []
    for again in (None, SAME):
        model, x = made(again, kind, **options), torch.arange(36.0).view(6, 6).sin()
        x.requires_grad_()
        run(model, x)
        found.append([learned_gradients(model) | {"x": x.grad}, whole_state(model)])
    for wanted, again in zip(*found, strict=True):
        assert wanted.keys() == again.keys()
        for name, tensor in wanted.items():
            torch.testing.assert_close(again[name], tensor, msg=name)


def test_a_second_pass_does_not_count_statistics_twice():
    model, x = made(SAME, centre="task", recognise=True), torch.randn(6, 6)
    before = whole_state(model)
    alone(model, x)
    after = whole_state(model)
    assert round(float(after["first.weight_seen of 0"] - before["first.weight_seen of 0"]), 4) == 1
    rows = after["first.weight_input_rows of 0"] - before["first.weight_input_rows of 0"]
    assert round(float(rows.sum()), 4) == 6


@pytest.mark.parametrize("how", [{"use_reentrant": False}, {"use_reentrant": True}], ids=str)
@pytest.mark.parametrize("task", ["a", ["a", "b", "a", "b", "a", "b"]], ids=["one", "mixed"])
def test_without_context_fn_it_is_an_error(how, task):
    model, x = made(partial(checkpoint, **how)), torch.randn(6, 6, requires_grad=True)
    y = model(x, task=task)
    told = r"use_reentrant=False and context_fn=superpose\.same_task"
    with pytest.raises(sp.SuperposeError, match=told):
        y.sum().backward()
    with model.task("a"):
        y = model(x)
        with pytest.raises(sp.SuperposeError, match=told):  # which task it is, was not said
            y.sum().backward()


def test_two_models_in_one_gradient():
    found = []
    for again in (None, SAME):
        one, other, x = made(again), made(again), torch.arange(36.0).view(6, 6).cos()
        y = one(x, task="a")
        with other.task("a"), one.task("b"):
            (y.sum() + other(x, task="b").square().sum()).backward()
        found.append([learned_gradients(one), learned_gradients(other)])
    for wanted, again in zip(*found, strict=True):
        assert wanted.keys() == again.keys()
        for name, gradient in wanted.items():
            torch.testing.assert_close(again[name], gradient)


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
