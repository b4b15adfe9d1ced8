"""Method `delta`: one base for all models, and the sum of their differences from it."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from superpose.packing.additive import Additive
from superpose.packing.sources import Sources


class Delta(Additive):
    """W₀ and W = Σₖ (Wₖ − W₀) C(k)⁻¹; without a base, W₀ is the models' mean."""

    name = "delta"
    takes = Additive.takes | {"random_pairing"}

    def base(self, sources: Sources, given: nn.Module | None) -> nn.Module:
        """The base that is given, or the mean."""
        return mean(sources) if given is None else given


def mean(sources: Sources) -> nn.Module:
    """The model of the mean weights."""
    total: dict[str, Tensor] = {}
    for name in sources.models:
        for key, tensor in sources.open(name).state_dict().items():
            total[key] = total.get(key, 0.0) + tensor.double()
    found = copy.deepcopy(sources.open(next(iter(sources.models))))
    found.load_state_dict({key: value / len(sources.models) for key, value in total.items()})
    return found
