"""The base: frozen weights that every task starts from, the network's own or another's."""

from __future__ import annotations

import copy

import torch
from torch import nn

from superpose.errors import SuperposeError, kind_of


def frozen_in(net: nn.Module) -> tuple[str, ...]:
    """The parameters that could learn, and do not, by all their names."""
    named = net.named_parameters(remove_duplicate=False)
    return tuple(n for n, p in named if p.is_floating_point() and not p.requires_grad)


def has_base(base: bool | nn.Module | None) -> bool:
    """Whether tasks start from a base."""
    if base is None or isinstance(base, (bool, nn.Module)):
        return bool(base) if isinstance(base, bool) else base is not None
    raise SuperposeError(
        f"base is {kind_of(base)}: give True for the network's own weights, or a network "
        "that has them; load a state_dict into one first"
    )


def with_weights(net: nn.Module, base: nn.Module) -> nn.Module:
    """A copy of the network with the weights of another."""
    if hasattr(base, "superposition"):
        raise SuperposeError("the base is superposed: give unsuperpose(base, task)")
    own, given = net.state_dict(keep_vars=True), base.state_dict()
    for name, tensor in own.items():
        if name not in given or given[name].shape != tensor.shape:
            there = tuple(given[name].shape) if name in given else "missing"
            raise SuperposeError(
                f"the base is another architecture: {name} is {tuple(tensor.shape)} in the network "
                f"and {there} in the base; if only an output layer differs, copy the other weights "
                "into the network, and use base=True"
            )
        if given[name].is_meta or tensor.is_meta:
            raise SuperposeError(
                f"{name} is on the meta device, without numbers: load its weights first"
            )
        if given[name].dtype != tensor.dtype:
            raise SuperposeError(
                f"{name} is {tensor.dtype} in the network and {given[name].dtype} in the base: "
                "convert one of them with .to(…)"
            )
    extra = next((name for name in given if name not in own), None)
    if extra is not None:
        raise SuperposeError(f"the base is another architecture: the network has no {extra}")
    first: dict[int, str] = {}
    for name, tensor in own.items():
        other = first.setdefault(id(tensor), name)
        if other != name and not torch.equal(given[name], given[other]):
            raise SuperposeError(
                f"{name} and {other} are one tensor in the network, and differ in the base: tie "
                "them in the base, or give the network a copy of each"
            )
    made = copy.deepcopy(net)
    made.load_state_dict(given)
    _take_other_buffers(made, base)
    return made


def _take_other_buffers(net: nn.Module, base: nn.Module) -> None:
    """Those that are in no state, which the base computes with all the same."""
    kept = net.state_dict()
    theirs = dict(base.named_buffers(remove_duplicate=False))
    for name, own in list(net.named_buffers(remove_duplicate=False)):
        if name in kept:
            continue
        if name not in theirs or theirs[name].shape != own.shape:
            raise SuperposeError(
                f"the base is another architecture: the buffer {name} is not the same there"
            )
        path, _, leaf = name.rpartition(".")
        net.get_submodule(path)._buffers[leaf] = theirs[name].detach().clone().to(own.device)
