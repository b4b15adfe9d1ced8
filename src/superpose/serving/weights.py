"""Weights that processes of one machine have in memory once."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn


@torch.no_grad()
def map_weights(model: nn.Module, path: Path) -> None:
    """Let a model's weights be the mapped bytes of its file, wherever they are the same.

    Processes that map one file share its pages. The file must not be written to while it is mapped.
    """
    with safe_open(path, framework="pt") as file:
        held = set(file.keys())
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name in held:
                mapped = file.get_tensor(name)
                if mapped.dtype == tensor.dtype and torch.equal(mapped, tensor):
                    tensor.data = mapped
