"""Protocols: declarations that JSON can hold, and what they train."""

import json
from dataclasses import replace

import pytest
import torch

from superpose.learning import Quiet
from superpose.recognition import Statistics
from superpose_lab.data import load
from superpose_lab.experiments.recognition import protocol as protocol_module
from superpose_lab.experiments.recognition.protocol import Learner
from superpose_lab.experiments.recognition.protocols import PAPER, SCALES, SMOKE


@pytest.mark.parametrize("scale", SCALES)
def test_declarations_are_json_and_no_two_are_the_same(scale):
    told = [json.dumps(protocol.declared()) for protocol in SCALES[scale].values()]
    assert len(set(told)) == len(told)
    runs = [run for name, protocol in SCALES[scale].items() for run in protocol.runs(name)]
    assert len(set(runs)) == len(runs)


def test_every_field_of_a_declaration_tells_protocols_apart():
    plain = PAPER["permuted-10"]
    deeper = replace(
        plain, options=PAPER["permuted-10"].options | {"recognise": Statistics(rank=1)}
    )
    assert deeper.declared() != plain.declared()
    assert deeper.declared()["options"]["recognise"]["rank"] == 1


RECIPE = "hadamard+projection"
LARGER = {"lr": 1e-3, "schedule": "warm-cosine", "label_smoothing": 0.1, "evaluate_every": 2000}


class Stopped(Exception):
    """Training is not wanted here."""


@pytest.mark.parametrize(
    ("name", "units", "method", "kept", "options"),
    [
        ("permuted-10", 256, RECIPE, Statistics(), {"lr": 6e-4, "schedule": "cosine"}),
        ("permuted-10-wide", 1000, RECIPE, Statistics(), LARGER),
        ("rotated-36", 256, RECIPE, Statistics(rank=64), {"lr": 6e-4, "schedule": "cosine"}),
        ("stream-returning", 256, "hadamard", None, {"lr": 1e-4, "tasks_known": False}),
        ("stream-permuted-50", 256, "hadamard", None, {"lr": 1e-4, "evaluate_every": 1000}),
        ("doubt", 256, RECIPE, None, {"lr": 6e-4, "evaluate_every": 400}),
    ],
)
def test_runs_are_trained_as_declared(name, units, method, kept, options, tmp_path, monkeypatch):
    given = {}

    def train(net, stream, chosen, **more):
        given.update(more, net=net, stream=stream, method=chosen)
        raise Stopped

    monkeypatch.setattr(protocol_module, "learn", train)
    monkeypatch.setattr(protocol_module, "load", lambda name, data_dir: load("digits"))
    with pytest.raises(Stopped):
        PAPER[name].measure(name, Learner(tmp_path, Quiet()))
    assert given["net"].sizes == [64, units, units, 10]
    assert given["method"].name == method
    assert all(parameter.ndim == 2 for parameter in given["net"].parameters())  # no biases
    assert {option: given[option] for option in options} == options
    assert given["out"] == tmp_path / PAPER[name].runs(name)[0]
    assert given["resume"]
    made = given["method"].make(given["net"], 2, 0)
    assert made.superposition.options.recognise == kept


def test_first_weights_are_those_of_seed_0_and_leave_the_callers_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    net = protocol_module.drawn(lambda: torch.nn.Linear(3, 2))
    assert torch.rand(2).equal(expected)
    torch.manual_seed(0)
    assert net.weight.equal(torch.nn.Linear(3, 2).weight)


def test_biases_are_there_if_tasks_have_their_own(tmp_path):
    protocol = replace(
        SMOKE["permuted-250"],
        tasks=2,
        options=PAPER["permuted-10"].options | {"private": "per-task", "centre": "task"},
        rate={"lr": 1e-3},
        evidence=("inputs",),
    )
    found = protocol.measure("biased", Learner(tmp_path, Quiet()))
    assert found["numbers_for_recognition"] == 2 * 64 + 3
    assert found["numbers_a_task"] > found["numbers_for_recognition"] + 64 + 64 + 10
    assert found["accuracy"]["inputs"] > 50  # of ten classes
