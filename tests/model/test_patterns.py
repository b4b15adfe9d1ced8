"""Layers by pattern: skip, private_layers, and families for some layers."""

import json
import re

import pytest
import torch
from checks import TASKS, copies, randomise_private, rows_one_by_one
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import superpose as sp
from superpose import tensor_file
from superpose.contexts import Binary, Hadamard, Phase

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(stays? shared by all tasks|tensors that all tasks)"
)  # the table


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.stem, self.body = nn.Linear(size, size), nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)
        self.table = nn.Parameter(torch.randn(2, size))

    def forward(self, x):
        return self.norm(x + self.body(self.stem(x).relu()) + self.table.sum(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(Block(8), Block(8))
        self.encoder_head, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder_head(self.encoder(x)))


def made():
    torch.manual_seed(0)
    return Net(), torch.randn(5, 8)


def families(model):
    layers = [layer for layer in model.superposed_layers if layer.bound]
    return {layer.path: layer.bound["weight"].context.family for layer in layers}


BOUND = [
    "encoder.0.stem", "encoder.0.body", "encoder.1.stem", "encoder.1.body", "encoder_head", "head",
]  # fmt: skip


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        (["*.stem"], ["encoder.0.body", "encoder.1.body", "encoder_head", "head"]),
        (["encoder"], ["encoder_head", "head"]),
        (["encoder.*"], ["encoder_head", "head"]),
        (["encoder*"], ["head"]),
        (["encoder.?"], ["encoder_head", "head"]),
        (["encoder.[0]", "head"], ["encoder.1.stem", "encoder.1.body", "encoder_head"]),
        (["head"], BOUND[:-1]),
    ],
)
def test_what_matches_skip_is_left_alone(skip, left):
    model = sp.superpose(made()[0], tasks=2, skip=skip)
    assert list(families(model)) == left
    assert (type(model.encoder[0].stem) is nn.Linear) == ("encoder.0.stem" not in left)


@pytest.mark.parametrize(
    ("private_layers", "own"),
    [
        (["*.stem"], {"encoder.0.stem.weight", "encoder.1.stem.weight"}),
        (["*.table", "head"], {"encoder.0.table", "encoder.1.table", "head.weight"}),
        (["encoder.1.ta*"], {"encoder.1.table"}),
        (["*head"], {"encoder_head.weight", "head.weight"}),
    ],
)
def test_what_matches_private_layers_is_private(private_layers, own):
    net, x = made()
    usual = set(sp.superpose(net, tasks=2).summary().private)
    model = randomise_private(sp.superpose(net, tasks=4, private_layers=private_layers))
    assert set(model.summary().private) - usual == own
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


@pytest.mark.parametrize("option", ["skip", "private_layers"])
@pytest.mark.parametrize("pattern", ["*.stm", "Head", "encoder.2"])
def test_a_pattern_that_matches_nothing_lists_what_there_is(option, pattern):
    message = (
        re.escape(f"{option}: there is no layer '{pattern}'; there are 'encoder', ") + ".*head"
    )
    with pytest.raises(sp.SuperposeError, match=message):
        sp.superpose(made()[0], tasks=2, **{option: [pattern]})


def deep():
    """Many layers, as in BERT."""
    torch.manual_seed(0)
    net = nn.Sequential()
    net.encoder = nn.Sequential(*(Block(8) for _ in range(12)))
    net.classifier = nn.Linear(8, 3)
    return net


@pytest.mark.parametrize(
    ("options", "nearest"),
    [
        ({"private_layers": ["clasifier"]}, "'classifier'"),
        ({"skip": ["*.stm"]}, "'encoder.0.stem', 'encoder.1.stem', 'encoder.2.stem'"),
        ({"skip": ["encoder.7.bdy"]}, "'encoder.7.body'"),
        ({"family": {"clasifier": "binary", "*": "hadamard"}}, "'classifier'"),
        ({"skip": ["zzz"]}, None),
    ],
)
def test_in_a_deep_network_the_nearest_names_are_told(options, nearest):
    with pytest.raises(sp.SuperposeError) as told:
        sp.superpose(deep(), tasks=2, **options)
    message = str(told.value)
    assert "; there are 'encoder', 'classifier', " in message
    assert re.search(r" … and \d+ more", message)
    assert len(message) < 400
    assert message.partition("the nearest ")[2].partition(" ")[2].startswith(nearest or "")
    assert (nearest is None) == ("nearest" not in message)


def test_a_pattern_that_matches_nothing_bound_lists_some_ten_layers():
    wanted = {"encoder.*.norm": "binary", "*": "phase"}
    with pytest.raises(sp.SuperposeError, match=r"name some of 'encoder\.0\.stem', .* 15 more$"):
        sp.superpose(deep(), wanted, tasks=2)


def test_the_summary_of_a_deep_network_lists_some_ten_names():
    options = {"base": True, "rank": 2, "centre": "task", "recognise": True}
    summary = sp.superpose(deep(), tasks=2, **options).summary()
    told = str(summary)
    assert max(map(len, told.splitlines())) < 300
    assert len(summary.superposed) == 25
    assert "superposed: encoder.0.stem.weight, " in told
    assert " … and 15 more\n" in told
    assert not re.search("_(begun|seen|down|up|mean|input)", told)
    (also,) = (line for line in told.splitlines() if line.startswith("each task also has: "))
    assert "a mean of inputs for 25 weights" in also
    assert "statistics of inputs for 1 weight" in also
    assert "a low-rank part for " in also
    plain = str(sp.superpose(deep(), tasks=2).summary())
    assert "also" not in plain


def test_the_first_pattern_that_a_layer_matches_tells_its_family():
    net, x = made()
    wanted = {"encoder.0": Phase(), "encoder.*": "hadamard", "*": "binary"}
    model = randomise_private(sp.superpose(net, wanted, tasks=4, seed=3)).eval()
    found = families(model)
    assert list(found) == BOUND
    assert list(found.values()) == [Phase(), Phase(), Hadamard(), Hadamard(), Binary(), Binary()]
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    alone = sp.superpose(net, "hadamard", tasks=4, seed=3)
    read = [sp.unsuperpose(one, 2).encoder[1].stem.weight for one in (model, alone)]
    assert torch.equal(*read)  # the key is that of the layer, whatever the others have


def test_the_summary_tells_several_families():
    net, _ = made()
    model = sp.superpose(net, {"encoder": "hadamard", "*": "binary"}, tasks=2)
    told = str(model.summary())
    assert "superposed, Binary(learnable=False): encoder_head.weight, head.weight" in told
    assert told.startswith("superposed, Hadamard(learnable=False): encoder.0.stem.weight")
    assert model.summary().superposed == [f"{name}.weight" for name in BOUND]
    assert str(sp.superpose(net, tasks=2).summary()).startswith("superposed: encoder.0.stem.weight")


def test_one_layer_matches_a_star():
    model = sp.superpose(nn.Linear(4, 3), {"*": "phase"}, tasks=2)
    assert families(model) == {"": Phase()}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"encoder.*": "binary"}, "no pattern matches layer 'encoder_head': add one for it"),
        (
            {"*.norm": "binary", "*": "phase"},
            r"'\*\.norm' matches no layer that is superposed: .*'head'",
        ),
        ({"decoder.*": "binary", "*": "phase"}, r"family: there is no layer 'decoder\.\*'"),
        ({"head": "complex", "*": "binary"}, "that of head makes a network complex-valued"),
        ({}, "family={}: give a family"),
        ({"*": "bnary"}, "unknown family 'bnary'"),
        ({"*": None}, "None is no family"),
    ],
)
def test_families_that_do_not_fit_are_errors(wanted, message):
    with pytest.raises(sp.SuperposeError, match=message):
        sp.superpose(made()[0], wanted, tasks=2)


def test_layers_that_are_skipped_or_private_need_no_family():
    wanted = {"encoder.*": "binary"}
    model = sp.superpose(made()[0], wanted, tasks=2, skip=["head"], private_layers=["*_head"])
    assert list(families(model)) == BOUND[:4]
    with pytest.raises(sp.SuperposeError, match="'head' matches no layer that is superposed"):
        sp.superpose(made()[0], {"head": "phase", "*": "binary"}, tasks=2, skip=["head"])


def test_norms_need_no_family():
    wanted = {"*.stem": "binary", "*.body": "phase", "*head": "hadamard"}
    model = sp.superpose(made()[0], wanted, tasks=2)
    assert list(families(model)) == BOUND
    assert "encoder.0.norm.weight" in model.summary().private


def test_contexts_are_learned_where_their_family_says_so():
    net, x = made()
    wanted = {"head": Phase(learnable=True), "*": "permutation"}
    model = sp.superpose(net, wanted, tasks=2)
    learned = [name for name in model.private_tensors(0) if name.endswith("_context")]
    assert learned == ["head.weight_context"]
    model(x, task=0).sum().backward()
    assert model.private_parameters(0)[0].grad.abs().max() > 0
    both = sp.superpose(net, {"head": "phase", "*": "binary"}, tasks=2, learnable=True)
    assert len([n for n in both.private_tensors(0) if n.endswith("_context")]) == len(BOUND)
    with pytest.raises(sp.SuperposeError, match="Permutation has no numbers to learn"):
        sp.superpose(net, {"head": "phase", "*": "permutation"}, tasks=2, learnable=True)


def test_complex_families_may_be_several():
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model = sp.superpose(net, {"0": "onepower", "*": "complex"}, tasks=2)
    assert model(torch.randn(4, 6), task=1).shape == (4, 3)
    assert model[0].weight.is_complex()


def test_files_keep_patterns(tmp_path):
    net, x = made()
    wanted = {"encoder.0": "phase", "encoder.*": Hadamard(learnable=True), "*": "binary"}
    model = sp.superpose(net, wanted, tasks=4, skip=["*.1.stem"], private_layers=["*_head"])
    model = randomise_private(model).eval()
    for other in copies(model, net, tmp_path / "many.safetensors"):
        assert torch.equal(other(x, task=2), model(x, task=2))
        assert families(other) == families(model)
        assert list(other.superposition.family) == list(wanted)
        assert other.superposition.options == model.superposition.options


def tampered(path, change):
    """The file with another header, whose checksum is right."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()[tensor_file.HEADER])
    tensors = load_file(path)
    del header["checksum"]
    change(header["family"])
    header["checksum"] = tensor_file.checksum(header, tensors)
    save_file(tensors, path, {tensor_file.HEADER: json.dumps(header)})


@pytest.mark.parametrize(
    "change",
    [
        lambda family: family["patterns"].reverse(),
        lambda family: family["patterns"][0].__setitem__(0, "encoder.0"),
        lambda family: family["patterns"][0].__setitem__(1, {"name": "binary", "learnable": False}),
    ],
)
def test_a_file_whose_patterns_were_changed_is_refused(tmp_path, change):
    net, _ = made()
    path = tmp_path / "many.safetensors"
    sp.save(sp.superpose(net, {"encoder.*": "hadamard", "*": "binary"}, tasks=2), path)
    tampered(path, lambda family: None)
    sp.load(path, net)
    tampered(path, change)
    with pytest.raises(sp.SuperposeError, match="contexts derived here differ"):
        sp.load(path, net)


def test_one_family_is_described_as_before(tmp_path):
    sp.save(sp.superpose(made()[0], "binary", tasks=2), tmp_path / "one.safetensors")
    header, _ = tensor_file.read(tmp_path / "one.safetensors")
    assert header["family"] == {"name": "binary", "learnable": False}


@pytest.mark.parametrize(
    ("skip", "private_layers", "named"),
    [
        (["head"], ["head"], "head"),
        (["*.stem"], ["encoder.1.stem"], "encoder.1.stem"),
        (["encoder.0"], ["encoder.0.norm"], "encoder.0.norm"),
        (["encoder.0.norm"], ["encoder"], "encoder.0.norm"),
        (["encoder.1"], ["encoder.1.table"], "encoder.1.table"),
    ],
)
def test_a_layer_that_is_skipped_and_private_is_refused(skip, private_layers, named):
    options = {"skip": skip, "private_layers": private_layers}
    net = made()[0]
    with pytest.raises(sp.SuperposeError, match=f"layer '{re.escape(named)}' is in skip"):
        sp.superpose(net, tasks=2, **options)


def test_a_layer_beside_a_skipped_one_may_be_private():
    model = sp.superpose(made()[0], tasks=2, skip=["head"], private_layers=["encoder_head"])
    assert "encoder_head.weight" in model.summary().private
    assert "head.weight" in model.summary().shared
