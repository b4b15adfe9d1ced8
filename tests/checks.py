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
    """Of the squares, each with a weight of its own, so that no two rows can change places."""
    model.zero_grad()
    numbers = output.detach().real
    weights = torch.linspace(0.5, 1.5, output.numel()).to(numbers).view(output.shape)
    (output.abs().square() * weights).sum().backward()
    return learned_gradients(model)


def learned_gradients(model):
    """By the plain network's names; what task 2 has of `1.weight` is `1.weight of 2`."""
    own = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    found = {name: gradient.clone() for name, gradient in own.items() if not is_private(name)}
    every = model.private_state.flats.values() if isinstance(model, Superposed) else ()
    for flats in every:
        for task, flat in flats.named_parameters():
            if flat.grad is not None:
                found |= named(flats, flat.grad.clone(), task)
    return found


def named(flats, numbers, task):
    """The parts of a flat tensor, by name and task."""
    return {
        (f"{path}.{name}" if path else name) + f" of {task}": tensor
        for path, own in flats.split(numbers).items()
        for name, tensor in own.items()
    }


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


def assert_close(found, expected):
    """Two dictionaries of tensors."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], msg=lambda why, n=name: f"{n}: {why}")


def assert_same_bits(found, expected):
    """Two dictionaries of tensors."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name


def first(output):
    return output[0] if isinstance(output, tuple) else output


def rows_one_by_one(model, tasks, *inputs):
    return torch.cat([model(*(x[i : i + 1] for x in inputs), task=t) for i, t in enumerate(tasks)])


def randomise_private(model):
    """So that tasks differ in their private parameters too."""
    model.begin(*model.tasks)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for task in model.tasks:
            for name, tensor in model.private_tensors(task).items():
                if tensor.dtype != torch.int64 and "covariance" not in name:
                    noise = torch.rand(tensor.shape, generator=generator)
                    tensor.add_(noise.to(tensor.device, tensor.real.dtype))
    return model


def scramble(model):
    """Tasks that have begun, and weights that somebody has learned."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for layer in model.superposed_layers:
            for name in layer.bound:
                weight = layer.stored(name)
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(0.3 * noise.to(weight.real.dtype))
    return randomise_private(model)


def learn(model, x, *tasks, steps=2, lr=0.05):
    """Some steps for each task, which begins."""
    optimiser = torch.optim.Adam(model.parameters(), lr)
    model.begin(*tasks)
    for number, task in enumerate(tasks):
        for _ in range(steps):
            optimiser.zero_grad()
            (model(x, task=task) - number - 1).square().mean().backward()
            optimiser.step()
    return model


def copies(model, net, path):
    """The model copied, pickled, as a state, and written to a file and read."""
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
