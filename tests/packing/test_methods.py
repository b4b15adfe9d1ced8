"""Packing methods as objects: named, registered, one's own."""

import subprocess
import sys

import pytest
import torch
from networks import inputs, nets, wide
from packing.problems import error
from torch import nn

import superpose as sp
from superpose.packing import METHODS, Additive, Joint, PackingMethod, Sum, register, set_private


class Half(Additive):
    """A method of one's own: the sum, of which one could ask for random pairing."""

    name = "half"
    takes = frozenset({"random_pairing"})


class Average(Joint):
    """Another: the mean of the weights, each read out as if its context were not there."""

    name = "average"

    def fill(self, packed, sources, options):
        models = [sources.open(name) for name in sources.models]
        for name, model in zip(sources.models, models, strict=True):
            set_private(packed, name, model)
        with torch.no_grad():
            packed.weight.copy_(sum(model.weight for model in models) / len(models))


@pytest.fixture
def registry():
    """The methods that are known, put back afterwards."""
    before = dict(METHODS)
    yield METHODS
    METHODS.clear()
    METHODS.update(before)


def test_the_library_registers_its_own_by_the_same_door():
    assert list(METHODS) == ["solve", "sum", "delta"]
    assert all(name == method.name for name, method in METHODS.items())


def test_a_method_may_be_an_object():
    models = nets()
    by_name, by_object = sp.pack(models, method="sum"), sp.pack(models, method=Sum())
    assert by_name.method == by_object.method == "sum"
    for key, tensor in by_name.state_dict().items():
        assert torch.equal(tensor, by_object.state_dict()[key])


def test_what_was_packed_by_ones_own_is_loaded_once_it_is_registered(registry, tmp_path):
    models = nets(wide, "ab")
    packed = sp.pack(models, method=Half(), random_pairing=True)
    sp.save(packed, tmp_path / "p.safetensors")
    with pytest.raises(sp.SuperposeError, match=r"packed by method 'half', .*packing\.register it"):
        sp.load(tmp_path / "p.safetensors", wide())
    with pytest.raises(sp.SuperposeError, match=r"method='half': use one of solve, sum, delta$"):
        sp.pack(models, method="half")
    register(Half())
    loaded = sp.load(tmp_path / "p.safetensors", wide())
    assert loaded.method == "half"
    loaded.remove("a", models["a"])
    x = torch.randn(5, 48)
    torch.testing.assert_close(loaded(x, task="b"), models["b"](x), rtol=1e-4, atol=1e-4)
    assert sp.pack(models, method="half").method == "half"


def test_a_method_that_finds_all_weights_together_writes_fill_alone():
    torch.manual_seed(0)
    models = {name: nn.Linear(4, 3) for name in "abc"}
    packed = sp.pack({n: models[n] for n in "ab"}, "identity", method=Average())
    mean = (models["a"].weight + models["b"].weight) / 2
    torch.testing.assert_close(packed.weight, mean)
    assert torch.equal(sp.unpack(packed, "b").bias, models["b"].bias)
    packed.add("c", models["c"])  # it needs no inputs, so none are asked for
    torch.testing.assert_close(packed.weight, (2 * mean + models["c"].weight) / 3)
    packed.replace("c", models["a"])
    assert torch.equal(sp.unpack(packed, "c").bias, models["a"].bias)
    with pytest.raises(sp.SuperposeError, match="method 'average' stores no term"):
        packed.remove("a", models["a"])
    packed.remove("a")
    assert packed.tasks == ["b", "c"]


def test_crosstalk_predicts_nothing_for_a_method_that_it_does_not_know():
    models = {name: nn.Linear(4, 3) for name in "ab"}
    x = {name: torch.randn(20, 4) for name in models}
    assert sp.crosstalk(sp.pack(models, method=Half()), models, x).layers[0].predicted > 0
    found = sp.crosstalk(sp.pack(models, method=Average()), models, x)
    assert found.layers[0].predicted is None
    assert found.layers[0].measured > 0


def test_options_that_a_method_makes_no_use_of_are_refused_when_adding_too():
    models, x = nets(wide), inputs()
    two = {name: models[name] for name in "ab"}
    packed = sp.pack(two, method="delta")
    for change, name in ((packed.add, "c"), (packed.replace, "a")):
        with pytest.raises(
            sp.SuperposeError, match=r"finetune=3 is for method 'solve', .* 'delta'"
        ):
            change(name, models["c"], finetune=3)
    assert packed.tasks == ["a", "b"]
    solved = sp.pack(two, calibration={name: x[name] for name in two})
    with pytest.raises(sp.SuperposeError, match="finetune=-1: it is a number of steps"):
        solved.add("c", models["c"], x, finetune=-1)
    solved.add("c", models["c"], x, finetune=2)
    assert error(solved, models["c"], "c", x["c"]) < 0.5


class Nameless(Additive):
    pass


class Impostor(Additive):
    name = "sum"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (3, "method=3: give a name, one of solve, sum, delta, or a PackingMethod"),
        (Sum, "give a name, .* or a PackingMethod"),
        (Nameless(), "Nameless has no name"),
        (Impostor(), "Impostor is named 'sum', and so is Sum: .* another name"),
    ],
)
def test_methods_that_files_could_not_tell_apart(method, message):
    with pytest.raises(sp.SuperposeError, match=message):
        sp.pack(nets(), method=method)
    if isinstance(method, PackingMethod):
        with pytest.raises(sp.SuperposeError, match=message):
            register(method)
    assert type(METHODS["sum"]) is Sum


def test_a_class_that_is_defined_again_is_the_same_method(registry):
    def define():
        class Mine(Additive):
            name = "mine"

        return Mine()

    register(define())
    again = define()
    register(again)
    assert registry["mine"] is again


def test_a_model_that_was_unpacked_is_as_plain_as_before():
    models = nets()
    plain = sp.unpack(sp.pack(models, method="sum"), "a")
    assert vars(plain).keys() == vars(models["a"]).keys()
    assert sp.pack({"again": plain}, method="sum").method == "sum"


def test_pack_is_the_function_whatever_is_imported():
    lines = [
        "import superpose as sp, superpose.packing.solve, superpose.packing.methods",
        "from superpose.packing import register, solve",
        "assert sp.pack.__name__ == 'pack' and callable(sp.pack)",
        "assert solve.Solve.name == 'solve' and callable(register)",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
