"""Bodies of HTTP requests and responses: JSON, and the raw bytes of tensors after it."""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import orjson

from superpose.serving.connection import ClientGoneError
from superpose.serving.request_error import RequestError
from superpose.serving.service import Answer, Limits
from superpose.serving.tensors import TensorData, from_bytes, from_list

JSON_LENGTH = b"inference-header-content-length"
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Response(NamedTuple):
    """An HTTP response; `content-length` is added to the headers when it is sent."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Bodies:
    """Reads bodies within limits of size: of each, and of all that are in use."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = 0

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Read a body, whose bytes are counted until `release`.

        Raises `RequestError` 413, 415 or 429. `Connection` limits the time.
        """
        limit = self._limits.body_bytes
        too_large = RequestError(413, f"the request has more than {limit} bytes: send it in parts")
        if header(scope, b"content-encoding") not in (None, "identity"):
            raise RequestError(415, "compressed requests are not read: send the body as it is")
        length = header(scope, b"content-length") or ""
        if length.isdecimal() and int(length) > limit:
            raise too_large
        chunks: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunks.append(message.get("body", b""))
                more = message.get("more_body", False)
                size += len(chunks[-1])
                self._bytes += len(chunks[-1])
                if size > limit:
                    raise too_large
                if self._bytes > self._limits.bodies_bytes:
                    raise RequestError(429, "too many bytes of requests wait: try again later", 1)
        except BaseException:
            self._bytes -= size
            raise
        return b"".join(chunks)

    def release(self, content: bytes) -> None:
        self._bytes -= len(content)

    async def read_json(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """Read a JSON object; no body is an empty one."""
        content = await self.read(scope, receive)
        self.release(content)
        return json_object(content or b"{}")


def header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def split(body: bytes, json_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """Return the JSON object of a body, and the bytes after it."""
    if json_length is None:
        return json_object(body), memoryview(b"")
    if not json_length.isdecimal() or len(json_length) > 20 or int(json_length) > len(body):
        detail = f"{json_length[:40]!r} of {len(body)} bytes"
        raise RequestError(400, f"Inference-Header-Content-Length: {detail}")
    end = int(json_length)
    return json_object(body[:end]), memoryview(body)[end:]


def json_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object, or raise `RequestError` 400."""
    try:
        parsed = orjson.loads(text)
    except ValueError as error:
        hint = "; send NaN and infinity as binary data" if b"NaN" in text or b"Inf" in text else ""
        raise RequestError(400, f"the body is not JSON: {error}{hint}") from error
    if not isinstance(parsed, dict):
        raise RequestError(400, "the body is not a JSON object")
    return parsed


def inputs_of(request: Mapping[str, Any], binary: memoryview) -> dict[str, TensorData]:
    """Return a request's tensors by name, from lists or from bytes in the order of the inputs."""
    tensors: dict[str, TensorData] = {}
    start = 0
    for item in _objects(request, "inputs"):
        name, datatype, shape = _name(item, "an input"), item.get("datatype"), item.get("shape")
        if name in tensors:
            raise RequestError(400, f"input {name!r} is there twice")
        size = parameters_of(item).get("binary_data_size")
        if size is None:
            tensors[name] = from_list(name, datatype, shape, item.get("data"))
        elif type(size) is int and 0 <= size <= len(binary) - start:
            tensors[name] = from_bytes(name, datatype, shape, binary[start : start + size])
            start += size
        else:
            raise RequestError(400, f"input {name!r}: binary_data_size is no size of what was sent")
    if start < len(binary):
        raise RequestError(400, f"{len(binary) - start} bytes after the last input belong to none")
    return tensors


def output_forms(request: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """Return the outputs that a request names, and of each whether it is wanted as bytes."""
    return {
        _name(output, "an output"): parameters_of(output).get("binary_data", default)
        for output in _objects(request, "outputs")
    }


def _objects(request: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    items = request.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RequestError(400, f"{key} is not a list of objects")
    return items


def _name(item: Mapping[str, Any], kind: str) -> str:
    name = item.get("name")
    if not isinstance(name, str):
        raise RequestError(400, f"name of {kind} is not a text")
    return name


def parameters_of(item: Mapping[str, Any]) -> dict[str, Any]:
    parameters = item.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(400, "parameters is not an object")
    return parameters


def encoded(name: str, request_id: Any, answer: Answer, binary: set[str]) -> Response:
    """Return the response with an answer: JSON, and after it the bytes of `binary` outputs."""
    outputs, parts = [], []
    for output, tensor in answer.outputs.items():
        item: dict[str, Any]
        item = {"name": output, "datatype": tensor.datatype, "shape": tensor.shape}
        if output in binary:
            parts.append(tensor.to_bytes())
            item["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            item["data"] = numbers = tensor.to_list()
            if not all(map(math.isfinite, numbers)):
                raise RequestError(422, "JSON has no NaN or infinity: ask for binary_data")
        outputs.append(item)
    parameters = {"task": answer.task}
    if answer.unknown:
        parameters["unknown"] = answer.unknown
    response = {
        "model_name": name,
        "model_version": answer.version,
        "parameters": parameters,
        "outputs": outputs,
    }
    if isinstance(request_id, str) and request_id:
        response["id"] = request_id
    text = orjson.dumps(response)
    if not parts:
        return Response(200, [(b"content-type", b"application/json")], text)
    kind = (b"content-type", b"application/octet-stream")
    return Response(200, [kind, (JSON_LENGTH, b"%d" % len(text))], b"".join([text, *parts]))


def json_response(value: Any, status: int = 200) -> Response:
    return Response(status, [(b"content-type", b"application/json")], orjson.dumps(value))


def refusal(error: RequestError, detail: Any = None) -> Response:
    response = json_response({"error": detail or error.message}, error.status)
    if error.retry_after is not None:
        response.headers.append((b"retry-after", b"%d" % error.retry_after))
    if error.status == 401:
        response.headers.append((b"www-authenticate", b"Bearer"))
    if error.status == 413:
        response.headers.append((b"connection", b"close"))  # the rest of the body is not read
    return response
