"""`superpose plan`: what storing so many models will do to them, before any is packed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, configure

from superpose.cli.network import Network, read_inputs
from superpose.options import Flag, Words, unset


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class PlanCommand(Network):
    """Predict how many models fit: the noise and the bytes, before anything is packed.

    Example: superpose plan --net mypackage.nets:make --tasks 20 \\
        --weights cats.safetensors --inputs cat_images.safetensors
    """

    tasks: int
    """The number of models to store."""
    weights: Annotated[Path | None, unset("FILE", "the initial weights of --net")] = None
    """The weights of one such model."""
    inputs: Annotated[Path | None, unset("FILE", "inputs that fill --rank directions")] = None
    """Inputs of that model, a safetensors file."""
    rank: Annotated[int | None, unset("INT", "all of them, the worst case")] = None
    """The number of directions that inputs of a layer fill; used without --inputs."""
    noise: float = 0.05
    """The share of noise to aim at; the plan gives the width that each layer needs for it."""
    family: str = "binary"
    """The family of contexts: binary, hadamard, rotation, phase, permutation or block-rotation."""
    method: Literal["solve", "sum"] = "solve"
    """How the models will be packed; see superpose pack."""
    private_layers: Words = ()
    """Layers that each model will keep for itself, by name or pattern such as 'head.*'."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Print the plan."""
        import superpose as sp

        net = self.load(self.weights) if self.weights else self.make()
        found = sp.plan(
            net,
            self.family,
            tasks=self.tasks,
            method=self.method,
            inputs=read_inputs(self.inputs) if self.inputs else None,
            rank=self.rank,
            noise=self.noise,
            private_layers=self.private_layers,
        )
        print(json.dumps(found.as_dict()) if self.json else found)
