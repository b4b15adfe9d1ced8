"""Two replicas on Ray Serve: `ray_app.py FOLDER PORT`. A line on standard input deploys again."""

import os
import sys
from pathlib import Path

import ray
import torch
from ray import serve

import superpose as sp

FOLDER, PORT = Path(sys.argv[1]), int(sys.argv[2])


def service():
    (FOLDER / "replicas").mkdir(exist_ok=True)
    (FOLDER / "replicas" / str(os.getpid())).touch()
    net = torch.nn.Linear(16, 5)
    return sp.serving.Service(sp.serving.Repository(FOLDER / "many.safetensors", lambda: net))


def deploy():
    tokens = sp.serving.Tokens(clients=(b"hello",), control=(b"secret",))
    deployment = sp.serving.ray_deployment(service, tokens=tokens)
    options = {"num_cpus": 0.5}
    app = deployment.options(num_replicas=2, ray_actor_options=options).bind()
    serve.run(app, name="many", route_prefix="/")
    print("deployed", flush=True)


ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
serve.start(http_options={"host": "127.0.0.1", "port": PORT})
deploy()
for _ in sys.stdin:
    deploy()
serve.shutdown()
