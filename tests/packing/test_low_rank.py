"""Low-rank compression, which packing is compared with."""

import torch
from scripts import loaded
from torch import nn


def test_nets_of_low_rank_are_compressed_without_loss():
    low_rank = loaded("lowrank").low_rank
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 36, 20))
    for layer in (net[0], net[3]):
        few = torch.randn(len(layer.weight), 2) @ torch.randn(2, layer.weight[0].numel())
        layer.weight.data = 0.1 * few.view(layer.weight.shape)
    x = torch.randn(30, 3, 8, 8)
    small, numbers = low_rank(net, x, 6)
    torch.testing.assert_close(small(x), net(x), rtol=1e-4, atol=1e-4)
    ranks = (24 * 27 // (6 * 51), 20 * 864 // (6 * 884))
    assert numbers == ranks[0] * 51 + 24 + ranks[1] * 884 + 20
    assert (low_rank(net, x, 20)[0](x) - net(x)).abs().max() > 0.1
    beside, numbers = low_rank(net, x, 6, base=net)
    assert numbers == 0
    torch.testing.assert_close(beside(x), net(x))
