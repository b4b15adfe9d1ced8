"""How fast the server answers: many tasks beside one, beside a route that does nothing, and others.

    OMP_NUM_THREADS=1 python benchmarks/serving.py --out results/serving/speed.json

Each server is a process of its own on loopback; one process of clients asks it, each client on one
connection, one request at a time: a row of 784 numbers as bytes, a task at random. The network is
an MLP of two layers of 1024 units. In a round every combination has its turn of a second or two, so
whatever else the machine does hits all of them; a ratio is of two turns of one round.

- `superpose`: one superposed model, 1, 8, 64 or 1,000 tasks.
- `route`: `GET /v2/health/live` of the same server, which does nothing.
- `reading`: a route of the same server that reads the same request and sends as many bytes back.
- `json`: `superpose` of 64 tasks, with the numbers of request and answer as JSON.
- `separate`: 64 plain models behind the same server and batcher, each run on its own rows.
- `peft`: one model with 64 LoRA adapters of rank 8 and `adapter_names`, behind the same server and
  batcher (if peft is installed).
"""

import asyncio
import gc
import json
import os
import platform
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor, nn

import superpose as sp

INPUTS, UNITS, CLASSES = 784, 1024, 10
CLIENTS = (1, 8, 32, 128)
TASKS = (1, 8, 64, 1000)
OTHERS = 64  # tasks of `separate` and `peft`
GOALS = {
    "64 tasks / 1 task": 0.9,
    "superpose / route": 0.6,
    "superpose / separate": 5.0,
    "one client's extra ms": 1.5,
}
Kind = Literal["superpose", "separate", "peft"]


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [(INPUTS, UNITS), (UNITS, UNITS), (UNITS, CLASSES)]
        self.layers = nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


class Separate(nn.Module):
    """A plain model for each task; rows of a task are run together."""

    recognisable = ()

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.tasks = [f"task {number}" for number in range(tasks)]
        self.nets = nn.ModuleList(MLP() for _ in range(tasks))

    def forward(self, x: Tensor, task: Any = None) -> Tensor:
        names = [task] * len(x) if isinstance(task, str) else task
        out = x.new_empty(len(x), CLASSES)
        for name in dict.fromkeys(names):
            rows = [row for row, own in enumerate(names) if own == name]
            out[rows] = self.nets[self.tasks.index(name)](x[rows])
        return out


class Adapters(nn.Module):
    """PEFT's mixed batch: one model, an adapter for each row."""

    recognisable = ()

    def __init__(self, tasks: int) -> None:
        super().__init__()
        import peft

        def config() -> Any:
            return peft.LoraConfig(r=8, target_modules=r"layers\.\d", init_lora_weights=False)

        self.tasks = [f"task {number}" for number in range(tasks)]
        names = [name.replace(" ", "_") for name in self.tasks]
        self.net = peft.get_peft_model(MLP(), config(), adapter_name=names[0])
        for name in names[1:]:
            self.net.add_adapter(name, config())

    def forward(self, x: Tensor, task: Any = None) -> Tensor:
        names = [task] * len(x) if isinstance(task, str) else task
        return self.net(x, adapter_names=[name.replace(" ", "_") for name in names])


def model_of(kind: Kind, tasks: int) -> Any:
    torch.manual_seed(0)
    if kind == "separate":
        return Separate(tasks)
    if kind == "peft":
        return Adapters(tasks)
    return sp.superpose(MLP(), "binary", tasks=[f"task {number}" for number in range(tasks)])


class Fixed(sp.serving.Repository):
    """A model that is no file."""

    def __init__(self, model: Any) -> None:
        inputs = (sp.serving.TensorSpec.parse(f"x=FP32[{INPUTS}]"),)
        self.name, self.unloaded = "many", frozenset()
        self.version = sp.serving.Version(model, "0" * 64, sp.serving.Options(inputs))


def reading_too(app: Any) -> Any:
    """The application with one more path, which reads a request and does nothing with it."""
    nothing = bytes(4 * CLASSES + 200)  # about as many as an answer has

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") != "/reading":
            await app(scope, receive, send)
            return
        while (await receive())["more_body"]:
            pass
        length = (b"content-length", b"%d" % len(nothing))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": nothing})

    return asked


@dataclass
class Child:
    """A server for a benchmark."""

    kind: Kind
    tasks: int

    def run(self) -> None:
        service = sp.serving.Service(
            Fixed(model_of(self.kind, self.tasks)), log=lambda *_, **__: None
        )
        server = sp.serving.Server(service, port=0, grpc_port=None)
        server._uvicorn.config.app = reading_too(server._uvicorn.config.app)
        server.run(lambda: print(server.port, flush=True))


def path_of(task: int) -> str:
    return f"/v2/models/task%20{task}/infer"


def json_bytes(task: int, x: np.ndarray) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, INPUTS]}
    body = json.dumps({"inputs": [{**tensor, "data": x.astype("<f4").ravel().tolist()}]}).encode()
    head = f"POST {path_of(task)} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def request_bytes(path: str, x: np.ndarray) -> bytes:
    raw = x.astype("<f4").tobytes()
    head = json.dumps(
        {
            "parameters": {"binary_data_output": True},
            "inputs": [
                {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": [1, INPUTS],
                    "parameters": {"binary_data_size": len(raw)},
                }
            ],
        }
    ).encode()
    return (
        (
            f"POST {path} HTTP/1.1\r\nHost: x\r\n"
            f"Inference-Header-Content-Length: {len(head)}\r\n"
            f"Content-Length: {len(head) + len(raw)}\r\n\r\n"
        ).encode()
        + head
        + raw
    )


ROUTE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


class Client(asyncio.Protocol):
    """One connection: a request that is not timed, then one after the other until the end."""

    def __init__(self, requests: list[bytes], taken: list[float]) -> None:
        self.requests, self.taken, self.end = requests, taken, 0.0
        self.done = asyncio.get_running_loop().create_future()
        self.buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(random.choice(self.requests))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self.buffer.lower().index(b"\r\ncontent-length:") + 17
        length = int(self.buffer[at : self.buffer.index(b"\r\n", at)])
        if len(self.buffer) < head + 4 + length:
            return
        assert self.buffer.startswith(b"HTTP/1.1 200"), self.buffer[:500]
        self.buffer = b""
        now = time.perf_counter()
        if self.end:
            self.taken.append(now - self.began)
        if now < self.end:
            self.send()
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, problem: Any) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server closed a connection"))


async def load(port: int, requests: list[bytes], clients: int, seconds: float) -> dict[str, float]:
    taken: list[float] = []
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Client(requests, taken), "127.0.0.1", port)
        for _ in range(clients)
    ]
    await asyncio.gather(*(client.done for _, client in made))  # all are accepted
    began = time.perf_counter()
    for _, client in made:
        client.done, client.end = loop.create_future(), began + seconds
        client.send()
    await asyncio.gather(*(client.done for _, client in made))
    elapsed = time.perf_counter() - began
    for transport, _ in made:
        transport.close()
    ordered = sorted(taken)
    return {
        "requests_per_s": len(taken) / elapsed,
        "p50_ms": 1e3 * ordered[len(ordered) // 2],
        "p99_ms": 1e3 * ordered[int(0.99 * (len(ordered) - 1))],
    }


def pass_ms(model: Any, rows: int, tasks: int, seconds: float = 0.3) -> float:
    """The median time of a pass of rows of random tasks in this process."""
    x = torch.randn(rows, INPUTS)
    took = []
    with torch.no_grad():
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            names = [f"task {random.randrange(tasks)}" for _ in range(rows)]
            began = time.perf_counter()
            model(x, task=names)
            took.append(time.perf_counter() - began)
    return 1e3 * median(took)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


@dataclass
class Benchmark:
    out: Path | None = None
    rounds: int = 5
    seconds: float = 1.5
    """Of each turn."""

    def run(self) -> None:
        kinds: list[tuple[Kind, int]] = [("superpose", tasks) for tasks in TASKS]
        kinds.append(("separate", OTHERS))
        try:
            import peft  # noqa: F401

            kinds.append(("peft", OTHERS))
        except ImportError:
            print("peft is not installed: left out")
        generator = np.random.default_rng(0)
        bodies = {
            tasks: [
                request_bytes(path_of(task), generator.standard_normal((1, INPUTS)))
                for task in (range(tasks) if tasks > 1 else [0] * 64)
            ]
            for tasks in TASKS
        }
        rows = generator.standard_normal((OTHERS, 1, INPUTS))
        other = {
            "route": [ROUTE],
            "reading": [request_bytes("/reading", rows[0])],
            "json": [json_bytes(task, x) for task, x in enumerate(rows)],
        }
        children = {}
        try:
            for kind, tasks in kinds:
                command = [sys.executable, __file__, "child", kind, str(tasks)]
                children[kind, tasks] = subprocess.Popen(command, stdout=subprocess.PIPE)
            ports = {key: int(child.stdout.readline()) for key, child in children.items()}
            found = self._rounds(ports, bodies, other)
        finally:
            for child in children.values():
                child.terminate()
            for child in children.values():
                child.wait()
        text = json.dumps(self._report(found), indent=1)
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(text + "\n")
        print(text)

    def _rounds(
        self,
        ports: dict[Any, int],
        bodies: dict[int, list[bytes]],
        other: dict[str, list[bytes]],
    ) -> list[dict[str, Any]]:
        model = model_of("superpose", OTHERS).eval()
        separate = model_of("separate", OTHERS).eval()
        pass_ms(model, 32, OTHERS)
        gc.collect()
        gc.freeze()  # the clients are not to stop for it either
        turns: list[tuple[str, int, int]] = []
        for clients in CLIENTS:
            turns += [(kind, OTHERS, clients) for kind in other]
            turns += [(kind, tasks, clients) for kind, tasks in ports]
        found = []
        for number in range(self.rounds + 1):
            one: dict[str, Any] = {
                "pass of 1 row": pass_ms(model, 1, OTHERS),
                "pass of 32 rows": pass_ms(model, 32, OTHERS),
                "pass of 64 rows": pass_ms(model, 64, OTHERS),
                "separate passes of 32 rows": pass_ms(separate, 32, OTHERS),
            }
            for kind, tasks, clients in turns:
                port = ports["superpose" if kind in other else kind, tasks]
                requests = other.get(kind) or bodies[tasks]
                measured = asyncio.run(load(port, requests, clients, self.seconds))
                one[f"{kind}, {tasks} tasks, {clients} clients"] = measured
            if number:  # the first is for warming up
                found.append(one)
                print(f"round {number} of {self.rounds}", file=sys.stderr)
        return found

    def _report(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        def each(kind: str, tasks: int, clients: int, what: str = "requests_per_s") -> list[float]:
            return [one[f"{kind}, {tasks} tasks, {clients} clients"][what] for one in found]

        def ratio(a: list[float], b: list[float]) -> dict[str, float]:
            return spread([x / y for x, y in zip(a, b, strict=True)])

        compared = [
            k for k in ("json", "separate", "peft") if f"{k}, 64 tasks, 1 clients" in found[0]
        ]
        kinds = [("route", 64), ("reading", 64), *(("superpose", tasks) for tasks in TASKS)]
        kinds += [(kind, OTHERS) for kind in compared]
        extra = [
            p50 - route - own
            for p50, route, own in zip(
                each("superpose", 64, 1, "p50_ms"),
                each("route", 64, 1, "p50_ms"),
                [one["pass of 1 row"] for one in found],
                strict=True,
            )
        ]
        ratios = {
            "64 tasks / 1 task": {
                clients: ratio(each("superpose", 64, clients), each("superpose", 1, clients))
                for clients in CLIENTS
            },
            **{
                f"superpose / {kind}": {
                    clients: ratio(each("superpose", 64, clients), each(kind, 64, clients))
                    for clients in CLIENTS
                }
                for kind in ("route", "reading", *compared)
            },
            "superposed / separate, in process": {
                32: ratio(
                    [one["separate passes of 32 rows"] for one in found],
                    [one["pass of 32 rows"] for one in found],
                )
            },
            "one client's extra ms": {1: spread(extra)},
            "superpose / in process, rows a second": {
                clients: spread(
                    [
                        rate / (64e3 / one["pass of 64 rows"])
                        for rate, one in zip(each("superpose", 64, clients), found, strict=True)
                    ]
                )
                for clients in CLIENTS
            },
        }
        return {
            "command": f"python benchmarks/serving.py --rounds {self.rounds} "
            f"--seconds {self.seconds}",
            "threads": torch.get_num_threads(),
            "cores": len(os.sched_getaffinity(0)),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "goals": GOALS,
            "ratios": ratios,
            "pass in process, ms": {
                f"{rows} row": spread(
                    [one[f"pass of {rows} row{'s' * (rows > 1)}"] for one in found]
                )
                for rows in (1, 32, 64)
            },
            "served": [
                {
                    "kind": kind,
                    "tasks": tasks,
                    "clients": clients,
                    **{
                        what: spread(each(kind, tasks, clients, what))
                        for what in ("requests_per_s", "p50_ms", "p99_ms")
                    },
                }
                for kind, tasks in kinds
                for clients in CLIENTS
            ],
        }


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        Child(sys.argv[2], int(sys.argv[3])).run()  # type: ignore[arg-type]
    else:
        tyro.cli(Benchmark).run()
