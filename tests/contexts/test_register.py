"""Families of one's own, by name: `sp.contexts.register`."""

from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import superpose as sp
from superpose import contexts
from superpose.cli import main
from superpose.contexts import Binary, Drawn, Key


@dataclass(frozen=True)
class Mine(Drawn):
    """Signs of a key of its own; every `every`th of them, at least."""

    every: int = 1

    def draw(self, key, dim):
        signs = Binary().draw(Key(key.seed, f"{key.layer}:mine", key.task), dim)
        return torch.where(torch.arange(dim) % self.every == 0, signs, torch.ones_like(signs))

    def make(self, numbers):
        return Binary().make(numbers)

    def moments(self, w, x):
        return Binary().moments(w, x)


@dataclass(frozen=True)
class Needy(contexts.Family):
    inner: contexts.Family

    def context(self, key, dim):
        return self.inner.context(key, dim)

    def moments(self, w, x):
        return self.inner.moments(w, x)


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr(contexts, "FAMILIES", dict(contexts.FAMILIES))
    monkeypatch.setattr(contexts, "COMPOSED", dict(contexts.COMPOSED))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 16)


def test_a_registered_family_is_used_by_its_name():
    plain, _ = net()
    sp.contexts.register("mine", Mine)
    model = sp.superpose(plain, "mine", tasks=3, seed=4)
    assert model.superposition.family == Mine()
    bound = Mine().context(Key(4, "0.weight", 1), 16).bind_weight(plain[0].weight)
    assert torch.equal(sp.unsuperpose(model, 1)[0].weight, bound)
    own = [model[0].bound["weight"].context.derive(task).signs for task in range(3)]
    assert not torch.equal(own[0], own[1])
    assert sp.pack({"a": plain, "b": net()[0]}, "mine", method="sum").superposition.family == Mine()
    assert sp.plan(plain, "mine", tasks=2, rank=2).family == "mine"
    assert sp.learning.method("mine+ewc").make(plain, 2, 0).superposition.family == Mine()
    learned = sp.superpose(plain, "mine", tasks=2, learnable=True)
    assert learned.superposition.family == Mine(learnable=True)


def test_files_keep_the_name_and_the_options(tmp_path):
    plain, x = net()
    sp.contexts.register("mine", Mine)
    model = sp.superpose(plain, Mine(every=3) * Binary(), tasks=3)
    sp.save(model, tmp_path / "many.safetensors")
    read = sp.load(tmp_path / "many.safetensors", plain)
    assert read.superposition.family == Mine(every=3) * Binary()
    assert torch.equal(read(x, task=2), model(x, task=2))


def test_a_family_that_needs_options_is_saved_but_not_made_by_its_name(tmp_path):
    plain, x = net()
    sp.contexts.register("needy", Needy)
    with pytest.raises(sp.SuperposeError, match=r"'needy' needs options: give Needy\(…\) itself"):
        sp.superpose(plain, "needy")
    model = sp.superpose(plain, Needy(Binary()), tasks=2)
    sp.save(model, tmp_path / "many.safetensors")
    assert torch.equal(sp.load(tmp_path / "many.safetensors", plain)(x, task=1), model(x, task=1))
    assert "needy" not in contexts.FAMILIES


def test_a_family_without_a_name_is_not_saved(tmp_path):
    model = sp.superpose(net()[0], Mine(), tasks=2)
    with pytest.raises(sp.SuperposeError, match=r"sp\.contexts\.register\('mine', Mine\)"):
        sp.save(model, tmp_path / "many.safetensors")


def saved(path, monkeypatch):
    sp.contexts.register("mine", Mine)
    sp.save(sp.superpose(net()[0], Mine(every=2), tasks=2), path)
    monkeypatch.delitem(contexts.FAMILIES, "mine")
    return path


def test_a_file_tells_which_family_has_to_be_registered(tmp_path, monkeypatch):
    path = saved(tmp_path / "many.safetensors", monkeypatch)
    with pytest.raises(sp.SuperposeError, match=r"call sp\.contexts\.register\('mine', …\)"):
        sp.load(path, net()[0])


def test_another_family_of_the_same_name_is_refused(tmp_path, monkeypatch):
    path = saved(tmp_path / "many.safetensors", monkeypatch)

    @dataclass(frozen=True)
    class Fewer(Binary):
        pass

    @dataclass(frozen=True)
    class Other(Mine):
        def draw(self, key, dim):
            return -super().draw(key, dim)

    sp.contexts.register("mine", Fewer)
    with pytest.raises(sp.SuperposeError, match="Fewer, registered here as 'mine', has no 'every'"):
        sp.load(path, net()[0])
    monkeypatch.delitem(contexts.FAMILIES, "mine")
    sp.contexts.register("mine", Other)
    with pytest.raises(sp.SuperposeError, match="contexts derived here differ"):
        sp.load(path, net()[0])


class Undecorated(Binary):
    every: int = 2


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("binary", Mine, "Binary is called 'binary' already: choose another name"),
        ("product", Mine, "ProductOf is called 'product' already"),
        ("signs", Binary, "Binary is called 'binary' already"),
        ("mine", Mine(), r"Mine\(learnable=False, every=1\) is no family: register a class"),
        ("mine", nn.Linear, "is no family"),
        ("mine", Drawn, "is no family: register a class with all the methods"),
        ("mine", Undecorated, "Undecorated is no dataclass"),
        ("", Mine, "'' cannot name a family"),
        (3, Mine, "3 cannot name a family"),
    ],
)
def test_what_cannot_be_registered_is_an_error(name, kind, message):
    before = dict(contexts.FAMILIES)
    with pytest.raises(sp.SuperposeError, match=message):
        sp.contexts.register(name, kind)
    assert before == contexts.FAMILIES


def test_registering_the_same_again_changes_nothing():
    sp.contexts.register("mine", Mine)
    sp.contexts.register("mine", Mine)
    assert list(contexts.FAMILIES).count("mine") == 1


def test_unknown_names_tell_the_known_ones_and_how_to_add_one():
    with pytest.raises(sp.SuperposeError, match=r"binary, .*hadamard, or .*sp\.contexts\.register"):
        sp.superpose(net()[0], "mine")


MODULE = """
from dataclasses import dataclass
from torch import nn
import superpose as sp

@dataclass(frozen=True)
class Own(sp.contexts.Binary):
    pass

sp.contexts.register("own", Own)

def make():
    return nn.Linear(8, 3)
"""


def test_the_command_line_knows_what_the_networks_module_registers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_family.py").write_text(MODULE)
    for name in "ab":
        save_file(nn.Linear(8, 3).state_dict(), f"{name}.safetensors")
    models = ["a=a.safetensors", "b=b.safetensors"]
    command = ["pack", *models, "--net", "own_family:make", "--method", "sum", "--family", "own"]
    main([*command, "--out", "many.safetensors"])
    main(["inspect", "many.safetensors"])
    assert "own contexts" in capsys.readouterr().out
