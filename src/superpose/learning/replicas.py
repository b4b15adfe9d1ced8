"""Data-parallel learning: one loop in several processes, each with its share of every batch.

Every process makes the same model, stream and contexts from the same seed, so nothing is exchanged
but gradients, and, before a model is tested or saved, the statistics of tasks (`superpose.agree`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.learning.penalties import real
from superpose.learning.replay import by_row
from superpose.model import Superposed, agree

ASK_EVERY = 100  # steps


@dataclass(frozen=True)
class Replicas:
    """This process among those that learn together; alone by default."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and shows."""
        return self.rank == 0

    def share(self, task: Any, *tensors: Tensor) -> tuple[Any, ...]:
        """This process's rows of a batch, and their tasks."""
        if self.count == 1:
            return task, *tensors
        rows = len(tensors[0])
        if rows % self.count:
            raise SuperposeError(
                f"{self.count} processes cannot share a batch of {rows} rows equally: choose "
                "another batch size"
            )
        own = slice(self.rank, None, self.count)
        task = by_row(task, rows)[own] if isinstance(task, (list, Tensor)) else task
        return task, *(tensor[own] for tensor in tensors)

    def average(self, parameters: Sequence[nn.Parameter]) -> None:
        """Make every process's gradients their mean."""
        if self.count == 1:
            return
        gradients = [real(p.grad) for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.count
        for gradient, mean in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))

    def any(self, flags: Sequence[bool], step: int) -> list[bool]:
        """Whether a process wants each of these; several ask each other now and then only."""
        if self.count == 1:
            return list(flags)
        if step % ASK_EVERY:
            return [False] * len(flags)
        wanted = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(wanted, dist.ReduceOp.MAX)
        return [bool(flag) for flag in wanted]

    def agree(self, model: nn.Module) -> None:
        """Merge what the processes know of tasks."""
        if self.count > 1 and isinstance(model, Superposed):
            agree(model)

    def common(self, value: Any) -> Any:
        """What the leading process has."""
        if self.count == 1:
            return value
        shared = [value]
        dist.broadcast_object_list(shared)
        return shared[0]


@contextmanager
def replicas() -> Iterator[Replicas]:
    """The processes that `torchrun` started, or this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Replicas()
        return
    joined = not dist.is_initialized()
    if joined:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Replicas(dist.get_rank(), dist.get_world_size())
    finally:
        if joined:
            dist.destroy_process_group()
