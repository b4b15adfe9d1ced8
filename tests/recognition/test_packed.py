"""Packed models are recognised by their calibration inputs."""

import pytest
from networks import inputs, nets, wide

import superpose as sp


def packed(**options):
    calibration = inputs()
    return sp.pack(nets(wide), calibration=calibration, recognise=True, **options), calibration


def test_the_calibration_tells_the_models_apart(tmp_path):
    model, calibration = packed()
    for name, x in calibration.items():
        assert model.recognise(x).task == [name] * len(x)
        assert model.recognise(x, together=True).known
    sp.save(model, tmp_path / "packed.safetensors")
    same = sp.load(tmp_path / "packed.safetensors", wide())
    assert same.recognise(calibration["b"][:3]).task == ["b"] * 3


def test_models_that_come_and_go_bring_their_inputs_or_are_not_guessed():
    model, calibration = packed()
    more = inputs("d", shape=(48,))
    model.add("d", nets(wide, "d")["d"], {**calibration, "d": more["d"] + 2})
    assert model.recognise(more["d"][:4] + 2).task == ["d"] * 4
    moved = {**calibration, "d": more["d"] + 2, "a": calibration["a"] - 3}
    model.replace("a", nets(wide, "d")["d"], calibration=moved)
    assert model.recognise(calibration["a"][:4] - 3).task == ["a"] * 4
    model.remove("b")
    assert model.recognisable == ["a", "c", "d"]


def test_a_model_replaced_without_inputs_is_told():
    model = sp.pack(nets(wide), method="sum", calibration=None)
    for name, x in inputs().items():
        model.remember(x, task=name)
    assert model.recognise(inputs()["b"][:2]).task == ["b", "b"]
    model.replace("a", nets(wide, "d")["d"], old=nets(wide)["a"])
    with pytest.raises(sp.SuperposeError, match="nothing is known of the inputs of task 'a'"):
        model.recognise(inputs()["b"])


def test_without_calibration_there_is_nothing_to_keep():
    with pytest.raises(sp.SuperposeError, match=r"give some, or call packed\.remember"):
        sp.pack(nets(wide), method="sum", recognise=True)
