"""A run that is stopped in any way ends as one that never was, and errors leave it as it is."""

import json
import os
import pickle
import re
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learning.problems import make_net, make_stream, same_weights, stop_after

from superpose import superpose
from superpose.errors import SuperposeError
from superpose.learning import Interrupted, Quiet, method, train
from superpose.learning.run_directory import RunDirectory, checkpoint, read_checkpoint, write

SAME = ("metrics.jsonl", "result.json")


def learn(out, method="standard", **options):
    options = {"lr": 3e-3, "display": Quiet(), "evaluate_every": 7, "resume": True, **options}
    return train(make_net(dropout=0.2), make_stream(period=25), method, out=out, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("standard", {"optimiser": "rmsprop", "schedule": "cosine"}),
        ("binary", {"optimiser": "adam", "reset": True}),
        ("complex", {"optimiser": "rmsprop"}),
        ("multihead", {"optimiser": "sgd"}),
        ("separate", {"optimiser": "adamw"}),
        ("ewc", {}),
        ("ewc-online", {"schedule": "linear"}),
        ("binary+si", {"optimiser": "adam"}),
        ("hadamard+projection", {"schedule": "cosine"}),
        ("replay", {}),
        ("hadamard+doubt", {}),
        ("hadamard+projection+ewc+replay", {"reset": True}),
    ],
)
def test_stopped_and_resumed_is_bit_for_bit_the_same(tmp_path, name, options):
    whole = learn(tmp_path / "whole", name, **options)
    for steps in (3, 22, 20, 12):  # in a task, at its last step, within two steps of it, …
        with pytest.raises(Interrupted, match="stopped after"):
            learn(tmp_path / "stopped", name, stop=stop_after(steps), **options)
    resumed = learn(tmp_path / "stopped", name, **options)
    for file in SAME:
        assert (tmp_path / "whole" / file).read_bytes() == (
            tmp_path / "stopped" / file
        ).read_bytes()
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key])
    assert resumed.timings["starts"] == 5
    assert "seconds" not in (tmp_path / "whole" / "result.json").read_text()


WITH_A_BASE = ["hadamard", "hadamard+ewc", "hadamard+ewc-online", "hadamard+si", "hadamard+replay",
               "hadamard+projection", "hadamard+doubt"]  # fmt: skip


@pytest.mark.parametrize("name", WITH_A_BASE)
def test_with_a_base_too(tmp_path, name):
    """What tasks have begun, seen and kept for themselves is part of what is saved."""
    options = {"base": True, "rank": 1, "centre": "task", "recognise": True}
    net, x = make_net(dropout=0.2).eval(), torch.randn(9, 8)
    whole = learn(tmp_path / "whole", method(name, **options))
    for steps in (3, 22, 12):  # in the first task, at its end, in the second
        with pytest.raises(Interrupted, match="stopped after"):
            learn(tmp_path / "stopped", method(name, **options), stop=stop_after(steps))
    resumed = learn(tmp_path / "stopped", method(name, **options))
    for file in SAME:
        assert (tmp_path / "whole" / file).read_bytes() == (
            tmp_path / "stopped" / file
        ).read_bytes()
    assert same_weights(whole.model, resumed.model)
    model = superpose(net, "hadamard", tasks=3, **options)
    hooks = name.partition("+")[2] or "standard"
    with pytest.raises(Interrupted):
        train(model, make_stream(period=25), hooks, display=Quiet(), stop=stop_after(40))
    is_base = [torch.equal(model.eval()(x, task=task), net(x)) for task in range(3)]
    assert is_base == [False, False, True]


def test_ten_kills_at_random_moments():
    script = Path(__file__).with_name("kill.py")
    options = ["--kills", "10", "--tasks", "3", "--steps", "60", "--save-every", "0.005"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "10 kills" in done.stdout


def test_a_finished_run_is_told_again_with_its_model(tmp_path):
    first = learn(tmp_path)
    before = contents(tmp_path)
    again = learn(tmp_path)
    assert again.result == first.result
    assert torch.equal(again.model[0].weight, first.model[0].weight)
    assert contents(tmp_path) == before


def test_a_finished_run_without_its_model_is_left_as_it_is(tmp_path):
    learn(tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    before = contents(tmp_path)
    with pytest.raises(SuperposeError, match="holds a run that has ended, without its trained"):
        learn(tmp_path)
    assert contents(tmp_path) == before


def test_a_result_that_is_not_of_the_checkpoint_is_not_believed(tmp_path):
    whole = learn(None).result
    with pytest.raises(Interrupted):
        learn(tmp_path, stop=stop_after(30))
    (tmp_path / "result.json").write_text('{"mean_all": 0.123}')
    assert learn(tmp_path).result == whole


def test_other_data_of_the_same_shapes_are_refused(tmp_path):
    def learn_from(stream):
        options = {"out": tmp_path, "display": Quiet(), "resume": True}
        train(make_net(), stream, stop=stop_after(10), **options)

    stream = make_stream()
    with pytest.raises(Interrupted):
        learn_from(stream)
    with pytest.raises(Interrupted):
        learn_from(stream)
    x, y, test_x, test_y = stream.data[1]
    other = replace(stream, data=[stream.data[0], (x + 1e-3, y, test_x, test_y), *stream.data[2:]])
    with pytest.raises(SuperposeError, match=r"was started with stream\.sha256="):
        learn_from(other)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"centre": "rows"}, {}, "centre='rows', not None"),
        ({}, {"min_inputs": 9}, "min_inputs=0, not 9"),
        ({"rank": 1}, {"rank": 2}, "rank=1, not 2"),
    ],
)
def test_other_options_of_superpose_are_refused(tmp_path, before, after, told):
    with pytest.raises(Interrupted):
        learn(tmp_path, method("binary", **before), stop=stop_after(10))
    with pytest.raises(SuperposeError, match=f"was started with {re.escape(told)}"):
        learn(tmp_path, method("binary", **after))


def test_a_setting_that_is_left_out_the_second_time_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        learn(tmp_path, method("binary", rank=1), rank_lr=1e-2, stop=stop_after(10))
    with pytest.raises(SuperposeError, match=r"was started with rank_lr=0.01, not None"):
        learn(tmp_path, method("binary", rank=1))


class Mine:
    """A stream with no more than what the loop needs."""

    tasks = contexts = 2

    def __init__(self):
        self.inner = make_stream(tasks=2, period=20)

    def __len__(self):
        return len(self.inner)

    def __getattr__(self, name):
        if name not in ("task_at", "batch", "test"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def test_a_stream_of_ones_own_is_resumed(tmp_path):
    with pytest.raises(Interrupted):
        train(make_net(), Mine(), out=tmp_path, display=Quiet(), stop=stop_after(30))
    resumed = train(make_net(), Mine(), out=tmp_path, display=Quiet(), resume=True)
    assert resumed.result == train(make_net(), Mine(), display=Quiet()).result
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["stream"] == {"stream": "Mine", "steps": 40, "tasks": 2, "contexts": 2}


def test_a_directory_in_use_is_not_taken_by_accident(tmp_path):
    learn(tmp_path)
    with pytest.raises(SuperposeError, match=r"holds a run already: add --resume"):
        learn(tmp_path, resume=False)


def test_two_processes_cannot_write_one_run(tmp_path):
    with (
        RunDirectory(tmp_path, {}, resume=False),
        pytest.raises(SuperposeError, match="in use by another process"),
    ):
        learn(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 1e-2}, r"lr=0.003, not 0.01"),
        ({"seed": 1}, r"seed=0, not 1"),
        ({"method": "binary"}, r"method='standard', not 'binary'"),
        ({"about": {"units": 3}}, r"started with units=None, not 3"),
    ],
)
def test_other_settings_are_refused_and_change_nothing(tmp_path, change, message):
    with pytest.raises(Interrupted):
        learn(tmp_path, stop=stop_after(10))
    before = contents(tmp_path)
    with pytest.raises(SuperposeError, match=message):
        learn(tmp_path, **change)
    assert contents(tmp_path) == before


def test_another_number_of_threads_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        learn(tmp_path, stop=stop_after(10))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(SuperposeError, match=f"threads={threads}, not {threads + 1}"):
            learn(tmp_path)
    finally:
        torch.set_num_threads(threads)


def test_another_version_of_torch_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        learn(tmp_path, stop=stop_after(10))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "torch": "1.0"}))
    with pytest.raises(SuperposeError, match=r"started with torch='1\.0'"):
        learn(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "torch's own"])
def test_a_damaged_checkpoint_is_refused_and_left_as_it_is(tmp_path, damage):
    with pytest.raises(Interrupted):
        learn(tmp_path, stop=stop_after(30))
    path = tmp_path / "checkpoint.pt"
    good = path.read_bytes()
    middle = len(good) // 2
    bad = {
        "cut": good[:middle],
        "flipped": good[:middle] + bytes([good[middle] ^ 16]) + good[middle + 1 :],
        "empty": b"",
        "torch's own": good[:-32],
    }
    path.write_bytes(bad[damage])
    before = contents(tmp_path)
    with pytest.raises(SuperposeError, match=r"checkpoint\.pt is damaged, and nothing was changed"):
        learn(tmp_path)
    assert contents(tmp_path) == before
    path.write_bytes(good)
    assert learn(tmp_path).result["steps"] == 75


def test_a_checkpoint_runs_no_code(tmp_path):
    class Bad:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made"),))

    (tmp_path / "checkpoint.pt").write_bytes(checkpoint({"step": Bad()}))
    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        read_checkpoint(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "made").exists()


def test_metrics_that_were_cut_are_refused(tmp_path):
    with pytest.raises(Interrupted):
        learn(tmp_path, stop=stop_after(30))
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-5])
    with pytest.raises(SuperposeError, match="was changed since"):
        learn(tmp_path)


def test_a_full_disk_leaves_the_old_state(tmp_path):
    """A limit on the size of files stands for a disk that is full."""
    with pytest.raises(Interrupted):
        learn(tmp_path, "binary", stop=stop_after(30))
    before = contents(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = len(before["checkpoint.pt"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
    try:
        with pytest.raises(SuperposeError, match=r"cannot be used: .*can be resumed from it"):
            learn(tmp_path, "binary", stop=stop_after(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = contents(tmp_path)
    assert after["checkpoint.pt"] == before["checkpoint.pt"]
    assert after.keys() == before.keys(), "nothing half-written is left"
    learn(tmp_path / "whole", "binary")
    learn(tmp_path, "binary")
    for file in SAME:
        assert (tmp_path / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write(path, b"old")

    def broken(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        write(path, b"new")
    assert contents(tmp_path) == {"file": b"old"}


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SuperposeError, match=r"file.* cannot be used: Not a directory"):
        learn(tmp_path / "file" / "run")


def test_the_config_tells_what_was_run(tmp_path):
    learn(tmp_path, method("ewc", strength=3.0), about={"why": "to see"})
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["about"] == {"why": "to see"}
    assert config["penalty"] == {"name": "EWC", "strength": 3.0, "samples": 1024}
    assert config["stream"]["period"] == 25
    assert config["torch"] == torch.__version__
    assert {"superpose", "python", "threads", "commit", "seed", "matrix"} <= config.keys()
