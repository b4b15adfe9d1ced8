"""LoRA adapters against W₀ + s · B A, and against each other."""

import copy

import pytest
import torch
from torch import nn

import superpose as sp
from superpose_lab.networks.adapters import Adapted


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.Flatten(),
        nn.Linear(24, 10),
        nn.ReLU(),
        nn.Linear(10, 4),
    )


X = torch.linspace(-1, 1, 5 * 3 * 8 * 8).view(5, 3, 8, 8).sin()


def moved(model: Adapted) -> Adapted:
    torch.manual_seed(1)
    with torch.no_grad():
        for own in model.learned:
            own.add_(0.1 * torch.randn_like(own))
    return model


def test_every_task_starts_as_the_network():
    net = network().eval()
    model = Adapted(net, 3, rank=2).eval()
    for task in range(3):
        assert model(X, task=task).equal(net(X))


@pytest.mark.parametrize("alpha", [8.0, 1.0])
def test_a_task_is_the_network_with_its_weights_plus_low_rank(alpha):
    net = network().eval()
    model = moved(Adapted(net, 3, rank=2, alpha=alpha).eval())
    own, dense = dict(model.named_of(1)), copy.deepcopy(net)
    with torch.no_grad():
        for layer in ("0", "5", "7"):
            a, b = own[f"{layer}.a"], own[f"{layer}.b"]
            dense[int(layer)].weight += alpha / 2 * torch.einsum("or,ri...->oi...", b, a)
            dense[int(layer)].bias.copy_(own[f"{layer}.layer.bias"])
        dense[1].weight.copy_(own["1.weight"])
        dense[1].bias.copy_(own["1.bias"])
        dense[3].bias.copy_(own["3.bias"])
    torch.testing.assert_close(model(X, task=1), dense(X))
    assert not model(X, task=2).allclose(model(X, task=1), atol=1e-2)


def test_learning_moves_one_task_alone():
    net = network()
    model = Adapted(net, 3, rank=2)
    before = copy.deepcopy(model.state_dict())
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    model(X, task=1).square().sum().backward()
    optimiser.step()
    changed = {
        name for name, tensor in model.state_dict().items() if not tensor.equal(before[name])
    }
    changed.discard("net.1.num_batches_tracked")
    assert changed == {"learned.1", "statistics.1.0", "statistics.1.1"}


def test_norms_that_are_frozen_stay_and_cost_nothing():
    model = Adapted(network(), 2, rank=1, small=False)
    names = [name for name, _ in model.named_of(0)]
    assert names == [f"{layer}.{part}" for layer in (0, 5, 7) for part in "ab"]
    before = copy.deepcopy(model.net.state_dict())
    model.train()(X, task=0)
    assert all(tensor.equal(before[name]) for name, tensor in model.net.state_dict().items())
    assert not list(model.statistics[0].buffers())


def test_own_layers_have_no_adapter_and_belong_to_the_task():
    names = [name for name, _ in Adapted(network(), 2, rank=1, private=["7"]).named_of(0)]
    assert "7.weight" in names
    assert not any(name.startswith("7.") and name.endswith((".a", ".b")) for name in names)


def test_tasks_start_with_other_directions_and_seeds_too():
    net = network()
    one, other = Adapted(net, 2, rank=2, seed=0), Adapted(net, 2, rank=2, seed=1)
    assert not one.learned[0].equal(one.learned[1])
    assert not one.learned[0].equal(other.learned[0])
    assert one.learned[1].equal(Adapted(net, 9, rank=2, seed=0).learned[1])


def test_adapters_learn_as_those_of_peft():
    peft = pytest.importorskip("peft")
    net = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(96, 4))
    ours = Adapted(net, 2, rank=3, small=False)
    config = peft.LoraConfig(r=3, target_modules=["0", "2"])
    theirs = peft.get_peft_model(copy.deepcopy(net), config)
    with torch.no_grad():
        for layer in "02":
            start = dict(ours.named_of(1))[f"{layer}.a"]
            theirs.get_parameter(f"base_model.model.{layer}.lora_A.default.weight").copy_(start)

    def learned(model, **options):
        trained = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.Adam(trained, 1e-2)
        for _ in range(20):
            optimiser.zero_grad()
            model(X, **options).square().mean().backward()
            optimiser.step()
        return model(X, **options)

    torch.testing.assert_close(learned(ours, task=1), learned(theirs))


def test_a_network_without_layers_to_adapt_is_refused():
    with pytest.raises(sp.SuperposeError, match="no layer of the network learns"):
        Adapted(nn.Sequential(nn.ReLU()), 2, rank=1)
