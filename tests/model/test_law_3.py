"""Law 3, against networks that hypothesis makes: what a mixed batch is, and what the check says."""

import pytest
import torch
from checks import assert_close, gradients, rows_one_by_one, scramble
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import superpose as sp

WIDTH, HEADS = 4, 2
MADE = settings(deadline=None, phases=(Phase.explicit, Phase.generate))  # without shrinking


class Step(nn.Module):
    """One thing that networks do with a batch; `layout` says where its rows are, before and after.

    "rows": (B, T, D), "time": (T, B, D), "folded": (B · T, D).
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind in ("linear", "read", "folded linear", "sort", "gather"):
            self.layer = nn.Linear(WIDTH, WIDTH)
        if kind == "norm":
            self.layer = nn.LayerNorm(WIDTH)
        if kind in ("scale", "token", "heads"):
            self.vector = nn.Parameter(torch.ones(WIDTH // HEADS if kind == "heads" else WIDTH))

    def forward(self, x: Tensor, shape: tuple[int, int]) -> Tensor:
        rows, time = shape
        match self.kind:
            case "linear" | "norm" | "folded linear":
                return self.layer(x)
            case "read":
                return x @ self.layer.weight.T + self.layer.bias
            case "scale":
                return x * self.vector
            case "token":
                return x + self.vector.expand(rows, 1, WIDTH)
            case "heads":  # (T, B · H, d), as attention has it
                folded = x.transpose(0, 1).reshape(time, rows * HEADS, WIDTH // HEADS) * self.vector
                return folded.reshape(time, rows, WIDTH).transpose(0, 1)
            case "transpose":
                return x.transpose(0, 1)
            case "fold":
                return x.reshape(rows * time, WIDTH)
            case "unfold":
                return x.reshape(rows, time, WIDTH)
            case "sum over time":
                return x.cumsum(1)
            case "regroup":  # the same numbers, a dimension that may be as long as there are rows
                return x.reshape(rows, WIDTH, time).reshape(rows, time, WIDTH)
            case "tanh":
                return x.tanh()
            case "sort":  # rows by their values, and back
                order = x[:, 0, 0].argsort()
                return self.layer(x[order])[order.argsort()]
            case "gather":  # rows that a mask chooses
                chosen = x[:, 0, 0] > 0
                return x.masked_scatter(chosen[:, None, None], self.layer(x[chosen]))
            case "less the mean row":
                return x - x.mean(0)
        raise AssertionError(self.kind)


STEPS = {  # where the rows have to be, and where they are then
    "linear": [("rows", "rows"), ("time", "time"), ("folded", "folded")],
    "folded linear": [("folded", "folded")],
    "norm": [("rows", "rows"), ("time", "time"), ("folded", "folded")],
    "read": [("rows", "rows"), ("folded", "folded")],
    "scale": [("rows", "rows"), ("time", "time"), ("folded", "folded")],
    "token": [("rows", "rows")],
    "heads": [("rows", "rows")],
    "transpose": [("rows", "time"), ("time", "rows")],
    "fold": [("rows", "folded")],
    "unfold": [("folded", "rows")],
    "sum over time": [("rows", "rows")],
    "regroup": [("rows", "rows")],
    "sort": [("rows", "rows")],
    "gather": [("rows", "rows")],
    "tanh": [("rows", "rows"), ("time", "time"), ("folded", "folded")],
}


class Network(nn.Module):
    """Steps one after the other, brought back to (B, T, D) at the end."""

    def __init__(self, kinds: list[str], layout: str) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.steps, self.layout = nn.ModuleList(map(Step, kinds)), layout

    def forward(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], x.shape[1])
        x = self.first(x)
        for step in self.steps:
            x = step(x, shape)
        return x.transpose(0, 1) if self.layout == "time" else x.reshape(*shape, WIDTH)


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[str], str]:
    """Kinds of steps that fit each other, and where the rows are at the end."""
    layout, kinds = "rows", []
    for _ in range(draw(st.integers(1, 5))):
        possible = [(k, to) for k, moves in STEPS.items() for at, to in moves if at == layout]
        kind, layout = draw(st.sampled_from(possible))
        kinds.append(kind)
    return kinds, layout


KNOWN = {"linear", "norm", "tanh", "sum over time", "scale", "transpose", "regroup"}
BY_VALUE = {"sort", "gather"}  # right or wrong by the values of a batch: no check of one can tell


def own(kinds: list[str]) -> list[str]:
    """Vectors beside layers, which are shared unless they are named."""
    return [
        f"steps.{n}.vector" for n, kind in enumerate(kinds) if kind in ("scale", "token", "heads")
    ]


def superposed(kinds: list[str], layout: str, **options) -> sp.Superposed:
    torch.manual_seed(0)
    model = sp.superpose(
        Network(kinds, layout).double(), "hadamard", tasks=4, private_layers=own(kinds), **options
    )
    return scramble(model).eval()


def batch(rows: int, time: int, seed: int) -> tuple[Tensor, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, time, WIDTH, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 4, (rows,), generator=generator).tolist()


@settings(MADE, max_examples=40)
@given(
    networks(), st.lists(st.tuples(st.integers(2, 5), st.integers(1, 5)), min_size=2, max_size=3)
)
def test_grouped_is_right_for_every_network_and_direct_where_it_is_checked(network, sizes):
    """Direct is right wherever the check says so, refused with a sentence, or said to be wrong."""
    model = superposed(*network)
    assert model.mixed == "grouped"
    rows, time = sizes[0]
    said = sp.check_mixed(model, batch(rows, time, 9)[0], rounds=1)
    assert said.right[:1] == ["grouped"]
    for seed, (rows, time) in enumerate(sizes):
        x, tasks = batch(rows, time, seed)
        each = rows_one_by_one(model, tasks, x)
        model.mixed = "grouped"
        mixed = model(x, task=tasks)
        torch.testing.assert_close(mixed, each)
        others = [(task + 1) % 4 for task in tasks]
        assert (mixed - model(x, task=others)).abs().amax((1, 2)).min() > 1e-6
        checked = sp.check_mixed(model, x, tasks=tasks, rounds=1)
        if "direct" in checked.right and BY_VALUE.isdisjoint(network[0]):
            model.mixed = "direct"
            torch.testing.assert_close(model(x, task=tasks), each)
    if KNOWN.issuperset(network[0]):  # direct is not refused for nothing
        assert ("direct" in said.right) == ("time" not in layouts(network[0])), said


def layouts(kinds: list[str]) -> set[str]:
    """Where the rows are when a layer with tensors of a task's own is run."""
    layout, found = "rows", set()
    for kind in kinds:
        found |= {layout} if kind in ("linear", "norm", "scale") else set()
        layout = next(to for at, to in STEPS[kind] if at == layout)
    return found


@settings(MADE, max_examples=15)
@given(networks(), st.integers(2, 4), st.integers(1, 4))
def test_every_way_learns_what_the_rows_alone_would(network, rows, time):
    x, tasks = batch(rows, time, 0)
    model = superposed(*network).train()
    expected = gradients(model, rows_one_by_one(model, tasks, x))
    for way in sp.check_mixed(model, x, tasks=tasks, rounds=1).right:
        model.mixed = way
        assert_close(gradients(model, model(x, task=tasks)), expected)


@settings(MADE, max_examples=15)
@given(networks(), st.integers(3, 5), st.integers(2, 4))
def test_rows_that_change_each_other_are_told(network, rows, time):
    kinds, layout = network
    assume(layout == "rows")
    model = superposed([*kinds, "less the mean row"], layout)
    checked = sp.check_mixed(model, batch(rows, time, 0)[0], rounds=1)
    assert checked.right == []
    assert "other values than they have alone" in checked.why["grouped"]
    with pytest.raises(sp.SuperposeError, match="no way is right for this network"):
        assert checked.best


def test_a_size_that_happens_to_be_the_number_of_rows_is_not_taken_for_it():
    """Heads times time is as many as rows, and the layer sees them first."""

    class Folding(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):  # (B, T, D) to (T · 2, B / 2, D) and back
            rows, time, _ = x.shape
            folded = x.transpose(0, 1).reshape(time * 2, rows // 2, WIDTH) if rows > 1 else x
            y = self.layer(folded)
            return y.reshape(time, rows, WIDTH).transpose(0, 1) if rows > 1 else y

    torch.manual_seed(0)
    model = sp.superpose(Folding().double(), tasks=4).eval()
    for rows, time in ((4, 2), (8, 4), (4, 3)):
        x, tasks = batch(rows, time, 0)
        even = [tasks[0]] * (rows // 2) + [tasks[-1]] * (rows // 2)  # grouped, none is alone
        torch.testing.assert_close(model(x, task=even), rows_one_by_one(model, even, x))
        assert "direct" not in sp.check_mixed(model, x, tasks=even, rounds=1).right


@pytest.mark.parametrize("by", ["sort", "gather"])
def test_rows_that_are_chosen_by_their_values(by):
    """A first batch in which the order is that of the rows says nothing: grouped is the default."""
    model = superposed([by, "linear"], "rows")
    x, tasks = batch(4, 3, 0)
    ordered = x[x[:, 0, 0].argsort()].abs()  # sorted already, and all of them chosen
    for given_ in (ordered, x, x.flip(0)):
        torch.testing.assert_close(model(given_, task=tasks), rows_one_by_one(model, tasks, given_))


def test_the_check_leaves_nothing_behind():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)
            self.register_buffer("seen", torch.zeros(()))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            self.seen += 1
            return self.drop(self.layer(x))

    torch.manual_seed(0)
    model = sp.superpose(Counting().double(), tasks=4)
    x, tasks = batch(4, 3, 0)
    state = torch.get_rng_state()
    assert sp.check_mixed(model, x, rounds=1).right == ["grouped", "direct"]
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.calls, float(model.seen)) == (0, 0)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    model(x, task=tasks[:1] * 4)
    assert model.calls == 1


def test_the_model_tells_the_way_and_by_whose_word():
    x, tasks = batch(3, 2, 0)
    model = superposed(["linear"], "rows")
    assert model.summary().mixed == "grouped, which is right for every network"
    model.mixed = "direct"
    assert model.summary().mixed == "direct, as it was said"
    layers = sp.superpose(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), tasks=2)
    assert layers.summary().mixed == "direct, as is declared for this architecture"
    folded = superposed(["fold", "linear"], "folded", mixed="direct")
    told = r"layer 'steps.1.layer' is given \(6, 4\), in which it cannot tell the 3 rows.*grouped'"
    with pytest.raises(sp.SuperposeError, match=told):
        folded(x, task=tasks)
    with pytest.raises(sp.SuperposeError, match="mixed='quick': use 'grouped'"):
        model.mixed = "quick"
    with pytest.raises(sp.SuperposeError, match="needs two rows or more"):
        sp.check_mixed(model, x[:1])
    with pytest.raises(sp.SuperposeError, match="give one for each of the 3 rows"):
        sp.check_mixed(model, x, tasks=[0, 1])
    with pytest.raises(sp.SuperposeError, match="Linear is not superposed"):
        sp.check_mixed(nn.Linear(2, 2), x)


def test_rounding_is_told_from_being_wrong():
    """A deep random network, whose rounding grows, agrees in double precision."""

    class Chaotic(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            for _ in range(9):
                x = (8 * self.layer(x)).sin()
            return x

    torch.manual_seed(0)
    model = sp.superpose(Chaotic(), "rotation", tasks=4).eval()
    found = sp.check_mixed(model, torch.randn(6, WIDTH), tolerance=0.0, rounds=1)
    assert found.right == ["grouped", "direct"]
    assert "by rounding; " in str(found)
