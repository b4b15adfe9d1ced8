"""The server on Ray, in an environment of its own: `make ray` makes it."""

import json

import pytest
import torch
from safetensors.torch import save_file
from scripts import loaded
from serving.test_clients import python

faults = loaded("serving_faults")


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
