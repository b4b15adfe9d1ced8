"""Contexts are a group: multiply them, raise them to a power, mix their phases."""

import torch
from torch import nn

import superpose as sp
from superpose.contexts import Binary, Hadamard, Key, LocalMix, Phase, mix


def main():
    day, night = (Phase().context(Key(seed=0, layer="layer", task=k), dim=512) for k in (0, 1))
    x = torch.randn(512, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def likeness(a, b):
        return (torch.dot(a.bind(x), b.bind(x)) / x.square().sum()).item()

    print("day and night:", round(likeness(day, night), 2))
    for share in (0.25, 0.5, 0.75):
        dusk = mix([day, night], [1 - share, share])
        like = [round(likeness(end, dusk), 2) for end in (day, night)]
        print(f"{share:.0%} of the way:", *like)
    undone = (day * night) * (day * night) ** -1
    print("a product times its inverse:", torch.allclose(undone.bind(x), x))

    net = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 4))
    slowly = sp.superpose(net, LocalMix(Phase(), window=1), tasks=1000)  # neighbours share
    both = sp.superpose(net, Hadamard() * Binary(), tasks=3)
    batch = torch.randn(2, 512)
    print(slowly(batch, task=[500, 501]).shape, both(batch, task=1).shape)
    return undone.bind(x), x


if __name__ == "__main__":
    main()
