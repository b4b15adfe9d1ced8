"""Every module, under every option, keeps every law.

A module is a row of `tests/modules.py`, an option a row of OPTIONS, a law a function below.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from cases import REAL
from checks import (
    assert_close,
    assert_same_bits,
    copies,
    first,
    gradients,
    learned_gradients,
    rows_one_by_one,
    scramble,
    whole_state,
)
from modules import MODULES, inputs, made
from torch import nn

import superpose as sp
from superpose.model import Superposed
from superpose.nn.private import is_private

ROWS = [2, 0, 1, 2, 3]
BASE = {"base": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "channel": {"conv": "channel"},
    "shared": {"private": "shared"},
    "none": {"private": "none"},
    "learnable": {"learnable": True},
    "families": {},  # one for the first layer, and one for the others
    "private": {"private_layers": ["module"]},  # beside a layer that is bound
    "centre task": {"centre": "task"},
    "base": BASE,
    "base channel": BASE | {"conv": "channel"},
    "base private": BASE | {"private_layers": ["module"]},
    "base rank": BASE | {"rank": 1, "min_inputs": 5},
    "base rows": BASE | {"rank": 1, "centre": "rows"},
    "base all": BASE | {"rank": 1, "centre": "task", "min_inputs": 5, "learnable": True},
}
REFUSED = (
    "rank=1",
    "centre: the network has no",
    "has no layer to superpose",
    "has nothing to superpose",
)
SIGNLESS = ("quadratic", "tokens")  # what they compute has no signs
GROUPED = ("reads",)  # tensors are read without calling their layer
LEARNABLE = ("binary", "phase", "hadamard", "rotation")


class Beside(nn.Module):
    """A module, and a layer beside it that takes no part in its shapes."""

    def __init__(self, module, like):
        super().__init__()
        self.module, self.beside = module, nn.Linear(3, 1, bias=False).double()
        self.like = like

    def forward(self, x):
        more = self.beside(x.flatten(1)[:, :3].double())
        return self.module(x) * (1 + 0.1 * more.view(-1, *[1] * (self.like - 1)))


@dataclass
class Case:
    """A plain network, and how it is superposed."""

    name: str
    option: str
    net: nn.Module = field(init=False)
    family: Any = field(init=False)
    options: dict[str, Any] = field(init=False)

    def __post_init__(self):
        self.net, self.options = made(self.name), dict(OPTIONS[self.option])
        place = list(MODULES).index(self.name) + list(OPTIONS).index(self.option)
        families = LEARNABLE if "learnable" in self.options else REAL[1:]
        families = [one for one in families if self.name not in SIGNLESS or one != "binary"]
        self.family = families[place % len(families)]
        if self.option == "families":
            names = [n for n, m in self.net.named_modules() if isinstance(m, nn.Linear)]
            self.family = {**dict.fromkeys(names[:1], "phase"), "*": "hadamard"}
        if "private_layers" in self.options:
            like = first(self.net(self.x)).ndim
            self.net = Beside(self.net, like).eval()

    @property
    def x(self):
        return inputs(self.name)

    @property
    def ways(self):
        """Those that are right; the other one says so."""
        over_rows = self.options.get("private") in ("shared", "none") and self.has_batch_norm
        return ("grouped",) if self.name in GROUPED or over_rows else ("grouped", "direct")

    @property
    def has_batch_norm(self):
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.net.modules())

    @property
    def has_base(self):
        return "base" in self.options

    def model(self, family=None) -> Superposed:
        torch.manual_seed(1)
        return sp.superpose(self.net, family or self.family, tasks=4, **self.options).eval()


def identity_is_the_plain_network_to_the_last_bit(case, path):
    """Outputs, gradients and statistics, in training too."""
    rows = case.options.get("centre") == "rows"
    if rows or "learnable" in case.options or case.options.get("private") == "none":
        return
    for training in (False, True):
        net = copy.deepcopy(case.net).train(training)
        model = case.model("identity")
        model.begin(2)
        model.train(training)
        y, plain = model(case.x, task=2), net(case.x)
        assert torch.equal(y, plain)
        if "tied" in case.name:
            continue  # its two names have gradients of their own
        found, expected = gradients(model, y), gradients(net, plain)
        for name, gradient in expected.items():
            for own in (name, f"{name} of 2"):
                if own in found:
                    assert torch.equal(found.pop(own), gradient), name
                    break
            else:  # what all tasks share does not learn with a base
                assert case.has_base, name
                assert name in model.summary().shared, name
        added = ("_down", "_up", "_context")
        assert all(name.partition(" ")[0].endswith(added) for name in found), found.keys()
        state = whole_state(model)
        for name, buffer in net.named_buffers():
            assert torch.equal(state.get(f"{name} of 2", state.get(name)), buffer), name


def what_is_read_out_is_what_runs(case, path):
    model = scramble(case.model())
    for task in (0, 3):
        plain = sp.unsuperpose(model, task)
        assert [type(m) for m in plain.modules()] == [type(m) for m in case.net.modules()]
        torch.testing.assert_close(plain(case.x), model(case.x, task=task))
        if case.options.get("private") != "none":
            assert plain.state_dict().keys() >= case.net.state_dict().keys()


def unsuperposed_it_is_the_plain_network(case, path):
    plain = sp.unsuperpose(case.model())
    if case.options.get("private") != "none":
        assert_same_bits(plain.state_dict(), case.net.state_dict())
        wanted = {n: p.requires_grad for n, p in case.net.named_parameters()}
        assert {n: p.requires_grad for n, p in plain.named_parameters()} == wanted
        assert torch.equal(plain(case.x), case.net(case.x))
    for module, own in zip(plain.modules(), case.net.modules(), strict=True):
        assert type(module) is type(own)
        assert vars(module).keys() == vars(own).keys()
    if case.has_base:
        assert torch.equal(sp.unsuperpose(scramble(case.model()))(case.x), case.net(case.x))


def a_mixed_batch_is_each_row_alone(case, path):
    """Values and gradients, in both ways, without gradients too."""
    if case.has_batch_norm and case.options.get("private") == "none":
        return  # whose rows speak to each other: the statistics are those of the batch
    model, x = scramble(case.model()), case.x
    each = rows_one_by_one(model, ROWS, x)
    wanted = gradients(model, each)
    for way in case.ways:
        model.mixed = way
        mixed = model(x, task=ROWS)
        torch.testing.assert_close(mixed, each)
        assert_close(gradients(model, mixed), wanted)
        with torch.no_grad():
            torch.testing.assert_close(model(x, task=torch.tensor(ROWS)), each)
            others = [(task + 1) % 4 for task in ROWS]
            apart = (model(x, task=others) - each).abs().flatten(1).amax(1)
            assert (apart > 1e-6).sum() >= 2
    if case.has_base:  # some rows are still the base
        half = case.model()
        half.begin(0, 2)
        scrambled = scramble(copy.deepcopy(half))
        scrambled.private_state.begun.difference_update({1, 3})
        each = rows_one_by_one(scrambled, ROWS, x)
        for way in case.ways:
            scrambled.mixed = way
            mixed = scrambled(x, task=ROWS)
            torch.testing.assert_close(mixed, each)
            torch.testing.assert_close(mixed[[2, 4]], case.net(x)[[2, 4]])
    if case.name in GROUPED:
        with pytest.raises(sp.SuperposeError, match=r"model\.mixed = 'grouped'"):
            model.run(model.view(ROWS), x)


def a_mixed_batch_trains_each_task_on_its_own_rows(case, path):
    """Outputs, gradients, and the statistics that are left, against one pass for each task."""
    model = scramble(case.model()).train()
    apart, x = copy.deepcopy(model), inputs(case.name, 8)
    tasks = [2, 0, 1, 2, 0, 0, 2, 1]  # two rows or more of each, for batch norms
    places = {task: [row for row, own in enumerate(tasks) if own == task] for task in (2, 0, 1)}
    parts = {task: apart(x[rows], task=task) for task, rows in places.items()}
    order = torch.tensor([row for rows in places.values() for row in rows]).argsort()
    wanted = torch.cat(list(parts.values()))[order]
    slopes, state = gradients(apart, wanted), whole_state(apart)
    for way in case.ways:
        mixed = copy.deepcopy(model)
        mixed.mixed = way
        y = mixed(x, task=tasks)
        torch.testing.assert_close(y, wanted)
        assert_close(gradients(mixed, y), slopes)
        assert_close(whole_state(mixed), state)


def tasks_differ_by_their_contexts_alone(case, path):
    model = case.model()
    if case.has_base:
        for layer in model.superposed_layers:
            for name in layer.bound:
                nn.init.normal_(layer.stored(name))
        model.begin(*model.tasks)
    found = torch.stack([model(case.x, task=task) for task in range(4)])
    assert (found - found.flip(0)).abs().max() > 1e-4


def a_closed_task_is_the_base(case, path):
    if not case.has_base:
        assert case.model().begun == [0, 1, 2, 3]
        return
    model, x = case.model(), case.x
    base = copy.deepcopy(case.net).requires_grad_(False)(x)
    scrambled = scramble(copy.deepcopy(model))
    scrambled.private_state.begun.clear()
    scrambled.begin(1)
    for one, closed in ((model, range(4)), (scrambled, (0, 2, 3))):
        for task in closed:
            assert torch.equal(one(x, task=task), base)
            with torch.no_grad():
                assert torch.equal(one(x, task=task), base)
            one.zero_grad()
            if one(x, task=task).requires_grad:  # a saliency of what learns all the same
                one(x, task=task).sum().backward()
            assert torch.equal(one(x, task=task), base)
        with torch.no_grad():
            rows = [closed[row % len(closed)] for row in range(len(x))]
            torch.testing.assert_close(one(x, task=rows), base)
        assert torch.equal(sp.unsuperpose(one, 3)(x), case.net(x))
        with pytest.raises(sp.SuperposeError, match=r"task 3 has not begun.*model\.begin\(3\)"):
            one.train()(x, task=3)
        with pytest.raises(sp.SuperposeError, match="has not begun"):
            one.train()(x, task=[1, 1, 1, 1, 3][: len(x)])
        one.eval()
    assert (scrambled(x, task=1) - base).abs().max() > 1e-4
    assert model.begun == []
    assert scrambled.begun == [1]
    own = {name for name in model.state_dict() if is_private(name)}
    assert own == {"private_state.tasks_begun"}
    model.begin(1, 3)
    own = {name for name in model.state_dict() if is_private(name)} - own
    assert {name[-2:] for name in own} <= {".1", ".3"}
    assert len(own) == 2 * len(model.private_state.flats)


def the_state_has_the_plain_networks_names(case, path):
    if case.options.get("private") == "none":
        return
    for model in (case.model(), scramble(case.model())):
        state = model.state_dict()
        shapes = {name: t.shape for name, t in state.items() if not is_private(name)}
        assert "private_state.tasks_begun" in state
        plain = {name: tensor.shape for name, tensor in case.net.state_dict().items()}
        bases = {name for name in shapes if ".bases." in f".{name}"}
        assert {n: s for n, s in shapes.items() if n not in bases} == plain
        assert len(bases) == (len(model.summary().superposed) if case.has_base else 0)


def copies_pickles_and_files_have_the_same_bits(case, path):
    model, x = scramble(case.model()), case.x
    if case.has_base:
        model.private_state.begun.discard(3)
    model.mixed = case.ways[-1]
    fresh, one, mixed = case.model(), model(x, task=1), model(x, task=ROWS)
    fresh.load_state_dict(model.state_dict())
    fresh.mixed = model.mixed
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    for other in (fresh, *copies(model, case.net, path)):
        assert other.begun == model.begun
        assert other.mixed == model.mixed
        assert_same_bits(whole_state(other), whole_state(model))
        assert torch.equal(other(x, task=1), one)
        assert torch.equal(other(x, task=ROWS), mixed)
        assert {n for n, p in other.named_parameters() if p.requires_grad} == trainable


def a_step_moves_only_what_was_in_the_batch(case, path):
    model = case.model().train()
    model.begin(0, 1, 2, 3)
    optimiser = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1)
    shared = {n for n, p in model.named_parameters() if not p.requires_grad}
    for way, tasks in ((case.ways[0], [3, 2]), (case.ways[-1], [0, 1]), ("grouped", [1])):
        model.mixed = way
        before = whole_state(model)
        for _ in range(2):
            optimiser.zero_grad()
            x = inputs(case.name, 6)
            rows = [tasks[row % len(tasks)] for row in range(6)]
            model(x, task=rows).square().sum().backward()
            optimiser.step()
        moved = {n for n, t in whole_state(model).items() if not torch.equal(t, before[n])}
        assert moved.isdisjoint(shared)
        own = {name for name in moved if " of " in name}
        assert {int(name.rpartition(" ")[2]) for name in own} <= set(tasks)
        if model.summary().private:
            assert {int(name.rpartition(" ")[2]) for name in own} == set(tasks)
        assert moved - own >= set(model.summary().superposed)
        learns = set(model.summary().learns) | {name for name, _ in case.net.named_buffers()}
        assert moved - own - set(model.summary().superposed) <= learns
    assert learned_gradients(model)


LAWS = [
    identity_is_the_plain_network_to_the_last_bit,
    what_is_read_out_is_what_runs,
    unsuperposed_it_is_the_plain_network,
    a_mixed_batch_is_each_row_alone,
    a_mixed_batch_trains_each_task_on_its_own_rows,
    tasks_differ_by_their_contexts_alone,
    a_closed_task_is_the_base,
    the_state_has_the_plain_networks_names,
    copies_pickles_and_files_have_the_same_bits,
    a_step_moves_only_what_was_in_the_batch,
]


def cases():
    """All modules under all options, but those that change nothing in a module."""
    for name in MODULES:
        kinds = [type(module) for module in made(name).modules()]
        kernels = any(issubclass(kind, nn.modules.conv._ConvNd) for kind in kinds)
        for option in OPTIONS:
            if ("channel" in option and not kernels) or (
                option == "families" and kinds.count(nn.Linear) < 2
            ):
                continue
            yield name, option


@pytest.mark.filterwarnings("ignore:.*(shared by all tasks|tensors that all tasks share|is new)")
@pytest.mark.parametrize(("name", "option"), list(cases()))
def test_laws(name, option, tmp_path):
    case = Case(name, option)
    try:
        case.model()
    except sp.SuperposeError as error:
        if not any(word in str(error) for word in REFUSED):
            raise
        pytest.skip(str(error))
    for law in LAWS:
        law(case, tmp_path / "model.safetensors")


@pytest.mark.filterwarnings("ignore:.*(shared by all tasks|tensors that all tasks share)")
def test_few_cases_are_refused():
    """A matrix that skips everything would be green."""
    refused = []
    for name, option in cases():
        try:
            Case(name, option).model()
        except sp.SuperposeError:
            refused.append((name, option))
    assert len(refused) < 60
    assert {option for _, option in refused} <= {
        "centre task",
        "base all",
        "base rank",
        "base rows",
    }
