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
from superpose.options import Flag, Words, unset


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class PackCommand(Network):
    """Store several trained models of one architecture in one file.

    Example: superpose pack cats=cats.safetensors dogs=dogs.safetensors \\
        --calibration cats=cat_images.safetensors dogs=dog_images.safetensors \\
        --net mypackage.nets:make --out many.safetensors
    """

    models: Annotated[
        Positional[tuple[str, ...]], arg(metavar="NAME=FILE …", help_behavior_hint="")
    ]
    """The models: a name of your choice, and a safetensors file with a plain state dict."""
    out: Annotated[Path, arg(metavar="FILE")]
    """The file to write."""
    family: str = "binary"
    """The family of contexts: binary, hadamard, rotation,
    phase, permutation, block-rotation, or one that the
    module of --net registers."""
    method: Literal["solve", "sum", "delta"] = "solve"
    """solve: the most accurate; sum: the paper's equation 1; delta: for fine-tunes of --base."""
    calibration: Annotated[
        tuple[str, ...], arg(metavar="NAME=FILE …", help_behavior_hint="(default: none)")
    ] = ()
    """Unlabelled inputs of each model: a file with one tensor,
    or with the network's arguments by name."""
    base: Annotated[Path | None, unset("FILE", "none")] = None
    """The pretrained weights that the models were fine-tuned from."""
    rank: int = 0
    """Directions of every layer that each model has for itself, beside what all share."""
    private_layers: Words = ()
    """Layers that each model keeps for itself, by name or pattern such as 'head.*'."""
    skip: Words = ()
    """Layers that are identical in all models and stay plain, by name or pattern."""
    input_shape: Annotated[tuple[int, ...], arg(help_behavior_hint="")] = ()
    """The shape of one input, such as 3 32 32: for noise in place of --calibration."""
    finetune: int = 0
    """Steps of distillation on the calibration inputs after solving."""
    seed: int = 0
    """The seed of the contexts."""
    quiet: Flag = False
    """Show no progress, only the result."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Pack the models, write the file, and print its cost."""
        import superpose as sp

        files = named_files(self.models, "pack")
        inputs = named_files(self.calibration, "--calibration")
        check_apart(self.out, *files.values(), *inputs.values(), self.base)
        for name in inputs:
            if name not in files:
                raise SuperposeError(
                    f"--calibration {name}={inputs[name]}: the models to pack are "
                    f"{', '.join(files)}"
                )
        if self.family not in sp.contexts.FAMILIES:
            self.make()  # its module may register the family
        packed = sp.pack(
            {name: partial(self.load, path) for name, path in files.items()},
            self.family,
            method=self.method,
            calibration={n: partial(read_inputs, p) for n, p in inputs.items()} if inputs else None,
            base=self.load(self.base) if self.base else None,
            rank=self.rank,
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
