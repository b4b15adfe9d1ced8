"""LoRA adapters: a low-rank matrix beside each frozen layer, for each task.

y = W₀x + (alpha / rank) · B A x with A as PyTorch starts a linear layer and B = 0, as in PEFT.
"""

import copy
import math
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from superpose import SuperposeError

ALPHA = 8.0  # PEFT's default


class LowRank(nn.Module):
    """A frozen linear or convolution layer, and A (rank, inputs, …) and B (outputs, rank) by it."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int, alpha: float) -> None:
        super().__init__()
        self.layer, self.scale = layer, alpha / rank
        outputs, *inside = layer.weight.shape
        self.a = nn.Parameter(layer.weight.new_zeros(rank, *inside))
        self.b = nn.Parameter(layer.weight.new_zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Linear):
            return self.layer(x) + self.scale * F.linear(F.linear(x, self.a), self.b)
        kept = self.layer
        inner = F.conv2d(x, self.a, None, kept.stride, kept.padding, kept.dilation)
        return self.layer(x) + self.scale * F.conv2d(inner, self.b[:, :, None, None])


class Adapted(nn.Module):
    """A frozen network, and private adapters for each task.

    Every linear layer, and every convolution without groups, that learns in `net` gets an adapter
    of `rank`. Layers named in `private` (patterns) belong to each task as a whole; so do, with
    `small`, biases, norm scales and norm statistics.

    >>> model = Adapted(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), 3, rank=2)
    >>> model(torch.ones(5, 4), task=1).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        net: nn.Module,
        tasks: int,
        rank: int,
        *,
        alpha: float = ALPHA,
        private: Iterable[str] = (),
        small: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.net, self.rank, self.small = copy.deepcopy(net), rank, small
        patterns = tuple(private)
        whole = {
            name
            for name, module in self.net.named_modules()
            if any(fnmatch(name, pattern) for pattern in patterns)
        }
        self._own_layers = whole
        for name, layer in list(self.net.named_modules()):
            if self._is_own(f"{name}.weight") or not _adaptable(layer):
                continue
            parent, _, last = name.rpartition(".")
            setattr(self.net.get_submodule(parent), last, LowRank(layer, rank, alpha))
        if not any(isinstance(module, LowRank) for module in self.net.modules()):
            raise SuperposeError("no layer of the network learns and could have an adapter")
        start = self._start()
        self.net.requires_grad_(False)
        self.learned = nn.ParameterList()
        self.statistics = nn.ModuleList()
        self.names = [name for name, tensor in start.items() if isinstance(tensor, nn.Parameter)]
        for task in range(tasks):
            generator = torch.Generator().manual_seed(1000 * seed + task)
            tensors = [_started(name, start[name], generator) for name in self.names]
            self.learned.append(nn.Parameter(torch.cat([one.flatten() for one in tensors])))
            self.statistics.append(_Statistics(start, self.names))
        self._shapes = [start[name].shape for name in self.names]

    def forward(self, x: Tensor, task: int) -> Tensor:
        """The logits of the network with the tensors of the task."""
        statistics = cast(_Statistics, self.statistics[task])
        own = dict(self.named_of(task)) | dict(statistics.named())
        return functional_call(self.net, own, (x,))

    def named_of(self, task: int) -> Iterator[tuple[str, Tensor]]:
        """Views of the learned tensors of a task, by their names in the network."""
        parts = self.learned[task].split([shape.numel() for shape in self._shapes])
        for name, part, shape in zip(self.names, parts, self._shapes, strict=True):
            yield name, part.view(shape)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if not self.small:
            for module in self.net.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def _is_own(self, name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:end]) in self._own_layers for end in range(1, len(parts)))

    def _start(self) -> dict[str, Tensor]:
        start: dict[str, Tensor] = {}
        for name, tensor in self.net.named_parameters():
            small = self.small and tensor.ndim <= 1
            adapter = name.endswith((".a", ".b"))
            if tensor.requires_grad and (adapter or small or self._is_own(name)):
                start[name] = tensor
        if self.small:
            start |= {n: t for n, t in self.net.named_buffers() if t.is_floating_point()}
        return start

    def __repr__(self) -> str:
        return f"Adapted({self.net!r}, rank={self.rank})"


class _Statistics(nn.Module):
    """The norm statistics of one task."""

    def __init__(self, start: dict[str, Tensor], learned: list[str]) -> None:
        super().__init__()
        self._names = [name for name in start if name not in learned]
        for number, name in enumerate(self._names):
            self.register_buffer(str(number), start[name].clone())

    def named(self) -> Iterator[tuple[str, Tensor]]:
        return zip(self._names, self.buffers(), strict=True)


def _adaptable(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.weight.requires_grad
    return isinstance(layer, nn.Linear) and layer.weight.requires_grad


def _started(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not name.endswith(".a"):
        return tensor.detach().clone()
    new = torch.empty_like(tensor, requires_grad=False)
    return nn.init.kaiming_uniform_(new, a=math.sqrt(5), generator=generator)
