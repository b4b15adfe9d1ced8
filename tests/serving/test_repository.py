"""The served file is loaded again, and names are unloaded, while requests run."""

import gc
import weakref

import pytest
import torch
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
    metrics,
    model,
    rows,
    saved,
    service_of,
    serving,
    together,
    until,
)

import superpose as sp
from superpose import SuperposeError
from superpose.serving import Repository, server

FILE = "many.safetensors"


@pytest.fixture
def x():
    return torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(1))


def same(reply, expected):
    torch.testing.assert_close(rows(reply), expected, atol=1e-4, rtol=1e-4)


def states(server):
    listed = call(server, "POST", "/v2/repository/index", {}).json
    return {one["name"]: one["state"] for one in listed}


def test_a_file_with_another_task_is_loaded_while_requests_run(many, service, tmp_path, x):
    with serving(service) as server:
        old = service.repository.version
        assert infer(server, "birds", x).status == 404
        new = saved(tmp_path, [*TASKS, "birds"], seed=4)
        assert change(server, "load", "many").status == 200
        for task in (*TASKS, "birds"):
            same(infer(server, task, x), new(x, task=task))
        assert infer(server, "birds", x).json["model_version"] != old.name
        torch.testing.assert_close(old.model(x, task="cats"), many(x, task="cats"))
        assert service.lines[-1] == {
            "event": "load",
            "model": "many",
            "version": service.repository.version.name,
        }
        assert metrics(server)['superpose_changes_total{outcome="done"}'] == 1


def test_packed_models_are_served(tmp_path, x):
    nets = {name: make().eval() for name in "ab"}
    packed = sp.pack(nets, method="sum")
    sp.save(packed, tmp_path / FILE)
    with serving(service_of(tmp_path)) as server:
        for task in "ab":
            same(infer(server, task, x), packed(x, task=task))


def test_requests_end_on_the_version_that_they_began_with(many, service, tmp_path, x):
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


@pytest.mark.parametrize("problem", ["broken", "plain", "other sizes", "gone", "a task's name"])
def test_a_load_that_fails_leaves_the_old_version(many, service, tmp_path, x, problem):
    file = tmp_path / FILE
    with serving(service) as server:
        before = infer(server, "cats", x).json["model_version"]
        if problem == "broken":
            file.write_bytes(b"not a file")
        elif problem == "plain":
            save_file({"x": torch.zeros(1)}, file)
        elif problem == "other sizes":
            sp.save(sp.superpose(torch.nn.Linear(8, 2), tasks=["z"]), file)
        elif problem == "gone":
            file.unlink()
        else:
            saved(tmp_path, ["many", "cats"])
        assert change(server, "load", "many").status == 409
        reply = infer(server, "cats", x)
        same(reply, many(x, task="cats"))
        assert reply.json["model_version"] == before
        assert "error" in service.lines[-1]
        assert metrics(server)['superpose_changes_total{outcome="failed"}'] == 1


def test_unloading_and_loading(many, service, tmp_path, x):
    with serving(service) as server:
        assert change(server, "unload", "cats").status == 200
        for name, parameters in (("cats", {}), ("many", {"task": "cats"})):
            assert infer(server, name, x, parameters=parameters).status == 404
        same(infer(server, "dogs", x), many(x, task="dogs"))
        assert states(server)["cats"] == "UNAVAILABLE"
        assert call(server, "GET", "/v2/models/cats/ready").status == 404
        ready = call(server, "POST", "/v2/repository/index", {"ready": True}).json
        assert [one["name"] for one in ready] == ["many", *TASKS[1:]]
        assert change(server, "load", "many").status == 200
        assert infer(server, "cats", x).status == 404  # as it was said
        assert change(server, "load", "cats").status == 200
        same(infer(server, "cats", x), many(x, task="cats"))
        assert change(server, "unload", "many").status == 200
        assert infer(server, "dogs", x).status == 404
        assert set(states(server).values()) == {"UNAVAILABLE"}
        assert change(server, "load", "many").status == 200
        same(infer(server, "dogs", x), many(x, task="dogs"))
        assert [change(server, verb, "birds").status for verb in ("load", "unload")] == [404, 404]
    assert list(tmp_path.iterdir()) == [tmp_path / FILE]  # nothing is kept beside the file


def test_load_takes_no_parameters(server):
    reply = change(server, "load", "many", file="/etc/passwd")
    assert (reply.status, "takes no parameter 'file'" in reply.error) == (400, True)


def test_a_name_that_left_and_came_back_is_served(many, tmp_path):
    repository = Repository(tmp_path / FILE, make)
    repository.unload("cats")
    saved(tmp_path, ["dogs"])
    repository.load("many")
    saved(tmp_path, ["cats", "dogs"])
    repository.load("many")
    assert repository.find("cats")[1] == "cats"


def test_a_changed_file_is_loaded_once(many, service, tmp_path, x):
    repository = service.repository
    assert not repository.reload_if_changed()
    new = saved(tmp_path, [*TASKS, "birds"], seed=4)
    assert repository.reload_if_changed()
    assert not repository.reload_if_changed()
    with serving(service) as running:
        same(infer(running, "birds", x), new(x, task="birds"))


@pytest.mark.parametrize("problem", ["broken", "gone"])
def test_a_watched_file_that_cannot_be_read(many, service, tmp_path, x, problem, monkeypatch):
    monkeypatch.setattr(server, "WATCH_SECONDS", 0.02)
    if problem == "gone":
        (tmp_path / FILE).unlink()
    else:
        (tmp_path / FILE).write_bytes(b"broken")
    with serving(service, watch=True) as running:
        if problem == "broken":
            until(lambda: any("damaged" in line.get("error", "") for line in service.lines))
        same(infer(running, "cats", x), many(x, task="cats"))
        new = saved(tmp_path, seed=6)
        until(lambda: any("version" in line for line in service.lines))
        same(infer(running, "cats", x), new(x, task="cats"))
    errors = [line for line in service.lines if "error" in line]
    assert len(errors) == (problem == "broken")  # logged once


def test_a_file_that_is_written_while_it_is_read(many, tmp_path, monkeypatch):
    file = tmp_path / FILE
    repository = Repository(file, make)
    before = repository.version
    real = sp.load

    def load(path, net):
        loaded = real(path, net)
        saved(tmp_path, seed=7)
        return loaded

    monkeypatch.setattr("superpose.serving.repository.load", load)
    with pytest.raises(sp.serving.RequestError, match="was changed while it was read"):
        repository.load("many")
    assert repository.version is before


def test_control_needs_its_token(many, server, tmp_path):
    path = "/v2/repository/models/cats/unload"
    assert call(server, "POST", path, {}).status == 401
    wrong = {"authorization": "Bearer secre"}
    assert call(server, "POST", path, {}, wrong).status == 401
    assert states(server)["cats"] == "READY"
    assert call(server, "POST", path, b"", CONTROL).status == 200
    with serving(service_of(tmp_path), tokens=None) as off:
        reply = call(off, "POST", path, {}, CONTROL)
        assert (reply.status, "--control-token-file" in reply.error) == (403, True)


def test_names_that_collide(tmp_path):
    sp.save(model(["many", "b"]), tmp_path / FILE)
    with pytest.raises(SuperposeError, match="both called 'many'"):
        Repository(tmp_path / FILE, make)
    assert Repository(tmp_path / FILE, make, name="all").find("many")[1] == "many"
    sp.save(model([1, "1"]), tmp_path / FILE)
    with pytest.raises(SuperposeError, match="have one name in the protocol"):
        Repository(tmp_path / FILE, make)


def test_versions_do_not_pile_up(many, service, tmp_path, x):
    with serving(service) as running:
        seen = []
        for seed in range(4):
            seen.append(weakref.ref(service.repository.version))
            assert infer(running, "cats", x).status == 200
            saved(tmp_path, seed=seed)
            service.repository.load("many")
        assert infer(running, "cats", x).status == 200

        def freed():
            gc.collect()
            return [one() for one in seen].count(None) >= 3

        until(freed)
