"""The protocol over gRPC."""

import json
import re
import threading
from pathlib import Path

import grpc
import pytest
import torch
from serving.served import (
    INPUTS,
    OUTPUTS,
    TASKS,
    Gate,
    call,
    infer,
    path_of,
    recognising,
    service_of,
    serving,
    together,
    until,
)

from superpose.serving import Limits, Tokens, messages
from superpose.serving.messages import SERVICE, message

CODE = grpc.StatusCode


class Client:
    """Calls by name; nothing of the server but its messages."""

    def __init__(self, server):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")

    def method(self, kind, name, asked, answered):
        return getattr(self.channel, kind)(
            f"/{SERVICE}/{name}",
            request_serializer=message(asked).SerializeToString,
            response_deserializer=message(answered).FromString,
        )

    def __call__(self, name, /, metadata=(), **fields):
        asked = message(f"{name}Request")(**fields)
        kinds = (f"{name}Request", f"{name}Response")
        return self.method("unary_unary", name, *kinds)(asked, metadata=metadata, timeout=60)

    def stream(self, requests):
        kinds = ("ModelInferRequest", "ModelStreamInferResponse")
        return self.method("stream_stream", "ModelStreamInfer", *kinds)(requests, timeout=60)


@pytest.fixture
def client(server):
    made = Client(server)
    yield made
    made.channel.close()


@pytest.fixture
def x():
    return torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(1))


def fields(task, x, **more):
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    return {
        "model_name": task,
        "inputs": [tensor],
        "raw_input_contents": [x.numpy().tobytes()],
        **more,
    }


def rows(answer):
    shape = list(answer.outputs[0].shape)
    raw = bytearray(answer.raw_output_contents[0])
    return torch.frombuffer(raw, dtype=torch.float32).reshape(shape)


def refused(client, name, /, **fields):
    with pytest.raises(grpc.RpcError) as error:
        client(name, **fields)
    return error.value.code(), error.value.details()


def test_each_task_answers_as_the_model_in_process(client, many, x):
    for task in TASKS:
        answer = client("ModelInfer", **fields(task, x, id=f"of {task}"))
        torch.testing.assert_close(rows(answer), many(x, task=task), atol=1e-5, rtol=1e-5)
        assert (answer.model_name, answer.id) == (task, f"of {task}")
        assert answer.parameters["task"].string_param == task


def test_numbers_in_fields_of_their_type(client, many, x):
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    tensor["contents"] = {"fp32_contents": x.flatten().tolist()}
    whole = {"task": {"string_param": "dogs"}}
    answer = client("ModelInfer", model_name="many", inputs=[tensor], parameters=whole)
    torch.testing.assert_close(rows(answer), many(x, task="dogs"), atol=1e-5, rtol=1e-5)


def test_requests_over_http_and_grpc_share_a_batch(server, client, many, x):
    gate = Gate(server.service.repository.version)
    first = together(lambda: infer(server, "cats", x))
    gate.entered.acquire()
    both = together(
        lambda: client("ModelInfer", **fields("dogs", x)), lambda: infer(server, "a/b c", x)
    )
    until(lambda: server.service.batcher.waiting_rows == 6)
    gate.open()
    answer = both[0].result()
    torch.testing.assert_close(rows(answer), many(x, task="dogs"), atol=1e-5, rtol=1e-5)
    assert (first[0].result().status, both[1].result().status) == (200, 200)
    assert sorted(gate.batches[1]) == [("a/b c", 3), ("dogs", 3)]


def test_a_stream_answers_in_order_and_goes_on_after_an_error(client, many, x):
    names = [TASKS[n % 4] for n in range(150)]
    names[7] = "birds"
    requests = (
        message("ModelInferRequest")(**fields(name, x[:1] * n, id=str(n)))
        for n, name in enumerate(names)
    )
    answers = list(client.stream(requests))
    assert [one.infer_response.id for one in answers] == [str(n) for n in range(150)]
    for n, (name, one) in enumerate(zip(names, answers, strict=True)):
        if name == "birds":
            assert one.error_message == "there is no model 'birds' that is loaded"
            continue
        assert one.error_message == ""
        expected = many(x[:1] * n, task=name)
        torch.testing.assert_close(rows(one.infer_response), expected, atol=1e-4, rtol=1e-4)


def test_a_stream_that_is_left_takes_its_requests_with_it(server, client, x):
    gate = Gate(server.service.repository.version)
    running = threading.Thread(target=infer, args=(server, "cats", x))
    running.start()
    try:
        gate.entered.acquire()  # by a batch that holds none of the stream's requests
        asked = [message("ModelInferRequest")(**fields("cats", x)) for _ in range(5)]
        stream = client.stream(iter(asked))
        until(lambda: server.service.batcher.waiting_rows == 15)
        stream.cancel()
        until(lambda: server.service.batcher.waiting_rows == 0)
    finally:
        gate.open()
        running.join()
    assert infer(server, "cats", x).status == 200


def test_errors_have_their_codes(client, x):
    assert refused(client, "ModelInfer", **fields("birds", x)) == (
        CODE.NOT_FOUND,
        "there is no model 'birds' that is loaded",
    )
    code, told = refused(client, "ModelInfer", **fields("cats", x[:, :4]))
    assert (code, told) == (
        CODE.INVALID_ARGUMENT,
        "input 'x' has shape [3, 4]: it takes [-1, 16]",
    )
    wrong = fields("cats", x) | {"raw_input_contents": [b"123"]}
    assert refused(client, "ModelInfer", **wrong)[0] == CODE.INVALID_ARGUMENT
    wrong = fields("cats", x) | {"raw_input_contents": [b"1", b"2"]}
    assert refused(client, "ModelInfer", **wrong)[0] == CODE.INVALID_ARGUMENT
    assert refused(client, "ModelMetadata", name="birds")[0] == CODE.NOT_FOUND
    code, _ = refused(client, "RepositoryModelUnload", model_name="cats")
    assert code == CODE.UNAUTHENTICATED
    assert client("ModelReady", name="birds").ready is False


def test_a_task_that_is_recognised(tmp_path):
    model, given = recognising(tmp_path)
    x = torch.stack([given["high"][0], given["low"][0], given["low"][0] - 90])
    auto = {"task": {"string_param": "auto"}}
    nearest = auto | {"unknown": {"string_param": "nearest"}}
    with serving(service_of(tmp_path)) as server:
        client = Client(server)
        code, told = refused(client, "ModelInfer", **fields("many", x, parameters=auto))
        assert code == CODE.INVALID_ARGUMENT
        assert told.startswith("rows 2 fit none of the tasks")
        known = client("ModelInfer", **fields("many", x[:2], parameters=auto))
        answer = client("ModelInfer", **fields("many", x, parameters=nearest))
        client.channel.close()
    found = ["high", "low", "low"]
    assert json.loads(known.parameters["task"].string_param) == found[:2]
    assert "unknown" not in known.parameters
    assert json.loads(answer.parameters["task"].string_param) == found
    assert json.loads(answer.parameters["unknown"].string_param) == [2]
    torch.testing.assert_close(rows(answer), model(x, task=found), atol=1e-4, rtol=1e-4)


def test_metadata_is_that_of_http(server, client):
    http = call(server, "GET", path_of("cats")).json
    grpc_ = client("ModelMetadata", name="cats")
    assert client("ServerLive").live
    assert client("ServerReady").ready
    assert client("ModelReady", name="cats", version=http["versions"][0]).ready
    assert client("ServerMetadata").name == "superpose"
    assert (grpc_.name, list(grpc_.versions)) == ("cats", http["versions"])
    assert list(grpc_.inputs[0].shape) == [-1, INPUTS]
    assert list(grpc_.outputs[0].shape) == [-1, OUTPUTS]
    config = client("ModelConfig", name="cats").config
    assert (config.backend, list(config.input[0].dims)) == ("superpose", [INPUTS])
    assert config.input[0].data_type == 11  # FP32, in Triton's numbers


def test_statistics_and_changes(server, client, x):
    client("ModelInfer", **fields("cats", x))
    told = client("ModelStatistics", name="cats").model_stats[0]
    assert (told.inference_count, told.inference_stats.success.count) == (3, 1)
    token = (("authorization", "Bearer secret"),)
    client("RepositoryModelUnload", token, model_name="cats")
    assert refused(client, "ModelInfer", **fields("cats", x))[0] == CODE.NOT_FOUND
    states = {one.name: one.state for one in client("RepositoryIndex").models}
    assert (states["cats"], states["dogs"]) == ("UNAVAILABLE", "READY")
    assert "cats" not in [one.name for one in client("RepositoryIndex", ready=True).models]
    client("RepositoryModelLoad", token, model_name="cats")
    assert client("ModelReady", name="cats").ready
    with pytest.raises(grpc.RpcError) as error:
        client("RepositoryModelLoad", token, model_name="birds")
    assert error.value.code() == CODE.NOT_FOUND


def test_limits_and_tokens(many, tmp_path, x):
    service = service_of(tmp_path, Limits(queue_rows=3, body_bytes=1 << 16))
    with serving(service, tokens=Tokens(clients=(b"hello",))) as server:
        client = Client(server)
        assert client("ServerLive").live
        assert refused(client, "ModelInfer", **fields("cats", x))[0] == CODE.UNAUTHENTICATED
        token = (("authorization", "Bearer hello"),)
        client("ModelInfer", token, **fields("cats", x))
        code, _ = refused(client, "ModelInfer", metadata=token, **fields("cats", x.repeat(400, 1)))
        assert code == CODE.RESOURCE_EXHAUSTED  # larger than a message may be
        gate = Gate(service.repository.version)
        held = together(lambda: client("ModelInfer", token, **fields("cats", x)))
        gate.entered.acquire()
        held += together(lambda: client("ModelInfer", token, **fields("dogs", x)))
        until(lambda: service.batcher.waiting_rows == 3)
        code, told = refused(client, "ModelInfer", metadata=token, **fields("cats", x))
        assert (code, "queue is full" in told) == (CODE.RESOURCE_EXHAUSTED, True)
        gate.open()
        for one in held:
            assert list(one.result().outputs[0].shape) == [3, OUTPUTS]
        client.channel.close()


def test_the_messages_are_those_of_the_proto_file():
    """The committed descriptor is made of the .proto: same fields, same numbers."""
    source = (Path(messages.__file__).parent / "inference.proto").read_text()
    source = re.sub(r"//.*", "", source)
    found = set()
    stack = []
    for token in re.finditer(r"(message|enum|service|oneof) (\w+) \{|(\w+) = (\d+);|(\})", source):
        kind, name, field, number, end = token.groups()
        if kind:
            stack.append((kind, name))
        elif end and stack:
            stack.pop()
        elif field and stack[0][0] == "message":
            owner = ".".join(name for kind, name in stack if kind == "message")
            found.add((owner, field, int(number)))
    described = set()

    def walk(prefix, descriptor):
        for field in descriptor.fields:
            described.add((prefix, field.name, field.number))
        for nested in descriptor.nested_types:
            if not nested.GetOptions().map_entry:
                walk(f"{prefix}.{nested.name}", nested)

    for name in {owner.partition(".")[0] for owner, *_ in found}:
        walk(name, message(name).DESCRIPTOR)
    assert len(found) > 90
    assert found == described
    calls = re.findall(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)", source)
    assert [(n, a, b) for n, _, a, _, b in calls] == [
        (one.name, one.input_type.name, one.output_type.name) for one in messages.methods()
    ]
