"""Two processes learn what one does, and derive the same contexts without a word."""

import json
import subprocess
import sys

import pytest
import torch

import superpose as sp
from superpose.learning.replicas import Replicas

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RUN = [
    "-m",
    "superpose",
    "run",
    "permuting-mnist",
    "--dataset",
    "digits",
    "--tasks",
    "2",
    "--steps",
    "60",
    "--units",
    "32",
    "--batch-size",
    "64",
    "--lr",
    "1e-3",
    "--json",
]


def learned(launcher, out):
    command = [sys.executable, *launcher, *RUN, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(line), torch.load(out / "checkpoint.pt", weights_only=True)["model"]


def test_two_processes_learn_what_one_does(tmp_path):
    one, alone = learned([], tmp_path / "one")
    two, together = learned(TORCHRUN, tmp_path / "two")
    assert one["mean_all"] > 0.7
    assert abs(two["mean_all"] - one["mean_all"]) < 0.02
    assert len(alone) == 3
    for name, weight in alone.items():
        torch.testing.assert_close(together[name], weight, rtol=1e-2, atol=1e-3)


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
