"""A guard's pace slows what tasks share; low-rank parts may have a rate of their own."""

import dataclasses

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.learning import Quiet, TensorStream, method, train


class Slow(sp.learning.Guard):
    """Asks for a tenth of the pace."""

    pace = 0.1

    @classmethod
    def of(cls, model, seed):
        return cls(model)


def problem():
    torch.manual_seed(0)
    x = torch.randn(64, 12)
    y = (x[:, 0] > 0).long()
    stream = TensorStream([(x, y, x, y), (-x, y, -x, y)], period=20, batch_size=16)
    return stream, nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))


@pytest.mark.parametrize("rank_lr", [None, 1e-2])
def test_only_what_tasks_share_is_slowed_down(rank_lr, monkeypatch):
    stream, net = problem()
    made = []

    def noted(parameters, lr):
        made.append(torch.optim.SGD(parameters, lr))
        return made[-1]

    monkeypatch.setitem(sp.learning.OPTIMISERS, "sgd", noted)
    chosen = dataclasses.replace(method("hadamard", base=True, rank=2), guard=Slow.of)
    options = {"optimiser": "sgd", "lr": 1e-3, "rank_lr": rank_lr, "display": Quiet()}
    model = train(net, stream, chosen, **options).model
    groups = made[0].param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(rates) == sum(len(group["params"]) for group in groups) == len(learning)
    for name, parameter in learning.items():
        expected = 1e-4
        if "private_state." in name:
            expected = rank_lr or 1e-3 if ".rank." in name else 1e-3
        assert rates[id(parameter)] == pytest.approx(expected), name


def test_a_model_without_low_rank_parts_has_no_rate_for_them():
    stream, net = problem()
    for name in ("standard", "hadamard"):
        with pytest.raises(sp.SuperposeError, match="no low-rank parts"):
            train(net, stream, name, rank_lr=1e-2, display=Quiet())
    with pytest.raises(sp.SuperposeError, match="rank_lr=-1"):
        train(net, stream, method("hadamard", rank=2), rank_lr=-1, display=Quiet())


def test_groups_of_an_optimiser_of_ones_own_are_slowed_if_tasks_share_something_in_them():
    stream, net = problem()
    made = []

    def optimiser(parameters):
        shared = [p for p in parameters if p.ndim > 1]  # a plain list of parameters
        private = [p for p in parameters if p.ndim == 1]
        made.append(torch.optim.SGD([{"params": shared}, {"params": private}], 1e-3))
        return made[-1]

    chosen = dataclasses.replace(method("hadamard", private="per-task"), guard=Slow.of)
    train(net, stream, chosen, optimiser=optimiser, display=Quiet())
    shared, private = made[0].param_groups
    assert len(private["params"]) == 2
    assert (shared["lr"], private["lr"]) == pytest.approx((1e-4, 1e-3))


def test_the_pace_of_a_resumed_run_is_that_of_one_that_was_not_stopped(tmp_path):
    stream, net = problem()

    class Counts(Slow):
        count = 0

        def after_step(self):
            type(self).count += 1

    chosen = dataclasses.replace(method("hadamard", base=True, rank=2), guard=Counts.of)
    options = {"lr": 1e-3, "rank_lr": 1e-2, "display": Quiet(), "out": tmp_path / "a"}
    with pytest.raises(sp.learning.Interrupted):
        train(net, stream, chosen, **options, stop=lambda: Counts.count >= 25)
    went_on = train(net, stream, chosen, **options, resume=True).model.state_dict()
    options["out"] = tmp_path / "b"
    at_once = train(net, stream, chosen, **options).model.state_dict()
    for name, tensor in at_once.items():
        torch.testing.assert_close(went_on[name], tensor, rtol=0, atol=0)
