"""`superpose serve`: the models of a file behind the Open Inference Protocol."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg, configure

from superpose.cli.network import Network
from superpose.errors import SuperposeError
from superpose.options import Flag, unset


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class ServeCommand(Network):
    """Serve all models of a file over HTTP and gRPC, mixing tasks in one batch.

    Each task is a model of the Open Inference Protocol.

    Example: superpose serve many.safetensors --net mypackage.nets:make --inputs 'x=FP32[784]'
    """

    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """A file written by `superpose pack` or `superpose.save`."""
    inputs: Annotated[
        tuple[str, ...],
        arg(metavar="NAME=TYPE[SIZES] …", help_behavior_hint="(default: taken from the network)"),
    ] = ()
    """The inputs of the network without the batch dimension,
    such as 'x=FP32[784]' or 'ids=INT64[tokens<=128]'; needed
    unless it has one input and starts with a linear layer."""
    pad: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE …", help_behavior_hint="")] = ()
    """Pad these inputs with this value, so that rows of different sizes share a batch."""
    name: Annotated[str | None, unset("NAME", "the name of FILE")] = None
    """The name of the whole model."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is every address of this machine."""
    port: int = 8000
    """The port for HTTP; 0 takes a free one."""
    grpc_port: int = 8001
    """The port for gRPC; 0 takes a free one, -1 turns gRPC off."""
    token_file: Annotated[Path | None, unset("FILE", "everyone may send requests")] = None
    """The bearer tokens of clients, one a line."""
    control_token_file: Annotated[Path | None, unset("FILE", "no one may")] = None
    """The bearer tokens of those who may load and unload models, one a line."""
    watch: Flag = False
    """Load the file again when it changes."""
    device: str = "cpu"
    """The device that the model runs on, such as cuda."""
    batch_rows: int = 64
    """The largest number of rows in a batch."""
    queue_rows: int = 4096
    """The largest number of rows that wait; further requests are answered with 429."""
    body_mb: int = 64
    """The largest request, in MB."""
    read_seconds: float = 30.0
    """How long a request may take to arrive; more for large requests over slow lines."""
    json: Flag = False
    """Print the addresses as JSON and nothing else."""

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        from superpose.serving import (
            Limits,
            Options,
            Repository,
            Server,
            Service,
            TensorSpec,
            Tokens,
        )

        options = Options(
            tuple(map(TensorSpec.parse, self.inputs)), _padding(self.pad), self.device
        )
        limits = Limits(
            batch_rows=self.batch_rows,
            queue_rows=self.queue_rows,
            body_bytes=self.body_mb << 20,
            read_seconds=self.read_seconds,
        )
        repository = Repository(self.file, self.make, options, name=self.name)
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
            if self.json:
                facts = {"url": server.url, "grpc_port": server.grpc_port, "tasks": tasks}
                print(json.dumps(facts), flush=True)
                return
            shown = ", ".join(tasks[:5]) + (", …" if len(tasks) > 5 else "")
            grpc = "" if server.grpc_port is None else f"; gRPC: {server.grpc_port}"
            print(f"{server.url} serves {len(tasks)} tasks: {shown}{grpc}", flush=True)

        server.run(started)


def _padding(words: tuple[str, ...]) -> dict[str, float]:
    values = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            values[name] = float(value)
        except ValueError as error:
            raise SuperposeError(f"--pad {word}: write it as NAME=NUMBER") from error
    return values
