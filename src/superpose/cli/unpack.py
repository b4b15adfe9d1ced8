"""`superpose unpack`: one model out of a packed file, as plain weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg, configure

from superpose.cli.network import Network, check_apart
from superpose.options import Flag


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class UnpackCommand(Network):
    """Take one model out of a file, as a plain state dict.

    Example: superpose unpack many.safetensors dogs --net mypackage.nets:make --out dogs.safetensors
    """

    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """A file written by `superpose pack`."""
    task: Annotated[Positional[str], arg(metavar="TASK")]
    """The name or number of the model."""
    out: Annotated[Path, arg(metavar="FILE")]
    """The safetensors file to write."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Read the model out, and write it."""
        import superpose as sp
        from superpose.tensor_file import write

        check_apart(self.out, self.file)
        packed = sp.load(self.file, self.make())
        known = {str(name): name for name in packed.tasks}
        number = int(self.task) if self.task.isdecimal() else self.task
        net = sp.unpack(packed, known.get(self.task, number))
        write(self.out, {n: t.contiguous().clone() for n, t in net.state_dict().items()})
        if self.json:
            print(json.dumps({"out": str(self.out), "task": self.task}))
        else:
            print(f"{self.out} holds {self.task}")
