"""Clients that we did not write, in environments of their own: `make clients` makes them."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from serving import openapi
from serving.served import INPUTS, saved, service_of, serving

import superpose as sp
from superpose.serving import Options

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES = ["cats", "dogs", "birds of prey"]


def python(client):
    folder = Path(os.environ.get("SUPERPOSE_CLIENTS", ROOT / ".clients"))
    found = folder / client / "bin" / "python"
    if not found.exists():
        pytest.skip(f"there is no environment for {client}: make clients")
    return found


@pytest.fixture
def known(tmp_path):
    """A served model, and its answers in process as files."""
    model = saved(tmp_path, NAMES)
    x = torch.randn(5, INPUTS)
    np.save(tmp_path / "x.npy", x.numpy())
    with torch.no_grad():
        answers = {task: model(x, task=task).numpy() for task in NAMES}
    np.savez(tmp_path / "expected.npz", **answers)
    with serving(service_of(tmp_path)) as server:
        yield server, tmp_path


@pytest.mark.clients
@pytest.mark.parametrize(("client", "script"), [("triton", "triton"), ("kserve", "kserve_client")])
def test_a_real_client(known, client, script):
    command = python(client)
    server, folder = known
    where = [f"127.0.0.1:{port}" for port in (server.port, server.grpc_port)]
    told = subprocess.run(
        [command, HERE / "clients" / f"{script}.py", *where, folder],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.stdout.strip() == "done", told.stderr


@pytest.mark.clients
def test_the_client_of_openai(tmp_path):
    command = python("openai")
    spec = importlib.util.spec_from_file_location("text", ROOT / "examples" / "serve_text.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model = sp.superpose(example.Encoder(), tasks=example.TASKS).eval()
    sp.save(model, tmp_path / "many.safetensors")
    texts = ["a contract", "two parties agree to it", "one"]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    with torch.no_grad():
        answers = {
            task: np.concatenate([model(**example.tensors(t), task=task).numpy() for t in texts])
            for task in example.TASKS
        }
    np.savez(tmp_path / "expected.npz", **answers)
    options = Options(example.INPUTS, pad={"input_ids": 0, "attention_mask": 0})
    service = service_of(tmp_path, options=options, net=example.Encoder)
    with example.serving(service, port=0) as server:
        script = HERE / "clients" / "openai_client.py"
        told = subprocess.run(
            [command, script, f"127.0.0.1:{server.port}", "-", tmp_path],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert told.stdout.strip() == "done", told.stderr


@pytest.mark.clients
def test_schemathesis(known):
    """None of its requests is answered by 5xx, or by a status that is not described."""
    command = python("schemathesis").with_name("schemathesis")
    server, folder = known
    (folder / "openapi.json").write_text(json.dumps(openapi.document()))
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    options = ["--checks", checks, "--max-examples", "100", "--seed", "1"]
    options += ["--generation-database", "none", "--url", server.url]
    ran = subprocess.run(
        [command, "run", folder / "openapi.json", *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-5000:]
