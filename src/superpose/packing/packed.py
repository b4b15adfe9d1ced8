"""The packed model: a superposed model whose weights were computed from models, not trained."""

from __future__ import annotations

import torch
from torch import nn

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed, unsuperpose
from superpose.nn import is_quantised
from superpose.packing import additive
from superpose.packing.sources import Source, checked, opened, shape_of

SOLVE, SUM, DELTA = METHODS = ("solve", "sum", "delta")


class Packed(Superposed):
    """A superposed model whose weights were computed from models, not trained.

    `method` is the one that it was packed by: "solve", "sum" or "delta".
    """

    method: str

    def add(self, name: str, model: Source) -> None:
        """Store one more model in a sum.

        The result is that of packing all of them from the start, with the same base; the base of
        `delta` without `base=` stays the mean of the first models. The weights of `solve` are those
        of all models together: pack all of them again.
        """
        self._check_sum(f"adding {name!r}")
        net = self._fitting(name, model)
        self.add_task(name)
        additive.add(self, name, net)

    def remove(self, name: Name, model: Source | None = None) -> None:
        """Remove a model; its number, and with it its contexts, is never used again.

        The weights stay as they are, and so do the outputs of the others, bit for bit. If the model
        itself is given, its term is subtracted from a sum: the others are as if it had never been
        stored. A model whose biases, norms and low-rank parts are not those that are stored is an
        error; a network that has none of these is not checked.
        """
        if model is not None and len(self.tasks) > 1:  # `remove_task` refuses the only one
            self._check_sum(f"subtracting {name!r}")
            additive.subtract(self, name, self._fitting(name, model))
        self.remove_task(name)

    def _check_sum(self, change: str) -> None:
        if self.method == SOLVE:
            raise SuperposeError(
                f"{change}: the weights of method 'solve' are no sum with a term for each model: "
                "pack all models again, or remove one by its name alone"
            )

    def _fitting(self, name: Name, model: Source) -> nn.Module:
        """The model, if it fits beside those that are stored."""
        if any(map(is_quantised, self.parameters())):
            raise SuperposeError(
                f"model {name!r}: the weights are quantised, and another model changes all of "
                "them: load the packed model in full, change it, and quantise it then"
            )
        net, own = opened(name, model), unsuperpose(self).state_dict()
        state = checked(name, net, {key: shape_of(tensor) for key, tensor in own.items()})
        for key in self.summary().shared:
            if key in own and not torch.equal(state[key], own[key]):
                raise SuperposeError(
                    f"model {name!r}: {key} is shared by all stored models and differs in this "
                    "one: pack them from the start, together"
                )
        return net


def unpack(packed: Superposed, name: Name) -> nn.Module:
    """Read one model out, as the plain module: W₀ + W·C(k), and its private tensors."""
    return unsuperpose(packed, name)
