"""A small model behind a server on loopback, and a client that knows only the protocol."""

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import torch

import superpose as sp
from superpose.serving import Limits, Repository, Server, Service, Tokens

TASKS = ["cats", "dogs", "a/b c", "últimos"]
INPUTS, OUTPUTS = 16, 5
TOKENS = Tokens(control=(b"secret",))
CONTROL = {"authorization": "Bearer secret"}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(INPUTS, 32)
        self.out = torch.nn.Linear(32, OUTPUTS)

    def forward(self, x):
        return self.out(self.hidden(x).relu())


make = Net


def model(tasks=TASKS, seed=0):
    torch.manual_seed(seed)
    made = sp.superpose(make(), "binary", tasks=tasks)
    with torch.no_grad():
        for task in made.tasks:
            for tensor in made.private_tensors(task).values():
                tensor.add_(torch.randn_like(tensor))
    return made.eval()


def saved(folder, tasks=TASKS, seed=0, name="many"):
    made = model(tasks, seed)
    sp.save(made, folder / f"{name}.safetensors")
    return made


def recognising(folder):
    """A model that remembers inputs of two tasks, and the inputs; its file is many.safetensors."""
    model = sp.superpose(make(), "hadamard", tasks=["low", "high"], recognise=True).eval()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 64, INPUTS, generator=generator)
    given = {"low": noise[0] - 4, "high": noise[1] + 4}
    for task, own in given.items():
        model.remember(own, task=task)
    sp.save(model, folder / "many.safetensors")
    return model, given


def service_of(folder, limits=None, options=None, net=make, **named):
    lines = []
    repository = Repository(folder / "many.safetensors", net, options, **named)
    service = Service(
        repository,
        limits or Limits(),
        log=lambda event, **facts: lines.append({"event": event, **facts}),
    )
    service.lines = lines
    return service


def serving(service, tokens=TOKENS, **options):
    return Server(service, tokens=tokens, port=0, grpc_port=0, **options)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        assert list(self.json) == ["error"]
        return self.json["error"]


def call(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, content, headers or {})
        answer = connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def asked(x, name="x", **more):
    tensor = {"name": name, "datatype": "FP32", "shape": list(x.shape), "data": x.tolist()}
    return {"inputs": [tensor], **more}


def path_of(task):
    return f"/v2/models/{quote(task, safe='')}"


def infer(server, task, x, **more):
    return call(server, "POST", f"{path_of(task)}/infer", asked(x, **more))


def rows(reply, place=0):
    """The numbers of an answer in JSON."""
    assert reply.status == 200, reply.content
    output = reply.json["outputs"][place]
    return torch.tensor(output["data"], dtype=torch.float32).reshape(output["shape"])


def change(server, verb, name, **parameters):
    path = f"/v2/repository/models/{quote(name, safe='')}/{verb}"
    return call(server, "POST", path, {"parameters": parameters}, CONTROL)


def metrics(server):
    text = call(server, "GET", "/metrics").content.decode()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


class Gate:
    """Holds the batches of a version until it is opened, and records their works."""

    def __init__(self, version):
        self.batches = []
        self.entered = threading.Semaphore(0)  # once for each batch that came
        self._open = threading.Event()
        run = version.run

        def gated(works):
            self.batches.append([(work.task, work.rows) for work in works])
            self.entered.release()
            assert self._open.wait(60)
            return run(works)

        version.run = gated

    def open(self):
        self._open.set()


def together(*calls):
    """Run calls at the same time: their futures."""
    pool = ThreadPoolExecutor(len(calls))
    futures = [pool.submit(one) for one in calls]
    pool.shutdown(wait=False)
    return futures


def until(true, seconds=60):
    """Wait for what another thread does; no test is right or wrong by how long it takes."""
    pause = threading.Event()
    for _ in range(100 * seconds):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError(f"it did not happen in {seconds} s")
