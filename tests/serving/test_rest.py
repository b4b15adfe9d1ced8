"""The protocol over HTTP, by a client that is not ours to change."""

import json
import math
import struct

import pytest
import torch
from serving import openapi
from serving.served import (
    INPUTS,
    OUTPUTS,
    TASKS,
    Gate,
    asked,
    call,
    change,
    infer,
    path_of,
    recognising,
    rows,
    service_of,
    serving,
    together,
    until,
)

from superpose.serving import Limits
from superpose.serving.version import digest_of


@pytest.fixture
def x():
    return torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(1))


def test_each_task_answers_as_the_model_in_process(server, many, x):
    found = {task: rows(infer(server, task, x)) for task in TASKS}
    for task in TASKS:
        torch.testing.assert_close(found[task], many(x, task=task), atol=1e-5, rtol=1e-5)
    for task in TASKS[1:]:
        assert (found[task] - found[TASKS[0]]).abs().max() > 0.1


def test_requests_of_different_tasks_share_a_batch_and_keep_their_rows(server, many):
    gate = Gate(server.service.repository.version)
    generator = torch.Generator().manual_seed(2)
    jobs = [(TASKS[n % 4], torch.randn(1 + n % 3, INPUTS, generator=generator)) for n in range(12)]
    first = together(lambda: infer(server, *jobs[0]))
    gate.entered.acquire()
    others = together(*(lambda job=job: infer(server, *job) for job in jobs[1:]))
    waiting = sum(len(x) for _, x in jobs[1:])
    until(lambda: server.service.batcher.waiting_rows == waiting)
    gate.open()
    for (task, x), reply in zip(jobs, [*first, *others], strict=True):
        expected = many(x, task=task)
        torch.testing.assert_close(rows(reply.result()), expected, atol=1e-5, rtol=1e-5)
    assert len(gate.batches) == 2
    assert len({task for task, _ in gate.batches[1]}) == 4


def test_more_rows_than_a_batch(server, many):
    x = torch.randn(200, INPUTS, generator=torch.Generator().manual_seed(3))
    reply = infer(server, "dogs", x)
    torch.testing.assert_close(rows(reply), many(x, task="dogs"), atol=1e-5, rtol=1e-5)


def test_the_task_as_a_parameter_of_the_whole_model(server, many, x):
    reply = infer(server, "many", x, parameters={"task": "dogs"}, id="7")
    torch.testing.assert_close(rows(reply), many(x, task="dogs"), atol=1e-5, rtol=1e-5)
    assert reply.json["model_name"] == "many"
    assert reply.json["parameters"] == {"task": "dogs"}
    assert reply.json["id"] == "7"
    assert "id" not in infer(server, "dogs", x).json


def test_unknown_names_are_404_and_never_another_task(server, x):
    for name in ("birds", "Cats", "cats ", "0", "..", "cats/x", "", "%00", "a" * 3000):
        assert infer(server, name, x).status == 404, name
    reply = infer(server, "many", x, parameters={"task": "birds"})
    assert (reply.status, reply.error) == (404, "there is no task 'birds'")
    old = call(server, "POST", f"{path_of('cats')}/versions/1/infer", asked(x))
    assert old.status == 404
    assert "has no version '1'" in old.error
    assert infer(server, "many", x).status == 400
    assert infer(server, "cats", x, parameters={"task": "dogs"}).status == 400


def test_auto_needs_a_model_that_recognises(server, x):
    reply = infer(server, "many", x, parameters={"task": "auto"})
    assert reply.status == 400
    assert "cannot recognise tasks" in reply.error
    assert "name the task" in reply.error


def test_rows_are_answered_by_the_tasks_that_are_recognised(tmp_path):
    model, given = recognising(tmp_path)
    x = torch.stack([given["high"][0], given["low"][0], given["low"][1]])
    with serving(service_of(tmp_path)) as server:
        gate = Gate(server.service.repository.version)
        first = together(lambda: infer(server, "low", x))
        gate.entered.acquire()
        both = together(
            lambda: infer(server, "many", x, parameters={"task": "auto"}),
            lambda: infer(server, "low", x),
        )
        until(lambda: server.service.batcher.waiting_rows == 6)
        gate.open()
        reply, told = (one.result() for one in both)
        assert first[0].result().status == 200
    found = ["high", "low", "low"]
    assert json.loads(reply.json["parameters"]["task"]) == found
    assert "unknown" not in reply.json["parameters"]
    torch.testing.assert_close(rows(reply), model(x, task=found), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rows(told), model(x, task="low"), atol=1e-5, rtol=1e-5)
    assert len(gate.batches) == 2  # rows that are told and rows that are recognised share one


def test_rows_that_fit_no_task_are_refused(tmp_path):
    model, given = recognising(tmp_path)
    x = torch.stack(
        [given["high"][0], given["high"][0] + 90, given["low"][0], -90 + given["low"][0]]
    )
    with serving(service_of(tmp_path, Limits(batch_rows=3))) as server:  # in two parts
        refused = infer(server, "many", x, parameters={"task": "auto"})
        assert refused.status == 422
        assert "rows 1, 3 fit none of the tasks" in refused.error
        assert "unknown='nearest'" in refused.error
        nearest = {"task": "auto", "unknown": "nearest"}
        reply = infer(server, "many", x, parameters=nearest)
        found = ["high", "high", "low", "low"]
        assert {name: json.loads(text) for name, text in reply.json["parameters"].items()} == {
            "task": found,
            "unknown": [1, 3],
        }
        torch.testing.assert_close(rows(reply), model(x, task=found), atol=1e-4, rtol=1e-4)
        wrong = infer(server, "many", x, parameters={"task": "auto", "unknown": "guess"})
        assert (wrong.status, "'refuse' or 'nearest'" in wrong.error) == (400, True)
        assert change(server, "unload", "low").status == 200
        off = infer(server, "many", x, parameters=nearest)
        assert off.status == 404
        assert off.error.startswith("rows 2, 3 are of task 'low'")
        assert infer(server, "many", x[:1], parameters={"task": "auto"}).status == 200


def test_health_and_metadata(server, tmp_path):
    assert call(server, "GET", "/v2/health/live").json == {"live": True}
    assert call(server, "GET", "/v2/health/ready").json == {"ready": True}
    assert call(server, "GET", "/v2").json["name"] == "superpose"
    digest = digest_of(tmp_path / "many.safetensors")
    assert call(server, "GET", path_of("a/b c")).json == {
        "name": "a/b c",
        "versions": [digest[:16]],
        "platform": "pytorch_superpose",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, INPUTS]}],
        "outputs": [{"name": "output", "datatype": "FP32", "shape": [-1, OUTPUTS]}],
    }
    assert call(server, "GET", f"{path_of('cats')}/ready").json == {"name": "cats", "ready": True}
    assert call(server, "GET", f"{path_of('birds')}/ready").status == 404
    current = f"{path_of('cats')}/versions/{digest[:16]}"
    assert call(server, "GET", current).json["name"] == "cats"
    config = call(server, "GET", f"{path_of('cats')}/config").json
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [INPUTS]}]
    assert config["parameters"] == {"digest": {"string_value": digest}}
    whole = call(server, "GET", f"{path_of('many')}/config").json
    assert json.loads(whole["parameters"]["tasks"]["string_value"]) == TASKS


def binary(x, *, outputs=None, **parameters):
    raw = x.numpy().tobytes()
    given = asked(x)["inputs"][0]
    del given["data"]
    given["parameters"] = {"binary_data_size": len(raw)}
    head = {"inputs": [given], "parameters": parameters}
    if outputs is not None:
        head["outputs"] = outputs
    text = json.dumps(head).encode()
    return text + raw, {"inference-header-content-length": str(len(text))}


def test_tensors_as_bytes(server, many, x):
    body, headers = binary(x, binary_data_output=True)
    reply = call(server, "POST", f"{path_of('dogs')}/infer", body, headers)
    length = int(reply.headers["inference-header-content-length"])
    head = json.loads(reply.content[:length])
    assert head["outputs"] == [
        {
            "name": "output",
            "datatype": "FP32",
            "shape": [3, OUTPUTS],
            "parameters": {"binary_data_size": 3 * OUTPUTS * 4},
        }
    ]
    numbers = struct.unpack(f"<{3 * OUTPUTS}f", reply.content[length:])
    found = torch.tensor(numbers).reshape(3, OUTPUTS)
    torch.testing.assert_close(found, many(x, task="dogs"), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spaces", range(4))
def test_bytes_may_begin_anywhere(server, many, x, spaces):
    body, headers = binary(x)
    headers["inference-header-content-length"] = str(
        spaces + int(headers["inference-header-content-length"])
    )
    path = f"{path_of('dogs')}/infer"
    found = rows(call(server, "POST", path, b" " * spaces + body, headers))
    torch.testing.assert_close(found, many(x, task="dogs"), atol=1e-5, rtol=1e-5)


def test_the_id_comes_back(server, x):
    for name in ("7", "é"):
        reply = infer(server, "cats", x, id=name)
        assert (reply.status, reply.json["id"]) == (200, name)
    assert infer(server, "cats", x, id="\ud800").status == 400  # half a pair of surrogates


def test_an_output_chooses_its_form(server, x):
    wanted = [{"name": "output", "parameters": {"binary_data": True}}]
    reply = call(server, "POST", f"{path_of('dogs')}/infer", asked(x) | {"outputs": wanted})
    assert "inference-header-content-length" in reply.headers
    wanted[0]["parameters"]["binary_data"] = False
    body, headers = binary(x, outputs=wanted, binary_data_output=True)
    reply = call(server, "POST", f"{path_of('dogs')}/infer", body, headers)
    assert rows(reply).shape == (3, OUTPUTS)


def given(**changes):
    one = {"name": "x", "datatype": "FP32", "shape": [1, INPUTS], "data": [0.5] * INPUTS}
    return {"inputs": [{**one, **changes}]}


BAD = {
    "no JSON": (b"{", "not JSON"),
    "not an object": (b"[]", "not a JSON object"),
    "NaN": (
        json.dumps(given(data=[math.nan] * INPUTS)).encode(),
        "send NaN and infinity as binary data",
    ),
    "deep": (b"[" * 100_000, "not JSON"),
    "a long number": (b'{"inputs": ' + b"9" * 5000 + b"}", "not JSON"),
    "no inputs": ({}, "input 'x' is missing"),
    "inputs of another type": ({"inputs": 3}, "not a list of objects"),
    "another input": (given(name="y"), "there is no input 'y'"),
    "no name": ({"inputs": [{}]}, "not a text"),
    "twice": ({"inputs": given()["inputs"] * 2}, "there twice"),
    "another type": (given(datatype="FP64"), "is FP64, and the network takes FP32"),
    "an unknown type": (given(datatype="FLOAT"), "datatype 'FLOAT' is not served"),
    "a type that is none": (given(datatype=[]), "is not served"),
    "another width": (given(shape=[2, 8]), "it takes [-1, 16]"),
    "no rows": (given(shape=[INPUTS]), "it takes [-1, 16]"),
    "zero rows": (given(shape=[0, INPUTS], data=[]), "at least 1"),
    "a negative shape": (given(shape=[-1, INPUTS]), "not a list of whole numbers"),
    "a huge shape": (given(shape=[10**9, 10**9]), "data 16"),
    "a huge shape of nothing": (given(shape=[2**63 - 1, 0], data=[]), "is not served"),
    "a shape of many sizes": (given(shape=[1] * 100, data=[1.0]), "not a list of whole numbers"),
    "a shape beyond all numbers": (given(shape=[2**62] * 5000), "not a list of whole numbers"),
    "a shape of long numbers": (given(shape=[10**30] * 20), "not a list of whole numbers"),
    "a shape of text": (given(shape="16"), "not a list of whole numbers"),
    "too few numbers": (given(data=[1.0]), "has 16 numbers, data 1"),
    "text for numbers": (given(data=["1"] * INPUTS), "of type str does not fit FP32"),
    "null for a number": (given(data=[None] * INPUTS), "of type NoneType does not fit"),
    "a truth for a number": (given(data=[True] * INPUTS), "of type bool does not fit"),
    "a number that is too large": (given(data=[1e39] * INPUTS), "does not fit FP32"),
    "no list": (given(data=5), "not a list"),
    "ragged": (given(data=[[1.0], 2.0]), "side by side"),
    "parameters of another type": (given() | {"parameters": []}, "not an object"),
    "a timeout of text": (given() | {"parameters": {"timeout": "1"}}, "microseconds"),
    "a timeout beyond all": (given() | {"parameters": {"timeout": 10**30}}, "microseconds"),
    "a task of another type": (given() | {"parameters": {"task": ["cats"]}}, "one task"),
    "another output": (given() | {"outputs": [{"name": "y"}]}, "there is no output 'y'"),
    "bytes that are not there": (
        given(parameters={"binary_data_size": 64}),
        "no size of what was sent",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_400_and_say_why(server, case):
    body, message = BAD[case]
    reply = call(server, "POST", f"{path_of('cats')}/infer", body)
    assert reply.status == 400, reply.content
    assert message in reply.error


def test_bytes_that_do_not_fit(server, x):
    path = f"{path_of('cats')}/infer"
    body, headers = binary(x)
    for wrong, message in ((body[:-1], "no size"), (body + b"1", "belong to none")):
        reply = call(server, "POST", path, wrong, headers)
        assert (reply.status, message in reply.error) == (400, True)
    for length in ("-1", "x", "999999"):
        reply = call(server, "POST", path, body, {"inference-header-content-length": length})
        assert reply.status == 400


def test_numbers_that_json_has_not(server, x):
    """NaN in one row is that row's alone; its own client is told, or gets it as bytes."""
    poisoned = x.clone()
    poisoned[1] = math.nan
    body, headers = binary(poisoned)
    reply = call(server, "POST", f"{path_of('cats')}/infer", body, headers)
    assert (reply.status, "binary_data" in reply.error) == (422, True)
    body, headers = binary(poisoned, binary_data_output=True)
    reply = call(server, "POST", f"{path_of('cats')}/infer", body, headers)
    length = int(reply.headers["inference-header-content-length"])
    numbers = torch.tensor(struct.unpack(f"<{3 * OUTPUTS}f", reply.content[length:]))
    finite = numbers.reshape(3, OUTPUTS).isfinite()
    assert finite.tolist() == [[True] * OUTPUTS, [False] * OUTPUTS, [True] * OUTPUTS]


def test_a_bad_request_leaves_its_neighbours_alone(server, many, x):
    gate = Gate(server.service.repository.version)
    first = together(lambda: infer(server, "cats", x))
    gate.entered.acquire()
    good = together(lambda: infer(server, "dogs", x), lambda: infer(server, "cats", x))
    until(lambda: server.service.batcher.waiting_rows == 6)
    assert infer(server, "cats", x[:, :5]).status == 400  # at once: it never joined the batch
    assert call(server, "GET", "/v2/health/live").status == 200  # while the batch is held
    gate.open()
    for task, reply in zip(("cats", "dogs", "cats"), [*first, *good], strict=True):
        expected = many(x, task=task)
        torch.testing.assert_close(rows(reply.result()), expected, atol=1e-5, rtol=1e-5)


def test_paths_and_methods(server):
    assert call(server, "GET", "/v2/nothing").status == 404
    assert call(server, "GET", f"{path_of('cats')}/infer").status == 405
    assert call(server, "GET", "/../../etc/passwd").status == 404
    assert call(server, "GET", "/v2/models/..%2F..%2Fetc").status == 404
    assert call(server, "GET", "/v2/models/%ff%fe").status == 404


def test_a_name_may_look_like_a_path(server, many, x):
    torch.testing.assert_close(rows(infer(server, "a/b c", x)), many(x, task="a/b c"))
    version = server.service.repository.version.name
    path = f"{path_of('a/b c')}/versions/{version}/infer"
    torch.testing.assert_close(rows(call(server, "POST", path, asked(x))), many(x, task="a/b c"))
    for path, status in {
        "/v2/models/cats%2Finfer": 404,
        "/v2/models%2Fcats/infer": 404,
        "/v2/models/infer": 404,
        "/v2/models/cats": 405,
        "/v2/models//infer": 404,
        "/v2/models/cats%2Fversions%2F1/infer": 404,
        "/v2/models/cats/more/infer": 404,
    }.items():
        assert call(server, "POST", path, asked(x)).status == status, path


@pytest.mark.parametrize("path", ["/infer", "/versions/1/infer"])
def test_a_failure_of_the_server_is_500_and_says_no_more_than_its_kind(server, x, path):
    async def failing(*_, **__):
        raise KeyError("private")

    server.service.infer = failing
    reply = call(server, "POST", path_of("cats") + path, asked(x))
    assert (reply.status, reply.error) == (500, "the server failed: KeyError")
    assert call(server, "GET", "/v2/health/live").status == 200


@pytest.mark.parametrize("path", openapi.PATHS)
def test_what_is_described_is_there(server, path):
    method, _ = openapi.PATHS[path]
    real = path.replace("{name}", "cats").replace("{version}", "1")
    reply = call(server, method.upper(), real, b"{}" if method == "post" else None)
    assert reply.status in (200, 400, 401, 404)
    assert (reply.status == 404) == ("{version}" in path)  # there is no version 1
    other = {"get": "POST", "post": "GET"}[method]
    if "{version}" not in path:
        assert call(server, other, real, b"{}").status == 405
