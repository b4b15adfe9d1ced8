"""`superpose serve`: the models of a file behind the Open Inference Protocol."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg, configure

from superpose.cli.network import Network
from superpose.errors import SuperposeError


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class ServeCommand(Network):
    """Serve the models of a file: each task is a model, and requests of all tasks share batches.

    Example: superpose serve many.safetensors --net mypackage.nets:make --inputs 'x=FP32[784]'
    """

    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """A file of `superpose pack` or `superpose.save`."""
    inputs: Annotated[tuple[str, ...], arg(metavar="NAME=TYPE[SIZES] …")] = ()
    """The network's inputs, a row of each, such as 'x=FP32[784]' or 'ids=INT64[tokens<=128]'. Not
    needed for a network with one input, whose first layer is linear."""
    pad: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE …")] = ()
    """Inputs that are filled up with this value, so that rows of different sizes share a batch."""
    name: str | None = None
    """The name of the whole model; as the file, if not given."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is all of this machine's."""
    port: int = 8000
    """The port for HTTP; 0 is any that is free."""
    grpc_port: int = 8001
    """The port for gRPC; 0 is any that is free, -1 none."""
    token_file: Annotated[Path | None, arg(metavar="FILE")] = None
    """Bearer tokens of clients, one a line; without it everybody may ask."""
    control_token_file: Annotated[Path | None, arg(metavar="FILE")] = None
    """Bearer tokens for loading and unloading; without it nobody may."""
    watch: bool = False
    """Load the file again when it changes."""
    state: Annotated[Path | None, arg(metavar="DIR")] = None
    """Where changes are kept over a restart; FILE.serving, if not given."""
    device: str = "cpu"
    """Where the model runs, such as cuda."""
    batch_rows: int = 64
    """The most rows of a batch."""
    queue_rows: int = 4096
    """The most rows that wait; further requests are answered 429."""
    longest_wait_ms: float = 0.0
    """How long a batch that is not full waits for more rows; it gathers while another runs."""
    body_mb: int = 64
    """The largest request, in MB."""
    json: bool = False
    """Print where it listens as JSON, and nothing else."""

    def run(self) -> None:
        """Load, listen, tell where, and serve until SIGTERM or Ctrl-C."""
        from superpose.serving import (
            Limits,
            Options,
            Repository,
            Server,
            Service,
            TensorSpec,
            Tokens,
        )

        repository = Repository(
            self.file,
            self.make,
            Options(tuple(map(TensorSpec.parse, self.inputs)), _padding(self.pad), self.device),
            name=self.name,
            state=self.state,
        )
        limits = Limits(
            self.batch_rows, self.queue_rows, self.longest_wait_ms / 1e3, self.body_mb << 20
        )
        server = Server(
            Service(repository, limits),
            tokens=Tokens.read(self.token_file, self.control_token_file),
            host=self.host,
            port=self.port,
            grpc_port=None if self.grpc_port < 0 else self.grpc_port,
            watch=self.watch,
        )

        def started() -> None:
            tasks = list(repository.version.tasks)
            where = {"url": server.url, "grpc_port": server.grpc_port, "tasks": tasks}
            shown = ", ".join(tasks[:5]) + (", …" if len(tasks) > 5 else "")
            text = f"{server.url} serves {len(tasks)} tasks: {shown}; gRPC: {server.grpc_port}"
            print(json.dumps(where) if self.json else text)
            sys.stdout.flush()

        server.run(started)


def _padding(words: tuple[str, ...]) -> dict[str, float]:
    """NAME=VALUE words as a mapping.

    >>> _padding(("ids=0",))
    {'ids': 0.0}
    """
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            found[name] = float(value)
        except ValueError as error:
            raise SuperposeError(f"--pad {word}: write it as NAME=NUMBER") from error
    return found
