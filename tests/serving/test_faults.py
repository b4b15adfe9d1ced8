"""Slow, vanished, greedy and late clients; a server that stops."""

import http.client
import json
import socket

import pytest
import torch
from serving.served import (
    INPUTS,
    Gate,
    asked,
    call,
    infer,
    rows,
    service_of,
    serving,
    together,
    until,
)

import superpose as sp
from superpose import SuperposeError
from superpose.serving import Limits, Options, RequestError, Server, TensorData, TensorSpec, Tokens

PATH = "/v2/models/cats/infer"


@pytest.fixture
def x():
    return torch.randn(2, INPUTS, generator=torch.Generator().manual_seed(1))


def raw(server, content):
    """A connection that has sent these bytes."""
    made = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    made.sendall(content)
    return made


def request(body, length=None, path=PATH):
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def answer_of(connection):
    """The status of an answer, and that the server then ends the connection."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    assert connection.recv(1) == b""
    connection.close()
    return answer.status


def test_a_client_that_vanishes_takes_its_rows_with_it(server, many, x):
    service = server.service
    gate = Gate(service.repository.version)
    body = json.dumps(asked(x)).encode()
    running = raw(server, request(body))
    gate.entered.acquire()
    waiting = [raw(server, request(body)) for _ in range(5)]
    stays = together(lambda: infer(server, "dogs", x))
    until(lambda: service.batcher.waiting_rows == 12)
    for one in (running, *waiting):
        one.close()
    until(lambda: service.batcher.waiting_rows == 2)
    gate.open()
    torch.testing.assert_close(rows(stays[0].result()), many(x, task="dogs"), atol=1e-5, rtol=1e-5)
    assert gate.batches == [[("cats", 2)], [("dogs", 2)]]


def test_half_a_request(many, tmp_path, x):
    """One that ends is forgotten; one that never ends is answered, and its connection closed."""
    with serving(service_of(tmp_path, Limits(read_seconds=0.05))) as server:
        body = json.dumps(asked(x)).encode()
        for half in (b"POST ", b"POST / HTTP/1.1\r\nHost", request(body[:50], len(body))):
            raw(server, half).close()
        slow = raw(server, request(body[:50], len(body)))
        assert answer_of(slow) == 408
        assert infer(server, "cats", x).status == 200
    assert server.service.batcher.waiting_rows == 0


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"POST ",
        b"POST / HTTP/1.1\r\nHost",
        b"\r\n\r\n",
        b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
    ],
)
def test_a_client_that_stops_in_a_request_is_let_go(many, tmp_path, x, half):
    with serving(service_of(tmp_path, Limits(read_seconds=0.2))) as server:
        slow = raw(server, half)
        if b"live" in half:  # it is answered without its body, which is waited for no longer
            answer = http.client.HTTPResponse(slow)
            answer.begin()
            answer.read()
            slow.sendall(b"more")
        if half.strip():
            assert answer_of(slow) == 408
        else:  # an answer would be taken for that to its first request
            assert slow.recv(1000) == b""
            slow.close()
        connections = server._uvicorn.server_state.connections
        until(lambda: not connections)
        assert infer(server, "cats", x).status == 200


def test_a_request_that_takes_longer_than_reading_may_is_answered(many, tmp_path, x):
    """The time is the client's to send, not the model's to answer."""
    with serving(service_of(tmp_path, Limits(read_seconds=0.1))) as server:
        gate = Gate(server.service.repository.version)
        body = json.dumps(asked(x)).encode()
        patient = raw(server, request(body))
        gate.entered.acquire()
        patient.sendall(b"POST ")  # half of the next one, which may wait for the first one's answer
        half = raw(server, b"POST ")
        assert answer_of(half) == 408  # so the time is over
        gate.open()
        answer = http.client.HTTPResponse(patient)
        answer.begin()
        assert answer.status == 200
        answer.read()
        assert answer_of(patient) == 408


def test_a_client_that_does_not_begin_grpc_is_let_go(many, tmp_path):
    with serving(service_of(tmp_path, Limits(read_seconds=0.2))) as server:
        slow = socket.create_connection(("127.0.0.1", server.grpc_port), timeout=60)
        slow.sendall(b"PRI * HT")
        while slow.recv(1000):
            pass
        slow.close()


def test_headers_without_end(server, x):
    greedy = raw(server, b"GET /v2 HTTP/1.1\r\n" + b"a: b\r\n" * 15_000)
    assert answer_of(greedy) == 431
    assert infer(server, "cats", x).status == 200


def test_the_body_before_a_half_request_does_not_count_as_its_headers(server, many, x):
    body = json.dumps(asked(x)).encode() + b" " * 100_000
    connection = raw(server, request(body) + b"POST /v2/models")
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    assert answer.status == 200
    output = json.loads(answer.read())["outputs"][0]
    expected = many(x, task="cats").flatten().tolist()
    assert output["data"] == pytest.approx(expected, abs=1e-5)
    connection.close()


def test_a_client_that_is_answered_before_its_body_came_is_let_go(many, tmp_path, x):
    limits = Limits(read_seconds=0.2)
    tokens = Tokens(clients=(b"hello",))
    with serving(service_of(tmp_path, limits), tokens=tokens) as server:
        body = json.dumps(asked(x)).encode()
        whole = request(body)
        connection = raw(server, whole[: -len(body)])
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 401
        answer.read()
        connection.sendall(body)
        assert connection.recv(1000) == b""  # and no answer that nobody asked for
        connection.close()


def test_a_client_that_reads_no_answer_is_let_go(tmp_path):
    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.one(x).repeat(1, 2000)

    torch.manual_seed(0)
    sp.save(sp.superpose(Wide(), tasks=["cats", "dogs"]), tmp_path / "many.safetensors")
    with serving(service_of(tmp_path, Limits(read_seconds=0.2), net=Wide)) as server:
        body = json.dumps(asked(torch.randn(400, 4))).encode()  # answered by some 60 MB
        deaf = raw(server, request(body))
        connections = server._uvicorn.server_state.connections
        until(lambda: connections)
        until(lambda: not connections)
        deaf.close()


@pytest.mark.parametrize("told", [True, False])
def test_a_body_that_is_too_large(many, tmp_path, x, told):
    with serving(service_of(tmp_path, Limits(body_bytes=10_000))) as server:
        if told:
            reply = raw(server, request(b"", 100_000_000))
        else:
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            reply = raw(server, head.encode() + b"2000\r\n" + b"1" * 0x2000 + b"\r\n")
            reply.sendall(b"2000\r\n" + b"1" * 0x2000 + b"\r\n")
        answer = http.client.HTTPResponse(reply)
        answer.begin()
        assert answer.status == 413
        assert "more than 10000 bytes" in json.load(answer)["error"]
        reply.close()
        assert infer(server, "cats", x).status == 200


def test_all_bodies_together_are_bounded(many, tmp_path, x):
    with serving(service_of(tmp_path, Limits(bodies_bytes=60_000))) as server:
        gate = Gate(server.service.repository.version)
        large = {**asked(x), "padding": "0" * 40_000}
        first = together(lambda: call(server, "POST", PATH, large))
        gate.entered.acquire()
        reply = call(server, "POST", PATH, large)
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        gate.open()
        assert first[0].result().status == 200
        assert call(server, "POST", PATH, large).status == 200


def test_a_full_queue_is_429_and_accepted_requests_are_answered(many, tmp_path, x):
    with serving(service_of(tmp_path, Limits(queue_rows=4))) as server:
        gate = Gate(server.service.repository.version)
        accepted = together(lambda: infer(server, "cats", x))
        gate.entered.acquire()
        accepted += together(lambda: infer(server, "dogs", x), lambda: infer(server, "dogs", x))
        until(lambda: server.service.batcher.waiting_rows == 4)
        reply = infer(server, "cats", x)
        assert reply.status == 429
        assert int(reply.headers["retry-after"]) >= 1
        gate.open()
        assert [one.result().status for one in accepted] == [200, 200, 200]
        large = infer(server, "cats", x.repeat(3, 1))
        assert (large.status, "split it" in large.error) == (413, True)


def test_a_timeout_ends_the_waiting(server, x):
    gate = Gate(server.service.repository.version)
    first = together(lambda: infer(server, "cats", x))
    gate.entered.acquire()
    late = infer(server, "dogs", x, parameters={"timeout": 1000})  # while the first is held
    assert (late.status, "timeout of 0.001 s" in late.error) == (408, True)
    assert server.service.batcher.waiting_rows == 0
    gate.open()
    assert first[0].result().status == 200
    assert [len(batch) for batch in gate.batches] == [1]  # it was never run


def test_stopping_answers_what_was_accepted(many, tmp_path, x):
    service = service_of(tmp_path)
    gate = Gate(service.repository.version)
    with serving(service) as server:
        accepted = together(*(lambda: infer(server, "cats", x) for _ in range(6)))
        gate.entered.acquire()
        until(lambda: sum(len(b) for b in gate.batches) * 2 + service.batcher.waiting_rows == 12)
        server.stop()
        until(lambda: service.stopping)
        gate.open()
        assert [one.result().status for one in accepted] == [200] * 6
    with pytest.raises(ConnectionRefusedError):
        infer(server, "cats", x)


def test_a_network_that_fails_on_some_numbers(tmp_path):
    """An index that is out of range is one client's mistake: its neighbours are answered."""

    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(10, 8)
            self.out = torch.nn.Linear(8, 3)

        def forward(self, ids):
            return self.out(self.table(ids))

    torch.manual_seed(0)
    made = sp.superpose(Words(), tasks=["cats", "dogs"], skip=["table"]).eval()
    sp.save(made, tmp_path / "many.safetensors")
    options = Options((TensorSpec.parse("ids=INT64[4]"),))
    service = service_of(tmp_path, options=options, net=Words)

    def ask(task, *ids):
        tensor = {"name": "ids", "datatype": "INT64", "shape": [1, 4], "data": list(ids)}
        return call(server, "POST", f"/v2/models/{task}/infer", {"inputs": [tensor]})

    with serving(service) as server:
        gate = Gate(service.repository.version)
        first = together(lambda: ask("cats", 0, 1, 2, 3))
        gate.entered.acquire()
        both = together(lambda: ask("cats", 0, 1, 2, 99), lambda: ask("dogs", 4, 5, 6, 7))
        until(lambda: service.batcher.waiting_rows == 2)
        gate.open()
        bad, good = (one.result() for one in both)
        assert (bad.status, "cannot compute these inputs" in bad.error) == (422, True)
        expected = made(torch.tensor([[4, 5, 6, 7]]), task="dogs")
        torch.testing.assert_close(rows(good), expected, atol=1e-5, rtol=1e-5)
        assert first[0].result().status == 200


def test_tokens_of_clients(many, tmp_path, x):
    (tmp_path / "tokens").write_text("# of two\none\n\ntwo\n")
    (tmp_path / "control").write_text("three\n")
    tokens = Tokens.read(tmp_path / "tokens", tmp_path / "control")
    with serving(service_of(tmp_path), tokens=tokens) as server:
        for token in ("one", "two", "three"):
            given = {"authorization": f"Bearer {token}"}
            assert call(server, "POST", PATH, asked(x), given).status == 200
        for wrong in ({}, {"authorization": "Bearer four"}, {"authorization": "Basic one"}):
            for method, path in (("POST", PATH), ("GET", "/metrics"), ("GET", "/v2")):
                reply = call(server, method, path, asked(x) if method == "POST" else None, wrong)
                assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        for path in ("/v2/health/live", "/v2/health/ready", "/"):
            assert call(server, "GET", path).status == 200
        unload = "/v2/repository/models/cats/unload"
        assert call(server, "POST", unload, {}, {"authorization": "Bearer one"}).status == 401
        assert call(server, "POST", unload, {}, {"authorization": "Bearer three"}).status == 200


def test_a_path_of_ones_own(many, tmp_path, x):
    service = service_of(tmp_path)

    async def doubled(asked):
        if "x" not in asked:
            raise RequestError(400, "x is missing")
        found = await service.infer(asked["task"], {"x": TensorData.of(torch.tensor(asked["x"]))})
        return {"task": found.task, "y": found.outputs["output"].to_list()}

    tokens = Tokens(clients=(b"hello",))
    with serving(service, tokens=tokens, posts={"/v1/mine": doubled}) as server:
        given = {"authorization": "Bearer hello"}
        body = {"task": "dogs", "x": x.tolist()}
        told = call(server, "POST", "/v1/mine", body, given).json
        found = torch.tensor(told["y"]).reshape(2, -1)
        torch.testing.assert_close(found, many(x, task="dogs"), atol=1e-5, rtol=1e-5)
        reply = call(server, "POST", "/v1/mine", {}, given)
        assert (reply.status, reply.json["error"]["message"]) == (400, "x is missing")
        unknown = call(server, "POST", "/v1/mine", body | {"task": "birds"}, given)
        assert (unknown.status, unknown.json["error"]["code"]) == (404, 404)
        assert call(server, "POST", "/v1/mine", body).status == 401


def test_a_compressed_body_is_refused(server, x):
    assert call(server, "POST", PATH, asked(x), {"content-encoding": "gzip"}).status == 415


def test_two_servers_cannot_have_one_port(server, tmp_path):
    with pytest.raises(SuperposeError, match="cannot be listened on"):
        Server(server.service, port=server.port)
    taken = Server(service_of(tmp_path), port=0, grpc_port=server.port)
    with pytest.raises(SuperposeError, match="cannot be listened on for gRPC"), taken:
        pass
