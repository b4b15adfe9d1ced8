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


def test_models_that_come_and_go_are_not_guessed():
    model = sp.pack(nets(wide), method="sum", calibration=None)
    for name, x in inputs().items():
        model.remember(x, task=name)
    more = inputs("d", shape=(48,))["d"] + 2
    model.add("d", nets(wide, "d")["d"])
    with pytest.raises(sp.SuperposeError, match="nothing is known of the inputs of task 'd'"):
        model.recognise(more)
    model.remember(more, task="d")
    assert model.recognise(more[:4]).task == ["d"] * 4
    model.remove("b", nets(wide)["b"])
    assert model.recognisable == ["a", "c", "d"]


def test_without_calibration_there_is_nothing_to_keep():
    with pytest.raises(sp.SuperposeError, match=r"give some, or call packed\.remember"):
        sp.pack(nets(wide), method="sum", recognise=True)
