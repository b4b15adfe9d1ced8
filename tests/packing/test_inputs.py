"""What layers multiply their weights with."""

import pytest
import torch
from packing.problems import Attending
from torch import nn

import superpose as sp
from superpose.packing.calibration import Rows
from superpose.packing.weights import in_order, linear_maps, product, reaching


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 5), (4, 3, 6)),
        (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
        (nn.Conv2d(3, 5, (3, 2), dilation=2, padding=(1, 2)), (2, 3, 6, 5)),
        (nn.Conv2d(2, 4, 3, padding="same", padding_mode="reflect"), (2, 2, 5, 5)),
        (nn.Conv2d(2, 4, 3, padding="same"), (2, 2, 5, 5)),
        (nn.Conv3d(2, 4, 2, padding_mode="circular", padding=1), (1, 2, 3, 4, 3)),
    ],
)
@pytest.mark.parametrize("conv", ["kernel", "channel"])
def test_inputs_times_the_weight_are_what_the_layer_gives(layer, shape, conv):
    x = torch.randn(shape)
    net = nn.Sequential(layer)
    packed = sp.superpose(net, "hadamard", tasks=2, conv=conv)
    (weight,) = linear_maps(packed)
    (met,) = reaching(net, weight, 1, Rows.of("a", x), {}, seed=0)
    y = product(met, weight.blocks(layer.weight), layer.bias)  # (groups, rows · places, outputs)
    wanted = layer(x) if isinstance(layer, nn.Linear) else layer(x).flatten(2).mT
    wanted = wanted.flatten(0, 1).unflatten(-1, (len(y), -1)).movedim(1, 0)
    torch.testing.assert_close(y.float(), wanted)
    bound = weight.bind(met.x.double(), 1)
    expected = product(met, weight.blocks(sp.unsuperpose(packed, 1)[0].weight), None)
    torch.testing.assert_close(
        bound @ weight.blocks(weight.stored).mT, expected, rtol=1e-4, atol=1e-5
    )


def test_few_places_of_a_large_image_are_drawn():
    net = nn.Sequential(nn.Conv2d(3, 5, 3))
    (weight,) = linear_maps(sp.superpose(net, tasks=1))
    (met,) = reaching(net, weight, 1, Rows.of("a", torch.randn(2, 3, 40, 40)), {}, seed=0)
    assert met.x.shape == (1, 2 * 64, 27)


def test_attention_comes_before_its_out_projection():
    net = Attending().eval()
    weights = linear_maps(sp.superpose(net, tasks=1))
    sides = torch.randn(4, 2, 24), torch.randn(4, 3, 24)
    ordered = in_order(net, weights[::-1], Rows.of("a", sides))
    names = [weight.full_name for weight, _ in ordered]
    assert names == ["attention.in_proj_weight", "attention.out_proj.weight", "head.weight"]
    assert [calls for _, calls in ordered] == [1, 1, 1]
    parts = reaching(net, ordered[0][0], 1, Rows.of("a", sides), {}, seed=0)
    assert [(met.outputs.start, met.outputs.stop) for met in parts] == [(0, 24), (24, 48), (48, 72)]
