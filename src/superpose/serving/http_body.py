"""Bodies of HTTP requests and answers: JSON, and the bytes of tensors after it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope

from superpose.serving.request_error import RequestError
from superpose.serving.service import Answer, Limits
from superpose.serving.tensors import TensorData, from_bytes, from_list

HEADER = b"inference-header-content-length"
Headers = list[tuple[bytes, bytes]]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON; send binary data")


def parsed(text: bytes) -> Any:
    """What JSON says.

    orjson reads lists of numbers ten times as fast as the standard library, which says why of what
    orjson refuses.
    """
    with suppress(ValueError):
        return orjson.loads(text)
    return READER.decode(text.decode())


def written(value: Any) -> bytes:
    """JSON; the standard library writes halves of surrogate pairs too, which orjson refuses."""
    with suppress(TypeError):
        return orjson.dumps(value)
    return WRITER.encode(value).encode()


READER = json.JSONDecoder(parse_constant=_no_constant)
WRITER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class Bodies:
    """Reads the bodies of requests, and counts the bytes of all that are read or worked on."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = 0

    def held(self) -> Body:
        """The body of a request, which is counted until the end of a `with` block."""
        return Body(self)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body of a request, counted while it is read."""
        with self.held() as body:
            return await body.read(scope, receive)


class Body:
    """The body of one request."""

    __slots__ = ("_bodies", "_size")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self._size = bodies, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._bodies.bytes -= self._size

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The whole of it, within the limits of size; its connection sees to that of time."""
        limits, most = self._bodies.limits, self._bodies.limits.body_bytes
        if header(scope, b"content-encoding") not in (None, "identity"):
            raise RequestError(415, "compressed requests are not read: send the body as it is")
        told = header(scope, b"content-length") or ""
        if told.isdecimal() and int(told) > most:
            raise _too_large(most)
        chunks: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            chunks.append(chunk)
            self._size += len(chunk)
            self._bodies.bytes += len(chunk)
            if self._size > most:
                raise _too_large(most)
            if self._bodies.bytes > limits.bodies_bytes:
                raise RequestError(429, "too many bytes of requests wait: try again later", 1)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def header(scope: Scope, name: bytes) -> str | None:
    """A header; Starlette's mapping of them takes a while to make, at each request."""
    for own, value in scope["headers"]:
        if own == name:
            found: str = value.decode("latin-1")
            return found
    return None


def _too_large(most: int) -> RequestError:
    return RequestError(413, f"the request has more than {most} bytes: send it in parts")


def split(body: bytes, told: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON part of a body, and the bytes after it."""
    if told is None:
        return json_object(body), memoryview(b"")
    if not told.isdecimal() or len(told) > 20 or int(told) > len(body):
        raise RequestError(
            400, f"Inference-Header-Content-Length: {told[:40]!r} of {len(body)} bytes"
        )
    end = int(told)
    return json_object(body[:end]), memoryview(body)[end:]


def json_object(text: bytes) -> dict[str, Any]:
    """An object of JSON, which has no NaN."""
    try:
        found = parsed(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RequestError(400, "the body is not a JSON object")
    return found


def inputs_of(asked: Mapping[str, Any], blob: memoryview) -> dict[str, TensorData]:
    """The tensors of a request, by name: of lists, or of the bytes in the order of the inputs."""
    tensors: dict[str, TensorData] = {}
    start = 0
    for given in objects(asked, "inputs"):
        name = text_of(given, "name", "an input")
        if name in tensors:
            raise RequestError(400, f"input {name!r} is there twice")
        size = parameters_of(given).get("binary_data_size")
        if size is None:
            tensors[name] = from_list(
                name, given.get("datatype"), given.get("shape"), given.get("data")
            )
            continue
        if type(size) is not int or not 0 <= size <= len(blob) - start:
            raise RequestError(
                400, f"input {name!r}: binary_data_size is not a size of what was sent"
            )
        part = blob[start : start + size]
        tensors[name] = from_bytes(name, given.get("datatype"), given.get("shape"), part)
        start += size
    if start < len(blob):
        raise RequestError(400, f"{len(blob) - start} bytes after the last input belong to none")
    return tensors


def objects(asked: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects; none, if it is not there."""
    found = asked.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RequestError(400, f"{key} is not a list of objects")
    return found


def text_of(given: Mapping[str, Any], key: str, of: str) -> str:
    """A text that has to be there."""
    found = given.get(key)
    if not isinstance(found, str):
        raise RequestError(400, f"{key} of {of} is not a text")
    return found


def parameters_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request or a tensor."""
    found = given.get("parameters", {})
    if not isinstance(found, dict):
        raise RequestError(400, "parameters is not an object")
    return found


def answered(name: str, told: Any, answer: Answer, binary: set[str]) -> tuple[Headers, bytes]:
    """Headers and body of an answer; outputs that are `binary` as bytes after the JSON."""
    outputs, parts = [], []
    for output, tensor in answer.outputs.items():
        described: dict[str, Any] = {
            "name": output,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if output in binary:
            parts.append(tensor.to_bytes())
            described["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            described["data"] = numbers = tensor.to_list()
            if not all(map(math.isfinite, numbers)):
                raise RequestError(
                    422, "the answer holds NaN or infinity, which JSON has not: ask for binary_data"
                )
        outputs.append(described)
    head: dict[str, Any] = {
        "model_name": name,
        "model_version": answer.version,
        "parameters": {"task": answer.task}
        | ({"unknown": answer.unknown} if answer.unknown else {}),
        "outputs": outputs,
    }
    if isinstance(told, str) and told:
        head["id"] = told
    text = written(head)
    body = b"".join([text, *parts])
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"content-type", b"application/octet-stream" if parts else b"application/json"),
    ]
    if parts:
        headers.append((HEADER, b"%d" % len(text)))
    return headers, body


def refused(refusal: RequestError, told: Any = None) -> Response:
    """The answer to a request that is refused."""
    headers = {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    return JSONResponse({"error": told or refusal.message}, refusal.status, headers)
