"""Serve eight image classifiers from one file, to images of any size up to a limit.

    superpose serve images.safetensors --net mypackage.nets:make \
        --inputs 'x=FP32[3,height<=48,width<=48]'

is the same server. Images of one size share a batch, whatever their tasks.
"""

import json
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import nn

import superpose as sp
from superpose.serving import Options, Repository, Server, Service, TensorSpec

TASKS = ["cats", "dogs", "birds", "cars", "ships", "flowers", "faces", "digits"]


def make():
    """A small network that does not mind how large an image is."""
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))


def ask(url, task, image):
    """One request, its numbers as bytes after the JSON; the answer's too."""
    raw = image.numpy().tobytes()
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, *image.shape]}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    request = urllib.request.Request(f"{url}/v2/models/{task}/infer", head + raw, headers)
    with urllib.request.urlopen(request) as answer:
        start = int(answer.headers["Inference-Header-Content-Length"])
        return torch.tensor(np.frombuffer(answer.read()[start:], np.float32))


def main():
    torch.manual_seed(0)
    model = sp.superpose(make(), "binary", tasks=TASKS).eval()
    images = [torch.rand(3, *((32, 32) if place % 3 else (48, 24))) for place in range(24)]
    asked = [TASKS[place % 8] for place in range(24)]

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.safetensors"
        sp.save(model, file)
        options = Options((TensorSpec.parse("input=FP32[3,height<=48,width<=48]"),))
        service = Service(Repository(file, make, options))
        with Server(service, port=0, grpc_port=None) as server, ThreadPoolExecutor(12) as clients:
            answers = list(clients.map(ask, [server.url] * 24, asked, images))

    with torch.no_grad():
        pairs = zip(images, asked, strict=True)
        alone = [model(image[None], task=task)[0] for image, task in pairs]
    batches = service.traffic.batches.total()
    print(f"{len(images)} images of {len(TASKS)} tasks in {batches} batches")
    return torch.stack(answers), torch.stack(alone)


if __name__ == "__main__":
    main()
