"""One connection, several requests."""

import http.client
import json

import torch
from serving.served import INPUTS, Reply, asked, rows
from serving.test_faults import PATH, raw, request

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def body_of(file):
    """The body of the next answer of a connection."""
    length = 0
    while (line := file.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        length = int(value) if name == b"content-length" else length
    return file.read(length)


def read(connection, method="GET"):
    answer = http.client.HTTPResponse(connection, method=method)
    answer.begin()
    return answer.status, answer.read()


def test_requests_one_after_the_other(server, many):
    x = torch.randn(2, INPUTS)
    connection = raw(server, LIVE.replace(b"GET", b"HEAD"))
    assert read(connection, "HEAD") == (200, b"")
    connection.sendall(LIVE + LIVE + request(json.dumps(asked(x)).encode()))  # all at once
    with connection.makefile("rb") as file:
        found = [body_of(file) for _ in range(3)]
    connection.close()
    assert found[:2] == [b'{"live":true}'] * 2
    told = rows(Reply(200, {}, found[2]))
    torch.testing.assert_close(told, many(x, task="cats"), atol=1e-5, rtol=1e-5)


def test_a_client_that_asks_whether_it_may_go_on(server, many):
    x = torch.randn(2, INPUTS)
    body = json.dumps(asked(x)).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    connection = raw(server, f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
    assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(body)
    assert read(connection)[0] == 200
    connection.close()
