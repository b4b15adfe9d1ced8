"""`superpose plan`: what storing so many models will do to them, before any is packed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, arg, configure

from superpose.cli.network import Network, read_inputs


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class PlanCommand(Network):
    """Predict noise and cost of storing many models like one.

    Example: superpose plan --net mypackage.nets:make --weights a.safetensors --tasks 20
    --inputs a_inputs.safetensors
    """

    tasks: int
    """How many models."""
    weights: Annotated[Path | None, arg(metavar="FILE")] = None
    """A model's weights; without them the network as it is made."""
    inputs: Annotated[Path | None, arg(metavar="FILE")] = None
    """Inputs of it; without them each layer's inputs are taken to fill --rank directions."""
    rank: int | None = None
    """Directions that inputs fill, where there are none; without it all, the worst case."""
    noise: float = 0.05
    """The share of noise that is wanted: layers are told the width that gives it."""
    family: str = "binary"
    """binary, hadamard, rotation, phase, permutation, block-rotation."""
    method: Literal["solve", "sum"] = "solve"
    """How the models will be packed."""
    private_layers: tuple[str, ...] = ()
    """Layers that each model will keep for itself."""
    json: bool = False
    """Print JSON and nothing else."""

    def run(self) -> None:
        """Print the plan."""
        import superpose as sp

        net = self.load(self.weights) if self.weights else self.make()
        found = sp.plan(
            net,
            self.tasks,
            self.family,
            method=self.method,
            inputs=read_inputs(self.inputs) if self.inputs else None,
            rank=self.rank,
            noise=self.noise,
            private_layers=self.private_layers,
        )
        print(json.dumps(found.as_dict()) if self.json else found)
