"""Find the task of each input instead of being told, and notice inputs of no task.

Three tasks see inputs of different kinds. Each keeps a mean and a variance of its inputs while it
learns, and later the model finds the task of every row by itself. Runs in a few seconds.
"""

import torch
import torch.nn.functional as F
from torch import nn

import superpose as sp


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 2))
    model = sp.superpose(net, "hadamard", tasks=["red", "green", "blue"], recognise=True)
    kinds = {task: torch.randn(32) for task in model.tasks}
    data = {task: torch.randn(500, 32) + kind for task, kind in kinds.items()}

    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for place, (task, x) in enumerate(data.items()):
        y = (x[:, place] > kinds[task][place]).long()  # another input matters in each task
        for _ in range(100):
            optimiser.zero_grad()
            F.cross_entropy(model(x, task=task), y).backward()
            optimiser.step()

    names = [task for task in data for _ in range(100)]
    rows = torch.cat([torch.randn(100, 32) + kinds[task] for task in data])
    found = model.recognise(rows)
    right = sum(map(str.__eq__, found.task, names)) / len(names)
    strange = model.recognise(torch.randn(100, 32) + 2 * torch.randn(32))
    noticed = (~strange.known).float().mean().item()
    logits = model(rows, task=found.task)
    print(f"{right:.0%} of {len(logits)} rows: their task was found")
    print(f"{noticed:.0%} of 100 rows of another kind: known to be of no task")
    return right, noticed


if __name__ == "__main__":
    main()
