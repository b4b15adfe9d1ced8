"""Golden files: what was saved is read back, bit for bit where nothing is rounded.

If one of these fails, files that people have cannot be read any more: mend the reading, not them.
"""

import json
from pathlib import Path

import pytest
import torch
from golden.networks import digest, inputs, network, tolerance

import superpose as sp
from superpose import tensor_file

FILES = sorted(Path(__file__).parent.glob("golden/format*/*.safetensors"))


def told(path):
    return f"{path.parent.name}-{path.stem}"


every_file = pytest.mark.parametrize("path", FILES, ids=told)


def read(path):
    """The model, in a network whose own weights are others, and what it should give."""
    expected = json.loads(path.with_suffix(".json").read_text())
    return sp.load(path, network(expected["network"])).eval(), expected


def assert_output(found, wanted, name):
    wanted = torch.tensor(wanted, dtype=torch.float64)
    scale = max(1.0, wanted.abs().max().item())
    assert found.shape == wanted.shape
    assert (found.double() - wanted).abs().max().item() <= tolerance(name) * scale


def assert_bits(net, digests):
    """`None` stands for a weight that its context rounds: outputs tell whether it is right."""
    state = net.state_dict()
    assert state.keys() == digests.keys()
    found = {name: wanted and digest(state[name]) for name, wanted in digests.items()}
    assert found == digests


def test_there_is_a_file_of_every_family_and_of_every_kind():
    kinds = {path.stem for path in FILES}
    assert {path.parent.name for path in FILES} == {f"format{tensor_file.FORMAT}"}
    assert kinds >= set(sp.contexts.FAMILIES) | {"base", "base-begun", "rank", "centred"}
    assert kinds >= {"recognised", "recognised-classes", "packed-solve", "eight-bits-transposed"}
    assert len(kinds) >= 30
    assert all(path.with_suffix(".json").is_file() for path in FILES)


@every_file
def test_a_file_is_written_again_as_it_was(path, tmp_path):
    """What a file says, under which names, is the format."""
    header, tensors = tensor_file.read(path)
    model, _ = read(path)
    if header["reduced"] is None:
        sp.save(model, tmp_path / "again.safetensors")
        again, same = tensor_file.read(tmp_path / "again.safetensors")
        assert again == header
        assert same.keys() == tensors.keys()
        assert all(torch.equal(same[name], tensor) for name, tensor in tensors.items())


@every_file
def test_tasks_give_what_they_gave(path):
    model, expected = read(path)
    x = inputs(expected["network"])
    assert model.tasks == [one["task"] for one in expected["tasks"]]
    with torch.no_grad():
        for one in expected["tasks"]:
            assert_output(model(x, task=one["task"]), one["output"], expected["network"])


@every_file
def test_tensors_have_the_bits_they_had(path):
    model, expected = read(path)
    assert_bits(sp.unsuperpose(model), expected["stored"])
    for one in expected["tasks"]:
        assert_bits(sp.unsuperpose(model, one["task"]), one["read"])


@pytest.mark.parametrize("path", [path for path in FILES if "packed" not in path.stem], ids=told)
def test_a_task_added_later_has_a_number_of_its_own(path):
    model, expected = read(path)
    model.add_task("one more")
    with torch.no_grad():
        output = model(inputs(expected["network"]), task="one more")
    assert_output(output, expected["added"], expected["network"])
    names = {one["task"] for one in expected["tasks"]}
    assert set(model.tasks) - names == {"one more"}


@pytest.mark.parametrize("path", [path for path in FILES if "recognised" in path.stem], ids=told)
def test_tasks_are_recognised_as_they_were(path):
    model, expected = read(path)
    wanted, x = expected["recognised"], inputs(expected["network"])
    for task, digests in zip(model.tasks, wanted["kept"], strict=True):
        own = model.private_tensors(task)
        assert {name: digest(own[name]) for name in own if "_input_" in name} == digests
        assert len(digests) == 5
    found = model.recognise(x)
    assert_output(found.scores, wanted["scores"], expected["network"])
    assert found.task == torch.tensor(wanted["scores"]).argmax(1).tolist()
    assert len(set(found.task)) > 1
