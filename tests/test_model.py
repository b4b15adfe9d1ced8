"""Whole models: conversion, tasks, private parameters, and the laws that concern them."""

import asyncio
import copy
import inspect
import pickle
import threading
from functools import partial

import cases
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

import superpose as sp
from superpose.nn import Layer

every_family = pytest.mark.parametrize("family", cases.NAMES)


def mlp(bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return sp.lab.MLP(12, 16, 5, bias=bias).to(dtype)


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2),
        nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(6 * 16, 4),
    )  # fmt: skip


def rows_one_by_one(model, tasks, *inputs):
    return torch.cat([model(*(x[i : i + 1] for x in inputs), task=t) for i, t in enumerate(tasks)])


def randomise_private(model):
    """So that tasks differ in their private parameters too."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "private" in name and tensor.is_floating_point() and "covariance" not in name:
                tensor.add_(torch.rand_like(tensor))
    return model


def test_the_signature_has_the_task():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x, *more, scale=1.0, **options):
            return self.layer(x) * scale

    model = sp.superpose(Net(), tasks=2)
    assert str(inspect.signature(model.forward)) == "(x, *more, scale=1.0, task=None, **options)"
    assert str(inspect.signature(Net().forward)) == "(x, *more, scale=1.0, **options)"


def assert_plain_bit_for_bit(net, x):
    """Outputs and gradients of the identity family are those of the plain network."""
    model = sp.superpose(net, "identity", tasks=4)
    y, plain = model(x, task=2), net(x)
    assert torch.equal(y, plain)
    y.square().sum().backward()
    plain.square().sum().backward()
    learned = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for tensor, parameter in net.named_parameters():
        layer, _, own = tensor.rpartition(".")
        private = f"{layer}.private.{own}.2".removeprefix(".")
        assert torch.equal(learned[private if private in learned else tensor], parameter.grad)


def copies(model, net, path):
    """The model copied, pickled, and written to a file and read."""
    sp.save(model, path)
    yield copy.deepcopy(model)
    yield pickle.loads(pickle.dumps(model))
    yield sp.load(path, net).train(model.training)


class Recomputed(nn.Module):
    """Computes its activations again in the backward pass, if there is a way to."""

    def __init__(self, way):
        super().__init__()
        self.net, self.way = mlp(), way

    def forward(self, x):
        return self.way(self.net, x) if self.way else self.net(x)


@every_family
def test_what_is_computed_again_has_the_task_it_had(family):
    again = partial(checkpoint, use_reentrant=False, context_fn=sp.same_task)
    model = randomise_private(sp.superpose(Recomputed(again), family, tasks=4))
    kept, x = copy.deepcopy(model), torch.randn(5, 12)
    kept.way = None
    for tasks in ([1, 2], [torch.tensor([2, 0, 1, 2, 3]), 3]):
        for one in (model, kept):
            one.zero_grad()
            loss = sum(one(x, task=task).square().sum() for task in tasks)
            loss.backward(retain_graph=True)
            loss.backward()
        for own, other in zip(model.parameters(), kept.parameters(), strict=True):
            assert (own.grad is None) == (other.grad is None)
            if own.grad is not None:
                torch.testing.assert_close(own.grad, other.grad)
    kept.way = partial(checkpoint, use_reentrant=False)
    with pytest.raises(sp.SuperposeError, match=r"context_fn=superpose\.same_task"):
        kept(x, task=1).sum().backward()


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


def test_a_layer_in_two_places_is_one_layer():
    layer = nn.Linear(6, 6)
    net = nn.Sequential(nn.Sequential(layer, nn.ReLU()), nn.Sequential(layer))
    model = sp.superpose(net, tasks=["a", "b"])
    assert model.cost().stored == sp.superpose(nn.Sequential(layer), tasks=2).cost().stored
    model.remove_task("a")
    x = torch.randn(3, 6)
    torch.testing.assert_close(model(x, task="b"), sp.unsuperpose(model, "b")(x))


def test_unknown_tasks_are_named_with_the_known_ones():
    model = sp.superpose(mlp(), tasks=["cats", "dogs"])
    x = torch.randn(2, 12)
    for task in ("birds", 2, -1, [0, 7], torch.tensor([0, 7]), True):
        with pytest.raises(sp.SuperposeError, match=r"unknown task .*'cats', 'dogs'"):
            model(x, task=task)
    with pytest.raises(sp.SuperposeError, match="no task was given: call model"):
        model(x)
    for task in (1.5, [], None, [None], [[]], [[0], [1]], [[[0]]]):
        with pytest.raises(sp.SuperposeError, match=r"task=.*: give a task's name"):
            model.superposition.ids(task)
    one_task = (model.remove_task, model.private_parameters, partial(sp.unsuperpose, model))
    for function in (*one_task, partial(model.rename_task, new="birds")):
        with pytest.raises(sp.SuperposeError, match=r"task=\['cats'\]: give one task"):
            function(["cats"])


def test_numbers_that_name_tasks_are_names():
    model = sp.superpose(mlp(), tasks=[1, 2, "three"])
    plain = sp.superpose(mlp(), tasks=3)
    x = torch.randn(2, 12)
    for named, number in ((1, 0), (2, 1), ("three", 2)):
        assert torch.equal(model(x, task=named), plain(x, task=number))
        with model.task(named):
            assert torch.equal(model(x), plain(x, task=number))
    with pytest.raises(sp.SuperposeError, match="unknown task 0"):
        model(x, task=0)
    assert model.add_task() == 3
    assert sp.superpose(mlp(), tasks=[7, 1]).add_task() == 8


def test_tasks_may_be_numpys_numbers():
    model = sp.superpose(mlp(), tasks=3)
    x = torch.randn(2, 12)
    for number in (np.int64(2), np.array(2)):
        assert torch.equal(model(x, task=number), model(x, task=2))
    for rows in (np.array([0, 2]), [np.int64(0), np.int64(2)]):
        assert torch.equal(model(x, task=rows), model(x, task=[0, 2]))


@every_family
@pytest.mark.parametrize("private", ["shared", "per-task"])
def test_law_5_the_state_is_the_plain_models_and_private_parameters(family, private):
    net = mlp()
    model = sp.superpose(net, family, tasks=3, private=private)
    plain = {name: tensor.shape for name, tensor in net.state_dict().items()}
    state = {name: tensor.shape for name, tensor in model.state_dict().items()}
    rest = {name for name in state if name not in plain}
    assert {name: state[name] for name in plain} == plain
    assert all(".private.bias." in name for name in rest)
    assert len(rest) == (9 if private == "per-task" else 0)

    def trained(module):
        return sum(p.numel() for p in module.parameters() if p.requires_grad)

    extra = 2 * (16 + 16 + 5) if private == "per-task" else 0
    assert trained(model) == trained(net) + extra


def test_law_6_conversion_copies():
    net = mlp()
    before = copy.deepcopy(net.state_dict())
    model = sp.superpose(net, tasks=2)
    model(torch.randn(4, 12), task=0).sum().backward()
    torch.optim.SGD(model.parameters(), 1.0).step()
    assert type(net) is sp.lab.MLP
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert isinstance(model, sp.lab.MLP)


@pytest.mark.parametrize("make", [mlp, cnn])
def test_law_6_identity_is_bit_for_bit_the_plain_model(make):
    net = make()
    model = sp.superpose(net, "identity", tasks=2)
    shape = (6, 12) if make is mlp else (6, 3, 6, 6)
    x = torch.randn(*shape)
    expected, found = net(x), model(x, task=1)
    assert torch.equal(expected, found)
    for output in (expected, found):
        output.square().sum().backward()
    mine = dict(model.named_parameters())
    for name, parameter in net.named_parameters():
        layer, _, tensor = name.rpartition(".")
        own = mine.get(f"{layer}.private.{tensor}.1", mine[name])
        assert torch.equal(own.grad, parameter.grad), name


@every_family
def test_unsuperpose_gives_the_plain_module_back_and_reads_tasks_out(family):
    net = mlp()
    model = randomise_private(sp.superpose(net, family, tasks=3))
    x = torch.randn(4, 12)
    complex_valued = family in ("complex", "onepower")
    for task in range(3):
        plain = sp.unsuperpose(model, task)
        assert type(plain) is sp.lab.MLP
        assert plain.state_dict().keys() == net.state_dict().keys()
        assert not any(isinstance(module, Layer) for module in plain.modules())
        output = plain(x + 0j).real if complex_valued else plain(x)
        torch.testing.assert_close(output, model(x, task=task))
    if not complex_valued:
        plain = sp.unsuperpose(sp.superpose(net, family, tasks=3))
        assert all(
            torch.equal(a, b)
            for a, b in zip(plain.state_dict().values(), net.state_dict().values(), strict=True)
        )
        assert all(parameter.requires_grad for parameter in plain.parameters())
        assert repr(plain) == repr(net)


@every_family
def test_law_8_a_step_in_superposition_is_the_step_outside(family):
    """Proposition 3: the read-out of task k moves as if its model were trained alone."""
    model = sp.superpose(mlp(dtype=torch.float64), family, tasks=4)
    alone = sp.unsuperpose(model, 2)
    x, y = torch.randn(8, 12, dtype=torch.float64), torch.arange(8) % 5
    complex_valued = family in ("complex", "onepower")

    def step(module, output):
        F.cross_entropy(output, y).backward()
        torch.optim.SGD(module.parameters(), 0.5).step()

    before = copy.deepcopy(alone.state_dict())
    step(model, model(x, task=2))
    step(alone, alone(x + 0j).real if complex_valued else alone(x))
    moved = sp.unsuperpose(model, 2).state_dict()
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(moved[name], expected, rtol=1e-10, atol=1e-10)
        assert (expected - before[name]).abs().max() > 1e-4


def test_private_modes():
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    none = sp.superpose(net, private="none")
    assert list(none.state_dict()) == ["0.weight", "2.weight"]
    x = torch.randn(8, 4)
    assert none.eval()(x, task=1).mean(0).shape == (2,)
    shared = sp.superpose(net, private="shared")
    assert shared.state_dict().keys() == net.state_dict().keys()
    own = sp.superpose(net)  # per task
    own(x, task=1)
    state = own.state_dict()
    assert state["1.private.running_mean.0"].abs().sum() == 0
    assert state["1.private.running_mean.1"].abs().sum() > 0
    assert state["1.running_mean"].abs().sum() == 0
    assert "superposed: 0.weight, 2.weight" in str(own.summary())
    assert own.summary().private[:2] == ["0.bias", "1.weight"]
    assert none.summary().private == []


def test_an_optimiser_with_momentum_leaves_other_tasks_private_parameters_alone():
    model = sp.superpose(mlp(), tasks=2)
    optimiser = torch.optim.Adam(model.parameters(), 0.1, weight_decay=0.1)

    def learn(task):
        optimiser.zero_grad()
        model(torch.randn(4, 12), task=task).square().sum().backward()
        optimiser.step()

    learn(0)
    before = [p.clone() for p in model.private_parameters(0)]
    assert len(before) == 3
    learn(1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.private_parameters(0), strict=True))


def test_private_layers_and_skip():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 6), nn.Linear(6, 3))
    model = sp.superpose(net, tasks=3, private_layers=["0", "3"], skip=[])
    randomise_private(model)
    ids, tasks = torch.randint(0, 7, (5, 3)), torch.tensor([2, 0, 1, 1, 0])
    torch.testing.assert_close(model(ids, task=tasks), rows_one_by_one(model, tasks, ids))
    assert model.summary().superposed == ["2.weight"]
    assert model.summary().private == ["0.weight", "2.bias", "3.weight", "3.bias"]
    skipped = sp.superpose(net, tasks=3, skip=["3"])
    assert skipped.summary().superposed == ["2.weight"]
    assert skipped.summary().shared == ["0.weight", "3.weight", "3.bias"]


class Tied(nn.Module):
    """A table and a head of one weight, and two layers of one bias."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 6), nn.Linear(6, 7)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.head.weight, self.second.bias = self.words.weight, self.first.bias

    def forward(self, ids):
        return self.head(self.second(self.first(self.words(ids)).relu()))


def trained_names(module):
    named = module.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if parameter.requires_grad}


WEIGHT, BIAS = {"words.weight", "head.weight"}, {"first.bias", "second.bias"}


def test_a_layer_with_two_names_is_told_once():
    layer = nn.Linear(4, 4)
    model = sp.superpose(nn.Sequential(layer, nn.ReLU(), layer), tasks=3)
    assert model.summary().superposed == ["0.weight"]
    assert model.summary().private == ["0.bias"]
    assert model.summary().shared == []


@pytest.mark.parametrize(
    ("options", "in_use"),
    [
        ({}, WEIGHT),
        ({"private_layers": ["words"]}, WEIGHT),
        ({"private_layers": ["head"]}, WEIGHT),
        ({"private_layers": ["words", "head"]}, set()),
        ({"skip": ["first"]}, WEIGHT | BIAS),
        ({"skip": ["second"]}, WEIGHT | BIAS),
        ({"private": "shared"}, WEIGHT | BIAS | {"head.bias"}),
    ],
)
def test_a_tied_parameter_learns_wherever_something_uses_it(options, in_use):
    torch.manual_seed(0)
    net = Tied()
    model = sp.superpose(net, tasks=2, **options)
    trained = trained_names(model)
    assert {n for n in trained if "private" not in n} == {"first.weight", "second.weight"} | in_use
    assert trained >= {name for name in model.state_dict() if "private" in name}
    ids = torch.arange(7)
    model(ids, task=1).square().sum().backward()
    got = {name for name in trained if model.get_parameter(name).grad is not None}
    assert got == {name for name in trained if not name.endswith(".0")}
    for task in (None, 1):
        assert trained_names(sp.unsuperpose(model, task)) == trained_names(net)
    assert sp.unsuperpose(model).state_dict().keys() == net.state_dict().keys()


def test_a_frozen_parameter_is_frozen_for_each_task():
    net = Tied()
    net.words.weight.requires_grad_(False)
    model = sp.superpose(net, tasks=2, private_layers=["words", "head"])
    assert {n for n in trained_names(model) if "weight" in n} == {"first.weight", "second.weight"}
    for task in (None, 1):
        assert trained_names(sp.unsuperpose(model, task)) == trained_names(net)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "nonsense"}, "unknown family 'nonsense'"),
        ({"tasks": 0}, "tasks is empty"),
        ({"tasks": "cats"}, "tasks='cats': give several names, as in \\['cats'\\]"),
        ({"skip": "layers"}, "skip='layers': give several names"),
        ({"private_layers": "layers"}, "private_layers='layers': give several names"),
        ({"seed": 1.5}, "seed=1.5: give a whole number"),
        ({"tasks": ["a", "a"]}, "two tasks cannot both be called 'a'"),
        ({"tasks": ["a", ""]}, "'' cannot name a task"),
        ({"tasks": ["a", -1]}, "-1 cannot name a task"),
        ({"tasks": 2.0}, "tasks=2.0: give names"),
        ({"private": "mine"}, "private='mine': use one of per-task, shared, none"),
        ({"conv": "pixel"}, "conv='pixel': use one of kernel, channel"),
        ({"skip": ["layers.9"]}, "skip: there is no layer 'layers.9'; there are 'layers'"),
        ({"private_layers": ["x"]}, "private_layers: there is no layer 'x'"),
        ({"skip": ["layers"]}, "has no layer to superpose"),
        ({"batch_dim": 2}, "batch_dim=2: use 0, 1 or None"),
        ({"family": "permutation", "learnable": True}, "has no numbers to learn"),
    ],
)
def test_bad_options_say_what_to_do(options, message):
    with pytest.raises(sp.SuperposeError, match=message):
        sp.superpose(mlp(), **options)


class Routed(nn.Module):
    """A network that has tasks of its own."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

    def forward(self, x, task=0):
        return self.heads[task](x)


def test_models_that_cannot_be_converted_say_why():
    with pytest.raises(sp.SuperposeError, match="ReLU has no layer to superpose"):
        sp.superpose(nn.ReLU())
    with pytest.raises(sp.SuperposeError, match="superposed already"):
        sp.superpose(sp.superpose(mlp()))
    for options in ({}, {"skip": ["0"]}):
        with pytest.raises(sp.SuperposeError, match="'0' is superposed already, with tasks of its"):
            sp.superpose(nn.Sequential(sp.superpose(mlp()), nn.Linear(5, 2)), **options)
    with pytest.raises(sp.SuperposeError, match="is not superposed"):
        sp.unsuperpose(mlp())
    with pytest.raises(sp.SuperposeError, match="'0' is lazy"):
        sp.superpose(nn.Sequential(nn.LazyLinear(4)))
    with pytest.raises(sp.SuperposeError, match="LayerNorm '1' has no complex-valued form"):
        sp.superpose(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "complex")
    net = mlp()
    net.tasks = 3
    with pytest.raises(sp.SuperposeError, match="already has 'tasks'"):
        sp.superpose(net)
    with pytest.raises(sp.SuperposeError, match="forward of Routed takes a task"):
        sp.superpose(Routed())
    with pytest.raises(sp.SuperposeError, match="call model\\(x, task=…\\)"):
        sp.superpose(mlp()).layers(torch.randn(2, 12))


def test_a_single_layer_is_a_model():
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    model = sp.superpose(net, "hadamard", tasks=2)
    x = torch.randn(4, 6)
    assert model.state_dict().keys() >= net.state_dict().keys()
    torch.testing.assert_close(sp.unsuperpose(model, 1)(x), model(x, task=1))
    assert type(sp.unsuperpose(model)) is nn.Linear


def test_tasks_can_be_added_renamed_and_listed():
    model = sp.superpose(mlp(), tasks=["a", "b"])
    x = torch.randn(3, 12)
    before = model(x, task="b")
    assert model.add_task("c") == "c"
    model.rename_task("b", "beta")
    assert model.tasks == ["a", "beta", "c"]
    assert torch.equal(model(x, task="beta"), before)
    assert torch.equal(model(x, task=1), before)
    assert model(x, task=["a", "c", "beta"]).shape == (3, 5)
    three = sp.superpose(mlp(), tasks=3)
    torch.testing.assert_close(model(x, task="c"), three(x, task=2))
    assert three.add_task() == 3
    model.rename_task(2, "gamma")
    assert model.tasks == ["a", "beta", "gamma"]
    with pytest.raises(sp.SuperposeError, match="two tasks cannot both be called 'a'"):
        model.add_task("a")
    with pytest.raises(sp.SuperposeError, match="unknown task 'b'"):
        model.rename_task("b", "d")


def test_with_task_chooses_for_code_that_only_calls_the_model():
    model, other = sp.superpose(mlp(), tasks=3), sp.superpose(mlp(), "phase", tasks=["x"])
    x = torch.randn(3, 12)
    with model.task(2), other.task("x"):
        assert torch.equal(model(x), model(x, task=2))
        assert torch.equal(other(x), other(x, task="x"))
        with model.task([0, 1, 2]):
            assert torch.equal(model(x), model(x, task=[0, 1, 2]))
        assert torch.equal(model(x), model(x, task=2))
        assert torch.equal(model(x, task=0), model(x, task=0))
    with pytest.raises(sp.SuperposeError, match="no task was given"):
        model(x)


def test_async_tasks_have_their_own():
    model = sp.superpose(mlp(), tasks=4)
    x = torch.randn(3, 12)

    async def use(task):
        with model.task(task):
            for _ in range(5):
                await asyncio.sleep(0)
                assert torch.equal(model(x), model(x, task=task))

    async def both():
        await asyncio.gather(*(use(task) for task in range(4)))

    asyncio.run(both())


@pytest.mark.parametrize("family", ["binary", "hadamard", "rotation"])
def test_threads_get_their_own_answers(family):
    model = randomise_private(sp.superpose(cnn(), family, tasks=4)).eval()
    x = torch.randn(2, 3, 6, 6)
    expected = [model(x, task=task).detach() for task in range(4)]
    wrong = []

    def use(task):
        for _ in range(25):
            if not torch.equal(model(x, task=task), expected[task]):
                wrong.append(task)

    threads = [threading.Thread(target=use, args=(task,)) for task in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert (expected[0] - expected[1]).abs().max() > 1e-2


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
    torch.testing.assert_close(whole(model.selection(3), x), model(x, task=3))


@every_family
def test_vmap_over_rows_tasks_and_gradients(family):
    model = randomise_private(sp.superpose(mlp(), family, tasks=5))
    x, tasks = torch.randn(4, 12), torch.tensor([3, 0, 3, 4])
    one = torch.func.vmap(lambda row: model(row[None], task=2)[0])(x)
    torch.testing.assert_close(one, model(x, task=2))
    rows = torch.func.vmap(lambda s, row: model.run(s, row[None])[0])(model.selection(tasks), x)
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


@pytest.mark.parametrize("family", [n for n in cases.NAMES if n not in ("complex", "onepower")])
def test_autocast_to_bfloat16(family):
    model = sp.superpose(mlp(), family, tasks=3)
    x = torch.randn(4, 12)
    with torch.autocast("cpu", torch.bfloat16):
        for task in (1, [0, 1, 2, 1]):
            output = model(x, task=task)
            assert output.dtype == torch.bfloat16
            torch.testing.assert_close(output.float(), model(x, task=task).float())
    torch.testing.assert_close(output.float(), model(x, task=[0, 1, 2, 1]), rtol=0.1, atol=0.1)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert half(x.bfloat16(), task=1).dtype == torch.bfloat16


@pytest.mark.parametrize("norm", [nn.Identity, nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm])
def test_autocast_gives_rows_of_many_tasks_the_type_that_one_has(norm):
    layer = norm(2, 4) if norm is nn.GroupNorm else norm(4)
    model = sp.superpose(nn.Sequential(nn.Conv2d(3, 4, 3), layer), tasks=3).eval()
    x = torch.randn(2, 3, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x, task=[0, 1]).dtype == model(x, task=1).dtype


def test_another_default_device(tmp_path):
    with torch.device("meta"):
        model = sp.superpose(nn.Linear(4, 4, device="cpu"), "hadamard", tasks=2)
        sp.save(model, tmp_path / "model.safetensors")
        planned = sp.plan(nn.Linear(4, 4, device="cpu"), tasks=2, rank=2)
    assert model(torch.ones(2, 4, device="cpu"), task=1).device.type == "cpu"
    assert planned.noise == pytest.approx(0, abs=1e-3)


def test_copies_pickles_and_replicas():
    model = randomise_private(sp.superpose(mlp(), "phase", tasks=["a", "b"]))
    x = torch.randn(3, 12)
    expected = model(x, task=["a", "b", "a"])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x, task=["a", "b", "a"]), expected)
        other.add_task("c")
        assert model.tasks == ["a", "b"]
    assert torch.equal(_replica(model)(x, task=torch.tensor([0, 1, 0])), expected)


def _replica(module):
    """What `torch.nn.parallel.replicate` does, on one device: no parameters, only attributes."""
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        setattr(replica, name, _replica(child))
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        if tensor is not None:
            setattr(replica, name, tensor * 1)
    return replica


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_other_devices(device):
    if not getattr(torch, device).is_available():
        pytest.skip(f"there is no {device} here")
    model = sp.superpose(mlp(), "hadamard", tasks=3)
    x = torch.randn(4, 12)
    expected = model(x, task=[0, 1, 2, 0])
    found = model.to(device)(x.to(device), task=torch.tensor([0, 1, 2, 0], device=device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "family", ["binary", "complex", "phase", "hadamard", "rotation", "onepower"]
)
def test_learned_contexts_are_private_and_trained(family):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model = sp.superpose(net, family, tasks=2, learnable=True)
    fixed = sp.superpose(net, family, tasks=2)
    x = torch.randn(5, 8)
    torch.testing.assert_close(model(x, task=1), fixed(x, task=1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    output = model(x, task=1)
    output.square().sum().backward()
    torch.optim.SGD(model.parameters(), 0.05).step()
    after = model.state_dict()
    assert (
        after["0.private.weight_context.1"] - before["0.private.weight_context.1"]
    ).abs().max() > 0
    assert torch.equal(after["0.private.weight_context.0"], before["0.private.weight_context.0"])
    torch.testing.assert_close(
        model(x[:2], task=[0, 1]), torch.cat([model(x[:1], task=0), model(x[1:2], task=1)])
    )
    plain = sp.unsuperpose(model, 1)
    found = plain(x + 0j).real if family in ("complex", "onepower") else plain(x)
    torch.testing.assert_close(found, model(x, task=1))
    if family not in ("binary", "hadamard"):  # relaxed signs are no rotation any more
        selected = model.selection(1).layers["0"].contexts["weight"]
        torch.testing.assert_close(selected.unbind(selected.bind(x)).real, x)


@pytest.mark.parametrize("family", ["complex", "onepower", "phase", "rotation", "block-rotation"])
def test_learned_contexts_that_are_frozen_stay_what_they_are(family):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    model = randomise_private(sp.superpose(net, family, tasks=2, learnable=True))
    x = torch.randn(5, 32)
    expected, mixed = model(x, task=1), model(x, task=[0, 1, 1, 0, 1])
    model.requires_grad_(False)
    assert torch.equal(model(x, task=1), expected)
    assert torch.equal(model(x, task=[0, 1, 1, 0, 1]), mixed)
    state = {name: tensor.expand(3, *tensor.shape) for name, tensor in model.state_dict().items()}

    def run(state):
        return torch.func.functional_call(model, state, (x,), {"task": 1})

    torch.testing.assert_close(torch.func.vmap(run)(state), expected.expand(3, 5, 4))
    plain = sp.unsuperpose(model, 1)
    dtypes = {name: tensor.dtype for name, tensor in plain.state_dict().items()}
    assert dtypes == {name: model.state_dict()[name].dtype for name in dtypes}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("family", ["binary", "phase", "hadamard", "rotation", "block-rotation"])
def test_half_precision(family, learnable, dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(5, 32)
    model = sp.superpose(net, family, tasks=2, learnable=learnable)
    narrow = sp.superpose(net.to(dtype), family, tasks=2, learnable=learnable)
    for task in (1, [0, 1, 1, 0, 1]):
        output = narrow(x.to(dtype), task=task)
        assert output.dtype == dtype
        torch.testing.assert_close(output.float(), model(x, task=task), rtol=0.1, atol=0.1)
    output.square().sum().backward()
    if learnable:
        assert narrow.get_parameter("0.private.weight_context.1").grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("learnable", [False, True])
def test_half_precision_has_no_complex_numbers_and_is_widened(learnable, dtype):
    net = nn.Sequential(nn.Linear(8, 4)).to(dtype)
    model = sp.superpose(net, "complex", tasks=2, learnable=learnable)
    wide = sp.superpose(copy.deepcopy(net).float(), "complex", tasks=2, learnable=learnable)
    x = torch.randn(5, 8).to(dtype)
    torch.testing.assert_close(model(x, task=1), wide(x.float(), task=1), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("family", "parameters", "one_more"),
    [
        ("identity", lambda m, n: m * n, lambda m, n: 0),
        ("rotation", lambda m, n: m * (n + m), lambda m, n: m * m),
        ("binary", lambda m, n: m * (n + 1), lambda m, n: m),
        ("complex", lambda m, n: 2 * m * (n + 0.5), lambda m, n: m),
        ("onepower", lambda m, n: 2 * m * (n + 0.5), lambda m, n: 1),
    ],
)
def test_cost_is_table_1_of_the_paper(family, parameters, one_more):
    m, n = 24, 10
    cost = sp.superpose(nn.Linear(m, n, bias=False), family, tasks=7).cost()
    assert cost.paper_parameters == parameters(m, n)
    assert cost.paper_per_task == one_more(m, n)
    assert cost.plain == m * n
    assert cost.separate == 7 * m * n
    assert cost.private_per_task == 0
    assert cost.stored == (2 if family in ("complex", "onepower") else 1) * m * n


def test_contexts_of_groups_and_of_blocks_that_do_not_fit_are_counted():
    grouped = sp.superpose(nn.Conv2d(8, 8, 3, groups=4, bias=False), tasks=2).cost()
    assert grouped.paper_per_task == 4 * (2 * 9)
    blocks = sp.superpose(nn.Linear(20, 3, bias=False), "block-rotation", tasks=2).cost()
    assert blocks.paper_per_task == 2 * 16**2


def test_cost_counts_what_is_really_stored():
    model = sp.superpose(mlp(), tasks=50)
    cost = model.cost()
    assert cost.private_per_task == 16 + 16 + 5
    assert cost.stored == sum(tensor.numel() for tensor in model.state_dict().values())
    assert cost.stored_bytes == 4 * cost.stored
    assert cost.as_dict()["separate"] == 50 * cost.plain
    assert "50 separate models" in str(cost)
    with torch.device("meta"):
        assert sp.superpose(mlp(), tasks=50).cost() == cost
