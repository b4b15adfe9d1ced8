"""Store six trained networks in the weights of one, and get each of them back.

Each network was trained by itself, on its own task. The sum of equation 1 loses them; weights that
are solved for on a few hundred unlabelled inputs keep them. Runs in a few seconds.
"""

import torch
import torch.nn.functional as F
from torch import nn

import superpose as sp

NAMES = ("red", "orange", "yellow", "green", "blue", "violet")


def task(seed):
    """Inputs of 12 dimensions inside 64, and which of 4 directions each is nearest to."""
    generator = torch.Generator().manual_seed(seed)
    inside = torch.randn(12, 64, generator=generator) / 12**0.5
    x = torch.randn(1000, 12, generator=generator)
    return x @ inside, (x @ torch.randn(12, 4, generator=generator)).argmax(1)


def trained(x, y):
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(150):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net


def accuracy(model, x, y, **task):
    return (model(x, **task).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = {name: task(seed) for seed, name in enumerate(NAMES)}
    nets = {name: trained(x[:800], y[:800]) for name, (x, y) in data.items()}
    inputs = {name: x[:800] for name, (x, _) in data.items()}

    print(sp.plan(nets["red"], tasks=6, inputs=inputs["red"]))
    packed = sp.pack(nets, "binary", calibration=inputs)
    summed = sp.pack(nets, "binary", method="sum")
    found = {}
    for name, (x, y) in data.items():
        x, y = x[800:], y[800:]
        alone, together = accuracy(nets[name], x, y), accuracy(packed, x, y, task=name)
        found[name] = alone, together
        lost = accuracy(summed, x, y, task=name)
        print(f"{name:>6}: alone {alone:.0%}, packed {together:.0%}, plain sum {lost:.0%}")

    violet = sp.unpack(packed, "violet")  # a plain nn.Sequential again
    assert torch.allclose(violet(x), packed(x, task="violet"), atol=1e-4)
    print(packed.cost())
    return found


if __name__ == "__main__":
    main()
