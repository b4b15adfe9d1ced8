"""With a base, a task is closed to W until it begins to learn: in every way of computing it."""

import copy

import pytest
import torch
from checks import replica
from networks import LAYERS, cnn, mlp
from torch import nn

import superpose as sp
from superpose.model import layers, private_state


def small_cnn(size):
    """At size 3 the second convolution takes patches of a mixed batch, at size 6 it does not."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.Flatten(),
        nn.Linear(16 * (size - 2) ** 2, 4),
    )  # fmt: skip


def attention():
    return nn.Sequential(nn.Linear(8, 8), LAYERS["attention"]()[0])


def crossed():
    return nn.Sequential(nn.Linear(8, 8), LAYERS["attention cross"]()[0])


def recurrent():
    return nn.Sequential(nn.Linear(6, 6), LAYERS["gru"]()[0])


NETWORKS = {
    "kernels": (lambda: small_cnn(6), (3, 6, 6), {}),
    "patches": (lambda: small_cnn(3), (3, 3, 3), {}),
    "channels": (lambda: small_cnn(6), (3, 6, 6), {"conv": "channel"}),
    "channels, centred": (lambda: small_cnn(6), (3, 6, 6), {"conv": "channel", "centre": "task"}),
    "low rank": (lambda: small_cnn(6), (3, 6, 6), {"rank": 1}),
    "attention": (attention, (3, 8), {}),
    "attention, crossed": (crossed, (3, 8), {"rank": 1}),
    "recurrent": (recurrent, (3, 6), {"centre": "rows"}),
    "learned, attention": (attention, (3, 8), {"learnable": True}),
    "learned, recurrent": (recurrent, (3, 6), {"learnable": True}),
    "learned, kernels": (lambda: small_cnn(6), (3, 6, 6), {"learnable": True}),
}


def first_learned(net, x, tasks=3, **options):
    """A model of which one task has learned, and W holds something."""
    model = sp.superpose(net, "phase", tasks=tasks, base=True, **options).train()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(3):
        optimiser.zero_grad()
        (model(x, task=0) - 1).square().mean().backward()
        optimiser.step()
    model.zero_grad()
    return model.train(net.training)


WAYS = [
    (name, way)
    for name in NETWORKS
    for way in ("direct", "mapped", "grouped")
    if "recurrent" not in name or way != "mapped"  # PyTorch has no rule for it
]


@pytest.mark.parametrize(("name", "mixed"), WAYS)
def test_gradients_of_a_mixed_batch_are_those_of_its_rows(name, mixed):
    torch.manual_seed(0)
    make, shape, options = NETWORKS[name]
    x, rows = torch.randn(4, *shape, dtype=torch.float64), [0, 1, 2, 1]
    model = first_learned(make().double(), x, mixed=mixed, **options).eval()
    alone = copy.deepcopy(model)
    model(x, task=rows).square().sum().backward()
    each = [alone(x[i : i + 1], task=task) for i, task in enumerate(rows)]
    torch.cat(each).square().sum().backward()
    for (path, found), expected in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert (found.grad is None) == (expected.grad is None), path
        if found.grad is not None:
            torch.testing.assert_close(found.grad, expected.grad, msg=path)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gradient_through_a_map_begins_a_task(bias):
    net, x = mlp(bias=bias), torch.randn(6, 12)
    model = first_learned(net, x)
    mapped = torch.vmap(lambda row: model(row[None], task=1)[0])(x)
    torch.testing.assert_close(mapped, net(x))
    mapped.sum().backward()
    assert not torch.equal(model(x, task=1), net(x))
    assert torch.equal(model(x, task=2), net(x))


def test_gradients_of_functions_leave_the_model_alone():
    """What is learned by `torch.func` is in the tensors that are given to a pass, and not here."""
    net, x = mlp(), torch.randn(6, 12)
    model = first_learned(net, x)
    slopes = torch.func.jacrev(lambda x: model(x, task=1).sum())(x)
    torch.testing.assert_close(slopes, torch.func.jacrev(lambda x: net(x).sum())(x))
    given = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}

    def loss(given):
        y = torch.func.functional_call(model, given, (x,), {"task": 1})
        return (y - 1).square().mean()

    losses = []
    for _ in range(4):
        gradients, value = torch.func.grad_and_value(loss)(given)
        given = {name: tensor - 0.1 * gradients[name] for name, tensor in given.items()}
        losses.append(value.item())
    assert losses[0] == pytest.approx((net(x) - 1).square().mean().item())
    assert losses[-1] < 0.5 * losses[0]
    assert torch.equal(model(x, task=1), net(x))


def test_a_task_whose_own_numbers_are_taken_back_is_the_base():
    net, x = mlp(), torch.randn(6, 12)
    model = first_learned(net, x)
    bias = model.private_tensors(1)["layers.5.bias"]
    before = bias.detach().clone()
    for value in (before + 1, before):
        with torch.no_grad():
            bias.copy_(value)
        assert torch.equal(model(x, task=1), net(x)) == torch.equal(value, before)


@pytest.mark.parametrize("make", [mlp, cnn])
def test_replicas_know_which_tasks_have_begun(make):
    net = make().eval()
    x = torch.randn(4, 12) if make is mlp else torch.randn(4, 3, 6, 6)
    model = first_learned(net, x)
    twin = replica(model.eval())
    assert torch.equal(twin(x, task=1), net(x))
    assert torch.equal(twin(x, task=0), model(x, task=0))
    replica(model.train())(x, task=1).sum().backward()
    model.eval()
    assert not torch.equal(model(x, task=1), net(x))
    assert torch.equal(replica(model)(x, task=2), net(x))


def test_a_model_without_memory_has_not_begun():
    model = sp.superpose(mlp().to("meta"), tasks=2, base=True, centre="task", rank=1)
    assert model(torch.empty(4, 12, device="meta"), task=1).shape == (4, 5)
    assert not private_state(model).has_begun(1)


def test_a_task_with_nothing_of_its_own_has_begun_in_states_and_files_too(tmp_path):
    """The mark alone tells it."""
    net, x = mlp(bias=False), torch.randn(6, 12)
    model = first_learned(net, x)
    sp.save(model, tmp_path / "many.safetensors", dtype=torch.int8)
    sp.save(model, tmp_path / "whole.safetensors")
    other = sp.superpose(mlp(bias=False), "phase", tasks=3, base=True)
    other.load_state_dict(model.state_dict())
    for again in (other, sp.load(tmp_path / "whole.safetensors", net)):
        for task in range(3):
            assert torch.equal(again(x, task=task), model(x, task=task))
    rounded = sp.load(tmp_path / "many.safetensors", net)
    torch.testing.assert_close(rounded(x, task=0), model(x, task=0), rtol=0.05, atol=0.02)
    assert model.cost().private == 1


def broken(model):
    """The same model, whose shared weights are those of a training that went wrong."""
    with torch.no_grad():
        for layer in layers(model):
            for name in layer.contexts:
                flat = layer.stored(name).view(-1)
                flat[::3], flat[1::3] = torch.nan, -torch.inf
    return model


@pytest.mark.parametrize(("name", "mixed"), WAYS)
def test_weights_that_are_not_finite_do_not_reach_a_task_that_has_not_begun(name, mixed):
    """Not its outputs, nor the gradient of what it is given, or has for itself."""
    torch.manual_seed(0)
    make, shape, options = NETWORKS[name]
    net, x = make().double().eval(), torch.randn(4, *shape, dtype=torch.float64)
    model = first_learned(net, x, mixed=mixed, **options).eval()
    model(x, task=[0, 1, 2, 1])  # which way is right is found out with weights that are
    expected = net(x)
    broken(model)
    assert not model(x, task=0).isfinite().any()
    with torch.no_grad():
        frozen = copy.deepcopy(net).requires_grad_(False)  # as a base is: PyTorch's products differ
        assert torch.equal(model(x, task=1), frozen(x))
        rows = model(x, task=[0, 1, 2, 1])
        torch.testing.assert_close(rows[1:], expected[1:])
        assert not rows[0].isfinite().any()
    assert not model(x, task=[0, 1, 2, 1])[0].isfinite().any()  # nor is it hidden from others
    x.requires_grad_()
    found = model(x, task=[1, 2, 1, 2])
    torch.testing.assert_close(found, expected)
    (slope,) = torch.autograd.grad(net(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], slope)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler looks at
def test_weights_that_are_not_finite_do_not_reach_it_compiled_or_exported():
    torch._dynamo.reset()
    net, x = mlp().eval(), torch.randn(6, 12)
    model = first_learned(net, x, centre="task", rank=1).eval()
    rows = torch.tensor([1, 2, 2, 1, 1, 2])
    with torch.no_grad():
        model(x, task=rows)  # finds the way, by numbers that are finite
        broken(model)
        compiled = torch.compile(model, backend="eager")
        for given in (1, rows):
            torch.testing.assert_close(compiled(x, task=given), net(x))
        program = sp.exportable(model)
        for given in (torch.tensor(1), rows):
            exported = torch.export.export(program, (x,), {"task": given}).module()
            torch.testing.assert_close(exported(x, task=given), net(x))
        assert not exported(x, task=torch.zeros_like(rows)).isfinite().any()


def test_a_gradient_that_nothing_learns_by_does_not_begin_a_task():
    net, x = mlp().eval(), torch.randn(6, 12)
    model = first_learned(net, x).eval().requires_grad_(False)
    given = x.clone().requires_grad_()
    model(given, task=1).sum().backward()
    assert given.grad is not None
    torch.testing.assert_close(model(x, task=1), net(x), rtol=0, atol=0)
    model.train().requires_grad_(True)
    model(x, task=1).sum().backward()
    assert not torch.allclose(model.eval()(x, task=1), net(x))


def test_a_saliency_map_does_not_begin_a_task():
    net, x = mlp().eval(), torch.randn(6, 12)
    model = first_learned(net, x).eval()
    given = x.clone().requires_grad_()
    model(given, task=1).sum().backward()
    assert given.grad is not None
    torch.testing.assert_close(model(x, task=1), net(x), rtol=0, atol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_a_task_that_learns_in_evaluation_mode_begins(bias):
    """As people do to keep batch norms and dropout still."""
    net, x = mlp(bias=bias).eval(), torch.randn(6, 12)
    model = first_learned(net, x).eval()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (model(x, task=1) - 1).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert private_state(model).has_begun(1)
    assert losses[-1] < 0.3 * losses[0]


class Scaled(nn.Module):
    """A norm whose scales, all 1, are too coarse to change at small learning rates."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.RMSNorm(12), nn.Linear(12, 5, bias=False)

    def forward(self, x):
        return self.layer(self.norm(x))


@pytest.mark.parametrize("optimised", ["all", "shared", "still"])
def test_a_step_in_evaluation_mode_begins_a_task_whose_own_tensors_stay(optimised):
    net, x = Scaled().bfloat16().eval(), torch.randn(6, 12).bfloat16()
    model = sp.superpose(net, tasks=2, base=True)
    own = [p for task in model.tasks for p in model.private_parameters(task)]
    shared = [p for p in model.parameters() if p.requires_grad and all(p is not o for o in own)]
    rate = 0.0 if optimised == "still" else 1e-4
    groups = [{"params": shared, "lr": 1e-2}]
    optimiser = torch.optim.SGD(groups if optimised == "shared" else
                                [*groups, {"params": own, "lr": rate}])  # fmt: skip
    for _ in range(30):
        optimiser.zero_grad()
        loss = (model(x, task=1) - 1).square().mean()
        loss.backward()
        optimiser.step()
    assert private_state(model).has_begun(1)
    assert loss < 0.9 * (net(x) - 1).square().mean()
    assert torch.equal(model(x, task=0), net(x))


def test_a_step_of_another_optimiser_does_not_begin_a_task():
    net, x = mlp().eval(), torch.randn(6, 12)
    model = first_learned(net, x).eval()
    other = nn.Linear(3, 1)
    optimiser = torch.optim.SGD(other.parameters(), 0.1)
    model(x, task=1).sum().backward()  # a saliency map
    other(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    torch.testing.assert_close(model(x, task=1), net(x), rtol=0, atol=0)


def test_a_base_stays_frozen():
    net, x = mlp(), torch.randn(6, 12)
    model = sp.superpose(net, tasks=2, base=True, skip=["layers.5"])
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert model.requires_grad_(False) is model
    assert not any(p.requires_grad for p in model.parameters())
    model.requires_grad_(True)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == learning
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    with pytest.raises(sp.SuperposeError, match=r"layers\.1\.weight is part of the base"):
        model(x, task=0)
    with pytest.raises(sp.SuperposeError, match=r"layers\.1\.weight is part of the base"):
        model.eval()(x, task=0)
    with torch.no_grad():
        assert model(x, task=0).shape == (6, 5)


@pytest.mark.parametrize("way", ["direct", "mapped", "grouped"])
@pytest.mark.parametrize("rank", [0, 1])
def test_rows_that_the_loss_leaves_out_do_not_begin_their_task(way, rank):
    net, x = mlp().eval(), torch.randn(6, 12)
    model = first_learned(net, x, rank=rank)
    model.mixed = way
    tasks, labels = [0, 0, 1, 1, 2, 2], torch.tensor([0, 1, -100, -100, 1, 0])
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    nn.functional.cross_entropy(model(x, task=tasks), labels).backward()
    optimiser.step()
    model.eval()
    torch.testing.assert_close(model(x, task=1), net(x), rtol=0, atol=0)
    assert not torch.allclose(model(x, task=2), net(x))


def test_the_first_gradient_of_a_task_begins_it_while_nothing_is_stored_yet():
    net, x = mlp(), torch.randn(6, 12)
    model = sp.superpose(net, tasks=2, base=True, private_layers=[])
    nn.functional.cross_entropy(model(x, task=1), torch.zeros(6, dtype=torch.long)).backward()
    assert private_state(model).has_begun(1)
    assert not private_state(model).has_begun(0)
