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

if TYPE_CHECKING:
    from superpose.serving import Limits, Service, Tokens


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
    on: Literal["here", "ray"] = "here"
    """Where it runs: in this process, or as replicas on Ray, with this process as their door: on
    the cluster at RAY_ADDRESS, or one that is started on this machine. No gRPC there."""
    replicas: int = 2
    """How many replicas there are on Ray."""
    replica_cpus: float = 1.0
    """The cores that Ray keeps for a replica; PyTorch uses as many threads."""
    replica_gpus: float = 0.0
    """The GPUs that Ray keeps for a replica, for --device cuda."""
    json: bool = False
    """Print where it listens as JSON, and nothing else."""

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
                f"{server.url} serves {len(tasks)} tasks: {shown}; gRPC: {server.grpc_port}",
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

        wait = self.longest_wait_ms / 1e3
        return Limits(self.batch_rows, self.queue_rows, wait, self.body_mb << 20)

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
