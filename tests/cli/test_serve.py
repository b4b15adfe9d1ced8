"""superpose serve: what it is told, and a whole life from start to SIGTERM."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest
import torch
from safetensors.torch import save_file

import superpose as sp
from superpose.cli import main

SIZES = {"in_features": 12, "out_features": 3}
NET = ["--net", "torch.nn:Linear", "--net-args", json.dumps(SIZES)]


@pytest.fixture
def many(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = sp.superpose(torch.nn.Linear(**SIZES), tasks=["a", "b"]).eval()
    sp.save(model, "many.safetensors")
    return model


def started(*words):
    """A server of its own process, and where it listens."""
    command = [sys.executable, "-m", "superpose", "serve", "many.safetensors", *NET, *words]
    process = subprocess.Popen(
        [*command, "--port", "0", "--grpc-port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, json.loads(process.stdout.readline())


def test_from_start_to_sigterm(many):
    process, where = started()
    assert where["tasks"] == ["a", "b"]
    x = torch.randn(2, 12)
    tensor = {"name": "input", "datatype": "FP32", "shape": [2, 12], "data": x.tolist()}
    request = urllib.request.Request(
        f"{where['url']}/v2/models/b/infer", json.dumps({"inputs": [tensor]}).encode()
    )
    with urllib.request.urlopen(request) as answer:
        found = torch.tensor(json.load(answer)["outputs"][0]["data"]).reshape(2, 3)
    torch.testing.assert_close(found, many(x, task="b"), atol=1e-5, rtol=1e-5)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert (out, err) == ("", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.safetensors", *NET], "none.safetensors: there is no such file"),
        (["many.safetensors", *NET, "--inputs", "x=FLOAT[3]"], "write it as NAME=TYPE[SIZES]"),
        (["many.safetensors", *NET, "--pad", "x"], "write it as NAME=NUMBER"),
        (["many.safetensors", *NET, "--pad", "y=0"], "there is no input 'y'"),
        (["many.safetensors", *NET, "--name", "a"], "are both called 'a'"),
        (["many.safetensors", *NET, "--token-file", "empty"], "empty holds no token"),
        (["many.safetensors", *NET, "--host", "no host"], "cannot be listened on"),
        (["plain.safetensors", *NET], "was not written by superpose.save"),
    ],
)
def test_errors_are_one_sentence(many, words, message, tmp_path, capsys):
    (tmp_path / "empty").write_text("# nothing\n")
    save_file({"x": torch.zeros(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "--port", "0", *words])
    out, err = capsys.readouterr()
    assert (stopped.value.code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1
