"""Networks that use their layers in ways of their own: a forward of their own, weights read."""

import copy

import cases
import pytest
import torch
import torch.nn.functional as F
from test_model import (
    assert_plain_bit_for_bit,
    copies,
    randomise_private,
    rows_one_by_one,
)
from torch import nn

import superpose as sp

TASKS = torch.tensor([2, 0, 1, 2, 3])
real_family = pytest.mark.parametrize(
    "family", [name for name in cases.NAMES if name not in ("complex", "onepower")]
)


class Standardised(nn.Conv2d):
    """As in networks without batch norm: the kernel is standardised, then given a gain."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x):
        deviation, mean = torch.std_mean(self.weight, (1, 2, 3), keepdim=True)
        kernel = self.gain * (self.weight - mean) / deviation
        return F.conv2d(x, kernel, self.bias, self.stride, self.padding, groups=self.groups)


class Masked(nn.Linear):
    """Writes into its weight before it uses it."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.register_buffer("mask", torch.ones_like(self.weight).tril())

    def forward(self, input):
        self.weight.data *= self.mask
        return super().forward(input)


class Quadratic(nn.Linear):
    """Not linear in its weight, and with an option."""

    def forward(self, x, scale=1.0):
        return F.linear(x, scale * self.weight.square(), self.bias)


class Tripled(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return 3 * super()._conv_forward(input, weight, bias)


class NormAct(nn.BatchNorm2d):
    """A norm and its activation in one, as timm has them."""

    def __init__(self, features):
        super().__init__(features)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(super().forward(x))


class ChannelsLast(nn.LayerNorm):
    """A layer norm over channels."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class RootMeanSquare(nn.Module):
    """As language models write it themselves."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    def twice(self, x):
        return 2 * self.weight * x


class OwnBatchNorm(nn.Module):
    """As written by hand: statistics are set anew, and there is something else inside."""

    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, features))
        self.register_buffer("mean", torch.zeros(features))
        self.act = nn.ReLU()

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.act(self.scale * (x - self.mean))


class OwnLinear(nn.Module):
    """As written by hand."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(outputs, inputs))
        self.offset = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return x @ self.kernel.T + self.offset


class Experts(nn.Module):
    """A matrix for each expert, as mixtures of experts keep them."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 8, inputs))
        self.down = nn.Parameter(torch.randn(3, outputs, 8))
        self.register_buffer("constants", torch.ones(3, 8))

    def forward(self, x, share):
        hidden = torch.einsum("...i,eoi->...eo", x, self.up).relu() + self.constants
        return torch.einsum("...ei,eoi,...e->...o", hidden, self.down, share)


class Mixture(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.gate, self.experts = nn.Linear(inputs, 3), Experts(inputs, outputs)

    def forward(self, x):
        return self.experts(x, share=self.gate(x).softmax(-1))


CUSTOM = {
    "standardised": lambda: (nn.Sequential(Standardised(4, 6, 3), nn.Flatten()), (4, 5, 5)),
    "grouped": lambda: (nn.Sequential(Standardised(4, 6, 3, groups=2), nn.Flatten()), (4, 5, 5)),
    "tripled": lambda: (nn.Sequential(Tripled(4, 6, 3), nn.Flatten()), (4, 5, 5)),
    "quadratic": lambda: (nn.Sequential(Quadratic(7, 6), nn.ReLU()), (7,)),
    "tokens": lambda: (nn.Sequential(Quadratic(7, 6), nn.Flatten()), (3, 7)),
    "norm with activation": lambda: (nn.Sequential(nn.Conv2d(4, 6, 3), NormAct(6)), (4, 5, 5)),
    "own linear": lambda: (nn.Sequential(OwnLinear(7, 6), nn.ReLU(), OwnLinear(6, 3)), (7,)),
    "own linear, tokens": lambda: (nn.Sequential(OwnLinear(7, 6)), (3, 7)),
    "mixture of experts": lambda: (nn.Sequential(Mixture(7, 6)), (7,)),
    "own norm": lambda: (nn.Sequential(nn.Linear(7, 6), RootMeanSquare(6)), (3, 7)),
    "own batch norm": lambda: (nn.Sequential(nn.Linear(7, 6), OwnBatchNorm(6)), (7,)),
    "slope": lambda: (nn.Sequential(nn.Linear(7, 6), nn.PReLU()), (7,)),
    "channels last": lambda: (nn.Sequential(nn.Conv2d(4, 6, 3), ChannelsLast(6)), (4, 5, 5)),
}
custom = pytest.mark.parametrize("name", CUSTOM)


def made(name):
    torch.manual_seed(0)
    net, shape = CUSTOM[name]()
    return net.eval(), torch.randn(5, *shape)


@custom
def test_identity_is_the_plain_network_bit_for_bit(name):
    assert_plain_bit_for_bit(*made(name))


@custom
@real_family
def test_the_own_forward_runs_on_what_the_task_reads_out(name, family):
    net, x = made(name)
    model = randomise_private(sp.superpose(net, family, tasks=4)).eval()
    y = model(x, task=1)
    torch.testing.assert_close(sp.unsuperpose(model, 1)(x), y)
    assert type(sp.unsuperpose(model)[0]) is type(net[0])
    assert (y - model(x, task=2)).abs().max() > 1e-2
    mixed = model(x, task=TASKS)
    torch.testing.assert_close(mixed, rows_one_by_one(model, TASKS, x))
    mixed.sum().backward()


@custom
def test_customised_layers_are_copied_pickled_and_saved(name, tmp_path):
    net, x = made(name)
    model = randomise_private(sp.superpose(net, tasks=4)).eval()
    expected = model(x, task=TASKS)
    for other in copies(model, net, tmp_path / "model.safetensors"):
        assert torch.equal(other(x, task=TASKS), expected)


def test_what_a_customised_layer_adds_is_private_but_not_its_constants():
    model = sp.superpose(nn.Sequential(Standardised(4, 6, 3), nn.Flatten(), Masked(54, 3)), tasks=2)
    assert model.summary().superposed == ["0.weight", "2.weight"]
    assert model.summary().private == ["0.bias", "0.gain", "2.bias"]
    assert model.summary().shared == ["2.mask"]
    shared = sp.superpose(nn.Sequential(Standardised(4, 6, 3)), tasks=2, private="shared")
    assert shared.summary().shared == ["0.bias", "0.gain"]
    layers = (Standardised(4, 6, 3), NormAct(6), nn.Flatten(), OwnLinear(54, 3))
    none = sp.superpose(nn.Sequential(*layers), tasks=2, private="none")
    assert none.summary().superposed == ["0.weight", "3.kernel"]
    assert none.summary().shared == ["0.gain", "3.offset"]
    assert none(torch.randn(5, 4, 5, 5), task=1).isfinite().all()


def test_a_layer_that_writes_into_its_weight_leaves_the_others_weights_alone():
    model = sp.superpose(nn.Sequential(Masked(6, 6)), tasks=3)
    before = copy.deepcopy(model.state_dict())
    products = model(torch.eye(6), task=1).T - model[0].private.bias.of(1)[:, None]
    torch.testing.assert_close(products, products.tril())
    assert products.diagonal().abs().min() > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_statistics_of_a_customised_norm_are_the_tasks_own():
    model, x = (
        sp.superpose(nn.Sequential(nn.Conv2d(4, 6, 3), NormAct(6)), tasks=4),
        made("tripled")[1],
    )
    model(x, task=1)
    means = model[1].private.running_mean
    assert means.of(1).abs().max() > 0
    assert means.of(2).abs().max() == 0
    with pytest.raises(sp.SuperposeError, match="'1' takes statistics over the rows"):
        model(x, task=TASKS)


def test_statistics_that_are_set_anew_are_the_tasks_own():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(7, 6), OwnBatchNorm(6)), torch.randn(5, 7)
    model = sp.superpose(net, "identity", tasks=3)
    for _ in range(2):
        model(x, task=1)
        net(x)
    means = model[1].private.mean
    assert torch.equal(means.of(1), net[1].mean)
    assert means.of(2).abs().max() == means.of(0).abs().max() == 0
    with pytest.raises(sp.SuperposeError, match="'1' keeps statistics of the rows"):
        model(x, task=[0, 1, 2, 2, 1])


class Remembering(nn.Linear):
    """Sets attributes and a constant anew whenever it runs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.register_buffer("scale", torch.ones(()))
        self.calls = 0

    def forward(self, x):
        self.scale = 0.5 * self.scale + x.abs().mean()
        self.calls += 1
        self.last = F.linear(x / self.scale, self.weight, self.bias)
        return self.last


def test_what_a_forward_sets_stays_set():
    torch.manual_seed(0)
    net, x = nn.Sequential(Remembering(7, 6)), torch.randn(5, 7)
    model = sp.superpose(net, "identity", tasks=3)
    for task in range(3):
        assert torch.equal(model(x, task=task), net(x))
    assert model[0].calls == net[0].calls == 3
    assert torch.equal(model[0].scale, net[0].scale)
    assert torch.equal(model[0].last, net[0].last)
    assert model.state_dict().keys() > net.state_dict().keys()


def test_vectors_of_other_modules_are_private_and_their_matrices_are_bound():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Parameter(torch.randn(4, 6))
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return x + self.scale * self.rows.sum(0)

    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(6))])
            self.table = Table()
            self.norm = RootMeanSquare(6)

        def forward(self, x):
            return self.norm(self.table(self.layer(x) * self.scales[0]))

    net = Held()
    summary = sp.superpose(net, tasks=2).summary()
    assert summary.superposed == ["layer.weight", "table.rows"]
    assert summary.private == ["layer.bias", "scales.0", "table.scale", "norm.weight"]
    assert summary.shared == []
    for private in ("shared", "none"):
        assert "norm.weight" in sp.superpose(net, tasks=2, private=private).summary().shared
    whole = sp.superpose(net, tasks=4, private_layers=["table"])
    own = ["layer.bias", "scales.0", "table.rows", "table.scale", "norm.weight"]
    assert whole.summary().private == own
    x = torch.randn(5, 6)
    randomise_private(whole)
    torch.testing.assert_close(whole(x, task=TASKS), rows_one_by_one(whole, TASKS, x))


def test_what_looks_up_and_what_reads_its_weights_elsewhere_is_left_alone():
    class OwnGRU(nn.GRU):
        def forward(self, x):
            return super().forward(x)[0]

    class Bag(nn.EmbeddingBag):
        def forward(self, x):
            return super().forward(x)

    net = nn.Sequential(Bag(5, 4), nn.Unflatten(1, (1, 4)), OwnGRU(4, 4), nn.Linear(4, 2))
    with pytest.warns(match="^2 stay shared"):
        model = sp.superpose(net, tasks=2)
    assert model.summary().superposed == ["3.weight"]
    assert model(torch.zeros(2, 3, dtype=torch.int64), task=1).shape == (2, 1, 2)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_cells_of_recurrent_networks():
    torch.manual_seed(0)
    model = randomise_private(sp.superpose(nn.LSTMCell(7, 6), tasks=4))
    assert model.summary().superposed == ["weight_ih", "weight_hh"]
    x, state = torch.randn(5, 7), (torch.randn(5, 6), torch.randn(5, 6))
    for own, plain in zip(model(x, state, task=1), sp.unsuperpose(model, 1)(x, state), strict=True):
        torch.testing.assert_close(own, plain)
    with pytest.raises(sp.SuperposeError, match=r"cannot be mapped over rows.*lstm_cell"):
        model(x, state, task=TASKS)
    model = randomise_private(sp.superpose(nn.GRUCell(7, 6), tasks=4))
    mixed = model(x, hx=state[0], task=TASKS)
    for row, task in enumerate(TASKS):
        alone = model(x[row : row + 1], hx=state[0][row : row + 1], task=task)
        torch.testing.assert_close(mixed[row : row + 1], alone)


def test_a_module_without_rows_takes_one_task_at_a_time():
    class Prompt(nn.Module):
        def __init__(self):
            super().__init__()
            self.text = nn.Parameter(torch.randn(3, 6))

        def forward(self):
            return self.text.mean(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt, self.layer = Prompt(), nn.Linear(6, 2)

        def forward(self, x):
            return self.layer(x + self.prompt())

    model, x = sp.superpose(Net(), tasks=4), torch.randn(5, 6)
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
    with pytest.raises(sp.SuperposeError, match="'prompt' is given no rows of the batch"):
        model(x, task=TASKS)
    model = sp.superpose(Net(), tasks=4, skip=["prompt"])
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


def test_other_methods_of_a_private_module_have_the_tasks_tensors():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(6, 6), RootMeanSquare(6)

        def forward(self, x):
            return self.norm.twice(self.layer(x)) + self.norm.weight

    model, x = randomise_private(sp.superpose(Net(), tasks=4)), torch.randn(5, 6)
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
    model(x, task=1).sum().backward()
    assert model.norm.private.weight.of(1).grad.abs().max() > 0
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


def test_a_private_tensor_may_have_any_name():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.keys = nn.Linear(6, 6), nn.Parameter(torch.zeros(6))
            self.values = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return self.layer(x + self.keys) * self.values

    model, x = randomise_private(sp.superpose(Memory(), tasks=4)), torch.randn(5, 6)
    assert "private.keys.2" in model.state_dict()
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


def test_models_with_norms_of_their_own_are_packed():
    torch.manual_seed(0)
    nets = {name: nn.Sequential(nn.Linear(20, 6), RootMeanSquare(6)) for name in "ab"}
    rows = {name: torch.randn(40, 5) @ torch.randn(5, 20) for name in "ab"}  # they fit
    for net in nets.values():
        nn.init.uniform_(net[1].weight)
    packed = sp.pack(nets, calibration=rows)
    for name, net in nets.items():
        torch.testing.assert_close(
            packed(rows[name], task=name), net(rows[name]), atol=1e-3, rtol=0
        )


def test_options_of_a_customised_layer_reach_it():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Quadratic(7, 6)

        def forward(self, x):
            return self.layer(x=x, scale=2.0)

    model, x = randomise_private(sp.superpose(Twice(), tasks=4)), torch.randn(5, 7)
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


def test_a_customised_layer_can_be_private_as_a_whole():
    net = nn.Sequential(nn.Linear(7, 7), Quadratic(7, 6))
    model = randomise_private(sp.superpose(net, tasks=4, private_layers=["1"]))
    assert model.summary().private[1:] == ["1.weight", "1.bias"]
    x = torch.randn(5, 7)
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


def test_a_customised_layer_is_no_linear_map_to_be_solved_for():
    nets = {name: nn.Sequential(nn.Linear(7, 7), Quadratic(7, 6)) for name in "ab"}
    rows = {name: torch.randn(20, 2) @ torch.randn(2, 7) for name in "ab"}  # they fit
    with pytest.raises(sp.SuperposeError, match="Quadratic '1' is not one linear map"):
        sp.pack(nets, calibration=rows)
    nets_of_their_own = {name: nn.Sequential(OwnLinear(7, 6)) for name in "ab"}
    with pytest.raises(sp.SuperposeError, match="OwnLinear '0' is not one linear map"):
        sp.pack(nets_of_their_own, calibration=rows)
    summed = sp.pack(nets_of_their_own, method="sum")
    assert summed.summary().superposed == ["0.kernel"]
    packed = sp.pack(nets, method="sum")
    assert packed.summary().superposed == ["0.weight", "1.weight"]
    alone = sp.pack(nets, calibration=rows, private_layers=["1"])
    assert (alone(rows["a"], task="a") - nets["a"](rows["a"])).abs().max() < 1e-3


@custom
def test_a_customised_layer_keeps_a_base(name):
    net, x = made(name)
    tuned = copy.deepcopy(net)
    for parameter in tuned.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    alone = sp.pack({"a": tuned}, "hadamard", method="delta", base=net)
    torch.testing.assert_close(alone(x, task="a"), tuned(x), rtol=1e-4, atol=1e-5)
    both = sp.pack({"a": tuned, "b": net}, "hadamard", method="delta")
    tasks = list("abbab")
    torch.testing.assert_close(both(x, task="b"), sp.unpack(both, "b")(x), rtol=1e-4, atol=1e-5)
    mixed = rows_one_by_one(both, tasks, x)
    torch.testing.assert_close(both(x, task=tasks), mixed, rtol=1e-4, atol=1e-5)


def test_a_quantised_weight_is_left_alone():
    class Packed4(nn.Linear):
        def __init__(self):
            super().__init__(8, 6)
            self.weight = nn.Parameter(torch.zeros(24, dtype=torch.uint8), requires_grad=False)

        def forward(self, x):
            return x[..., :6] + self.bias

    with pytest.warns(match="^0 stay shared"):
        model = sp.superpose(nn.Sequential(Packed4(), nn.Linear(6, 3)), tasks=2)
    assert model.summary().superposed == ["1.weight"]
    assert "0.weight" in model.summary().shared


class Reads(nn.Module):
    """Uses its layers without calling them, as window attention and fused kernels do."""

    def __init__(self, bias=True):
        super().__init__()
        self.inner = nn.Linear(7, 6, bias=bias)
        self.norm = nn.LayerNorm(6)
        self.kernel = nn.Conv1d(1, 4, 3)
        self.called = nn.Linear(16, 3)

    def forward(self, x):
        assert self.inner.weight.dtype == x.dtype
        y = F.linear(x, self.inner.weight, self.inner.bias)
        y = F.layer_norm(y, (6,), self.norm.weight, self.norm.bias)
        y = F.conv1d(y.unsqueeze(1), self.kernel.weight, self.kernel.bias)
        return self.called(y.flatten(1))


class Looks(nn.Module):
    """Looks at a weight's type and shape, and calls the layer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(7, 6)

    def forward(self, x):
        weight = self.inner.weight
        assert isinstance(weight, torch.Tensor)
        assert weight.shape == (6, 7)
        assert weight.size(0) == len(weight) == 6
        return self.inner(x.to(weight.device, weight.dtype))


@real_family
@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_that_is_read_is_the_tasks(family, bias):
    torch.manual_seed(0)
    net, x = Reads(bias), torch.randn(5, 7)
    model = randomise_private(sp.superpose(net, family, tasks=4))
    y = model(x, task=1)
    plain = sp.unsuperpose(model, 1)
    torch.testing.assert_close(y, plain(x))
    assert (y - model(x, task=2)).abs().max() > 1e-2
    y.sum().backward()
    plain(x).sum().backward()
    stored, read = model.inner.weight.grad, plain.inner.weight.grad
    context = model.inner.contexts["weight"].derive(1)
    torch.testing.assert_close(context.bind_weight(stored.double()).float(), read)
    assert model.inner.weight is model.inner._parameters["weight"]


def test_rows_of_many_tasks_cannot_share_a_weight_that_is_read():
    model = sp.superpose(Reads(), tasks=4)
    with pytest.raises(sp.SuperposeError, match=r"uses 'inner\.weight' without calling"):
        model(torch.randn(5, 7), task=TASKS)


def test_a_weight_can_be_looked_at_with_rows_of_many_tasks():
    model, x = randomise_private(sp.superpose(Looks(), tasks=4)), torch.randn(5, 7)
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


def test_a_weight_that_is_read_is_the_tasks_in_a_compiled_network():
    torch.manual_seed(0)
    x = torch.randn(5, 7)
    norm = nn.Sequential(nn.Linear(7, 6), RootMeanSquare(6), nn.PReLU(), Quadratic(6, 3))
    for net in (Reads(), norm, Looks()):
        model = randomise_private(sp.superpose(net, tasks=4))
        run = torch.compile(model.run, fullgraph=True, backend="aot_eager")
        for task in (1, 2):
            torch.testing.assert_close(run(model.selection(task), x), model(x, task=task))
    with torch.no_grad():
        torch.testing.assert_close(run(model.selection(TASKS), x), model(x, task=TASKS))


def test_a_weight_can_be_set_while_a_task_is_chosen():
    model = sp.superpose(Looks(), tasks=2)
    with model.task(1), torch.no_grad():
        model.inner.weight.zero_()
    assert model.inner.weight.abs().max() == 0
    model.inner.weight = nn.Parameter(torch.ones(6, 7))
    assert torch.equal(model.state_dict()["inner.weight"], torch.ones(6, 7))
