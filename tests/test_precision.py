"""Tensors in fewer bits: a scale for each output, wherever the outputs are."""

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.precision import LARGEST, SCALE, reduced, restored

transformers = pytest.importorskip("transformers")


class Transposed(nn.Module):
    """As GPT-2 keeps its weights: (inputs, outputs). Some outputs are much smaller than others."""

    def __init__(self):
        super().__init__()
        self.layer = transformers.pytorch_utils.Conv1D(16, 12)
        with torch.no_grad():
            self.layer.weight.normal_().mul_(10.0 ** -torch.arange(16.0).remainder(4))

    def forward(self, x):
        return self.layer(x)


def unequal(weight, dim):
    """Outputs along `dim`, of which the second is a thousandth of the others."""
    with torch.no_grad():
        weight.normal_().select(dim, 1).mul_(1e-3)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 12, 5))  # (experts, inputs, outputs)
        unequal(self.weight, 2)

    def forward(self, x):
        return torch.einsum("bi,eio->beo", x, self.weight)


def transposed_convolution():
    net = nn.ConvTranspose1d(12, 4, 3)
    unequal(net.weight, 1)
    return net


@pytest.mark.parametrize("base", [None, True])
@pytest.mark.parametrize(
    ("make", "shape"),
    [(Transposed, (12,)), (Experts, (12,)), (transposed_convolution, (12, 7))],
    ids=["conv1d", "experts", "transposed"],
)
def test_each_output_keeps_two_digits(make, shape, base, tmp_path):
    sp.nn.register(Experts, {"weight": -2})
    torch.manual_seed(0)
    net, x = make(), torch.randn(50, *shape)
    model = sp.superpose(net, tasks=2, base=base)
    model.begin(*model.tasks)
    sp.save(model, tmp_path / "many.safetensors", dtype=torch.int8)
    loaded = sp.load(tmp_path / "many.safetensors", make())
    with torch.no_grad():
        wanted, found = model(x, task=1), loaded(x, task=1)
    outputs = -1 if len(shape) == 1 else 1
    error = (found - wanted).movedim(outputs, 0).flatten(1).norm(dim=1)
    size = wanted.movedim(outputs, 0).flatten(1).norm(dim=1)
    assert (error / size).max() < 0.02


def test_scales_are_those_of_rows_unless_it_is_said():
    tensor = torch.tensor([[1.0, -2.0], [40.0, 10.0], [0.0, 0.0]])
    by_row, by_column = (reduced({"w": tensor}, torch.int8, d) for d in ({}, {"w": (0,)}))
    assert by_row["w" + SCALE].tolist() == pytest.approx([2 / LARGEST, 40 / LARGEST, 0])
    assert by_column["w" + SCALE].tolist() == [pytest.approx([40 / LARGEST, 10 / LARGEST])]
    assert by_row["w"].tolist() == [[64, -127], [127, 32], [0, 0]]
    assert by_column["w"].tolist() == [[3, -25], [127, 127], [0, 0]]
    for some in (by_row, by_column):
        again = restored(some, {"w": torch.float32})["w"]
        torch.testing.assert_close(again, tensor, rtol=0, atol=40 / LARGEST / 2)


def test_channels_of_a_transposed_convolution_that_is_depthwise_have_a_scale_each(tmp_path):
    net = torch.nn.ConvTranspose2d(4, 4, 3, groups=4, bias=False)
    with torch.no_grad():
        net.weight.mul_(torch.tensor([1.0, 1e-1, 1e-2, 1e-4]).view(4, 1, 1, 1))
    model = sp.superpose(net, "binary", tasks=2)
    sp.save(model, tmp_path / "eight.safetensors", dtype=torch.int8)
    found = sp.load(tmp_path / "eight.safetensors", net).weight
    error = (found - model.weight).abs().amax((1, 2, 3)) / model.weight.abs().amax((1, 2, 3))
    assert error.max() < 0.01
