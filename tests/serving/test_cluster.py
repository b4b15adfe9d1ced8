"""The server on Ray, in an environment of its own: `make ray` makes it. The door is tried here."""

import asyncio
import json
import sys
import threading
import types

import pytest
import torch
from safetensors.torch import save_file
from scripts import loaded
from serving.served import CONTROL, INPUTS, TOKENS, asked, call, infer, rows, service_of
from serving.test_clients import python
from serving.test_faults import raw, request

from superpose.serving import Limits, cluster

faults = loaded("serving_faults")


class Died(Exception):
    """In the place of Ray's exception for an actor that is gone."""


class Asked:
    """In the place of a call of a replica."""

    def __init__(self, work):
        self.work = work
        self.cancelled = threading.Event()

    def __await__(self):
        return self.work.__await__()

    def cancel(self):
        self.cancelled.set()


class Handle:
    """In the place of replicas on Ray: one of them, in this process, after so many that die."""

    def __init__(self, service):
        self.answer = self
        self.service = service
        self.replica = None
        self.dying = 0
        self.calls = []

    def remote(self, *given):
        self.calls.append(Asked(self.told(*given)))
        return self.calls[-1]

    async def told(self, *given):
        if self.dying:
            self.dying -= 1
            raise Died
        if self.replica is None:
            self.replica = object.__new__(cluster.Replica)
            await self.replica.__init__(lambda: self.service, TOKENS, False)
        return await self.replica.answer(*given)


@pytest.fixture
def handle(many, tmp_path, monkeypatch):
    ray, exceptions = types.ModuleType("ray"), types.ModuleType("ray.exceptions")
    serve = types.ModuleType("ray.serve")
    exceptions.RayActorError, serve.delete, ray.serve = Died, lambda name: None, serve
    for module in (ray, exceptions, serve):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    made = Handle(service_of(tmp_path))
    monkeypatch.setattr(cluster, "_deployed", lambda *_: made)
    monkeypatch.setattr(cluster, "PAUSE", 0.0)
    return made


@pytest.fixture
def door(handle):
    with cluster.Cluster(lambda: None, limits=Limits(body_bytes=10_000), port=0) as running:
        yield running


@pytest.fixture
def x():
    return torch.randn(2, INPUTS, generator=torch.Generator().manual_seed(1))


def test_the_door_asks_another_replica_if_one_dies(door, handle, many, x):
    for task in ("cats", "a/b c"):
        handle.dying = 3
        before = len(handle.calls)
        reply = infer(door, task, x)
        torch.testing.assert_close(rows(reply), many(x, task=task), atol=1e-5, rtol=1e-5)
        assert reply.headers["content-type"] == "application/json"
        assert len(handle.calls) - before == 4
    handle.dying = 1000
    reply = infer(door, "cats", x)
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    assert "replicas died" in reply.error
    assert call(door, "GET", "/v2/health/live").status == 200
    handle.dying = 0
    assert infer(door, "birds", x).status == 404


def test_a_change_is_asked_for_once(door, handle):
    path = "/v2/repository/models/cats/unload"
    handle.dying = 1
    reply = call(door, "POST", path, {}, CONTROL)
    assert (reply.status, "look whether the change was made" in reply.error) == (503, True)
    assert len(handle.calls) == 1
    assert call(door, "POST", path, {}).status == 401
    assert call(door, "POST", path, {}, CONTROL).status == 200
    assert call(door, "GET", "/v2/models/cats/ready").status == 404


def test_the_door_has_limits_and_lets_go(door, handle, x):
    assert call(door, "POST", "/v2/models/cats/infer", b"1" * 20_000).status == 413
    assert handle.calls == []
    assert infer(door, "cats", x).status == 200
    begun = threading.Event()

    async def never(*given):
        begun.set()
        await asyncio.sleep(3600)

    handle.told = never
    gone = raw(door, request(json.dumps(asked(x)).encode()))
    assert begun.wait(60)
    gone.close()
    assert handle.calls[-1].cancelled.wait(60)


@pytest.fixture
def known(tmp_path):
    return faults.Known(tmp_path)


@pytest.mark.ray
def test_replicas_answer_change_together_and_may_be_killed(known):
    replicas = faults.Replicas(known, str(python("ray")))
    server = replicas.server
    try:
        assert len(replicas.alive()) == 2
        for task in faults.TASKS:
            assert server.infer(known, task, 3) == (200, True)
        assert server.infer(known, "birds", 3)[0] == 404
        status, told = server.post("/v2/models/task%200/infer", b"{")
        assert (status, "not JSON" in told["error"]) == (400, True)
        status, _ = server.post("/v2/repository/models/task%205/unload", b"{}")
        assert status == 401

        def change(path, **parameters):
            body = json.dumps({"parameters": parameters}).encode()
            return server.post(f"/v2/repository/models/{path}", body, control=True)[0]

        torch.manual_seed(1)
        net = faults.make()
        save_file(net.state_dict(), known.folder / "new.safetensors")
        assert change("new/load", file="new.safetensors") == 200
        known.packed.add("new", net)
        with torch.no_grad():
            known.right = {
                task: known.packed(known.x, task=task).numpy() for task in [*faults.TASKS, "new"]
            }
        for row in range(20):  # whichever replica is asked
            assert server.infer(known, "new", row) == (200, True)
        assert change("task%205/unload") == 200
        assert {server.infer(known, "task 5", row)[0] for row in range(20)} == {404}
        replicas.kill_one()  # the new one has the changes, too
        for row in range(20):
            assert server.infer(known, "new", row) == (200, True)
            assert server.infer(known, "task 5", row)[0] == 404
    finally:
        assert server.stop() == 0


@pytest.mark.ray
def test_no_request_is_lost_when_replicas_are_killed(known):
    told = faults.killed(known, 2, str(python("ray")))
    assert told["requests"] > 50
    assert (told["failed"], told["wrong"], told["exit code"]) == (0, 0, 0)
