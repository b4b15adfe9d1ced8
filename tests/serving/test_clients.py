"""Clients that we did not write, in environments of their own: `make clients` makes them."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from serving.served import INPUTS, saved, service_of, serving

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
def test_the_description_holds(known):
    """Schemathesis makes requests of the server's own description; none is answered 5xx."""
    command = python("schemathesis").with_name("schemathesis")
    server, _ = known
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    options = ["--checks", checks, "--max-examples", "100", "--seed", "1"]
    told = subprocess.run(
        [command, "run", f"{server.url}/openapi.json", *options, "--generation-database", "none"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert told.returncode == 0, told.stdout[-5000:]
