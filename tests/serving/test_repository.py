"""Changes while requests run: at once, between batches, kept over a restart."""

import json
import shutil

import pytest
import torch
from networks import MLP
from safetensors.torch import save_file
from serving.served import (
    CONTROL,
    INPUTS,
    TASKS,
    Gate,
    call,
    change,
    infer,
    make,
    model,
    rows,
    saved,
    service_of,
    serving,
    together,
    until,
)

import superpose as sp
from superpose.errors import SuperposeError
from superpose.serving import Options, Repository

FILE = "many.safetensors"


@pytest.fixture
def x():
    return torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def packed(nets, tmp_path):
    """The models a and b, packed by a method that adds terms."""
    made = sp.pack({name: nets[name] for name in "ab"}, "binary", method="sum")
    sp.save(made, tmp_path / FILE)
    return made


def same(reply, expected):
    torch.testing.assert_close(rows(reply), expected, atol=1e-4, rtol=1e-4)


def states(server):
    listed = call(server, "POST", "/v2/repository/index", {}).json
    return {one["name"]: one["state"] for one in listed}


def test_a_task_is_added_while_requests_run(packed, nets, tmp_path, x):
    service = service_of(tmp_path)
    with serving(service) as server:
        old = service.repository.version
        assert infer(server, "c", x).status == 404
        assert change(server, "load", "c", file="c.safetensors").status == 200
        packed.add("c", nets["c"])
        for task in "abc":
            same(infer(server, task, x), packed(x, task=task))
        assert service.repository.version.name != old.name
        assert service.lines[-1]["event"] == "load"
    with serving(service_of(tmp_path)) as server:  # after a restart
        for task in "abc":
            same(infer(server, task, x), packed(x, task=task))
        assert change(server, "load", "d", file="d.safetensors").status == 200
        packed.add("d", nets["d"])
        same(infer(server, "d", x), packed(x, task="d"))
    assert sp.load(tmp_path / FILE, make()).tasks == ["a", "b"]  # the user's file is as it was
    kept = list((tmp_path / f"{FILE}.serving").iterdir())
    models = [path for path in kept if path.suffix == ".safetensors"]
    assert len(models) == 1  # old ones are removed


def test_a_change_is_made_beside_what_is_served(packed, nets, tmp_path, x):
    """Requests that run on the old version see nothing of the new one."""
    repository = Repository(tmp_path / FILE, make)
    old = repository.version
    before = {task: old.model(x, task=task) for task in "ab"}
    repository.load("c", {"file": "c.safetensors"})
    repository.load("b", {"file": "d.safetensors", "old": "b.safetensors"})
    assert repository.version is not old
    assert list(old.tasks) == old.model.tasks == ["a", "b"]
    for task in "ab":
        assert torch.equal(old.model(x, task=task), before[task])


def test_a_number_is_given_once(packed, nets, tmp_path):
    """Whatever was added in between: the number is part of a task's key."""
    repository = Repository(tmp_path / FILE, make)
    repository.load("c", {"file": "c.safetensors"})
    repository.load("d", {"file": "d.safetensors"})
    again = Repository(tmp_path / FILE, make)
    assert again.version.model.superposition.names == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_a_task_is_replaced(packed, nets, tmp_path, x):
    with serving(service_of(tmp_path)) as server:
        refused = change(server, "load", "b", file="c.safetensors")
        assert (refused.status, "needs old=" in refused.error) == (409, True)
        same(infer(server, "b", x), packed(x, task="b"))
        replaced = change(server, "load", "b", file="c.safetensors", old="b.safetensors")
        assert replaced.status == 200
        packed.replace("b", nets["c"], nets["b"])
        same(infer(server, "b", x), packed(x, task="b"))
        same(infer(server, "a", x), packed(x, task="a"))


def test_a_solved_model_takes_calibration(nets, tmp_path, x):
    inputs = {name: torch.randn(40, INPUTS) for name in "abc"}
    for name, own in inputs.items():
        save_file({"x": own}, tmp_path / f"{name}_inputs.safetensors")
    two = {name: inputs[name] for name in "ab"}
    packed = sp.pack({name: nets[name] for name in "ab"}, calibration=two)
    sp.save(packed, tmp_path / FILE)
    with serving(service_of(tmp_path)) as server:
        assert change(server, "load", "c", file="c.safetensors").status == 409
        files = ",".join(f"{name}={name}_inputs.safetensors" for name in "abc")
        done = change(server, "load", "c", file="c.safetensors", calibration=files)
        assert done.status == 200, done.content
        packed.add("c", nets["c"], inputs)
        same(infer(server, "c", x), packed(x, task="c"))


def test_requests_end_on_the_version_that_they_began_with(many, tmp_path, x):
    service = service_of(tmp_path)
    with serving(service) as server:
        gate = Gate(service.repository.version)
        running = together(lambda: infer(server, "cats", x))
        gate.entered.acquire()
        queued = together(lambda: infer(server, "dogs", x))
        until(lambda: service.batcher.waiting_rows == 3)
        new = saved(tmp_path, seed=5)
        assert change(server, "load", "many").status == 200  # does not wait for the batch
        after = together(lambda: infer(server, "dogs", x))
        until(lambda: service.batcher.waiting_rows == 6)
        gate.open()
        same(running[0].result(), many(x, task="cats"))
        same(queued[0].result(), many(x, task="dogs"))
        same(after[0].result(), new(x, task="dogs"))
        versions = [reply.result().json["model_version"] for reply in (*queued, *after)]
        assert versions[0] != versions[1]


def test_a_load_that_fails_leaves_the_old_one(many, tmp_path, x):
    with serving(service_of(tmp_path)) as server:
        before = infer(server, "cats", x).json["model_version"]
        (tmp_path / "bad.safetensors").write_bytes(b"not a file")
        save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
        sp.save(sp.superpose(MLP(8, 8, 2), tasks=["z"]), tmp_path / "small.safetensors")
        for file in ("bad", "other", "small"):
            reply = change(server, "load", "many", file=f"{file}.safetensors")
            assert reply.status == 409, file
        (tmp_path / FILE).write_bytes(b"broken")
        assert change(server, "load", "many").status == 409
        reply = infer(server, "cats", x)
        same(reply, many(x, task="cats"))
        assert reply.json["model_version"] == before


def test_another_file_of_the_whole(many, tmp_path, x):
    other = saved(tmp_path, ["cats", "birds"], seed=3, name="other")
    with serving(service_of(tmp_path)) as server:
        assert change(server, "load", "many", file="other.safetensors").status == 200
        same(infer(server, "birds", x), other(x, task="birds"))
        same(infer(server, "cats", x), other(x, task="cats"))
        assert infer(server, "dogs", x).status == 404
    with serving(service_of(tmp_path)) as server:
        same(infer(server, "birds", x), other(x, task="birds"))
        assert change(server, "load", "many").status == 200  # the file itself again
        same(infer(server, "dogs", x), many(x, task="dogs"))
    with serving(service_of(tmp_path)) as server:
        assert infer(server, "birds", x).status == 404


def test_unloading_and_loading(many, tmp_path, x):
    with serving(service_of(tmp_path)) as server:
        assert change(server, "unload", "cats").status == 200
        for name, parameters in (("cats", {}), ("many", {"task": "cats"})):
            assert infer(server, name, x, parameters=parameters).status == 404
        same(infer(server, "dogs", x), many(x, task="dogs"))
        assert states(server)["cats"] == "UNAVAILABLE"
        assert call(server, "GET", "/v2/models/cats/ready").status == 404
        ready = call(server, "POST", "/v2/repository/index", {"ready": True}).json
        assert [one["name"] for one in ready] == ["many", *TASKS[1:]]
    with serving(service_of(tmp_path)) as server:
        assert infer(server, "cats", x).status == 404
        assert change(server, "load", "cats").status == 200
        same(infer(server, "cats", x), many(x, task="cats"))
        assert change(server, "unload", "many").status == 200
        assert infer(server, "dogs", x).status == 404
        assert set(states(server).values()) == {"UNAVAILABLE"}
        assert change(server, "load", "many").status == 200
        same(infer(server, "dogs", x), many(x, task="dogs"))
    assert change_unknown(tmp_path) == [404, 404]


def change_unknown(folder):
    with serving(service_of(folder)) as server:
        return [change(server, verb, "birds").status for verb in ("load", "unload")]


def test_a_changed_file_is_loaded_again(many, tmp_path, x):
    service = service_of(tmp_path)
    repository = service.repository
    assert not repository.reload_if_changed()
    new = saved(tmp_path, [*TASKS, "birds"], seed=4)
    assert repository.reload_if_changed()
    assert not repository.reload_if_changed()
    with serving(service) as server:
        same(infer(server, "birds", x), new(x, task="birds"))


@pytest.mark.parametrize("problem", ["broken", "gone"])
def test_a_watched_file_that_cannot_be_read_changes_nothing(many, tmp_path, x, problem):
    service = service_of(tmp_path)
    if problem == "gone":
        (tmp_path / FILE).unlink()
    else:
        (tmp_path / FILE).write_bytes(b"broken")
    with serving(service, watch=True) as server:
        if problem == "broken":
            until(lambda: any("damaged" in line.get("error", "") for line in service.lines))
        same(infer(server, "cats", x), many(x, task="cats"))
        new = saved(tmp_path, seed=6)
        until(
            lambda: any(line["event"] == "reload" and "version" in line for line in service.lines)
        )
        same(infer(server, "cats", x), new(x, task="cats"))
    errors = [line for line in service.lines if "error" in line]
    assert len(errors) == (problem == "broken")  # told once


def test_a_new_file_puts_an_end_to_what_was_kept(packed, nets, tmp_path, x):
    repository = Repository(tmp_path / FILE, make)
    repository.load("c", {"file": "c.safetensors"})
    repository.unload("a")
    sp.save(sp.pack({"e": nets["a"], "f": nets["b"]}, method="sum"), tmp_path / FILE)
    again = Repository(tmp_path / FILE, make)
    assert list(again.version.tasks) == ["e", "f"]
    assert again.unloaded == frozenset()
    again.unload("e")
    third = Repository(tmp_path / FILE, make)
    assert list(third.version.tasks) == ["e", "f"]
    assert third.unloaded == {"e"}


def test_a_damaged_state_says_so(many, tmp_path):
    repository = Repository(tmp_path / FILE, make)
    repository.unload("cats")
    state = tmp_path / f"{FILE}.serving" / "state.json"
    assert json.loads(state.read_text())["unloaded"] == ["cats"]
    state.write_text("{")
    with pytest.raises(SuperposeError, match=r"state\.json is damaged: remove it"):
        Repository(tmp_path / FILE, make)


@pytest.mark.parametrize(
    "file",
    ["../c.safetensors", "/etc/passwd", ".hidden", "", "..", "x/y", "a\0b", 7, "link.safetensors"],
)
def test_only_files_beside_the_served_one(packed, nets, tmp_path, file):
    (tmp_path / "link.safetensors").symlink_to("/etc/passwd")
    with serving(service_of(tmp_path)) as server:
        assert change(server, "load", "c", file=file).status in (400, 404)
        assert change(server, "load", "c", path="c.safetensors").status == 400


def test_a_trained_model_takes_no_other(many, tmp_path, nets):
    with serving(service_of(tmp_path)) as server:
        reply = change(server, "load", "new", file="a.safetensors")
        assert (reply.status, "trained, not packed" in reply.error) == (409, True)


def test_control_needs_its_token(many, tmp_path):
    with serving(service_of(tmp_path)) as server:
        path = "/v2/repository/models/cats/unload"
        assert call(server, "POST", path, {}).status == 401
        wrong = {"authorization": "Bearer secre"}
        assert call(server, "POST", path, {}, wrong).status == 401
        assert states(server)["cats"] == "READY"
        assert call(server, "POST", path, b"", CONTROL).status == 200
    with serving(service_of(tmp_path), tokens=None) as server:
        reply = call(server, "POST", path, {}, CONTROL)
        assert (reply.status, "--control-token-file" in reply.error) == (403, True)


def test_names_that_collide(tmp_path):
    sp.save(model(["many", "b"]), tmp_path / FILE)
    with pytest.raises(SuperposeError, match="both called 'many'"):
        Repository(tmp_path / FILE, make)
    assert Repository(tmp_path / FILE, make, name="all").find("many")[1] == "many"


def test_a_copy_of_a_file_that_is_written_meanwhile_is_not_kept(many, tmp_path, monkeypatch):
    file, copy = tmp_path / "many.safetensors", shutil.copyfile

    def half(source, target):
        target.write_bytes(source.read_bytes()[:-100])

    monkeypatch.setattr(shutil, "copyfile", half)
    with pytest.raises(SuperposeError, match="was changed while it was read"):
        Repository(file, make, Options(map_weights=True))
    monkeypatch.setattr(shutil, "copyfile", copy)
    repository = Repository(file, make, Options(map_weights=True))
    assert [one.name for one in (repository.state / "mapped").iterdir()] == [
        f"{repository.version.digest}.safetensors"
    ]
