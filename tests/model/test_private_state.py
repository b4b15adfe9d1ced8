"""Law 10: a declared task costs a name, a learned one its numbers; tensors grow with the tasks."""

import copy
import json
import pickle

import pytest
import torch
from checks import randomise_private, whole_state
from networks import cnn, mlp
from safetensors import safe_open
from torch import nn

import superpose as sp
from superpose.nn.flats import fresh, is_fresh, same
from superpose.nn.private import is_private

PRIVATE = 16 + 16 + 5  # numbers that a task of the MLP has for itself


def alike(one, other):
    """Of one type, and of the same bits."""
    return same(one.reshape(-1), other.reshape(-1))


def flats(model):
    """All flat tensors, by group and task."""
    every = model.private_state.flats.items()
    return {(name, task): flat for name, flats in every for task, flat in flats.own.items()}


def kept(model):
    """The tasks that have memory of their own."""
    return {int(task) for (_, task), flat in flats(model).items() if not is_fresh(flat)}


def learn(model, *tasks, optimiser=None, shape=(8, 12)):
    optimiser = optimiser or torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(0)
    for task in tasks:
        optimiser.zero_grad()
        model(torch.randn(shape, generator=generator), task=task).square().mean().backward()
        optimiser.step()
    return model


def assert_same_state(one, other):
    found, expected = whole_state(one), whole_state(other)
    assert found.keys() == expected.keys()
    assert all(alike(found[name], expected[name]) for name in found)


def learned_names(model):
    return {n for n in model.state_dict() if is_private(n)} - {"private_state.tasks_begun"}


def test_a_declared_task_costs_a_name(tmp_path):
    model, path = sp.superpose(mlp(), tasks=100), tmp_path / "many.safetensors"
    assert kept(model) == set()
    assert learned_names(model) == set()
    assert all(torch.equal(flat, flats(model)["trained", "0"]) for flat in flats(model).values())
    learn(model, 7, 31)
    assert kept(model) == {7, 31}
    assert learned_names(model) == {f"private_state.trained.{task}" for task in (7, 31)}
    sp.save(model, path)
    with safe_open(path, "pt") as file:
        own = [name for name in file.keys() if is_private(name)]  # noqa: SIM118
        assert [file.get_tensor(name).shape for name in own] == [(2, PRIVATE)]
        header = json.loads(file.metadata()["superpose"])["private"]["trained"]
    assert header["tasks"] == [7, 31]
    assert header["tensors"] == [["layers.1.bias", 16], ["layers.3.bias", 16], ["layers.5.bias", 5]]
    loaded = sp.load(path, mlp())
    assert kept(loaded) == {7, 31}
    assert_same_state(loaded, model)


def test_running_a_task_gives_it_no_memory():
    model = sp.superpose(cnn(), tasks=4).eval()
    x = torch.randn(2, 3, 6, 6)
    model(x, task=1).sum().backward()
    with torch.no_grad():
        model(x, task=[1, 2])
    sp.unsuperpose(model, 3)
    model.cost(), model.summary(), model.state_dict(), model.private_tensors(3)
    trained = [flat for (group, _), flat in flats(model).items() if group == "trained"]
    assert all(map(is_fresh, trained))
    assert learned_names(model) == set()


def test_tensors_grow_with_the_tasks_not_with_tasks_and_layers():
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(9)))
    counts = {}
    for tasks in (10, 30):
        model = sp.superpose(deep, tasks=tasks)
        counts[tasks] = (len(list(model.parameters())), len(list(model.buffers())))
    assert counts[30][0] - counts[10][0] == 20
    assert counts[30][1] - counts[10][1] == 40  # means and variances, and numbers of batches


def test_an_optimiser_made_before_goes_on_training_after_a_state_was_loaded():
    model, other = sp.superpose(mlp(), tasks=3), learn(sp.superpose(mlp(), tasks=3), 1, 1)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    learn(model, 0, 1, optimiser=optimiser)
    model.load_state_dict(other.state_dict())
    assert_same_state(model, other)
    assert kept(model) == {1}
    for one in (model.double(), other.double()):
        assert {flat.dtype for flat in flats(one).values()} == {torch.float64}
    learn(model.float(), 2, 1, optimiser=optimiser)
    learn(other.float(), 2, 1)
    assert_same_state(model, other)


MOVES = {
    "float64": lambda model: model.to(torch.float64),
    "double": lambda model: model.double(),
    "bfloat16": lambda model: model.bfloat16(),
    "same": lambda model: model.float(),
    "copy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "copy of a copy": lambda model: copy.deepcopy(copy.deepcopy(model)),
}


@pytest.mark.parametrize("move", MOVES)
def test_what_moves_a_model_keeps_what_was_learned_and_copies_nothing_else(move):
    model = learn(sp.superpose(cnn(), tasks=6), 4, 2, shape=(4, 3, 6, 6))
    before = whole_state(model)
    moved = MOVES[move](model)
    assert kept(moved) == {2, 4}
    state = whole_state(moved)
    assert state.keys() == before.keys()
    for name, tensor in state.items():
        assert alike(tensor, before[name].to(tensor.dtype)), name
    assert learned_names(moved) == learned_names(model)
    assert [n for n, _ in moved.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert [n for n, _ in moved.named_buffers()] == [n for n, _ in model.named_buffers()]
    moved.float()
    learn(moved, 5, shape=(4, 3, 6, 6))
    assert kept(moved) == {2, 4, 5}
    assert alike(whole_state(moved)["6.bias of 0"], state["6.bias of 0"].to(torch.float32))


def test_a_copy_learns_for_itself():
    model = learn(sp.superpose(mlp(), tasks=3), 1)
    before, other = whole_state(model), copy.deepcopy(model)
    learn(other, 0, 1, 2)
    assert_same_state(model, copy.deepcopy(model))
    assert all(alike(tensor, before[name]) for name, tensor in whole_state(model).items())
    assert set(other.private_state.layers.values()) <= set(other.modules())


def test_shared_memory_is_every_tasks():
    model = learn(sp.superpose(mlp(), tasks=3), 1)
    before = whole_state(model)
    model.share_memory()
    assert all(flat.is_shared() for flat in flats(model).values())
    pointers = {flat.data_ptr() for flat in flats(model).values()}
    assert len(pointers) == 3
    assert all(alike(tensor, before[name]) for name, tensor in whole_state(model).items())
    assert {name[-1] for name in learned_names(model)} == {"1"}
    learn(model, 2)
    assert all(flat.is_shared() for flat in flats(model).values())


def test_a_state_is_checked_as_it_is_loaded():
    model = learn(sp.superpose(mlp(), tasks=3), 1)
    (name,) = learned_names(model)
    state, start = model.state_dict(), whole_state(sp.superpose(mlp(), tasks=3))
    other = sp.superpose(mlp(), tasks=3)
    unknown = state | {name.replace("trained.1", "trained.3"): state[name]}
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"private_state.trained.3"'):
        other.load_state_dict(unknown)
    assert other.load_state_dict(unknown, strict=False).unexpected_keys == [
        "private_state.trained.3"
    ]
    assert_same_state(other, model)
    with pytest.raises(RuntimeError, match=r"size mismatch.*trained.1: it is \(4,\), and \(37,\)"):
        other.load_state_dict(state | {name: torch.zeros(4)})
    del state[name]
    other.load_state_dict(state)  # a state in which no task has learned
    assert kept(other) == set()
    assert alike(whole_state(other)["layers.1.bias of 1"], start["layers.1.bias of 1"])


def test_tasks_that_have_not_learned_start_from_what_is_loaded():
    net, other = mlp(), mlp()
    nn.init.normal_(other.layers[1].bias)
    model = sp.superpose(net, tasks=3)
    learn(model, 0)
    model.load_state_dict(learn(sp.superpose(other, tasks=3), 1).state_dict())
    for task in (0, 2):
        assert torch.equal(model.private_tensors(task)["layers.1.bias"], other.layers[1].bias)
    assert kept(model) == {1}


def test_a_model_without_memory_is_filled_by_its_state():
    expected = learn(sp.superpose(mlp(), tasks=3), 1)
    with torch.device("meta"), pytest.raises(sp.SuperposeError, match="is on the meta device"):
        sp.superpose(mlp(), tasks=3)
    emptied = sp.superpose(mlp(), tasks=3).requires_grad_(False).to("meta").to_empty(device="cpu")
    emptied.load_state_dict(expected.state_dict())
    assert_same_state(emptied, expected)
    assert not any(p.requires_grad for p in emptied.parameters())


def test_tasks_that_are_removed_and_added():
    model = learn(sp.superpose(mlp(), tasks=["a", "b", "c"]), "a", "b")
    before = whole_state(model)
    model.remove_task("a")
    assert {name[-1] for name in learned_names(model)} == {"1"}
    assert model.add_task("d") == "d"
    assert kept(model) == {1}
    assert len(model.private_parameters("d")) == 1
    after = whole_state(model)
    assert {n for n in before if not n.endswith("of 0")} < after.keys()
    assert all(alike(after[name], before[name]) for name in after.keys() & before.keys())
    assert alike(after["layers.1.bias of 3"], before["layers.1.bias"])
    learn(model, "d")
    assert kept(model) == {1, 3}


class Shares(nn.Module):
    """Two layers of one bias, of which one is private and the other goes on teaching it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.bias = self.first.bias

    def forward(self, x):
        return self.second(self.first(x).relu())


def test_a_task_starts_from_what_a_tied_tensor_has_learned_by_then(tmp_path):
    net = Shares()
    model = sp.superpose(net, tasks=2, skip=["second"])
    learn(model, 0, shape=(5, 6))
    shared = model.second.bias.detach().clone()
    assert not torch.equal(shared, net.first.bias)
    model.add_task("new")
    assert torch.equal(model.private_tensors("new")["first.bias"], shared)
    assert torch.equal(model.private_tensors(1)["first.bias"], net.first.bias)
    # task 1 was declared before: it differs from what a new task has, so it is kept
    assert {name[-1] for name in learned_names(model)} == {"0", "1"}
    path = tmp_path / "m.safetensors"
    sp.save(model, path)
    for other in (sp.load(path, Shares()), copy.deepcopy(model)):
        assert_same_state(other, model)
        other.add_task("newer")
        assert torch.equal(other.private_tensors("newer")["first.bias"], shared)


@pytest.mark.parametrize("value", [-0.0, float("nan"), float("inf")])
def test_any_bits_that_differ_were_learned(value, tmp_path):
    net = mlp()
    nn.init.zeros_(net.layers[1].bias)
    model, path = sp.superpose(net, tasks=3), tmp_path / "m.safetensors"
    with torch.no_grad():
        model.private_tensors(2)["layers.1.bias"][3] = value
        model.private_tensors(1)["layers.1.bias"][3] = 0.0  # written, and what it was
    assert kept(model) == {1, 2}
    assert {name[-1] for name in learned_names(model)} == {"2"}
    assert model.cost().learned == 1
    sp.save(model, path)
    for other in (sp.load(path, net), copy.deepcopy(model)):
        assert_same_state(other, model)


def test_cost_counts_what_was_learned():
    model = sp.superpose(mlp(), tasks=50)
    plain = sum(p.numel() for p in mlp().parameters())
    for tasks in ((), (3,), (3, 4, 49)):
        cost = learn(model, *tasks).cost()
        assert (cost.tasks, cost.learned) == (50, len(tasks))
        assert cost.shared == plain
        assert cost.stored == plain + len(tasks) * PRIVATE
        assert cost.stored_bytes == 4 * cost.stored
        assert cost.stored == sum(tensor.numel() for tensor in model.state_dict().values())
        assert f"{len(tasks)} of 50 have private numbers" in str(cost)


def test_a_frozen_network_stays_frozen(tmp_path):
    net, path = cnn().requires_grad_(False), tmp_path / "m.safetensors"
    net[6].requires_grad_(True)
    model = randomise_private(sp.superpose(net, tasks=3))
    assert [own.numel() for own in model.private_parameters(1)] == [4]
    assert set(model.private_state.flats) == {"frozen", "statistics", "statistics_2", "trained"}
    sp.save(model, path)
    copies = (sp.load(path, net), copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
    for other in (*copies, model.double().float()):
        assert_same_state(other, model)
        frozen = {n for n, p in other.named_parameters() if not p.requires_grad}
        assert frozen == {n for n, p in model.named_parameters() if not p.requires_grad}
    declared = sp.superpose(net, tasks=3)  # what has not been learned is frozen, too
    declared.requires_grad_(False)
    for other in (copy.deepcopy(declared), declared.double()):
        assert not any(p.requires_grad for p in other.parameters())


class MixedTypes(nn.Module):
    """Half precision with norms in single precision."""

    def __init__(self, order=("first", "norm", "last")):
        super().__init__()
        made = {
            "first": nn.Linear(6, 5).bfloat16(),
            "norm": nn.BatchNorm1d(5),
            "last": nn.Linear(5, 3).bfloat16(),
        }
        for name in order:
            self.add_module(name, made[name])

    def forward(self, x):
        x = self.first(x.to(self.first.weight.dtype)).float()
        return self.last(self.norm(x).to(self.last.weight.dtype))


def test_numbers_of_several_types(tmp_path):
    torch.manual_seed(0)
    net, path = MixedTypes(), tmp_path / "m.safetensors"
    model = sp.superpose(net, tasks=4)
    learn(model, 3, 1, shape=(4, 6))
    types = {own.dtype: own.numel() for own in model.private_parameters(1)}
    assert types == {torch.bfloat16: 5 + 3, torch.float32: 10}
    model.private_tensors(0)["norm.num_batches_tracked"].fill_(7)  # one group of one task
    sp.save(model, path)
    loaded = sp.load(path, net)
    assert_same_state(loaded, model)
    assert kept(loaded) == {0, 1, 3}
    assert loaded.cost().learned == 3
    single = copy.deepcopy(model).float()  # its tables are still those of two types
    sp.save(single, path)
    assert_same_state(sp.load(path, MixedTypes().float()), single)
    with pytest.raises(sp.SuperposeError, match=r"is float32 .* in the file and bfloat16"):
        sp.load(path, net)


def test_private_tensors_do_not_depend_on_the_order_of_registration():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    model = learn(sp.superpose(MixedTypes().float(), tasks=3), 1, 2, shape=(4, 6)).eval()
    for order in (("norm", "first", "last"), ("last", "norm", "first"), ("norm", "last", "first")):
        other = sp.superpose(MixedTypes(order).float(), tasks=3)
        other.load_state_dict(model.state_dict())
        for task in range(3):
            assert torch.equal(other.eval()(x, task=task), model(x, task=task))


def test_running_statistics_are_learned_without_a_gradient(tmp_path):
    net, path = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), tmp_path / "m.safetensors"
    model = sp.superpose(net, tasks=4)
    with torch.no_grad():
        model(torch.randn(8, 6), task=2)
    assert kept(model) == {2}
    assert {name.rpartition("private_state.")[2] for name in learned_names(model)} == {
        "statistics.2",
        "statistics_2.2",
    }
    assert model.cost().learned == 1
    sp.save(model, path)
    assert_same_state(sp.load(path, net), model)


def test_a_fresh_copy_takes_memory_when_it_is_written_to():
    start = torch.arange(4.0)
    one, other = fresh(start), fresh(start)
    assert is_fresh(one)
    assert is_fresh(other)
    one[2] = 7
    assert not is_fresh(one)
    assert is_fresh(other)
    assert torch.equal(start, torch.arange(4.0))
    assert torch.equal(other, start)
    assert same(one[:2], start[:2])
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same(torch.tensor([0.0]), torch.tensor([0.0], dtype=torch.float64))
    assert same(torch.tensor([float("nan")]), torch.tensor([float("nan")]))


def test_a_model_of_torch_load_learns_on(tmp_path):
    """PyTorch cannot copy the memory of loaded tensors on write: the process would be killed."""
    model = sp.superpose(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), tasks=2)
    torch.save(model, tmp_path / "model.pt")
    for options in ({}, {"mmap": True}):
        again = torch.load(tmp_path / "model.pt", weights_only=False, **options)
        optimiser = torch.optim.SGD(again.parameters(), 0.1)
        again(torch.randn(5, 4), task=1).square().sum().backward()
        optimiser.step()
        assert not torch.equal(again.private_tensors(1)["0.bias"], model[0].bias)
        assert torch.equal(again.private_tensors(0)["0.bias"], model[0].bias)
