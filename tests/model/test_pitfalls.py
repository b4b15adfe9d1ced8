"""Sequences of operations that once gave a wrong answer without an error."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from superpose import SuperposeError, load, save, superpose
from superpose.model import Superposed

TASKS = [0, 1, 2]


def apart(model: Superposed) -> Superposed:
    """With private tensors that differ from task to task."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for task in model.tasks:
            for tensor in model.private_tensors(task).values():
                tensor.add_(torch.rand(tensor.shape, generator=generator))
    return model


def alone(model: Superposed, x: Tensor, tasks: list[int]) -> Tensor:
    """Each row by itself; with gradients, so that no selection is kept."""
    with torch.enable_grad():
        rows = [model(x[i : i + 1], task=task) for i, task in enumerate(tasks)]
    return torch.cat(rows).detach()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4))


def fused(model: Superposed) -> None:
    """A step that counts no versions."""
    own = [p for p in model.parameters() if p.requires_grad]
    for parameter in own:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(own, lr=0.5, fused=True).step()


def by_data(model: Superposed) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(2)


def by_numpy(model: Superposed) -> None:
    for parameter in model.parameters():
        parameter.detach().numpy()[...] *= 2


def replaced(model: Superposed) -> None:
    vector_to_parameters(2 * parameters_to_vector(model.parameters()), model.parameters())


@pytest.mark.parametrize("write", [fused, by_data, by_numpy, replaced])
@pytest.mark.parametrize("learnable", [False, True])
def test_what_is_written_without_being_counted_is_used(write, learnable):
    x = torch.randn(3, 8)
    for task in (1, TASKS):
        model = apart(superpose(network(), "phase", tasks=3, learnable=learnable).eval())
        with torch.no_grad():
            before = model(x, task=task)
            write(model)
            found = model(x, task=task)
        assert not torch.allclose(found, before, atol=1e-2)
        torch.testing.assert_close(found, alone(model, x, TASKS if task == TASKS else [1] * 3))


def test_parameters_that_are_swapped_for_one_call():
    model, x = superpose(nn.Linear(8, 8), tasks=3), torch.randn(3, 8)
    others = {name: p.detach() + 1 for name, p in model.named_parameters()}
    with torch.no_grad():
        before = model(x, task=0)
        found = functional_call(model, others, (x,), {"task": 0})
        torch.testing.assert_close(model(x, task=0), before)
        model.load_state_dict(others, strict=False)
        torch.testing.assert_close(found, model(x, task=0))


def test_statistics_written_through_a_selection_that_was_kept():
    model = superpose(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), tasks=3)
    x, held = torch.randn(3, 8), model.view(0)
    with torch.no_grad():
        model.eval()(x, task=TASKS)
        model.train().run(held, torch.randn(16, 8))
        torch.testing.assert_close(model.eval()(x, task=TASKS), alone(model, x, TASKS))


class Moving(nn.Module):
    """Layers that meet rows where the arguments, sizes or attributes say so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)


class ByLength(Moving):
    def forward(self, x, lengths):
        order = lengths.argsort(descending=True, stable=True)
        y = self.second(self.first(x[order])) * lengths[order].view(-1, 1, 1)
        return y[order.argsort()]


@pytest.mark.parametrize(("tasks", "private"), [(3, "per-task"), (2, "shared")])
@pytest.mark.parametrize("first", [[4, 3, 2], [2, 3, 4]])
def test_rows_that_are_sorted(tasks, private, first):
    model = superpose(ByLength(), tasks=tasks, private=private)
    x, chosen = torch.randn(3, 4, 8), [0, 1, tasks - 1]
    for lengths in (torch.tensor(first), torch.tensor([2, 3, 4])):
        found = model(x, lengths, task=chosen)
        rows = [model(x[i : i + 1], lengths[i : i + 1], task=t) for i, t in enumerate(chosen)]
        torch.testing.assert_close(found, torch.cat(rows))


class BySize(Moving):
    def forward(self, x):
        y = self.first(x)
        if x.shape[1] > 4:
            return self.second(y.transpose(0, 1)).transpose(0, 1)
        return self.second(y)


def test_a_layout_that_depends_on_a_size():
    model = apart(superpose(BySize(), tasks=3))
    model(torch.randn(3, 4, 8), task=TASKS)
    x, tasks = torch.randn(6, 6, 8), TASKS * 2
    torch.testing.assert_close(model(x, task=tasks), alone(model, x, tasks))


class ByValue(Moving):
    def forward(self, x, share=0.0):
        return self.first(x - share * x.mean(0))


def test_rows_that_meet_for_one_value_of_an_argument():
    model, x = superpose(ByValue(), tasks=3), torch.randn(3, 8)
    model(x, share=0.0, task=TASKS)
    with pytest.raises(SuperposeError, match="other values when other rows are beside it"):
        model(x, share=0.5, task=TASKS)


def test_a_norm_that_is_set_to_training_later():
    model = superpose(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), tasks=3)
    x = torch.randn(3, 8)
    model.train()[1].eval()
    model(x, task=TASKS)
    with pytest.raises(SuperposeError, match="takes statistics over the rows"):
        model.train()(x, task=TASKS)


class Masked(Moving):
    def forward(self, x, allowed):
        y = self.first(x)
        return self.second(y - y.mean(0)).masked_fill(~allowed, -1e9)


def test_masked_values_do_not_hide_that_rows_meet():
    allowed = torch.arange(8).remainder(2).bool().expand(3, 8)
    with pytest.raises(SuperposeError, match="other values when other rows are beside it"):
        superpose(Masked(), tasks=3)(torch.randn(3, 8), allowed, task=TASKS)


class Shuffled(Moving):
    def forward(self, x):
        return self.first(x + x[torch.randperm(len(x))])


def test_rows_that_meet_at_random_are_refused_by_any_seed():
    for seed in range(12):
        torch.manual_seed(seed)
        with pytest.raises(SuperposeError, match="other values when other rows are beside it"):
            superpose(Shuffled(), tasks=3)(torch.randn(3, 8), task=TASKS)


class Caching(Moving):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.calls, self.cache = nn.Parameter(torch.ones(8)), [], {}
        self.count = torch.zeros(1)

    def forward(self, x):
        self.calls.append(len(x))
        self.count += 1
        if not self.training:
            return self.first(x + self.cache.setdefault("shift", 2 * self.shift))
        return self.first(x)


def test_finding_the_way_leaves_no_cache_and_one_that_is_another_tasks_is_refused():
    model, x = superpose(Caching(), tasks=3), torch.randn(3, 8)
    model.train()(x, task=TASKS)
    assert (model.calls, model.count.item()) == ([3], 1)
    with pytest.raises(SuperposeError, match="keeps a result of one task"):
        model.eval()(x, task=TASKS)
    assert (model.calls, model.count.item(), model.cache) == ([3], 1, {})


class Folding(Moving):
    def forward(self, x):
        rows, time, width = x.shape
        fold = 2 if time > 4 else 1
        y = self.first(x.reshape(rows * fold, time // fold, width)).reshape(x.shape)
        return y, y.pow(2).mean()


def test_a_loss_is_not_that_of_the_first_task_where_a_batch_turns_out_not_to_be_direct():
    model = superpose(Folding(), tasks=3)
    model(torch.randn(3, 4, 8), task=TASKS)
    with pytest.raises(SuperposeError, match="such as a loss"):
        model(torch.randn(3, 8, 8), task=TASKS)


class Telling(Moving):
    def forward(self, x):
        y = self.first(x)
        return y, [float(value) for value in y.detach().sum(1)]


def test_numbers_that_are_no_tensors_are_not_those_of_the_last_task():
    model = superpose(Telling(), tasks=3, mixed="grouped")
    with pytest.raises(SuperposeError, match="return tensors"):
        model(torch.randn(3, 8), task=TASKS)


@dataclass(slots=True)
class Hidden:
    x: Tensor


class Unpacking(Moving):
    def forward(self, given):
        return self.first(given.x.flip(0)).flip(0)


def test_tensors_that_are_not_found_are_refused():
    with pytest.raises(SuperposeError, match="no tensor with rows is found"):
        superpose(Unpacking(), tasks=3)(Hidden(torch.randn(3, 8)), task=TASKS)


class Tied(Moving):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def test_a_file_of_two_tensors_is_not_loaded_into_one(tmp_path):
    path = tmp_path / "model.safetensors"
    save(superpose(Tied(False), tasks=2), path)
    with pytest.raises(SuperposeError, match="tied to another tensor in the network"):
        load(path, Tied(True))


class Across(Moving):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.first(x).transpose(0, 1)).transpose(0, 1)


def test_the_way_of_tasks_that_have_learned_nothing_is_that_of_tasks_that_have():
    model, x = superpose(Across(), tasks=3, private_layers=["first"]), torch.randn(3, 3, 8)
    model(x, task=TASKS)
    torch.testing.assert_close(apart(model)(x, task=TASKS), alone(model, x, TASKS))
