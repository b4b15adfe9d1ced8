"""`superpose inspect`: what a file holds; the architecture is not needed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg, configure

from superpose.options import Flag


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class InspectCommand:
    """List the models in a file, how they are stored, and their bytes.

    The network's architecture is not needed.

    Example: superpose inspect many.safetensors
    """

    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """A file written by `superpose pack` or `superpose.save`."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Read the whole file, which checks it, and print what it holds."""
        from superpose.tensor_file import read

        header, tensors = read(self.file)
        private = {f"private_state.{name}" for name in header["private"]}
        facts = {
            "file": str(self.file),
            "tasks": [name for name, _ in header["tasks"]],
            "method": header["method"] or "trained",
            "family": header["family"],
            "seed": header["seed"],
            "options": header["options"],
            "shared_bytes": sum(t.nbytes for n, t in tensors.items() if n not in private),
            "private_bytes": sum(tensors[n].nbytes for n in private),
            "tensors": {n: list(t.shape) for n, t in tensors.items() if n not in private},
        }
        if self.json:
            print(json.dumps(facts))
            return
        tasks = facts["tasks"]
        print(f"{self.file}: {len(tasks)} models: {', '.join(map(str, tasks))}")
        print(f"{facts['method']}, {_described(facts['family'])} contexts, seed {facts['seed']}")
        print(f"{facts['shared_bytes']:,} bytes shared, {facts['private_bytes']:,} bytes private")
        for name, shape in facts["tensors"].items():
            print(f"  {name} {tuple(shape)}")


def _described(family: Any) -> str:
    if "patterns" not in family:
        return str(family["name"])
    return ", ".join(f"{pattern}: {one['name']}" for pattern, one in family["patterns"])
