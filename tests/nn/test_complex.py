"""Complex networks: forms of layers, batch norm, initial phases."""

import copy

import pytest
import torch
import torch.nn.functional as F
from checks import TASKS, randomise_private, rows_one_by_one
from customised import wrapped
from torch import nn
from torch.nn.utils import parametrizations

import superpose as sp
from superpose import functional
from superpose.nn.complex import complexify


def test_complex_networks():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2), nn.Dropout(0.5),
        nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip
    model = sp.superpose(net, "complex", tasks=4)
    x = torch.randn(len(TASKS), 3, 6, 6)
    output = model(x, task=1)
    assert output.dtype == torch.float32
    output.sum().backward()
    torch.optim.RMSprop(model.parameters()).step()
    model = randomise_private(model).eval()
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    assert model.state_dict()["0.weight"].dtype == torch.complex64
    fresh = sp.superpose(net, "complex").state_dict()["6.weight"]
    torch.testing.assert_close(fresh.abs(), net[6].weight.abs())
    assert fresh.imag.abs().mean() > 0.3 * fresh.abs().mean()


def test_complex_forms_keep_mode_precision_and_options():
    norm = nn.BatchNorm1d(6, eps=0.01, momentum=0.0).requires_grad_(False)
    net = nn.Sequential(
        nn.Linear(6, 6), norm, nn.BatchNorm1d(6, bias=False), nn.ReLU(), nn.Dropout(0.5)
    )
    for training in (True, False):
        model = sp.superpose(net.double().train(training), "complex", private="shared")
        modes = {m.training for n, m in model.named_modules() if "private" not in n}
        assert modes == {training}
        assert (model[1].eps, model[1].momentum) == (0.01, 0.0)
        assert not any(parameter.requires_grad for parameter in model[1].parameters())
        assert all(parameter.requires_grad for parameter in model[2].parameters())
        assert model[2].bias is None
        state = [t.dtype for n, t in model.state_dict().items() if "private" not in n]
        assert set(state) == {torch.float64, torch.complex128}
        assert model(torch.randn(5, 6, dtype=torch.float64), task=1).dtype == torch.float64
    meta = complexify(nn.BatchNorm2d(4, device="meta"), seed=0)
    assert {tensor.device.type for tensor in meta.state_dict().values()} == {"meta"}


def test_a_complex_batch_norm_averages_as_its_momentum_says():
    torch.manual_seed(0)
    batches = torch.randn(3, 20, 6, dtype=torch.complex128) + torch.arange(3).view(3, 1, 1)
    for momentum in (None, 0.0, 0.5):
        net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=momentum)).double()
        model = sp.superpose(net, "complex", tasks=2)
        with torch.no_grad():
            model[0].weight.copy_(torch.eye(6))
            model.private_tensors(1)["0.bias"].zero_()
        context = model.view(1).layers["0"].contexts["weight"]
        for batch in batches:
            model(batch, task=1)
        seen = [functional.complex_statistics(context.bind(b), eps=1e-5) for b in batches]
        for k, (name, start) in enumerate(
            (("mean", torch.zeros(6)), ("covariance", torch.tensor([0.5, 0.5, 0.0])))
        ):
            found = model.private_tensors(1)[f"1.running_{name}"]
            each = [start.to(found.dtype).expand(found.shape), *(one[k] for one in seen)]
            weights = {None: [0, 1 / 3, 1 / 3, 1 / 3], 0.0: [1, 0, 0, 0]}
            used = weights.get(momentum, [0.125, 0.125, 0.25, 0.5])
            expected = sum(weight * value for weight, value in zip(used, each, strict=True))
            torch.testing.assert_close(found, expected)
            untouched = model.private_tensors(0)[f"1.running_{name}"]
            torch.testing.assert_close(untouched, each[0])


def test_a_module_in_two_places_of_a_complex_network():
    torch.manual_seed(0)
    relu = nn.ReLU()
    net = nn.Sequential(nn.Linear(6, 8), relu, nn.Linear(8, 8), relu, nn.Linear(8, 4))
    apart = nn.Sequential(*(copy.deepcopy(module) for module in net))
    x = torch.randn(5, 6)
    model = sp.superpose(net, "complex", tasks=2)
    assert model[1] is model[3]
    assert torch.equal(model(x, task=1), sp.superpose(apart, "complex", tasks=2)(x, task=1))


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.relu = nn.ReLU()

    def forward(self, x, mask=None, extra=()):
        y = self.linear(x) if mask is None else self.linear(self.relu(x["x"])) * mask
        return {"y": y, "parts": (y[:1], [y[1:], *extra]), "count": len(y)}


def test_all_that_a_complex_network_takes_and_gives_is_real():
    torch.manual_seed(0)
    model, x = sp.superpose(Several(), "complex", tasks=2), torch.randn(5, 6)
    output = model(x, task=1)
    expected = sp.unsuperpose(model, 1)(x + 0j)
    assert output["count"] == 5
    assert output["y"].dtype == torch.float32
    torch.testing.assert_close(output["y"], expected["y"].real)
    torch.testing.assert_close(output["parts"][0], expected["parts"][0].real)
    torch.testing.assert_close(output["parts"][1][0], expected["parts"][1][0].real)
    nested = model({"x": x}, mask=torch.ones(4), extra=(x,), task=1)
    assert torch.equal(nested["parts"][1][1], x)
    torch.testing.assert_close(nested["y"], model(x.relu(), task=1)["y"])


def test_what_was_customised_has_no_complex_form():
    class Norm(nn.BatchNorm1d):
        def forward(self, input):
            return 2 * super().forward(input)

    for custom in (
        Norm(6),
        parametrizations.weight_norm(nn.Linear(6, 6)),
        wrapped(nn.Linear(6, 6)),
    ):
        with pytest.raises(sp.SuperposeError, match="'1' has no complex-valued form"):
            sp.superpose(nn.Sequential(nn.Linear(6, 6), custom), "complex")


def test_complex_weights_differ_by_seed_and_layer_and_frozen_ones_stay_frozen():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].load_state_dict(net[0].state_dict())
    net[0].weight.requires_grad_(False)
    one, two = (sp.superpose(net, "complex", seed=seed) for seed in (0, 1))
    for a, b in ((one[0], one[1]), (one[0], two[0])):
        assert (a.weight - b.weight).abs().max() > 0.01
        torch.testing.assert_close(a.weight.abs(), b.weight.abs())
    assert [layer.weight.requires_grad for layer in one] == [False, True]


def test_a_complex_number_is_dropped_as_a_whole():
    torch.manual_seed(0)
    dropped = complexify(nn.Dropout(0.5), seed=0)(torch.ones(1000) * (1 + 2j))
    torch.testing.assert_close(dropped.imag, 2 * dropped.real)
    assert 300 < (dropped == 0).sum() < 700


@pytest.mark.parametrize("function", [F.relu, F.gelu])
def test_functions_that_complex_numbers_do_not_have_are_told(function):
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.b(function(self.a(x)))

    model = sp.superpose(Functional(), "complex", tasks=2)
    with pytest.raises(sp.SuperposeError, match=r"use activations that are modules, .* 'phase'"):
        model(torch.randn(3, 4), task=1)
    with pytest.raises(RuntimeError, match="size of tensor a"):
        model(torch.randn(3, 5), task=1)


def test_complex_batch_norm_whitens():
    torch.manual_seed(0)
    real, imag = torch.randn(2, 4000, 3, dtype=torch.float64)
    x = torch.complex(3 * real + 1, 2 * real + imag - 2)
    mean, covariance = functional.complex_statistics(x, eps=0.0)
    y = functional.complex_batch_norm(x, mean, covariance, None, None)
    after_mean, after = functional.complex_statistics(y, eps=0.0)
    torch.testing.assert_close(after_mean, torch.zeros_like(after_mean))
    identity = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64).expand(3, 3)
    torch.testing.assert_close(after, identity)
    damped = functional.complex_statistics(x, eps=0.5)[1]
    added = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(damped, covariance + added)
    scale = torch.tensor([2.0, 3.0, 0.5], dtype=torch.float64).expand(3, 3)
    scaled = functional.complex_batch_norm(x, mean, covariance, scale, None)
    expected = torch.complex(2.0 * y.real + 0.5 * y.imag, 0.5 * y.real + 3.0 * y.imag)
    torch.testing.assert_close(scaled, expected)
    norm = sp.nn.ComplexBatchNorm(3)
    z = x.to(torch.complex64)
    for _ in range(200):
        norm(z)
    torch.testing.assert_close(norm.running_mean, mean.to(torch.complex64))
    torch.testing.assert_close(norm.running_covariance, covariance.float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.eval()(z), norm.train()(z), rtol=1e-3, atol=1e-3)
    line = 100 * torch.complex(real, 2 * real).to(torch.complex64)  # has no second direction
    assert norm(line).isfinite().all()
