"""Ship many models in one file, and answer a batch whose rows belong to different tasks at once."""

import tempfile
from pathlib import Path

import torch

import superpose as sp


def main():
    torch.manual_seed(0)
    users = [f"user {number}" for number in range(100)]
    model = sp.superpose(sp.lab.MLP(64, 256, 10), "binary", tasks=users)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.safetensors"
        sp.save(model, path)  # contexts are derived from keys, so 100 tasks cost no more than one
        print(f"{len(users)} tasks in {path.stat().st_size:,} bytes")
        served = sp.load(path, sp.lab.MLP(64, 256, 10)).eval()

    x = torch.randn(4, 64)
    asked = ["user 7", "user 93", "user 7", "user 0"]
    with torch.no_grad():
        together = served(x, task=asked)  # one pass, one matrix product a layer
        rows = [served(row[None], task=who) for row, who in zip(x, asked, strict=True)]
        one_by_one = torch.cat(rows)
    print("largest difference to one by one:", (together - one_by_one).abs().max().item())

    program = torch.export.export(sp.exportable(served), (x,), {"task": torch.tensor([0, 1, 2, 3])})
    numbers = torch.tensor([users.index(who) for who in asked])
    exported = program.module()(x, task=numbers)  # a program needs no superpose to run
    print("largest difference to the exported program:", (together - exported).abs().max().item())

    served.add_task("user 100")
    only_hers = sp.unsuperpose(served, "user 93")  # a plain MLP with her weights
    print(type(only_hers).__name__, torch.allclose(only_hers(x[1:2]), together[1:2], atol=1e-5))
    print(served.cost())
    return together, one_by_one


if __name__ == "__main__":
    main()
