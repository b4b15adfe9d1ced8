"""Two processes learn what one does, and know the same of tasks in the end."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from learning.problems import make_net, make_stream

import superpose as sp
from superpose.learning.replicas import Replicas
from superpose.learning.run_directory import RunDirectory

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LEARN = """
import os, sys
sys.path.insert(0, sys.argv[2])
import torch
from learning.problems import make_net, make_stream
from superpose.learning import Quiet, method, train
chosen = method("hadamard+projection+replay", base=True, centre="task")
options = {"lr": 3e-3, "display": Quiet(), "optimiser": "adam", "resume": True}
out = sys.argv[1] + "/run"
stream = make_stream(tasks=2, period=100, batch_size=32)
outcome = train(make_net(), stream, chosen, out=out, **options)
state = {"model": outcome.model.state_dict(), "guard": outcome.guard.state_dict()}
torch.save({**state, "result": outcome.result}, f"{sys.argv[1]}/{os.environ.get('RANK', 0)}.pt")
"""


def learned(launcher, folder):
    folder.mkdir()
    (folder / "learn.py").write_text(LEARN)
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, *launcher, str(folder / "learn.py"), str(folder), tests]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))]


def test_two_processes_learn_what_one_does(tmp_path):
    (alone,) = learned([], tmp_path / "one")
    first, second = learned(TORCHRUN, tmp_path / "two")
    assert alone["result"]["mean_when_learned"] > 0.9
    assert abs(first["result"]["mean_all"] - alone["result"]["mean_all"]) < 0.05
    assert len(alone["model"]) > 5
    for name, tensor in alone["model"].items():
        assert torch.equal(first["model"][name], second["model"][name]), name
        if "statistics" not in name and tensor.is_floating_point():  # centred by their own means
            assert (first["model"][name] - tensor).norm() < 0.05 * tensor.norm(), name
    for name, needed in first["guard"]["guards"][0]["needed"].items():
        assert torch.equal(needed, second["guard"]["guards"][0]["needed"][name])


def test_shares_cover_the_batch():
    x, y = torch.arange(8), torch.arange(8) + 8
    tasks = (x + 16).tolist()
    shares = [Replicas(rank, 4).share(tasks, x, y) for rank in range(4)]
    assert sorted(torch.cat([own for _, own, _ in shares]).tolist()) == x.tolist()
    for task, own, labels in shares:
        assert torch.equal(labels, own + 8)
        assert task == (own + 16).tolist()
    assert Replicas(1, 4).share("a", x)[0] == "a"
    with pytest.raises(sp.SuperposeError, match="3 processes cannot share a batch of 8 rows"):
        Replicas(0, 3).share(None, x, y)


def test_processes_agree_before_a_test_and_before_a_save(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(Replicas, "agree", lambda self, model: calls.append("agree"))
    monkeypatch.setattr(RunDirectory, "save", lambda self, state, timings: calls.append("save"))
    options = {"out": tmp_path, "save_every": 0.0, "display": sp.learning.Quiet()}
    sp.learning.train(make_net(), make_stream(tasks=1, period=2), **options)
    assert calls == ["agree", "save", "agree", "agree", "save", "save"]
