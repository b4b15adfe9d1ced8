"""Sequences of operations that once gave a wrong answer without an error."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from superpose import superpose
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
    x, held = torch.randn(3, 8), model.selection(0)
    with torch.no_grad():
        model.eval()(x, task=TASKS)
        model.train().run(held, torch.randn(16, 8))
        torch.testing.assert_close(model.eval()(x, task=TASKS), alone(model, x, TASKS))
