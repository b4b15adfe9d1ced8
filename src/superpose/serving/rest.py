"""The Open Inference Protocol v2 over HTTP: paths, tokens, limits, clients that go away."""

from __future__ import annotations

import asyncio
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

from superpose.serving.connection import GONE
from superpose.serving.http_body import (
    HEADER,
    answered,
    inputs_of,
    json_object,
    objects,
    parameters_of,
    split,
    text_of,
)
from superpose.serving.openapi import description
from superpose.serving.request_error import RequestError
from superpose.serving.service import Answer, Service
from superpose.serving.tokens import Tokens

POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'"
)
Handler = Callable[[Request], Awaitable[Response]]
Post = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""A path of one's own: from the JSON of a request to that of its answer."""
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
        told = [
            ("", self.metadata),
            ("/ready", self.model_ready),
            ("/config", self.config),
            ("/stats", self.statistics),
        ]
        versions = model + "/versions/{version}"
        repository = "/v2/repository"
        return [
            self._route(model + "/infer", "POST", self.infer),  # first: it is looked for most
            self._route("/v2/health/live", "GET", self.live, self._anyone),
            self._route("/v2/health/ready", "GET", self.ready, self._anyone),
            self._route("/v2", "GET", self.server),
            self._route("/v2/models/stats", "GET", self.statistics),
            self._route(versions + "/infer", "POST", self.infer),
            *(
                self._route(start + end, "GET", handler)
                for start in (model, versions)
                for end, handler in told
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

    def post(self, path: str, answer: Post) -> Route:
        """A path of the user's own, with the server's tokens and limits.

        Its errors are objects, as the clients of OpenAI's paths read them.
        """

        async def handler(request: Request) -> Response:
            try:
                return JSONResponse(await answer(json_object(await self._body(request))))
            except RequestError as refusal:
                return _error(refusal, {"message": refusal.message, "code": refusal.status})

        return self._route(path, "POST", handler)

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
        asked = json_object(await self._body(request) or b"{}")
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
        return Response(
            text, media_type="text/html; charset=utf-8", headers={"content-security-policy": POLICY}
        )

    async def infer(self, request: Request) -> Response:
        """Run a request, unless its client goes away."""
        name, version = _named(request)
        size = 0
        try:
            with self.service.counting(name):
                body = await self._body(request)
                size = len(body)
                self._bodies += size
                asked, blob = split(body, _header(request, HEADER))
                inputs = inputs_of(asked, blob)
                parameters = parameters_of(asked)
                default = parameters.get("binary_data_output", False)
                forms = {
                    text_of(output, "name", "an output"): parameters_of(output).get("binary_data")
                    for output in objects(asked, "outputs")
                }
            work = self.service.infer(
                name, inputs, version=version, parameters=parameters, outputs=list(forms)
            )
            answer = await _unless_gone(request, work)
        finally:
            self._bodies -= size
        forms = {one: default if forms.get(one) is None else forms[one] for one in answer.outputs}
        binary = {one for one, form in forms.items() if form is True}
        return answered(name, asked.get("id"), answer, binary)

    async def _change(self, verb: str, request: Request) -> Response:
        name, _ = _named(request)
        asked = json_object(await self._body(request) or b"{}")
        await self.service.change(verb, name, parameters_of(asked))
        return JSONResponse({"name": name})

    async def _body(self, request: Request) -> bytes:
        """The whole body, within the limits of size; its connection sees to that of time."""
        limits = self.service.limits
        if _header(request, b"content-encoding") not in (None, "identity"):
            raise RequestError(415, "compressed requests are not read: send the body as it is")
        told = _header(request, b"content-length") or ""
        if told.isdecimal() and int(told) > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in request.stream():
                chunks.append(chunk)
                size += len(chunk)
                self._bodies += len(chunk)
                if size > limits.body_bytes:
                    raise _too_large(limits.body_bytes)
                if self._bodies > limits.bodies_bytes:
                    raise RequestError(429, "too many bytes of requests wait: try again later", 1)
        finally:
            self._bodies -= size
        return b"".join(chunks)

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
                allowed(_header(request, b"authorization"))
                return await handler(request)
            except RequestError as refusal:
                return _error(refusal)
            except ClientDisconnect:
                return _error(RequestError(499, "the client is gone"))

        return Route(path, handled, methods=[method])


def application(
    service: Service, tokens: Tokens, lifespan: Lifespan, posts: Mapping[str, Post]
) -> ASGIApp:
    """The ASGI application: any server of such can run it."""
    rest = Rest(service, tokens)
    app = Starlette(
        routes=[*rest.routes(), *(rest.post(path, answer) for path, answer in posts.items())],
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
    """Stop waiting when the client goes away; servers other than ours cancel by themselves."""
    current = asyncio.current_task()
    assert current is not None
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        current.cancel()

    leaving = request.scope.get(GONE, [])
    leaving.append(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not gone:
            raise
        current.uncancel()
        raise ClientDisconnect from None
    finally:
        leaving.remove(leave)


def _header(request: Request, name: bytes) -> str | None:
    """A header; Starlette's mapping of them takes a while to make, at each request."""
    for own, value in request.scope["headers"]:
        if own == name:
            return value.decode("latin-1")
    return None


def _named(request: Request) -> tuple[str, str]:
    parameters = request.path_params
    return unquote(parameters.get("name", "")), unquote(parameters.get("version", ""))


def _error(refusal: RequestError, told: Any = None) -> Response:
    headers = {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    return JSONResponse({"error": told or refusal.message}, refusal.status, headers)


def _too_large(most: int) -> RequestError:
    return RequestError(413, f"the request has more than {most} bytes: send it in parts")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _own_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"the server failed: {type(error).__name__}"}, 500)
