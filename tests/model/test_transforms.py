"""Models that are compiled, mapped, differentiated, copied and pickled."""

import pytest
import torch
from cases import every_family
from checks import randomise_private, rows_one_by_one
from networks import mlp
from torch._dynamo.testing import CompileCounter

import superpose as sp


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the tracer looks; it hides it itself
@every_family
def test_one_compiled_graph_serves_all_tasks(family):
    torch._dynamo.reset()
    model = randomise_private(sp.superpose(mlp(), family, tasks=8))
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    x = torch.randn(4, 12)
    for task in range(8):
        torch.testing.assert_close(compiled(x, task=task), model(x, task=task))
    names = [f"task {number}" for number in range(20)]
    named = randomise_private(sp.superpose(mlp(), family, tasks=names))
    named.mixed = "direct"
    compiled = torch.compile(named, backend=counter)
    for task in named.tasks:
        torch.testing.assert_close(compiled(x, task=task), named(x, task=task))
    assert counter.frame_count == 1
    for start in range(4):
        rows = torch.arange(4) + start
        torch.testing.assert_close(compiled(x, task=rows), named(x, task=rows))
    assert counter.frame_count == 2
    torch._dynamo.reset()
    whole = torch.compile(model.run, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(model.view(3), x), model(x, task=3))


@every_family
def test_vmap_over_rows_tasks_and_gradients(family):
    model = randomise_private(sp.superpose(mlp(), family, tasks=5))
    x, tasks = torch.randn(4, 12), torch.tensor([3, 0, 3, 4])
    one = torch.func.vmap(lambda row: model(row[None], task=2)[0])(x)
    torch.testing.assert_close(one, model(x, task=2))
    layers = model.view(tasks).layers

    def run(own, row):
        return model.run(sp.nn.View(own), row[None])[0]

    rows = torch.func.vmap(run)(layers, x)
    torch.testing.assert_close(rows, model(x, task=tasks))
    parameters = {n: p.detach() for n, p in model.named_parameters() if "weight" in n}

    def loss(parameters, row):
        output = torch.func.functional_call(model, parameters, (row[None],), {"task": 1})
        return output.square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for name, gradient in each.items():
        expected = [torch.func.grad(loss)(parameters, row)[name] for row in x]
        torch.testing.assert_close(gradient, torch.stack(expected))


@every_family
def test_a_context_may_be_used_first_in_inference_mode(family):
    net = mlp(bias=False)
    model = sp.superpose(net, family, tasks=3, seed=41)
    x = torch.randn(2, 12)
    with torch.inference_mode():
        wanted = model(x, task=0)
    again = sp.superpose(net, family, tasks=3, seed=41)  # another model with the same contexts
    again(x, task=0).sum().backward()
    assert torch.equal(again(x, task=0), wanted)
    with torch.no_grad():
        mixed = again(x, task=[2, 1])
        torch.testing.assert_close(mixed, rows_one_by_one(again, [2, 1], x))


@every_family
def test_a_context_may_be_used_first_inside_a_transform(family):
    model = sp.superpose(mlp(), family, tasks=3, seed=4321)  # a seed of its own: nothing is cached
    parameters = {n: p.detach() for n, p in model.named_parameters() if "weight" in n}
    x = torch.randn(4, 12)

    def loss(parameters):
        output = torch.func.functional_call(model, parameters, (x,), {"task": 1})
        return output.square().sum()

    found = torch.func.grad(loss)(parameters)
    model(x, task=1).square().sum().backward()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad)
