"""Mixed batches: each row as if it were run alone (law 3)."""

import torch
from cases import every_family
from checks import randomise_private, rows_one_by_one
from networks import mlp

import superpose as sp


@every_family
def test_law_3_rows_of_many_tasks(family):
    model = randomise_private(sp.superpose(mlp(), family, tasks=6))
    x, tasks = torch.randn(7, 12), torch.tensor([0, 5, 2, 5, 1, 0, 3])
    mixed = model(x, task=tasks)
    torch.testing.assert_close(mixed, rows_one_by_one(model, tasks, x))
    torch.testing.assert_close(mixed, model(x, task=tasks.tolist()))
    assert (mixed - model(x, task=tasks.flip(0))).abs().max() > 1e-2


def test_rows_of_many_tasks_follow_what_changes_private_tensors():
    model = randomise_private(sp.superpose(mlp(), tasks=["a", "b", "c"]))
    x, tasks = torch.randn(4, 12), ["c", "a", "c", "b"]

    def train():
        model(x, task=tasks).square().sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()

    def load():
        model.load_state_dict({name: 2 * tensor for name, tensor in model.state_dict().items()})

    def start_again():
        model.remove_task("c")
        model.add_task("c")

    before = model(x, task=tasks)
    for change in (train, load, start_again):
        change()
        after = model(x, task=tasks)
        torch.testing.assert_close(after, rows_one_by_one(model, tasks, x))
        assert (after[0] - before[0]).abs().max() > 1e-3
        before = after
