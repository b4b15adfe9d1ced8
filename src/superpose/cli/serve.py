"""`superpose serve`: the models of a file behind the Open Inference Protocol."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg, configure

from superpose.cli.network import Network
from superpose.errors import SuperposeError
from superpose.extras import require
from superpose.options import Flag, unset

if TYPE_CHECKING:
    from superpose.serving import Limits, Service, Tokens


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
    state: Annotated[Path | None, unset("DIR", "FILE.serving")] = None
    """The directory where loaded and unloaded models are remembered over a restart."""
    device: str = "cpu"
    """The device that the model runs on, such as cuda."""
    batch_rows: int = 64
    """The largest number of rows in a batch."""
    queue_rows: int = 4096
    """The largest number of rows that wait; further requests are answered with 429."""
    longest_wait_ms: float = 0.0
    """How long a batch that is not full waits for more rows while the model is idle."""
    body_mb: int = 64
    """The largest request, in MB."""
    read_seconds: float = 30.0
    """How long a request may take to arrive; more for large requests over slow lines."""
    on: Literal["here", "ray"] = "here"
    """Where it runs: in this process, or as replicas on Ray behind this process.
    The cluster is that of RAY_ADDRESS, or one started on this machine; no gRPC there."""
    replicas: int = 2
    """The number of replicas on Ray."""
    replica_cpus: float = 1.0
    """The cores that Ray reserves for a replica; PyTorch uses as many threads."""
    replica_gpus: float = 0.0
    """The GPUs that Ray reserves for a replica, for --device cuda."""
    json: Flag = False
    """Print the addresses as JSON and nothing else."""

    def run(self) -> None:
        """Load, listen, tell where, and serve until SIGTERM or Ctrl-C."""
        if self.on == "ray":
            self._run_on_ray()
            return
        from superpose.serving import Server

        service = self.service()
        server = Server(
            service,
            tokens=self._tokens(),
            host=self.host,
            port=self.port,
            grpc_port=None if self.grpc_port < 0 else self.grpc_port,
            watch=self.watch,
        )

        def started() -> None:
            tasks = list(service.repository.version.tasks)
            shown = ", ".join(tasks[:5]) + (", …" if len(tasks) > 5 else "")
            self._tell(
                f"{server.url} serves {len(tasks)} tasks: {shown}"
                + ("" if server.grpc_port is None else f"; gRPC: {server.grpc_port}"),
                {"url": server.url, "grpc_port": server.grpc_port, "tasks": tasks},
            )

        server.run(started)

    def service(self) -> "Service":
        """What is served, from the file; on Ray it is made in each replica."""
        from superpose.serving import Options, Repository, Service, TensorSpec

        inputs = tuple(map(TensorSpec.parse, self.inputs))
        options = Options(inputs, _padding(self.pad), self.device, self.on == "ray")
        repository = Repository(self.file, self.make, options, name=self.name, state=self.state)
        return Service(repository, self._limits())

    def _run_on_ray(self) -> None:
        require("--on ray", extra="ray")
        import ray

        from superpose.serving.cluster import Cluster, Scale

        if not self.file.is_file():
            raise SuperposeError(f"{self.file}: there is no such file")
        ray.init(include_dashboard=False, log_to_driver=False)
        there = replace(  # replicas may have another working directory
            self,
            file=self.file.absolute(),
            state=self.state and self.state.absolute(),
            net=str(Path(self.net).absolute()) if self.net.endswith(".json") else self.net,
        )
        cluster = Cluster(
            there.service,
            Scale(self.replicas, self.replica_cpus, self.replica_gpus),
            limits=self._limits(),
            tokens=self._tokens(),
            host=self.host,
            port=self.port,
            watch=self.watch,
            name=f"superpose-{self.name or self.file.stem}",
        )
        text = f"{cluster.url} is the door to {self.replicas} replicas on Ray"
        cluster.run(lambda: self._tell(text, {"url": cluster.url, "replicas": self.replicas}))
        ray.shutdown()

    def _limits(self) -> "Limits":
        from superpose.serving import Limits

        return Limits(
            batch_rows=self.batch_rows,
            queue_rows=self.queue_rows,
            longest_wait=self.longest_wait_ms / 1e3,
            body_bytes=self.body_mb << 20,
            read_seconds=self.read_seconds,
        )

    def _tokens(self) -> "Tokens":
        from superpose.serving import Tokens

        return Tokens.read(self.token_file, self.control_token_file)

    def _tell(self, text: str, facts: dict[str, Any]) -> None:
        print(json.dumps(facts) if self.json else text)
        sys.stdout.flush()


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
