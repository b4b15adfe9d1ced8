"""Serve a hundred users' models from one file; requests of different users share one batch.

The server is the one of `superpose serve many.safetensors --net net:make …`, here in a
thread; any client of the Open Inference Protocol can ask it.
"""

import json
import tempfile
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

import superpose as sp


def make():
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def ask(url, task, row):
    """One request in JSON, and its answer."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 64], "data": row.tolist()}
    path = f"{url}/v2/models/{urllib.parse.quote(task, safe='')}/infer"
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(urllib.request.Request(path, body)) as answer:
        return torch.tensor(json.load(answer)["outputs"][0]["data"])


def main():
    torch.manual_seed(0)
    users = [f"user {number}" for number in range(100)]
    model = sp.superpose(make(), "binary", tasks=users).eval()

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "many.safetensors"
        sp.save(model, file)  # contexts are derived from keys, so 100 tasks cost no more than one
        print(f"{len(users)} tasks in {file.stat().st_size:,} bytes")

        service = sp.serving.Service(sp.serving.Repository(file, make))
        with sp.serving.Server(service, port=0, grpc_port=None) as server:
            x = torch.randn(64, 64)
            asked = [users[number * 7 % 100] for number in range(64)]
            with ThreadPoolExecutor(16) as clients:  # sixteen clients at a time
                rows = clients.map(ask, [server.url] * 64, asked, x)
                answers = torch.stack(list(rows))

    with torch.no_grad():
        in_process = model(x, task=asked)  # the same mixed batch without a server
    batches = service.traffic.batches.total()
    print(f"{len(asked)} requests of {len(set(asked))} users in {batches} batches")
    print("largest difference to the model in process:", (answers - in_process).abs().max().item())
    return answers, in_process


if __name__ == "__main__":
    main()
