"""Law 3: a mixed batch is each row run alone, in every way it is computed, or it is refused."""

import pytest
import torch
from checks import randomise_private
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import superpose as sp

WIDTH, HEADS = 4, 2
WAYS = ("auto", "direct", "mapped", "grouped")


class Step(nn.Module):
    """One thing that networks do with a batch; `layout` says where its rows are, before and after.

    "rows": (B, T, D), "time": (T, B, D), "folded": (B · T, D).
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind in ("linear", "read", "folded linear"):
            self.layer = nn.Linear(WIDTH, WIDTH)
        if kind == "norm":
            self.layer = nn.LayerNorm(WIDTH)
        if kind in ("scale", "token", "heads"):
            self.own = nn.Parameter(torch.ones(WIDTH // HEADS if kind == "heads" else WIDTH))

    def forward(self, x: Tensor, shape: tuple[int, int]) -> Tensor:
        rows, time = shape
        match self.kind:
            case "linear" | "norm" | "folded linear":
                return self.layer(x)
            case "read":
                return x @ self.layer.weight.T + self.layer.bias
            case "scale":
                return x * self.own
            case "token":
                return x + self.own.expand(rows, 1, WIDTH)
            case "heads":  # (T, B · H, d), as attention has it
                folded = x.transpose(0, 1).reshape(time, rows * HEADS, WIDTH // HEADS) * self.own
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


def superposed(kinds: list[str], layout: str, **options) -> sp.Superposed:
    torch.manual_seed(0)
    model = sp.superpose(Network(kinds, layout).double(), "hadamard", tasks=4, **options)
    return randomise_private(model).eval()


def alone(model: sp.Superposed, x: Tensor, tasks: list[int]) -> Tensor:
    return torch.cat([model(x[i : i + 1], task=task) for i, task in enumerate(tasks)])


def batch(rows: int, time: int, seed: int) -> tuple[Tensor, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, time, WIDTH, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 4, (rows,), generator=generator).tolist()


@settings(deadline=None, max_examples=60)
@given(
    networks(), st.lists(st.tuples(st.integers(2, 5), st.integers(1, 5)), min_size=2, max_size=3)
)
def test_every_way_gives_each_row_what_it_has_alone(network, sizes):
    """At sizes one after the other, since a way is found with the first batch of a kind."""
    for way in WAYS:
        model = superposed(*network, mixed=way)
        for seed, (rows, time) in enumerate(sizes):
            x, tasks = batch(rows, time, seed)
            try:
                mixed = model(x, task=tasks)
            except sp.SuperposeError:
                assert way in ("direct", "mapped"), "grouped is right for all of these"
                continue
            torch.testing.assert_close(mixed, alone(model, x, tasks))
            others = [(task + 1) % 4 for task in tasks]
            assert (mixed - model(x, task=others)).abs().amax((1, 2)).min() > 1e-6


@settings(deadline=None, max_examples=20)
@given(networks(), st.integers(2, 4), st.integers(1, 4))
def test_every_way_learns_what_the_rows_alone_would(network, rows, time):
    x, tasks = batch(rows, time, 0)
    for way in WAYS:
        model = superposed(*network, mixed=way)
        model.train()
        try:
            mixed = model(x, task=tasks)
        except sp.SuperposeError:
            assert way in ("direct", "mapped")
            continue
        expected = gradients(model, alone(model, x, tasks))
        found = gradients(model, mixed)
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name])


def gradients(model: sp.Superposed, output: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (output.square() * torch.arange(1.0, 1 + len(output))[:, None, None]).sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@settings(deadline=None, max_examples=20)
@given(networks(), st.integers(2, 4), st.integers(2, 4), st.sampled_from(WAYS))
def test_rows_that_change_each_other_are_refused(network, rows, time, way):
    kinds, layout = network
    assume(layout == "rows")
    model = superposed([*kinds, "less the mean row"], layout, mixed=way)
    x, tasks = batch(rows, time, 0)
    with pytest.raises(sp.SuperposeError, match="when other rows are beside it"):
        model(x, task=tasks)


def test_a_private_vector_that_meets_heads_is_each_rows_own():
    """Once it silently gave (B, B, T, D)."""
    model = superposed(["heads", "linear"], "rows")
    for rows, time in ((3, 5), (4, 4), (5, 2)):
        x, tasks = batch(rows, time, rows)
        mixed = model(x, task=tasks)
        assert mixed.shape == x.shape
        torch.testing.assert_close(mixed, alone(model, x, tasks))
    assert model.summary().mixed[0].startswith("mapped")


def test_the_model_tells_the_way_and_why():
    model = superposed(["linear"], "rows")
    assert "mixed batches: found out with the first one" in str(model.summary())
    x, tasks = batch(3, 2, 0)
    model(x, task=tasks)
    assert model.summary().mixed == ["direct"]
    folded = superposed(["fold", "linear"], "folded")
    folded(x, task=tasks)
    (told,) = folded.summary().mixed
    assert told.startswith("mapped (not direct: layer 'steps.1.layer' is given (6, 4)")


def test_a_way_that_is_chosen_and_not_right_is_refused():
    x, tasks = batch(3, 2, 0)
    model = superposed(["fold", "linear"], "folded", mixed="direct")
    with pytest.raises(
        sp.SuperposeError, match=r"'direct' was chosen, and it is not right: .*is giv"
    ):
        model(x, task=tasks)
    model.mixed = "grouped"
    torch.testing.assert_close(model(x, task=tasks), alone(model, x, tasks))
    with pytest.raises(sp.SuperposeError, match="mixed='quick': use one of auto, direct, mapped"):
        model.mixed = "quick"


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
        torch.testing.assert_close(model(x, task=tasks), alone(model, x, tasks))


@pytest.mark.parametrize("value", [0.0, 1.0, torch.nan])
def test_a_batch_that_tells_nothing_does_not_decide(value):
    """Zeros are zeros in every way: the probe makes numbers of its own of them."""
    model = superposed(["transpose", "linear"], "time", private="none")
    _, tasks = batch(4, 4, 0)
    model(torch.full((4, 4, WIDTH), value, dtype=torch.float64), task=tasks)
    x, _ = batch(4, 4, 1)
    torch.testing.assert_close(model(x, task=tasks), alone(model, x, tasks))


def test_the_way_of_one_task_is_not_that_of_two():
    torch.manual_seed(0)
    net = Network(["transpose", "linear"], "time").double()
    model = sp.superpose(net, tasks=1, private="none").eval()
    x, _ = batch(4, 4, 0)
    model(x, task=[0, 0, 0, 0])
    model.add_task("more")
    tasks = [0, 1, 1, 0]
    torch.testing.assert_close(model(x, task=tasks), alone(model, x, tasks))


def test_probing_leaves_nothing_behind():
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
    model(x, task=tasks)
    first = torch.get_rng_state()
    assert (model.calls, float(model.seen)) == (1, 1)
    torch.set_rng_state(state)
    model(x, task=tasks)
    assert torch.equal(torch.get_rng_state(), first)
    assert all(p.grad is None for p in model.parameters())
