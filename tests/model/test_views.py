"""Views: what a pass uses is what the tensors are now, whoever wrote to them, and however."""

import copy
import inspect
from dataclasses import dataclass

import pytest
import torch
from checks import rows_one_by_one, scramble
from modules import mlp
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import superpose as sp

TASKS = [0, 1, 2]


def made(**options):
    return scramble(sp.superpose(mlp(), "phase", tasks=3, **options)).eval()


def fused(model):
    """A step that counts no versions."""
    own = [p for p in model.parameters() if p.requires_grad]
    for parameter in own:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(own, lr=0.5, fused=True).step()


def by_data(model):
    for parameter in model.parameters():
        parameter.data.mul_(2)


def by_numpy(model):
    for parameter in model.parameters():
        parameter.detach().numpy()[...] *= 2


def replaced(model):
    vector_to_parameters(2 * parameters_to_vector(model.parameters()), model.parameters())


def other_memory(model):
    for parameter in model.parameters():
        parameter.data = 2 * parameter.data


def loaded(model):
    state = model.state_dict()
    model.load_state_dict({n: 2 * t if t.is_floating_point() else t for n, t in state.items()})


def moved(model):
    by_data(model.double())
    model.float()


@pytest.mark.parametrize("write", [fused, by_data, by_numpy, replaced, other_memory, loaded, moved])
@pytest.mark.parametrize("learnable", [False, True])
def test_what_is_written_is_used(write, learnable):
    x = torch.randn(3, 6)
    for task in (1, TASKS):
        model = made(learnable=learnable)
        with torch.no_grad():
            before = model(x, task=task), model(x, task=1)
            write(model)
            found = model(x, task=task)
        assert not torch.allclose(found, before[0], atol=1e-2)
        with torch.enable_grad():  # no view is kept there
            expected = rows_one_by_one(model, TASKS if task == TASKS else [1] * 3, x)
        torch.testing.assert_close(found, expected)


def test_starts_and_begun_tasks_are_those_of_now():
    model, x = sp.superpose(mlp(), tasks=3, base=True).eval(), torch.randn(3, 6)
    with torch.no_grad():
        closed = model(x, task=1)
        nn.init.normal_(model[0].stored("weight"))
        assert torch.equal(model(x, task=1), closed)
        model.begin(1)
        opened = model(x, task=1)
        assert not torch.allclose(opened, closed, atol=1e-3)
        model.remove_task(1)
        model.add_task("again")
        assert torch.equal(model(x, task="again"), closed)


def test_parameters_that_are_swapped_for_one_call():
    model, x = made(), torch.randn(3, 6)
    others = {name: p.detach() + 1 for name, p in model.named_parameters()}
    with torch.no_grad():
        before = model(x, task=0)
        found = functional_call(model, others, (x,), {"task": 0})
        torch.testing.assert_close(model(x, task=0), before)
        whole = functional_call(model, {**model.state_dict(), **others}, (x,), {"task": 0})
        torch.testing.assert_close(whole, found)
        model.load_state_dict({**model.state_dict(), **others})
        torch.testing.assert_close(found, model(x, task=0))


def test_statistics_are_written_through_a_view_that_was_kept():
    model = sp.superpose(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), tasks=3)
    x, held = torch.randn(3, 8), model.view(0)
    with torch.no_grad():
        before = model.eval()(x, task=0)
        model.train().run(held, torch.randn(16, 8) + 1)
        model.eval()
        torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
        assert (model(x, task=0) - before).abs().max() > 1e-2


def test_no_more_views_are_kept_than_are_wanted():
    model, x = sp.superpose(mlp(), tasks=200).eval(), torch.randn(1, 6)
    with torch.no_grad():
        for task in range(200):
            model(x, task=task)
    assert len(model.__dict__["_kept_views"]) <= 64


def test_a_layer_is_found_in_no_other_models_view():
    one, other = made(), made()
    x = torch.randn(3, 6)
    view = one.view(1)
    with torch.no_grad():
        expected = one(x, task=1)
    assert torch.equal(one.run(view, x), expected)

    def run_other(*_):
        other[0](x)

    hook = one[1].register_forward_hook(run_other)
    with pytest.raises(sp.SuperposeError, match="no task is active for layer '0'"):
        one(x, task=1)  # which must not lend its own to another model's layer of the same name
    with other.task(2):
        assert torch.equal(one(x, task=1), expected)
    hook.remove()
    twin = copy.deepcopy(one)
    with one.task(1), pytest.raises(sp.SuperposeError, match="no task is active"):
        twin[0](x)


class Telling(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)

    def forward(self, x):
        y = self.first(x)
        return y, [float(value) for value in y.detach().sum(1)]


def test_numbers_that_are_no_tensors_are_not_those_of_the_last_task():
    model = sp.superpose(Telling(), tasks=3)
    with pytest.raises(sp.SuperposeError, match=r"values that are no tensors.*return tensors"):
        model(torch.randn(3, 6), task=TASKS)


@dataclass(slots=True)
class Hidden:
    x: Tensor


class Unpacking(Telling):
    def forward(self, given):
        return self.first(given.x.flip(0)).flip(0)


def test_tensors_that_are_not_found_are_refused():
    with pytest.raises(sp.SuperposeError, match="no tensor with rows is found"):
        sp.superpose(Unpacking(), tasks=3)(Hidden(torch.randn(3, 6)), task=TASKS)


class Masked(Telling):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x, mask):
        return self.first(x) * mask.sum() * self.scale


def test_a_tensor_of_another_size_is_refused_whatever_is_beside_it():
    model, x, mask = sp.superpose(Masked(), tasks=3), torch.randn(3, 6), torch.rand(5)
    refused = r"argument 'mask' has the shape \(5,\): .*batch_dim=\{'mask': 1\}"
    with pytest.raises(sp.SuperposeError, match=refused):
        model(x, mask, task=TASKS)
    for own in ([], ["scale"]):  # beside which the network is a layer itself
        declared = sp.superpose(Masked(), tasks=3, batch_dim={"mask": None}, private_layers=own)
        assert [*inspect.signature(declared.forward).parameters] == ["x", "mask", "task"]
        each = [declared(x[i : i + 1], mask[:3], task=i) for i in TASKS]
        torch.testing.assert_close(declared(x, mask[:3], task=TASKS), torch.cat(each))
    each = [declared(x[i : i + 1], mask, task=i) for i in TASKS]
    torch.testing.assert_close(declared(x, mask, task=TASKS), torch.cat(each))
