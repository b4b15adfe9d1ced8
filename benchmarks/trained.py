"""Networks to pack: each trained by itself, once, and kept as a file."""

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import superpose as sp
from superpose.data import Permuting, Stream, load

FAST = 2048  # from this width on nets are trained with bfloat16 products, which takes half as long


def permuting(tasks: int) -> Permuting:
    return Permuting(load("mnist"), tasks=tasks)


def permuted_mnist_net(stream: Permuting, units: int, task: int, directory: Path) -> nn.Module:
    """Two hidden layers, no bias; RMSprop 1e-4, 1000 steps of 128 rows of one permutation."""
    torch.manual_seed(task)
    net = sp.models.MLP(784, units, 10)
    path = directory / f"permuted-mnist-{units}-{task}.safetensors"
    if path.exists():
        net.load_state_dict(load_file(path))
        return net
    optimiser = torch.optim.RMSprop(net.parameters(), 1e-4)
    for step in range(task * stream.period, (task + 1) * stream.period):
        batch = stream.batch(step)
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=units >= FAST):
            loss = F.cross_entropy(net(batch.x), batch.y)
        loss.backward()
        optimiser.step()
    keep(net, path)
    return net


def keep(net: nn.Module, path: Path) -> None:
    """Whole or not at all, so that a killed script goes on where it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(net.state_dict(), part)
    part.replace(path)


def calibration(stream: Permuting, task: int, count: int = 6000) -> Tensor:
    """The training images that the net of a task saw first, without their labels."""
    first = task * stream.period
    steps = range(first, first + -(-count // stream.batch_size))
    return torch.cat([stream.batch(step).x for step in steps])[:count]


@torch.no_grad()
def accuracy(net: nn.Module, stream: Stream, number: int, **options: object) -> float:
    """On the whole test set of the task, in percent."""
    x, y = stream.test(number)
    parts = [net(part, **options).argmax(-1) for part in x.split(1000)]
    return 100 * float((torch.cat(parts) == y).double().mean())
