"""Convolutions: contexts of kernels and of channels."""

import pytest
import torch
from cases import real_family
from checks import TASKS, gradients, randomise_private, rows_one_by_one
from networks import LAYERS, build
from torch import nn

import superpose as sp


@pytest.mark.parametrize("family", ["binary", "phase", "hadamard", "permutation", "rotation"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv2d groups", "conv3d"])
def test_a_bound_kernel_is_a_convolution_of_bound_patches(name, family):
    """Law 2 for convolutions: C(k) acts on every patch (channel, position) that a kernel meets."""
    torch.manual_seed(0)
    net, _ = LAYERS[name]()
    model = sp.superpose(net.double(), family, tasks=3)
    kernel = sp.unsuperpose(model, 1).weight
    groups = net.groups
    bound = model.superposition
    for group in range(groups):
        layer = "weight" if groups == 1 else f"weight:{group}"
        key = sp.contexts.Key(bound.seed, layer, 1)
        patch = net.weight[0].numel()
        context = bound.family.context(key, patch)
        rows = slice(group * len(net.weight) // groups, (group + 1) * len(net.weight) // groups)
        found = kernel[rows].flatten(1)
        torch.testing.assert_close(
            found,
            net.weight[rows].flatten(1) @ context.bind(torch.eye(patch, dtype=torch.float64)).T,
        )


@pytest.mark.parametrize("family", ["binary", "hadamard"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d groups", "transposed groups", "transposed 3d"])
def test_channel_mode_of_every_convolution(name, family):
    model, x = build(name, family, conv="channel")
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    torch.testing.assert_close(sp.unsuperpose(model, 3)(x), model(x, task=3))


def test_channel_mode_binds_channels():
    torch.manual_seed(0)
    net = nn.Conv2d(4, 6, 3)
    model = sp.superpose(net, tasks=5, conv="channel", private="shared")
    x = torch.randn(len(TASKS), 4, 7, 7)
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    signs = sp.contexts.Binary().context(sp.contexts.Key(0, "weight", 3), 4).signs
    torch.testing.assert_close(model(x, task=3), net(x * signs.view(4, 1, 1)))
    torch.testing.assert_close(sp.unsuperpose(model, 3)(x), model(x, task=3))


@real_family
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": (3, 2), "stride": (1, 2), "padding": (2, 0), "dilation": (1, 2)},
        {"kernel_size": 1, "bias": False},
    ],
)
def test_patches_are_bound_where_there_are_fewer_than_outputs(options, family):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 40, **options)).double()
    model = randomise_private(sp.superpose(net, family, tasks=4))
    x = torch.randn(len(TASKS), 3, 6, 5, dtype=torch.float64)
    assert model[0].has_few_patches(x)
    mixed, each = model(x, task=TASKS), rows_one_by_one(model, TASKS, x)
    torch.testing.assert_close(mixed, each)
    found, expected = gradients(model, mixed), gradients(model, each)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
    larger = torch.randn(len(TASKS), 3, 16, 15, dtype=torch.float64)
    assert not model[0].has_few_patches(larger)
    torch.testing.assert_close(model(larger, task=TASKS), rows_one_by_one(model, TASKS, larger))
