"""What tests of many modules compare: rows with rows alone, tasks that differ, gradients."""

import copy
import pickle

import torch

import superpose as sp
from superpose.contexts import Key
from superpose.model import Superposed
from superpose.nn.private import is_private

TASKS = torch.tensor([2, 0, 1, 2, 3])


def gradients(model, output):
    model.zero_grad()
    output.square().sum().backward()
    return learned_gradients(model)


def learned_gradients(model):
    """By the plain network's names; what task 2 has of `1.weight` is `1.weight of 2`."""
    own = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    found = {name: gradient.clone() for name, gradient in own.items() if not is_private(name)}
    every = model.private_state.flats.values() if isinstance(model, Superposed) else ()
    for flats in every:
        for task, flat in flats.named_parameters():
            if flat.grad is not None:
                for path, own in flats.split(flat.grad.clone()).items():
                    names = [f"{path}.{name}" if path else name for name in own]
                    found |= dict(zip([f"{name} of {task}" for name in names], own.values(), strict=True))
    return found


def whole_state(model):
    """A copy of the shared state, and what each task has for itself, as `1.weight of 2`."""
    shared = {name: t for name, t in model.state_dict().items() if not is_private(name)}
    numbers = model.superposition.names.items()
    own = {
        f"{name} of {number}": tensor
        for task, number in numbers
        for name, tensor in model.private_tensors(task).items()
    }
    return {name: tensor.detach().clone() for name, tensor in (shared | own).items()}


def first(output):
    return output[0] if isinstance(output, tuple) else output


def rows_one_by_one(model, tasks, *inputs):
    return torch.cat([model(*(x[i : i + 1] for x in inputs), task=t) for i, t in enumerate(tasks)])


def randomise_private(model):
    """So that tasks differ in their private parameters too."""
    model.begin(*model.tasks)
    with torch.no_grad():
        for task in model.tasks:
            for name, tensor in model.private_tensors(task).items():
                if tensor.dtype != torch.int64 and "covariance" not in name:
                    tensor.add_(torch.rand_like(tensor))
    return model


def assert_plain_bit_for_bit(net, x):
    """Outputs and gradients of the identity family are those of the plain network."""
    model = sp.superpose(net, "identity", tasks=4)
    y, plain = model(x, task=2), net(x)
    assert torch.equal(y, plain)
    y.square().sum().backward()
    plain.square().sum().backward()
    learned = learned_gradients(model)
    for tensor, parameter in net.named_parameters():
        private = f"{tensor} of 2"
        assert torch.equal(learned[private if private in learned else tensor], parameter.grad)


def copies(model, net, path):
    """The model copied, pickled, and written to a file and read."""
    sp.save(model, path)
    yield copy.deepcopy(model)
    yield pickle.loads(pickle.dumps(model))
    yield sp.load(path, net).train(model.training)


def context_of(case, dim, task, dtype=torch.float64, layer="layer", seed=0):
    real = dtype.to_real()
    derived = case.family.context(Key(seed, layer, task), dim)
    return derived.to(torch.device("cpu"), real)


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def tolerance(dim, dtype):
    return 10 * dim * torch.finfo(dtype).eps


def assert_near(actual, expected, dim, dtype):
    scale = max(1.0, expected.abs().max().item())
    assert (actual - expected).abs().max().item() <= tolerance(dim, dtype) * scale
