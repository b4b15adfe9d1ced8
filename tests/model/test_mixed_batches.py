"""Mixed batches: each row as if it were run alone (law 3)."""

import pytest
import torch
from cases import every_family
from checks import randomise_private, rows_one_by_one
from networks import mlp
from torch import nn

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


def test_a_tensor_of_another_size_is_refused_whatever_is_beside_it():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, mask):
            return self.layer(x) * mask.sum()

    model, x, mask = sp.superpose(Masked(), tasks=3), torch.randn(3, 4), torch.rand(5)
    refused = r"argument 'mask' has the shape \(5,\): .*batch_dim=\{'mask': 1\}"
    with pytest.raises(sp.SuperposeError, match=refused):
        model(x, mask, task=[0, 1, 2])
    declared = sp.superpose(Masked(), tasks=3, batch_dim={"mask": None}).eval()
    each = [declared(x[i : i + 1], mask, task=i) for i in range(3)]
    torch.testing.assert_close(declared(x, mask, task=[0, 1, 2]), torch.cat(each))


def test_the_way_is_found_between_a_pass_and_its_gradient():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("scale", torch.rand(4))

        def forward(self, x):
            return self.layer(x * self.scale).tanh()

    model = sp.superpose(Scaled(), "hadamard", tasks=3)
    x = torch.randn(4, 4, requires_grad=True)
    one = model(x, task=0)
    two = model(x, task=[0, 1, 2, 1])
    (one.sum() + two.sum()).backward()
    assert x.grad.isfinite().all()
