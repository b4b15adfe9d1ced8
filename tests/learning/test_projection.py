"""Projection: what it does to a gradient, and what that keeps."""

import copy

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.errors import SuperposeError
from superpose.learning import Projection, Quiet, TensorStream, train


def linear():
    return nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))


def convolution():
    return nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))


def rows(net, count=40):
    torch.manual_seed(1)
    return torch.randn(count, 4, 4, 4) if isinstance(net[0], nn.Conv2d) else torch.randn(count, 24)


def after(model, x, strength, tasks=(0, 1)):
    """A projection that has seen these tasks."""
    projection = Projection(model, strength, samples=len(x))
    model.begin(*tasks)
    for task in tasks:
        projection.end(task, x.split(8))
    return projection


def gradients(model, x, task, guard=None):
    model.zero_grad()
    model(x, task=task).square().sum().backward()
    if guard is not None:
        guard.after_backward()
    named = model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def bound_inputs(layer, x, task):
    """What the first layer's weight is multiplied with, (groups, rows, inputs)."""
    if isinstance(layer, nn.Conv2d):
        patches = nn.functional.unfold(x, 3).mT.reshape(-1, 2, 18)  # (rows · places, groups, 18)
        context = layer.bound["weight"].context.derive(task).by_row()
        return context.bind(patches.transpose(0, 1))
    context = layer.bound["weight"].context.derive(task)
    return context.bind(x).unsqueeze(0)


@pytest.mark.parametrize("net", [linear(), convolution()], ids=["linear", "convolution"])
@pytest.mark.parametrize("family", ["hadamard", "binary", "identity", "rotation"])
def test_a_gradient_is_multiplied_by_the_inverse_of_what_is_needed(net, family):
    model = sp.superpose(net, family, tasks=3, private="none").double()
    x = rows(net).double()
    plain = gradients(model, x, 2)
    projection = after(model, x, strength=3.0)
    found = gradients(model, x, 2, projection)

    first = model[0]
    needed = 0
    for task in (0, 1):
        bound = bound_inputs(first, x, task)
        moments = bound.mT @ bound
        needed = needed + moments / moments.diagonal(dim1=-2, dim2=-1).mean()
    guide = torch.linalg.inv(torch.eye(needed.shape[-1]).double() + 3.0 * needed)
    matrix = plain["0.weight"].reshape(needed.shape[0], -1, needed.shape[-1])
    expected = (matrix @ guide).reshape(plain["0.weight"].shape)
    torch.testing.assert_close(found["0.weight"], expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found["0.weight"], plain["0.weight"], rtol=0.1)


@pytest.mark.parametrize("options", [{"private": "none"}, {"base": True}], ids=str)
def test_rows_of_many_tasks_are_guided_as_each_by_itself(options):
    model = sp.superpose(linear(), "hadamard", tasks=3, **options).double()
    x = rows(model, 6).double()
    guard, tasks = after(model, x, strength=3.0), [2, 0, 1, 2, 2, 0]
    model.begin(2)
    mixed = gradients(model, x, tasks, guard)
    each = [gradients(model, x[i : i + 1], task, guard) for i, task in enumerate(tasks)]
    for name in ("0.weight", "2.weight"):
        torch.testing.assert_close(mixed[name], sum(one[name] for one in each))


@pytest.mark.parametrize("net", [linear(), convolution()], ids=["linear", "convolution"])
def test_what_is_needed_is_centred_as_the_inputs_are(net):
    model = sp.superpose(net, "hadamard", tasks=3, centre="task").eval()
    x, alone = rows(net), copy.deepcopy(model)
    mean = model.private_tensors(0)["0.weight_mean"].uniform_(1, 3)
    expected = after(alone, x - mean.view(-1, *[1] * (x.ndim - 2)), strength=3.0, tasks=[0])
    found = after(model, x, strength=3.0, tasks=[0])
    own, wanted = found.guides["0.weight"], expected.guides["0.weight"]
    torch.testing.assert_close(own, wanted)
    assert (own - after(alone, x, 3.0, [0]).guides["0.weight"]).abs().max() > 1e-2


def test_the_pace_is_the_root_of_the_room_that_is_left():
    model = sp.superpose(linear(), "hadamard", tasks=3, private="none").double()
    projection = after(model, rows(model).double(), strength=3.0)
    sizes = [24 * 16, 16 * 3]
    room = [float(guide[0].trace()) / guide.shape[-1] for guide in projection.guides.values()]
    shares = [size * share**0.5 for size, share in zip(sizes, room, strict=True)]
    assert projection.pace == pytest.approx(sum(shares) / sum(sizes))
    assert 0.1 < projection.pace < 0.9


def test_no_more_rows_are_read_than_it_was_told():
    model = sp.superpose(linear(), "hadamard", tasks=2)
    dealt = iter(rows(model).split(8))
    Projection(model, samples=16).end(0, dealt)
    assert len(list(dealt)) == 5 - 2


def test_a_strong_projection_leaves_alone_what_a_task_does_with_its_inputs():
    torch.manual_seed(0)
    model = sp.superpose(nn.Sequential(nn.Linear(64, 3, bias=False)), "hadamard", tasks=2)
    first = torch.randn(50, 4) @ torch.randn(4, 64)  # four directions of 64
    second = torch.randn(50, 64)
    moved = {}
    for strength in (0.0, 1e6):
        own = copy.deepcopy(model)
        guard = after(own, first, strength, tasks=(0,))
        before = own(first, task=0).detach(), own(second, task=1).detach()
        optimiser = torch.optim.SGD(own.parameters(), lr=1e-3)
        (own(second, task=1) - 1).square().sum().backward()
        guard.after_backward()
        optimiser.step()
        now = own(first, task=0), own(second, task=1)
        moved[strength] = [(a - b).norm().item() for a, b in zip(now, before, strict=True)]
    (old, new), (kept, learned) = moved[0.0], moved[1e6]
    assert kept < 1e-3 * old, "the first task is as it was"
    assert learned > 0.5 * new, "and the second can still learn"


def test_what_it_keeps_does_not_grow_with_tasks_and_comes_back():
    model = sp.superpose(linear(), "binary", tasks=4, private="none")
    x = rows(model)
    one, four = after(model, x, 1.0, (0,)), after(model, x, 1.0, (0, 1, 2, 3))
    assert one.numbers == four.numbers == 2 * (24**2 + 16**2)
    guided, again = gradients(model, x, 2, four), Projection(model, 1.0)
    again.load_state_dict(four.state_dict())
    assert again.pace == four.pace < one.pace < 1
    for name, gradient in gradients(model, x, 2, again).items():
        assert torch.equal(gradient, guided[name])
    again.load_state_dict(Projection(model).state_dict())
    assert (again.pace, again.guides) == (1.0, {})


def test_it_is_learned_with_by_its_name():
    x = torch.randn(64, 24)
    y = (x[:, 0] > 0).long()
    stream = TensorStream([(x, y, x, y), (-x, y, -x, y)], period=20, batch_size=16)
    outcome = train(linear(), stream, "hadamard+projection", lr=1e-3, display=Quiet())
    assert outcome.result["numbers"]["penalty"] == 2 * (24**2 + 16**2)
    assert not any(module._forward_pre_hooks for module in outcome.model.modules())


@pytest.mark.parametrize("name", ["projection", "complex+projection"])
def test_it_says_which_networks_it_is_for(name):
    x, y = torch.randn(8, 24), torch.zeros(8).long()
    stream = TensorStream([(x, y, x, y)] * 2, period=2, batch_size=4)
    with pytest.raises(SuperposeError, match="use it with a family"):
        train(linear(), stream, name, display=Quiet())


def test_a_network_that_is_one_layer_has_to_be_put_inside_another():
    with pytest.raises(SuperposeError, match="inside a module of its own"):
        Projection(sp.superpose(nn.Linear(4, 2), tasks=2))


@pytest.mark.parametrize("options", [{"strength": -1}, {"samples": 0}])
def test_options_have_to_make_sense(options):
    with pytest.raises(SuperposeError, match="at least"):
        Projection(sp.superpose(linear(), tasks=2), **options)


class Attending(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.attention, self.cross = nn.MultiheadAttention(8, 2, batch_first=True), cross

    def forward(self, x):
        other = x.flip(1) * 2 if self.cross else x
        return self.attention(x, other, other)[0].mean(1)


@pytest.mark.parametrize("cross", [False, True])
def test_attention_is_guided_by_all_that_it_is_given(cross):
    torch.manual_seed(0)
    model = sp.superpose(Attending(cross), "hadamard", tasks=2)
    x = torch.randn(6, 5, 8)
    guard = Projection(model, 3.0)
    assert list(guard.weights) == ["attention.in_proj_weight"]
    plain = gradients(model, x, 1)["attention.in_proj_weight"]
    guard.end(0, [x])
    guided = gradients(model, x, 1, guard)["attention.in_proj_weight"]
    context = model.attention.bound["in_proj_weight"].context.derive(0)
    bound = context.bind(torch.cat([x, x.flip(1) * 2]) if cross else x).flatten(0, 1)
    weights = torch.cat([torch.ones(30), torch.full((30,), 2.0)]) if cross else torch.ones(30)
    needed = bound.T @ (weights.unsqueeze(1) * bound)  # keys and values are given the same
    guide = torch.linalg.inv(torch.eye(8) + 3 * needed / needed.diagonal().mean())
    torch.testing.assert_close(guided, plain @ guide, rtol=1e-3, atol=1e-5)


def test_with_the_identity_it_is_owm():
    """P = (I + s Λ)⁻¹ is I − A (AᵀA + α I)⁻¹ Aᵀ of Zeng et al., by Woodbury."""
    torch.manual_seed(0)
    model = sp.superpose(nn.Sequential(nn.Linear(12, 3, bias=False)), "identity", tasks=2)
    x = torch.randn(5, 12).double()
    guard = after(model, x.float(), strength=2.0, tasks=(0,))
    a = x.T * (2.0 / x.square().sum(0).mean()).sqrt()
    owm = torch.eye(12) - a @ torch.linalg.inv(a.T @ a + torch.eye(5)) @ a.T
    torch.testing.assert_close(guard.guides["0.weight"][0], owm.float(), rtol=1e-4, atol=1e-5)
