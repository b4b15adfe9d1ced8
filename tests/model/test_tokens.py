"""One task per token: texts of many tasks in a single row, as they are packed for training."""

import pytest
import torch
import torch.nn.functional as F
from checks import randomise_private
from networks import First
from torch import Tensor, nn

import superpose as sp

WIDTH = 8
LENGTHS = [3, 1, 4]
TASKS = ["b", "a", "c"]
FAMILIES = ["binary", "hadamard", "phase", "rotation", "permutation"]


class OwnNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x / (1 + x.abs().mean(-1, keepdim=True))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT).real if q.is_complex() else q @ k.mT
        return self.out(scores.masked_fill(~mask, -torch.inf).softmax(-1).to(v.dtype) @ v)


class Folded(nn.Module):
    """What sees the tokens as if they were the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x.flatten(0, 1))).view_as(x)


class Reader(nn.Module):
    """A small transformer that reads packed texts: ids (1, T), positions (1, T), mask (T, T)."""

    def __init__(self, attention: nn.Module, between: nn.Module) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, WIDTH), nn.Embedding(9, WIDTH)
        self.attention, self.between = attention, between
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids) + self.places(positions) + self.shift
        if isinstance(self.attention, nn.MultiheadAttention):
            x = x + self.attention(x, x, x, attn_mask=~mask, need_weights=False)[0]
        else:
            x = x + self.attention(x, mask)
        return self.head(x + self.between(x))


NETWORKS = {
    "linear and norm layers": lambda: Reader(
        Attention(), nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    ),
    "PyTorch's attention": lambda: Reader(
        nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.RMSNorm(WIDTH)
    ),
    "a norm of its own": lambda: Reader(Attention(), OwnNorm()),
    "tokens folded into rows": lambda: Reader(Attention(), Folded()),
}


def packed(lengths: list[int] = LENGTHS) -> dict[str, Tensor]:
    """Texts one after the other, each blind to the others and to what comes later in itself."""
    text = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return {
        "ids": torch.randint(0, 20, (1, len(text))),
        "positions": torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0),
        "mask": (text[:, None] == text).tril(),
    }


def of_tokens() -> list[str]:
    return [task for task, length in zip(TASKS, LENGTHS, strict=True) for _ in range(length)]


def alone(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The same texts, one at a time, each with its own task."""
    places = torch.arange(sum(LENGTHS)).split(LENGTHS)
    read = [
        model(
            inputs["ids"][:, here],
            inputs["positions"][:, here],
            inputs["mask"][here][:, here],
            task=task,
        )
        for task, here in zip(TASKS, places, strict=True)
    ]
    return torch.cat(read, 1)


def build(name: str, family: str = "binary", **options: object) -> tuple[nn.Module, dict]:
    torch.manual_seed(0)
    net = NETWORKS[name]().double()
    model = sp.superpose(net, family, tasks=["a", "b", "c"], **options)
    return randomise_private(model), packed()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("private", [[], ["words", "places", "head"]], ids=["", "private"])
def test_each_text_is_read_as_if_it_were_alone(name, private):
    model, inputs = build(name, private_layers=private)
    y, expected = model(**inputs, task=[of_tokens()]), alone(model, inputs)
    torch.testing.assert_close(y, expected)
    assert not torch.allclose(model(**inputs, task="a"), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family):
    model, inputs = build("linear and norm layers", family)
    torch.testing.assert_close(model(**inputs, task=[of_tokens()]), alone(model, inputs))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradients_are_those_of_the_texts_alone(name):
    model, inputs = build(name)
    weights = [p for p in model.parameters() if p.requires_grad]

    def gradients(y: Tensor) -> list[Tensor | None]:
        return list(torch.autograd.grad(y.square().sum(), weights, allow_unused=True))

    found = gradients(model(**inputs, task=[of_tokens()]))
    for own, expected in zip(found, gradients(alone(model, inputs)), strict=True):
        torch.testing.assert_close(own, expected)
    assert sum(own is not None and bool(own.any()) for own in found) > len(weights) / 2


def test_tasks_may_be_numbers_and_chosen_around_the_call():
    model, inputs = build("linear and norm layers")
    expected = model.eval()(**inputs, task=[of_tokens()])
    numbers = torch.tensor([["abc".index(task) for task in of_tokens()]])
    assert torch.equal(model(**inputs, task=numbers), expected)
    assert torch.equal(model(**inputs, task=numbers.numpy()), expected)
    with model.task(numbers):
        assert torch.equal(model(**inputs), expected)
    with pytest.raises(sp.SuperposeError, match=r"it is grouped .*without calling the layer"):
        sp.exportable(model)(**inputs, task=numbers)
    direct, _ = build("linear and norm layers", private="shared")  # none that the network reads
    expected = direct.eval()(**inputs, task=numbers)
    torch.testing.assert_close(expected, alone(direct, inputs))
    assert torch.equal(sp.exportable(direct)(**inputs, task=numbers), expected)


@torch.no_grad()
def test_compiled_for_any_number_of_tokens():
    model, inputs = build("linear and norm layers")
    graph = torch.compile(model, backend="eager", dynamic=True)
    for lengths, tasks in [(LENGTHS, of_tokens()), ([2, 3], list("ccaab"))]:
        inputs = packed(lengths)
        torch.testing.assert_close(graph(**inputs, task=[tasks]), model(**inputs, task=[tasks]))


def test_the_same_model_takes_a_task_for_each_row():
    model, _ = build("linear and norm layers", batch_dim={"mask": None})
    inputs = packed([4])
    rows = {"ids": inputs["ids"].repeat(3, 1), "positions": inputs["positions"].repeat(3, 1)}
    y = model(**rows, mask=inputs["mask"], task=TASKS)
    for row, task in enumerate(TASKS):
        torch.testing.assert_close(y[[row]], model(**inputs, task=task))


class AlongTokens(nn.Module):
    """A convolution over neighbouring tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.mT).mT


@pytest.mark.parametrize(
    ("between", "says"),
    [
        (
            First(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
            "tokens of different tasks see each other",
        ),
        (AlongTokens(), "tokens of different tasks see each other"),
        (nn.Conv1d(8, 8, 1), "cannot be run with the tokens of one task alone.*8 channels"),
    ],
    ids=["LSTM", "neighbours", "tokens as channels"],
)
def test_layers_that_mix_tokens_are_refused(between, says):
    model = sp.superpose(Reader(Attention(), between), tasks=["a", "b", "c"])
    with pytest.raises(sp.SuperposeError, match=says):
        model(**packed(), task=[of_tokens()])


def test_a_bias_that_is_a_key():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, 2, add_bias_kv=True, batch_first=True)
    model = sp.superpose(Reader(attention, nn.Tanh()).double(), tasks=["a", "b", "c"])
    randomise_private(model)
    inputs = packed()
    y, expected = model(**inputs, task=[of_tokens()]), alone(model, inputs)
    torch.testing.assert_close(y, expected)
    assert not torch.allclose(model(**inputs, task="a"), expected)


def test_as_many_heads_as_tokens():
    class ByHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x.unflatten(-1, (WIDTH, 1))).flatten(-2)  # (1, T, heads, 1)

    model = randomise_private(sp.superpose(Reader(Attention(), ByHead()), tasks=["a", "b", "c"]))
    fewer = packed([3, 4])
    y = model(**fewer, task=[list("aaabbbb")])
    torch.testing.assert_close(y[:, :3], model(**fewer, task="a")[:, :3])
    torch.testing.assert_close(y[:, 3:], model(**fewer, task="b")[:, 3:])
    inputs = packed()
    torch.testing.assert_close(model(**inputs, task=[of_tokens()]), alone(model, inputs))


def test_tokens_of_several_rows_are_refused():
    model, inputs = build("linear and norm layers")
    with pytest.raises(sp.SuperposeError, match="one per token of a single row"):
        model(**inputs, task=torch.zeros(2, 8, dtype=torch.long))
    with pytest.raises(sp.SuperposeError, match="there are 7 tasks"):
        model(**inputs, task=[of_tokens()[1:]])


def test_a_pooled_batch_has_its_rows_first():
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm, self.head = nn.Linear(6, WIDTH), OwnNorm(), nn.Linear(WIDTH, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.inner(x).mean(0)))  # x (T, B, 6)

    torch.manual_seed(0)
    model = randomise_private(sp.superpose(Pooled().double(), tasks=3, batch_dim=1))
    x = torch.randn(5, 4, 6, dtype=torch.double)
    y = model(x, task=[2, 0, 1, 0])
    for row, task in enumerate([2, 0, 1, 0]):
        torch.testing.assert_close(y[[row]], model(x[:, [row]], task=task))
    assert F.mse_loss(y, model(x, task=0)) > 1e-6
