"""What became of a network's tensors: superposed, private or shared, and what tasks start from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from superpose.contexts import Identity
from superpose.nn.additions import UP
from superpose.nn.centring import ROWS, has_mean
from superpose.nn.layer import Layer
from superpose.nn.names import joined
from superpose.nn.private import is_private

BASE = "the base, the pretrained weights"
PLAIN = "the network's own weights"
SCRAMBLED = "scrambled weights, in which nothing is left of what the network had learned"


@dataclass(frozen=True)
class Summary:
    """Names of tensors by what became of them."""

    superposed: list[str]
    private: list[str]
    shared: list[str]
    mixed: list[str]  # how mixed batches are computed, as far as it was found out
    start: str  # what the model of a new task is
    centred: list[str]  # those whose input is less its mean; not if it is seen to be never called
    low_rank: list[str]  # of the superposed ones, those that each task adds a low-rank part to
    families: dict[str, list[str]]  # which of the superposed ones each family binds

    def __str__(self) -> str:
        several = len(self.families) > 1
        by_family = {f"superposed, {one}": names for one, names in self.families.items()}
        kinds = {
            **(by_family if several else {"superposed": self.superposed}),
            "private to each task": self.private,
            "shared by all tasks": self.shared,
            **({"centred": self.centred} if self.centred else {}),
            **({"with a low-rank part of each task": self.low_rank} if self.low_rank else {}),
            "tasks start from": [self.start],
            "mixed batches": self.mixed or ["found out with the first one"],
        }
        return "\n".join(f"{kind}: {', '.join(names) or 'none'}" for kind, names in kinds.items())


def summarise(model: nn.Module, layers: Iterable[Layer], mixed: list[str], base: bool) -> Summary:
    """Sort the tensors of a superposed model."""
    layers = list(layers)
    superposed = [joined(layer.path, name) for layer in layers for name in layer.contexts]
    private = [joined(layer.path, name) for layer in layers for name in layer.private]
    every = [*model.named_modules(remove_duplicate=False)]  # a layer may have several names
    paths = [(path, layer) for path, layer in every if isinstance(layer, Layer)]
    told = {joined(path, name) for path, la in paths for name in (*la.contexts, *la.private)}
    rest = [name for name in model.state_dict() if not is_private(name)]
    families: dict[str, list[str]] = {}
    for layer in layers:
        for name, context in layer.contexts.items():
            families.setdefault(str(context.family), []).append(joined(layer.path, name))
    shared = [name for name in rest if name not in told]
    bound = [(joined(la.path, name), la, name) for la in layers for name in la.contexts]
    kept = all(isinstance(la.contexts[name].family, Identity) for _, la, name in bound)
    centred = [(path, la) for path, la, _ in bound if la.centre is not None]
    called = [path for path, la in centred if la.centre == ROWS or has_mean(la)]
    return Summary(
        superposed,
        private,
        shared,
        mixed,
        BASE if base else PLAIN if kept else SCRAMBLED,
        called or [path for path, _ in centred],
        [path for path, layer, name in bound if name + UP in layer.private],
        families,
    )
