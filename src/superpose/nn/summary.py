"""What became of a network's tensors: superposed, private or shared, and what tasks start from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from superpose.contexts import Identity
from superpose.nn.additions import BEGUN, CONTEXT, DOWN, ENDINGS, MEAN, SEEN, UP
from superpose.nn.centring import ROWS, has_mean
from superpose.nn.layer import Layer
from superpose.nn.names import joined, listed
from superpose.nn.private import is_private

BASE = "the base, the pretrained weights"
PLAIN = "the network's own weights"
SCRAMBLED = "scrambled weights, in which nothing is left of what the network had learned"

IN_WORDS = {  # additions to weights, by their endings; None for those of a line of its own
    CONTEXT: "numbers of its context",
    MEAN: "a mean of inputs",
    SEEN: None,
    UP: None,
    DOWN: None,
    BEGUN: None,
}


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
        """One line for each kind, with some ten names; the attributes have all of them."""
        several = len(self.families) > 1
        own, additions = self._private()
        by_family = {f"superposed, {one}": names for one, names in self.families.items()}
        kinds = {
            **(by_family if several else {"superposed": self.superposed}),
            "private to each task": own,
            "shared by all tasks": self.shared,
            **({"centred": self.centred} if self.centred else {}),
            **({"with a low-rank part of each task": self.low_rank} if self.low_rank else {}),
            **({"each task also has": additions} if additions else {}),
            "tasks start from": [self.start],
            "mixed batches": self.mixed or ["found out with the first one"],
        }
        return "\n".join(f"{kind}: {listed(names) or 'none'}" for kind, names in kinds.items())

    def _private(self) -> tuple[list[str], list[str]]:
        """What tasks have of the plain network's tensors, and additions to weights, in words."""
        bound, own, additions = set(self.superposed), list[str](), dict[str, set[str]]()
        for name in self.private:
            ending = next((e for e in ENDINGS if name.removesuffix(e) in bound - {name}), None)
            if ending is None:
                own.append(name)
            elif (words := IN_WORDS.get(ending, "statistics of inputs")) is not None:
                additions.setdefault(words, set()).add(name.removesuffix(ending))
        many = {words: len(weights) for words, weights in additions.items()}
        return own, [f"{words} for {n} weight{'s' * (n > 1)}" for words, n in many.items()]


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
