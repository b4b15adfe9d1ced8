"""`DistributedDataParallel`: two processes learn what one learns from the whole batch."""

import os
import subprocess
import sys

PROGRAM = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import superpose as sp

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 3))
options = dict(family="hadamard", tasks=["a", "b", "c"], base=True, rank=2)
alone, together = sp.superpose(net, **options), sp.superpose(net, **options)
parallel = DistributedDataParallel(together, find_unused_parameters=True)
ways = [(alone, slice(None)), (parallel, slice(8 * rank, 8 * rank + 8))]
optimisers = [torch.optim.SGD(model.parameters(), 0.1) for model, _ in ways]
for task in ("a", "b", ["a", "b"] * 8):  # and a mixed batch
    for _ in range(4):
        x, y = torch.randn(16, 32), torch.randint(3, (16,))
        for (model, rows), optimiser in zip(ways, optimisers):
            own = task if isinstance(task, str) else task[rows]
            optimiser.zero_grad()
            F.cross_entropy(model(x[rows], task=own), y[rows]).backward()
            optimiser.step()
rows = torch.randn(6, 32)
for task in together.tasks:
    torch.testing.assert_close(together(rows, task=task), alone(rows, task=task))
assert torch.equal(together(rows, task="c"), net(rows))
assert not torch.equal(together(rows, task="a"), net(rows))
dist.destroy_process_group()
"""


def test_two_processes_learn_as_one(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ran = subprocess.run(
        [*command, "--nproc-per-node", "2", program],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
