"""The Open Inference Protocol v2 over HTTP: JSON, and the binary tensor extension."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from torch import Tensor

from superpose.serving.openapi import description
from superpose.serving.request_error import RequestError
from superpose.serving.service import Answer, Service
from superpose.serving.tensors import NAMES, from_bytes, from_list, to_bytes, to_list
from superpose.serving.tokens import Tokens

HEADER = "inference-header-content-length"
Handler = Callable[[Request], Awaitable[Response]]
Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


class Rest:
    """The handlers of one service."""

    def __init__(self, service: Service, tokens: Tokens) -> None:
        self.service = service
        self.tokens = tokens
        self._bodies = 0  # bytes of requests that are read or waited for

    def routes(self) -> list[Route]:
        """All paths; a task's name is percent-encoded in them."""
        model = "/v2/models/{name}"
        one = [
            ("", "GET", self.metadata),
            ("/ready", "GET", self.model_ready),
            ("/config", "GET", self.config),
            ("/stats", "GET", self.statistics),
            ("/infer", "POST", self.infer),
        ]
        several = (model, model + "/versions/{version}")
        repository = "/v2/repository"
        return [
            self._route("/v2/health/live", "GET", self.live, self._anyone),
            self._route("/v2/health/ready", "GET", self.ready, self._anyone),
            self._route("/v2", "GET", self.server),
            self._route("/v2/models/stats", "GET", self.statistics),
            *(
                self._route(start + end, method, handler)
                for start in several
                for end, method, handler in one
            ),
            self._route(repository + "/index", "POST", self.index),
            self._route(
                repository + "/models/{name}/load", "POST", self.load, self.tokens.check_control
            ),
            self._route(
                repository + "/models/{name}/unload", "POST", self.unload, self.tokens.check_control
            ),
            self._route("/metrics", "GET", self.metrics),
            self._route("/live.json", "GET", self.traffic),
            self._route("/openapi.json", "GET", self.openapi, self._anyone),
            self._route("/", "GET", self.page, self._anyone),
        ]

    async def live(self, request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """The model is loaded, and the server is not stopping."""
        ready = self.service.ready()
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def server(self, request: Request) -> Response:
        """Name, version and extensions."""
        return JSONResponse(self.service.server_metadata())

    async def model_ready(self, request: Request) -> Response:
        """A task is served."""
        name, version = _named(request)
        self.service.repository.find(name, version)
        return JSONResponse({"name": name, "ready": True})

    async def metadata(self, request: Request) -> Response:
        """Inputs and outputs."""
        return JSONResponse(self.service.model_metadata(*_named(request)))

    async def config(self, request: Request) -> Response:
        """As Triton has it."""
        return JSONResponse(self.service.model_config(*_named(request)))

    async def statistics(self, request: Request) -> Response:
        """As Triton has them."""
        return JSONResponse(self.service.statistics(*_named(request)))

    async def index(self, request: Request) -> Response:
        """All names and their states."""
        asked = _json_object(await self._body(request) or b"{}")
        return JSONResponse(self.service.index(asked.get("ready") is True))

    async def load(self, request: Request) -> Response:
        """Load the file again, or a task."""
        return await self._change("load", request)

    async def unload(self, request: Request) -> Response:
        """Serve a name no longer."""
        return await self._change("unload", request)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        return Response(
            self.service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def traffic(self, request: Request) -> Response:
        """For the page."""
        return JSONResponse(self.service.live())

    async def openapi(self, request: Request) -> Response:
        """A description of all this."""
        return JSONResponse(description())

    async def page(self, request: Request) -> Response:
        """The page; what it shows it asks for with the visitor's token."""
        text = files("superpose.serving").joinpath("page.html").read_text(encoding="utf-8")
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        safe = {"content-security-policy": policy + "connect-src 'self'; frame-ancestors 'none'"}
        return Response(text, media_type="text/html; charset=utf-8", headers=safe)

    async def infer(self, request: Request) -> Response:
        """Run a request, unless its client goes away."""
        name, version = _named(request)
        body = await self._body(request)
        self._bodies += len(body)
        try:
            asked, blob = _split(body, request.headers.get(HEADER))
            inputs = _inputs(asked, blob)
            wanted = _objects(asked, "outputs")
            names = [_text(output, "name", "an output") for output in wanted]
            parameters = _parameters(asked)
            answer = await _unless_gone(
                request,
                self.service.infer(
                    name, inputs, version=version, parameters=parameters, outputs=names
                ),
            )
        finally:
            self._bodies -= len(body)
        raw = {
            _text(output, "name", "an output"): _parameters(output).get("binary_data")
            for output in wanted
        }
        default = parameters.get("binary_data_output") is True
        binary = {
            output
            for output in answer.outputs
            if raw.get(output) is True or (default and raw.get(output) is not False)
        }
        return _answered(name, asked.get("id"), answer, binary)

    async def _change(self, verb: str, request: Request) -> Response:
        name, _ = _named(request)
        asked = _json_object(await self._body(request) or b"{}")
        await self.service.change(verb, name, _parameters(asked))
        return JSONResponse({"name": name})

    async def _body(self, request: Request) -> bytes:
        """The whole body, within the limits of size and time."""
        limits = self.service.limits
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RequestError(415, "compressed requests are not read: send the body as it is")
        told = request.headers.get("content-length", "0")
        if told.isdecimal() and int(told) > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.read_seconds):
                async for chunk in request.stream():
                    chunks.append(chunk)
                    size += len(chunk)
                    self._bodies += len(chunk)
                    if size > limits.body_bytes:
                        raise _too_large(limits.body_bytes)
                    if self._bodies > limits.bodies_bytes:
                        raise RequestError(
                            429, "too many bytes of requests wait: try again later", 1
                        )
        except TimeoutError as error:
            raise RequestError(
                408, f"the request was not read within {limits.read_seconds} s"
            ) from error
        finally:
            self._bodies -= size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _anyone(self, header: str | None) -> None:
        """No token is needed."""

    def _route(
        self,
        path: str,
        method: str,
        handler: Handler,
        check: Callable[[str | None], None] | None = None,
    ) -> Route:
        allowed = check or self.tokens.check

        async def handled(request: Request) -> Response:
            try:
                allowed(request.headers.get("authorization"))
                return await handler(request)
            except RequestError as refusal:
                return _error(refusal)
            except ClientDisconnect:
                return _error(RequestError(499, "the client is gone"))

        return Route(path, handled, methods=[method])


def application(service: Service, tokens: Tokens, lifespan: Lifespan) -> ASGIApp:
    """The ASGI application: any server of such, Ray Serve's too, can run it."""
    app = Starlette(
        routes=Rest(service, tokens).routes(),
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error, Exception: _own_error},
    )

    async def encoded(scope: Scope, receive: Receive, send: Send) -> None:
        """Route by the path as it was sent: a name may have a slash in it, percent-encoded."""
        if scope["type"] == "http" and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await app(scope, receive, send)

    return encoded


async def _unless_gone(request: Request, work: Awaitable[Answer]) -> Answer:
    """Stop waiting when the client disconnects."""
    current = asyncio.current_task()
    assert current is not None
    gone = asyncio.ensure_future(request.receive())  # the body was read: what comes is the end
    gone.add_done_callback(lambda told: None if told.cancelled() else current.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if not gone.done():
            raise
        current.uncancel()
        raise ClientDisconnect from None
    finally:
        gone.cancel()


def _named(request: Request) -> tuple[str, str]:
    parameters = request.path_params
    return unquote(parameters.get("name", "")), unquote(parameters.get("version", ""))


def _split(body: bytes, told: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON part of a body, and the bytes after it."""
    if told is None:
        return _json_object(body), memoryview(b"")
    if not told.isdecimal() or int(told) > len(body):
        raise RequestError(
            400, f"Inference-Header-Content-Length: {told[:40]!r} of {len(body)} bytes"
        )
    return _json_object(body[: int(told)]), memoryview(body)[int(told) :]


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RequestError(400, "the body is not a JSON object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON; send binary data")


def _inputs(asked: Mapping[str, Any], blob: memoryview) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    start = 0
    for given in _objects(asked, "inputs"):
        name = _text(given, "name", "an input")
        if name in tensors:
            raise RequestError(400, f"input {name!r} is there twice")
        size = _parameters(given).get("binary_data_size")
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


def _objects(asked: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = asked.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RequestError(400, f"{key} is not a list of objects")
    return found


def _text(given: Mapping[str, Any], key: str, of: str) -> str:
    found = given.get(key)
    if not isinstance(found, str):
        raise RequestError(400, f"{key} of {of} is not a text")
    return found


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    found = given.get("parameters", {})
    if not isinstance(found, dict):
        raise RequestError(400, "parameters is not an object")
    return found


def _answered(name: str, told: Any, answer: Answer, binary: set[str]) -> Response:
    outputs, parts = [], []
    for output, tensor in answer.outputs.items():
        described: dict[str, Any] = {
            "name": output,
            "datatype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
        }
        if output in binary:
            parts.append(to_bytes(tensor))
            described["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            described["data"] = to_list(tensor)
        outputs.append(described)
    head: dict[str, Any] = {
        "model_name": name,
        "model_version": answer.version,
        "parameters": {"task": answer.task},
        "outputs": outputs,
    }
    if isinstance(told, str) and told:
        head["id"] = told
    try:
        text = json.dumps(head, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise RequestError(
            422, "the answer holds NaN or infinity, which JSON has not: ask for binary_data"
        ) from error
    if not parts:
        return Response(text, media_type="application/json")
    return Response(
        b"".join([text, *parts]),
        media_type="application/octet-stream",
        headers={HEADER: str(len(text))},
    )


def _error(refusal: RequestError) -> Response:
    headers = {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    return JSONResponse({"error": refusal.message}, refusal.status, headers)


def _too_large(most: int) -> RequestError:
    return RequestError(413, f"the request has more than {most} bytes: send it in parts")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _own_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"the server failed: {type(error).__name__}"}, 500)
