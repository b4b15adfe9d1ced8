"""Fine-tune one pretrained network on task after task, and keep every fine-tune.

The network learns handwritten digits upright. Each task then turns the image, or mirrors it, and
calls the digits by other labels. A network that is fine-tuned on one task after the other forgets;
with `base=True` every task starts from the pretrained network and is kept. Runs in half a minute.
"""

import torch
import torch.nn.functional as F
from torch import nn

import superpose as sp
from superpose_lab.data import load

TURNS = {
    "left": lambda x: x.rot90(1, (-2, -1)),
    "over": lambda x: x.rot90(2, (-2, -1)),
    "right": lambda x: x.rot90(3, (-2, -1)),
    "mirrored": lambda x: x.flip(-1),
    "upside down": lambda x: x.flip(-2),
    "transposed": lambda x: x.mT,
}


def digits(part):
    images = torch.from_numpy(part.images).float() / 255
    return images, torch.from_numpy(part.labels).long()


def tasks():
    """Training and test rows of each task: images turned, labels given out anew."""
    data = load("digits")
    found = {}
    for number, (name, turn) in enumerate(TURNS.items(), 1):
        labels = torch.randperm(10, generator=torch.Generator().manual_seed(number))
        found[name] = [
            (turn(images), labels[y])
            for images, y in (digits(part) for part in (data.train, data.test))
        ]
    return digits(data.train), found


def learn(model, x, y, parameters, steps=200, **task):
    optimiser = torch.optim.Adam(parameters)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(x), (64,), generator=generator)
        optimiser.zero_grad()
        F.cross_entropy(model(x[rows], **task), y[rows]).backward()
        optimiser.step()
    model.eval()


@torch.no_grad()
def accuracy(model, x, y, **task):
    return (model(x, **task).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    (x, y), found = tasks()
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
        nn.Linear(128, 10),
    )  # fmt: skip
    learn(net, x, y, [{"params": net.parameters(), "lr": 1e-3}], steps=500)

    model = sp.superpose(net, "hadamard", tasks=list(found), base=True, rank=2, centre="task")
    print(model.summary())
    for name, (train, _) in found.items():
        learn(net, *train, [{"params": net.parameters(), "lr": 1e-3}])
        model.begin(name)
        learn(model, *train, model.parameter_groups(1e-3, rank_lr=1e-2), task=name)

    results = []
    for name, (_, test) in found.items():
        results.append((accuracy(net, *test), accuracy(model, *test, task=name)))
        forgot, kept = results[-1]
        print(f"{name:>12}: one network fine-tuned {forgot:.0%}, superposed {kept:.0%}")
    print(model.cost())
    means = [sum(column) / len(column) for column in zip(*results, strict=True)]
    return means[1], means[0]


if __name__ == "__main__":
    main()
