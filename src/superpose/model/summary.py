"""What became of a network's tensors: superposed, private or shared, and what tasks start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from superpose.contexts import Identity
from superpose.model.ways import declared_way
from superpose.nn.kinds import LowRank, RowMean, TaskMean
from superpose.nn.layer import Layer
from superpose.nn.names import joined, listed
from superpose.nn.private import is_private

if TYPE_CHECKING:
    from superpose.model.model import Superposed

BASE = "the base, the pretrained weights"
PLAIN = "the network's own weights"
SCRAMBLED = "scrambled weights, in which nothing is left of what the network had learned"


@dataclass(frozen=True)
class Summary:
    """Names of tensors by what became of them."""

    superposed: list[str]
    private: list[str]
    shared: list[str]  # by all tasks; those that learn all the same are in `learns`
    learns: list[str]
    mixed: str  # how mixed batches are computed, and by whose word
    start: str  # what the model of a new task is
    begun: list[str]  # tasks to which the superposed weights are open; all without a base
    centred: list[str]
    low_rank: list[str]  # of the superposed ones, those that each task adds a low-rank part to
    families: dict[str, list[str]]  # which of the superposed ones each family binds
    added: dict[str, int]  # what tasks have beside so many weights, in words

    def __str__(self) -> str:
        """One line for each kind, with some ten names; the attributes have all of them."""
        by_family = {f"superposed, {one}": names for one, names in self.families.items()}
        additions = [f"{words} for {n} weight{'s' * (n > 1)}" for words, n in self.added.items()]
        frozen = [name for name in self.shared if name not in self.learns]
        kinds = {
            **(by_family if len(by_family) > 1 else {"superposed": self.superposed}),
            "private to each task": self.private,
            "shared by all tasks, and learns": self.learns,
            "shared by all tasks, and does not learn": frozen,
            **({"centred": self.centred} if self.centred else {}),
            **({"each task also has": additions} if additions else {}),
            "tasks start from": [self.start],
            "tasks that have begun": self.begun,
            "mixed batches": [self.mixed],
        }
        return "\n".join(f"{kind}: {listed(names) or 'none'}" for kind, names in kinds.items())


def summarise(model: Superposed) -> Summary:
    """Sort the tensors of a superposed model."""
    layers, options = model.superposed_layers, model.superposition.options
    bound = [(joined(la.path, name), la, name) for la in layers for name in la.bound]
    every = [*model.named_modules(remove_duplicate=False)]  # a layer may have several names
    known = {
        joined(path, name)
        for path, module in every
        if isinstance(module, Layer)
        for name in (*module.bound, *module.private, *(f"bases.{name}" for name in module.bound))
    }
    state = model.state_dict(keep_vars=True)
    shared = [name for name in state if not is_private(name) and name not in known]
    families: dict[str, list[str]] = {}
    added: dict[str, int] = {}
    for path, layer, name in bound:
        families.setdefault(str(layer.bound[name].context.family), []).append(path)
        for kind, weight in layer.acts.kinds:
            if weight == name and kind.words:
                added[kind.words] = added.get(kind.words, 0) + 1
    kept = all(isinstance(la.bound[name].context.family, Identity) for _, la, name in bound)

    def having(*kinds: type) -> list[str]:
        return [
            path
            for path, layer, name in bound
            if any(isinstance(kind, kinds) and own == name for kind, own in layer.acts.kinds)
        ]

    said = "as it was said" if options.mixed else "as is declared for this architecture"
    grouped = declared_way(model) == "grouped" and not options.mixed
    begun = map(str, model.begun)
    return Summary(
        superposed=[path for path, *_ in bound],
        private=[joined(layer.path, name) for layer in layers for name in layer.private],
        shared=shared,
        learns=[name for name in shared if state[name].requires_grad],
        mixed="grouped, which is right for every network" if grouped else f"{model.mixed}, {said}",
        start=BASE if options.base else PLAIN if kept else SCRAMBLED,
        begun=list(begun) if options.base else ["all, without a base"],
        centred=having(TaskMean, RowMean),
        low_rank=having(LowRank),
        families=families,
        added=added,
    )
