"""`superpose pack`: many files of weights become one."""

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg, configure

from superpose.cli.network import Network, check_apart, named_files, read_inputs
from superpose.errors import SuperposeError


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class PackCommand(Network):
    """Store models of one architecture in one file.

    Example: superpose pack a=a.safetensors b=b.safetensors --net mypackage.nets:make
    --calibration a=a_inputs.safetensors b=b_inputs.safetensors --out many.safetensors
    """

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="NAME=FILE …")]
    """Names, and the files of their weights: plain state dicts as safetensors."""
    out: Annotated[Path, arg(metavar="FILE")]
    """The file to write."""
    family: str = "binary"
    """binary, hadamard, rotation, phase, permutation, block-rotation, or one that the network's
    module registers."""
    method: Literal["solve", "sum", "delta"] = "solve"
    """solve is best; sum is the paper's equation 1; delta is for models that share a base."""
    calibration: Annotated[tuple[str, ...], arg(metavar="NAME=FILE …")] = ()
    """Unlabelled inputs of each model: one tensor a file, or the network's arguments by name."""
    base: Annotated[Path | None, arg(metavar="FILE")] = None
    """The weights that the models started from."""
    random_pairing: bool = False
    """With delta: layers of one shape change places, in an order drawn for each model."""
    private_layers: tuple[str, ...] = ()
    """Layers that each model keeps for itself."""
    skip: tuple[str, ...] = ()
    """Layers that are the same in all models, and stay shared."""
    input_shape: tuple[int, ...] = ()
    """Without --calibration: the shape of an input, such as 3 32 32, for noise to solve with."""
    finetune: int = 0
    """Steps of distillation on the calibration inputs, after solving."""
    seed: int = 0
    """The seed of the contexts."""
    quiet: bool = False
    """Show no progress."""
    json: bool = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Pack, write, and tell the cost."""
        import superpose as sp

        files = named_files(self.models, "pack")
        inputs = named_files(self.calibration, "--calibration")
        check_apart(self.out, *files.values(), *inputs.values(), self.base)
        for name in inputs:
            if name not in files:
                raise SuperposeError(f"--calibration: there is no model {name} to pack")
        if self.family not in sp.contexts.FAMILIES:
            self.make()  # its module may register the family
        packed = sp.pack(
            {name: partial(self.load, path) for name, path in files.items()},
            self.family,
            method=self.method,
            calibration={n: partial(read_inputs, p) for n, p in inputs.items()} if inputs else None,
            base=self.load(self.base) if self.base else None,
            random_pairing=self.random_pairing,
            private_layers=self.private_layers,
            skip=self.skip,
            input_shape=self.input_shape or None,
            finetune=self.finetune,
            seed=self.seed,
            progress=sys.stderr.isatty() and not (self.quiet or self.json),
        )
        sp.save(packed, self.out)
        cost = packed.cost()
        if self.json:
            print(json.dumps({"out": str(self.out), "tasks": packed.tasks, "cost": cost.as_dict()}))
        else:
            print(f"{self.out} holds {', '.join(map(str, packed.tasks))}\n{cost}")
