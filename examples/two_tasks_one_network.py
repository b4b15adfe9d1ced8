"""Learn two tasks that contradict each other, one after the other, in one set of weights.

The second task is the first with its labels turned round. A plain network forgets the first;
the same network in superposition keeps both. Runs in a few seconds.
"""

import torch
import torch.nn.functional as F
from torch import nn

import superpose as sp


def learn(model, x, y, **task):
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(150):
        optimiser.zero_grad()
        F.cross_entropy(model(x, **task), y).backward()
        optimiser.step()


def accuracy(model, x, y, **task):
    return (model(x, **task).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(500, 32)
    labels = {"plain": (x[:, 0] > 0).long(), "contrary": (x[:, 0] <= 0).long()}
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 2))

    model = sp.superpose(net, "hadamard", tasks=list(labels), seed=0)
    for task, y in labels.items():
        learn(net, x, y)
        learn(model, x, y, task=task)

    for task, y in labels.items():
        alone, together = accuracy(net, x, y), accuracy(model, x, y, task=task)
        print(f"{task:>9}: plain network {alone:.0%}, in superposition {together:.0%}")
    return accuracy(model, x, labels["plain"], task="plain"), accuracy(net, x, labels["plain"])


if __name__ == "__main__":
    main()
