"""Law 10: an optimiser trains every declared task, and a step of one never moves another's."""

import copy
import pickle
import warnings

import pytest
import torch
from networks import mlp

import superpose as sp
from superpose.model.superposed import private_state
from superpose.nn import steps

OPTIMISERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "decay": lambda parameters: torch.optim.AdamW(parameters, 0.1, weight_decay=0.1),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.1, foreach=True),
}


def own(model, task):
    return [parameter.detach().clone() for parameter in model.private_parameters(task)]


def same(some, others):
    return all(map(torch.equal, some, others))


def step(model, optimiser, x, task, closure=False):
    def loss():
        optimiser.zero_grad(set_to_none=False)
        found = (model(x, task=task) - 1).square().mean()
        found.backward()
        return found

    if closure:
        return optimiser.step(loss)
    loss()
    return optimiser.step()


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("options", [{}, {"base": True, "rank": 1}], ids=str)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_gradients_that_are_zeros_do_not_move_the_tasks_that_did_not_run(name, options, closure):
    x = torch.randn(6, 12)
    model = sp.superpose(mlp(), tasks=["a", "b"], **options)
    optimiser = OPTIMISERS[name](model.parameters())
    for _ in range(2):
        step(model, optimiser, x, "a", closure)
    learned = own(model, "a")
    for _ in range(2):
        before = own(model, "b")
        step(model, optimiser, x, "b", closure)
        assert not same(own(model, "b"), before)
    assert same(own(model, "a"), learned)
    zeros = [parameter.grad for parameter in model.private_parameters("a")]
    assert all(gradient is not None and not gradient.any() for gradient in zeros)
    step(model, optimiser, x, "a", closure)
    assert not same(own(model, "a"), learned)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_pass_that_only_looks_at_another_task_does_not_move_it(mixed):
    """Accuracies of earlier tasks are watched in training, often without `no_grad`."""
    x = torch.randn(6, 12)
    model = sp.superpose(mlp(), tasks=["a", "b"])
    optimiser = OPTIMISERS["momentum"](model.parameters())
    for _ in range(2):
        step(model, optimiser, x, "a")
    learned = own(model, "a")
    for _ in range(2):
        optimiser.zero_grad(set_to_none=False)
        model(x, task=["a"] * 6 if mixed else "a")
        model(x, task="b").square().mean().backward()
        optimiser.step()
    assert same(own(model, "a"), learned)


def test_a_task_whose_own_gradient_is_zero_is_moved_as_a_plain_network_is():
    """Momentum goes on where a batch is masked as a whole, say."""
    net, x = mlp(), torch.randn(6, 12)
    model = sp.superpose(net, "identity", tasks=2)
    found = []
    for one, task in ((net, {}), (model, {"task": 0})):
        optimiser = torch.optim.SGD(one.parameters(), 0.1, momentum=0.9)
        for share in (1.0, 0.0):
            optimiser.zero_grad()
            (share * one(x, **task).square().mean()).backward()
            optimiser.step()
        found.append(one(x, **task))
    assert torch.equal(*found)


def test_copies_are_seen_to_as_well():
    x = torch.randn(6, 12)
    first = sp.superpose(mlp(), tasks=["a", "b"])
    for model in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        optimiser = OPTIMISERS["decay"](model.parameters())
        step(model, optimiser, x, "a")
        learned = own(model, "a")
        step(model, optimiser, x, "b")
        assert same(own(model, "a"), learned)


def test_an_optimiser_of_something_else_is_left_alone():
    x, other = torch.randn(6, 12), torch.nn.Linear(3, 2)
    model = sp.superpose(mlp(), tasks=2)
    step(model, OPTIMISERS["decay"](model.parameters()), x, 0)
    optimiser = torch.optim.AdamW(other.parameters(), 0.1, weight_decay=0.5)
    other(torch.zeros(1, 3)).sum().backward()
    before = other.weight.detach().clone()
    optimiser.step()  # the gradient of its weight is zero, and it decays
    assert other.weight.grad is not None
    assert not torch.equal(other.weight, before)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_task_that_the_optimiser_does_not_know_is_told(rank):
    x = torch.randn(6, 12)
    model = sp.superpose(mlp(), tasks=["a", "b"], rank=rank)
    optimiser = torch.optim.Adam(model.parameters(), 0.1)
    step(model, optimiser, x, "a")
    model.add_task("birds")
    step(model, optimiser, x, "birds")  # the next step may be that of its own optimiser
    told = r"task 'birds' do not learn.*parameter_groups\(lr, task='birds'\): .*add_param_group\(gr"
    with pytest.warns(UserWarning, match=told):
        step(model, optimiser, x, "birds")
    step(model, optimiser, x, "birds")  # once
    before = own(model, "birds")
    for group in model.parameter_groups(1e-5, rank_lr=1e-4 if rank else None, task="birds"):
        optimiser.add_param_group(group)
    assert [group["lr"] for group in optimiser.param_groups] == [0.1, 1e-5, 1e-4][: 2 + rank]
    step(model, optimiser, x, "birds")
    assert not same(own(model, "birds"), before)


def test_there_are_no_false_alarms():
    x = torch.randn(6, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = sp.superpose(mlp(), tasks=["a", "b"])
        model.add_task("c")
        shared = [p for name, p in model.named_parameters() if "private_state" not in name]
        optimisers = [torch.optim.SGD(model.private_parameters(task), 0.1) for task in "abc"]
        optimisers.append(torch.optim.SGD(shared, 0.1))
        for task in "abcabc":  # an optimiser for each task, all of which step
            model(x, task=task).square().mean().backward()
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()
        warming = sp.superpose(mlp(), tasks=["a", "b"])
        optimisers = [torch.optim.SGD(warming.private_parameters(task), 0.0) for task in "ab"]
        for _ in range(3):  # two tasks, whose optimisers step after both, and nothing is learned
            for task in "ab":
                warming(x, task=task).square().mean().backward()
            for optimiser in optimisers:
                optimiser.step()
        model.add_task("frozen")
        model.private_parameters("frozen")[0].requires_grad_(False)
        model.add_task("by hand")
        model.add_task("looked at")
        everything = torch.optim.SGD([*shared, *model.private_parameters("a")], 0.1)
        for _ in range(3):
            step(model, everything, x, "frozen")
            step(model, everything, x, "by hand")
            with torch.no_grad():
                (flat,) = model.private_parameters("by hand")
                flat -= 0.1 * flat.grad
        model(x, task="looked at").sum().backward()  # a gradient that stays there
        for _ in range(3):
            step(model, everything, x, "a")


def test_another_thread_may_forget_meanwhile_that_a_task_ran(monkeypatch):
    """A step looks at all models, those that other threads train too."""
    x = torch.randn(6, 12)
    model = sp.superpose(mlp(), tasks=2)
    optimiser = OPTIMISERS["momentum"](model.parameters())
    ran, has = private_state(model).ran, steps._has

    def meanwhile(*asked):
        ran.pop(1, None)
        return has(*asked)

    monkeypatch.setattr(steps, "_has", meanwhile)
    for _ in range(2):
        model(x, task=1).sum().backward()
        ran.pop(1, None)  # so that it is the last
        model(x, task=0).sum().backward()
        model(x, task=1).sum().backward()
        optimiser.step()
