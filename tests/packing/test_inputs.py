"""What a convolution multiplies its kernel with."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from superpose.packing.inputs import patches


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
        (nn.Conv2d(3, 5, (3, 2), dilation=2, padding=(1, 2)), (2, 3, 6, 5)),
        (nn.Conv2d(2, 4, 3, padding="same", padding_mode="reflect"), (2, 2, 5, 5)),
        (nn.Conv2d(2, 4, 3, padding="same"), (2, 2, 5, 5)),
        (nn.Conv3d(2, 4, 2, padding_mode="circular", padding=1), (1, 2, 3, 4, 3)),
    ],
)
def test_patches_times_the_kernel_are_the_convolution(layer, shape):
    x = torch.randn(shape)
    wanted = F.relu(layer(x) - 1e9) + layer(x) - layer.bias.view(1, -1, *[1] * (x.ndim - 2))
    found = patches(layer, x, seed=0)  # (groups, rows · places, features)
    kernel = layer.weight.flatten(1).unflatten(0, (layer.groups, -1))
    y = found @ kernel.mT
    expected = wanted.flatten(2).unflatten(1, (layer.groups, -1)).permute(1, 0, 3, 2).flatten(1, 2)
    torch.testing.assert_close(y, expected)


def test_few_places_of_a_large_image_are_drawn():
    layer = nn.Conv2d(3, 5, 3)
    assert patches(layer, torch.randn(2, 3, 40, 40), seed=0).shape == (1, 2 * 64, 27)
