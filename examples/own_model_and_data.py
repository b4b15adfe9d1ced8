"""Your own model and data, task after task: with and without superposition."""

import torch
from torch import nn

import superpose as sp


def make_task(task):
    """The same points, but each task asks about another direction."""
    generator = torch.Generator().manual_seed(task)
    direction = torch.randn(20, generator=generator)
    x = torch.randn(2000, 20, generator=generator)
    y = (x @ direction > 0).long()
    return x[:1000], y[:1000], x[1000:], y[1000:]  # for training, for testing


def main():
    tasks = [make_task(task) for task in range(5)]
    stream = sp.learning.TensorStream(tasks, period=200, batch_size=64)
    found = {}
    for method in ("standard", "binary", "hadamard+ewc-online"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 2))
        outcome = sp.learning.train(net, stream, method, lr=1e-3, display=sp.learning.Quiet())
        final = ", ".join(f"{100 * accuracy:.0f}" for accuracy in outcome.result["final"])
        print(f"{method}: accuracy on each task after all five, in %: {final}")
        found[method] = outcome.result["mean_all"]
    return found


if __name__ == "__main__":
    main()
