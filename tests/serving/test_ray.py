"""Replicas on Ray Serve, in an environment of its own: `make ray` makes it."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from serving.served import INPUTS, asked, call, path_of, rows, until
from serving.test_clients import HERE, ROOT, python

import superpose as sp
from superpose.serving import ray_deployment

TASKS = ["cats", "dogs", "a/b c"]
TOKEN = {"authorization": "Bearer hello"}
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT / "src"),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # 5 are too few on a busy machine
}


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(sp.SuperposeError, match=r"pip install \"superpose\[ray\]\""):
        ray_deployment(lambda: None)


def saved(folder, seed):
    torch.manual_seed(seed)
    model = sp.superpose(torch.nn.Linear(16, 5), tasks=TASKS).eval()
    sp.save(model, folder / "many.safetensors")
    return model


def infer(server, task, x, headers=TOKEN):
    named = asked(x, name="input")
    return call(server, "POST", f"{path_of(task)}/infer", named, headers)


@pytest.fixture
def replicas(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = saved(tmp_path, seed=0)
    app = subprocess.Popen(
        [python("ray"), HERE / "clients" / "ray_app.py", tmp_path, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    try:
        deployed(app)
        yield SimpleNamespace(port=port, app=app, model=model, folder=tmp_path)
    finally:
        app.communicate(timeout=120)


def deployed(app):
    while (line := app.stdout.readline()) != "deployed\n":  # else lines of Ray itself
        assert line, "the application ended"


def alive(folder):
    numbers = [int(path.name) for path in (folder / "replicas").iterdir()]
    return [number for number in numbers if Path(f"/proc/{number}").exists()]


@pytest.mark.ray
def test_two_replicas(replicas):
    x = torch.randn(2, INPUTS)
    assert len(alive(replicas.folder)) == 2
    for task in TASKS:
        expected = replicas.model(x, task=task)
        torch.testing.assert_close(rows(infer(replicas, task, x)), expected, atol=1e-5, rtol=1e-5)
    assert infer(replicas, "birds", x).status == 404
    assert infer(replicas, "cats", x, headers={}).status == 401
    assert call(replicas, "GET", "/v2/health/ready").json == {"ready": True}
    unload = "/v2/repository/models/cats/unload"
    control = {"authorization": "Bearer secret"}
    assert call(replicas, "POST", unload, {}, control).status == 403  # it would change one replica

    statuses, wrong, over = [], [], threading.Event()
    models = [replicas.model]

    def request():
        while not over.is_set():
            reply = infer(replicas, "dogs", x)
            statuses.append(reply.status)
            if reply.status == 200:
                answer = rows(reply)
                near = [torch.allclose(answer, m(x, task="dogs"), atol=1e-4) for m in models]
                wrong.append(not any(near))

    client = threading.Thread(target=request)
    client.start()
    try:
        killed = alive(replicas.folder)[0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: len({*alive(replicas.folder)} - {killed}) == 2, 300)  # Ray started another
        lost = sum(status != 200 for status in statuses)
        assert lost <= 2  # what the killed replica had begun

        models.append(saved(replicas.folder, seed=1))
        before = len(statuses)
        replicas.app.stdin.write("again\n")
        replicas.app.stdin.flush()
        deployed(replicas.app)
        assert set(statuses[before:]) <= {200}  # a rolling restart loses nothing
    finally:
        over.set()
        client.join()
    assert len(wrong) > 20
    assert not any(wrong)
    for _ in range(10):
        expected = models[1](x, task="dogs")
        torch.testing.assert_close(rows(infer(replicas, "dogs", x)), expected, atol=1e-4, rtol=1e-4)
