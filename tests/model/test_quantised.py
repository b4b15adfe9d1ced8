"""Weights that torchao has quantised, in a superposed model."""

import copy
import itertools
import warnings

import pytest
import torch
from checks import rows_one_by_one
from torch import nn

import superpose as sp
from superpose.nn.quantised import full, is_quantised, nbytes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own imports
    torchao = pytest.importorskip("torchao.quantization")
    int4 = pytest.importorskip("torchao.prototype.quantization.int4")

pytestmark = pytest.mark.filterwarnings("ignore:with a base, tensors that all tasks share")
INT8 = torchao.Int8WeightOnlyConfig
CONFIGS = {
    "int8": INT8,
    "dynamic int8": torchao.Int8DynamicActivationInt8WeightConfig,
    "int4": lambda: int4.PrototypeInt4WeightOnlyConfig(group_size=32),
    "int4 in bytes": lambda: torchao.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=torchao.PerGroup(32)
    ),
}
ERROR = {"int8": 0.02, "dynamic int8": 0.03, "int4": 0.25, "int4 in bytes": 0.25}
TASKS = [2, 0, 1, 2, 2, 0]


@pytest.fixture(autouse=True)
def _settings_of_the_compiler():
    """torchao changes them."""
    kept = torch._inductor.config.save_config_portable()
    yield
    torch._inductor.config.load_config(kept)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(20, 32)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(32, 8)

    def forward(self, words):
        return self.head(self.encoder(self.words(words)).mean(1))


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3),
        nn.Flatten(), nn.Linear(8 * 16, 32),
    )  # fmt: skip


def batch(make):
    torch.manual_seed(1)
    if make is Text:
        return torch.randint(0, 20, (6, 7))
    return torch.randn(6, 3, 6, 6) if make is cnn else torch.randn(6, 64)


def learned(make=mlp, family="hadamard", **options):
    """A model whose three tasks have learned something, each something else."""
    model, x = sp.superpose(make(), family, tasks=3, **options), batch(make)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model.begin(*model.tasks)
    for task in range(3):
        for _ in range(3):
            optimiser.zero_grad()
            (model(x, task=task) - task).square().mean().backward()
            optimiser.step()
    return model.eval()


def quantised(model, config="int8", **options):
    narrow = copy.deepcopy(model)
    torchao.quantize_(narrow, CONFIGS[config](), **options)
    return narrow


def far(a, b):
    return float((a - b).norm() / b.norm())


def kept(model):
    return [name for name, weight in model.named_parameters() if is_quantised(weight)]


OPTIONS = {
    "plain": {},
    "base": {"base": True, "rank": 2},
    "centred by task": {"centre": "task"},
    "centred by rows": {"centre": "rows"},
    "private head": {"private_layers": ["2"]},
}


@torch.no_grad()
@pytest.mark.parametrize(
    ("config", "family", "options"),
    [
        *itertools.product(["int8"], ["binary", "hadamard"], OPTIONS),
        *itertools.product(CONFIGS, ["phase"], ["base"]),
        *itertools.product(CONFIGS, ["hadamard"], ["plain"]),
    ],
)
def test_it_serves_one_task_and_mixed_batches(config, family, options):
    with torch.enable_grad():
        model = learned(family=family, **OPTIONS[options])
    narrow, x = quantised(model, config), batch(mlp)
    assert kept(narrow) == ["0.weight", "2.weight"]
    alone = rows_one_by_one(narrow, TASKS, x)
    assert 0 < far(alone, rows_one_by_one(model, TASKS, x)) < ERROR[config]
    assert far(narrow(x, task=2), narrow(x, task=1)) > 2 * ERROR[config]
    rounding = 5e-3 if "dynamic" in config else 1e-5  # an input may be rounded the other way
    for way in ("direct", "grouped"):
        narrow.mixed = way
        assert far(narrow(x, task=TASKS), alone) < rounding


@torch.no_grad()
@pytest.mark.parametrize("config", CONFIGS)
def test_read_out_it_is_an_ordinary_network(config):
    with torch.enable_grad():
        model = learned(centre="task")
    narrow, x = quantised(model, config), batch(mlp)
    plain = sp.unsuperpose(narrow, 1)
    assert kept(plain) == []
    assert all(parameter.requires_grad for parameter in plain.parameters())
    assert far(plain(x), narrow(x, task=1)) < (0.02 if "dynamic" in config else 1e-5)
    assert far(plain(x), sp.unsuperpose(model, 1)(x)) > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("make", [Text, cnn])
def test_layers_that_bind_their_weight_take_its_numbers(make):
    """torchao takes linear layers by itself, and any weight by its name."""
    with torch.enable_grad():
        model = learned(make, base=True)
    names = [
        name
        for name, weight in model.named_parameters()
        if name.endswith("weight") and weight.ndim in (2, 4) and "words" not in name
    ]
    assert any("bases" in name for name in names)
    byte = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int8)
    narrow, x = copy.deepcopy(model), batch(make)
    torchao.quantize_(narrow, torchao.FqnToConfig(dict.fromkeys(names, byte)), filter_fn=None)
    assert kept(narrow) == names
    alone = rows_one_by_one(narrow, TASKS, x)
    assert 0 < far(alone, rows_one_by_one(model, TASKS, x)) < 0.02
    assert far(narrow(x, task=TASKS), alone) < 1e-5
    assert far(sp.unsuperpose(narrow, 1)(x), narrow(x, task=1)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("dtype", [None, torch.int8], ids=str)
def test_a_file_has_the_numbers_that_it_stands_for(tmp_path, dtype):
    with torch.enable_grad():
        model = learned()
    narrow, x, path = quantised(model), batch(mlp), tmp_path / "model.safetensors"
    sp.save(narrow, path, dtype=dtype)
    again = sp.load(path, mlp()).eval()
    assert kept(again) == []
    assert far(again(x, task=1), narrow(x, task=1)) < (1e-5 if dtype is None else 0.01)
    assert far(quantised(again)(x, task=1), narrow(x, task=1)) < 0.01


def test_a_base_that_is_quantised_is_not_the_one_that_others_have(tmp_path):
    narrow = quantised(learned(base=True), filter_fn=sp.nn.is_base)
    sp.save(narrow, tmp_path / "with.safetensors")
    with pytest.raises(sp.SuperposeError, match=r"0\.bases\.weight is quantised.*with its base"):
        sp.save(narrow, tmp_path / "without.safetensors", base=False)


@pytest.mark.parametrize("config", CONFIGS)
def test_cost_counts_the_bytes_that_are_kept(config):
    model = learned()
    narrow = quantised(model, config)
    numbers = 64 * 96 + 96 * 32
    bits = 4 if config == "int4" else 8
    saved = model.cost().shared_bytes - narrow.cost().shared_bytes
    scales = 4 * numbers - numbers * bits // 8 - saved
    assert 0 < scales <= 0.25 * numbers
    assert narrow.cost().shared == model.cost().shared
    assert narrow.cost().private_bytes == model.cost().private_bytes
    assert nbytes(model[0].weight) == 4 * 64 * 96


@pytest.mark.parametrize("config", CONFIGS)
def test_quantised_weights_do_not_learn(config):
    narrow, x = quantised(learned(), config), batch(mlp)
    narrow.train()
    with pytest.raises(sp.SuperposeError, match=r"0\.weight is quantised.*train first.*is_base"):
        narrow(x, task=1)
    with torch.no_grad():
        assert narrow(x, task=1).isfinite().all()
    assert narrow.eval()(x, task=1).isfinite().all()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("task", [1, TASKS], ids=["one", "mixed"])
def test_a_quantised_base_lets_the_rest_learn(config, task):
    """With the gradient that the numbers it stands for have, whatever its product rounds."""
    narrow, x = quantised(learned(base=True, rank=2), config, filter_fn=sp.nn.is_base), batch(mlp)
    assert kept(narrow) == ["0.bases.weight", "2.bases.weight"]
    exact = copy.deepcopy(narrow)
    for layer in (exact[0], exact[2]):
        layer.bases["weight"] = nn.Parameter(full(layer.bases["weight"]), requires_grad=False)
    assert kept(exact) == []
    found = {}
    for name, model in {"narrow": narrow.train(), "exact": exact.train()}.items():
        x.requires_grad_().grad = None
        model(x, task=task).square().mean().backward()
        own = [p.grad for p in model.parameters() if p.grad is not None]
        found[name] = [x.grad, *own]
    assert len(found["narrow"]) > 3
    torch.testing.assert_close(found["narrow"], found["exact"])


def test_a_base_is_what_a_new_task_gives_exactly():
    net, x = mlp().eval(), batch(mlp)
    torchao.quantize_(net, INT8())
    for model in (
        quantised(sp.superpose(mlp(), tasks=2, base=True).eval(), filter_fn=sp.nn.is_base),
        sp.superpose(net, tasks=2, base=True, bind_frozen=True).eval(),
    ):
        assert kept(model) == ["0.bases.weight", "2.bases.weight"]
        for task in (1, [0, 1, 1, 0, 0, 1]):
            assert torch.equal(model(x, task=task), net(x))


def test_a_packed_model_takes_no_more_models():
    packed = sp.pack({"a": mlp(), "b": mlp()}, method="sum")
    torchao.quantize_(packed, INT8())
    x = batch(mlp)
    with torch.no_grad():
        assert far(sp.unpack(packed, "a")(x), packed.eval()(x, task="a")) < 1e-5
    with pytest.raises(sp.SuperposeError, match="'c': the weights are quantised"):
        packed.add("c", mlp())


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"base": True, "centre": "task"}], ids=str)
def test_it_can_be_compiled_and_exported(options):
    with torch.enable_grad():
        model = learned(**options)
    narrow, x = quantised(model), batch(mlp)
    expected = narrow(x, task=1)
    torch.testing.assert_close(torch.compile(narrow, backend="eager")(x, task=1), expected)
    task = {"task": torch.tensor(1)}
    program = torch.export.export(sp.exportable(narrow), (x,), task)
    torch.testing.assert_close(program.module()(x, **task), expected)


def test_a_private_layer_whose_template_is_quantised_is_still_where_tasks_start(tmp_path):
    net, x = mlp(), batch(mlp)
    model = sp.superpose(net, "hadamard", tasks=3, base=True, private_layers=["2"])
    model.begin(0)
    model(x, task=0).square().mean().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    narrow = quantised(model)
    assert is_quantised(narrow[2].stored("weight"))
    narrow.add_task("new")
    sp.save(narrow, tmp_path / "with.safetensors")
    sp.save(narrow, tmp_path / "without.safetensors", base=False)
    others = [sp.load(tmp_path / f"{one}.safetensors", mlp()) for one in ("with", "without")]
    with torch.no_grad():
        for one in (narrow, *others):
            for task in (1, 2, "new"):
                assert torch.equal(one.eval()(x, task=task), net(x))
            assert far(one(x, task=0), model(x, task=0)) < 0.05
        plain = sp.unsuperpose(narrow)
        assert kept(plain) == []
        assert torch.equal(plain(x), net(x))


def test_a_file_is_not_loaded_into_a_quantised_network(tmp_path):
    sp.save(learned(), tmp_path / "model.safetensors")
    with pytest.raises(sp.SuperposeError, match="is quantised: load it into the network"):
        sp.load(tmp_path / "model.safetensors", quantised(mlp()))
