"""Pitfalls of private tensors and of probes: zeros, copies, tensors that are written to."""

import copy

import pytest
import torch
from superpose.nn.private import is_fresh
from torch import nn

import superpose as sp


class Crossed(nn.Module):
    """Rows and tokens change places before the last layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.first(x).transpose(0, 1)).transpose(0, 1)


def alone(model, x, tasks):
    return torch.cat([model(x[i : i + 1], task=task) for i, task in enumerate(tasks)])


def test_weights_that_are_zero_do_not_hide_the_way():
    """A head that starts at zero gives zeros in every way."""
    torch.manual_seed(0)
    net = Crossed()
    nn.init.zeros_(net.last.weight)
    model = sp.superpose(net, tasks=3, private="none").eval()
    x, tasks = torch.randn(3, 3, 4), [2, 0, 1]
    assert not model(x, task=tasks).any()
    assert not model.last.weight.any(), "what was random for a while is zero again"
    with torch.no_grad():
        model.last.weight.normal_()
    torch.testing.assert_close(model(x, task=tasks), alone(model, x, tasks))


def test_a_mixed_batch_leaves_declared_tasks_without_memory():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = sp.superpose(net, tasks=50).eval()
    model(torch.randn(4, 4), task=[3, 1, 4, 1])
    flats = [f for group in model.private_state.groups.values() for f in group.flats().values()]
    assert len(flats) == 150
    assert all(map(is_fresh, flats))


def test_an_optimiser_that_is_copied_with_the_model_trains_the_copy():
    torch.manual_seed(0)
    model = sp.superpose(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), tasks=3)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    twin, its_own = copy.deepcopy((model, optimiser))
    twin(torch.randn(5, 4), task=2).square().sum().backward()
    its_own.step()
    assert not torch.equal(twin.private_tensors(2)["1.bias"], model.private_tensors(2)["1.bias"])
    assert is_fresh(model.private_parameters(2)[0])


def test_what_is_trained_is_trained_in_a_copy():
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)).requires_grad_(False)
    model = sp.superpose(net, tasks=2, bind_frozen=True)
    model.requires_grad_(True)
    twin = copy.deepcopy(model)
    assert len(twin.private_parameters(1)) == len(model.private_parameters(1)) == 1


def test_a_grouped_network_that_writes_to_its_inputs_is_refused():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, state):
            state += x.sum(-1)
            return self.layer(x) + state.unsqueeze(-1)

    model = sp.superpose(Writes(), tasks=3, mixed="grouped").eval()
    with pytest.raises(sp.SuperposeError, match=r"writes to its input tensors.*run each task"):
        model(torch.randn(3, 4), torch.zeros(3), task=[0, 1, 2])


def test_a_way_that_is_set_anew_is_found_out_again():
    torch.manual_seed(0)

    class Switched(Crossed):
        crossed = False

        def forward(self, x):
            return super().forward(x) if self.crossed else self.last(self.first(x))

    model = sp.superpose(Switched(), tasks=3).eval()
    x, tasks = torch.randn(3, 3, 4), [2, 0, 1]
    model(x, task=tasks)
    assert model.summary().mixed == ["direct"]
    model.crossed = True
    model.mixed = "auto"
    torch.testing.assert_close(model(x, task=tasks), alone(model, x, tasks))


def test_a_tensor_of_all_rows_that_is_no_loss_is_refused():
    """Rows that are second, though nobody said so, would be averaged."""

    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x).mean(0)

    model = sp.superpose(Averaged(), tasks=4).eval()
    with pytest.raises(sp.SuperposeError, match="say where with batch_dim"):
        model(torch.randn(4, 4, 4), task=[0, 1, 2, 3])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tasks": True}, "tasks=True: give a number of tasks, or names"),
        ({"tasks": 1.5}, "tasks=1.5: give a number of tasks, or names"),
        ({"batch_dim": {"msk": None}}, "has no argument 'msk'; it has x"),
    ],
)
def test_options_that_cannot_be_meant(options, told):
    with pytest.raises(sp.SuperposeError, match=told):
        sp.superpose(Crossed(), **options)


def test_a_way_that_was_chosen_is_told():
    model = sp.superpose(Crossed(), tasks=2, mixed="grouped")
    assert model.summary().mixed == ["grouped, as it was chosen"]


def test_what_is_declared_in_a_notebook_can_be_declared_again():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x):
            return x @ self.weight

    sp.nn.register(Own, {"wieght": -2})
    sp.nn.register(Own, {"weight": -2})
    assert sp.superpose(nn.Sequential(Own()), tasks=2).summary().superposed == ["0.weight"]
