"""The Open Inference Protocol v2 over HTTP: paths, tokens, limits, clients that go away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from superpose.serving.http_body import Bodies, header, json_object, parameters_of, refused
from superpose.serving.infer import Infer, failed, gone, model_asked, named
from superpose.serving.openapi import description
from superpose.serving.request_error import RequestError
from superpose.serving.service import Service
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
        self._bodies = Bodies(service.limits)
        self.infer = Infer(service, tokens, self._bodies)

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
            Route(model + "/infer", self.infer, methods=["POST"]),
            self._route("/v2/health/live", "GET", self.live, self._anyone),
            self._route("/v2/health/ready", "GET", self.ready, self._anyone),
            self._route("/v2", "GET", self.server),
            self._route("/v2/models/stats", "GET", self.statistics),
            Route(versions + "/infer", self.infer, methods=["POST"]),
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
                return refused(refusal, {"message": refusal.message, "code": refusal.status})

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
        name, version = named(request.scope)
        self.service.repository.find(name, version)
        return JSONResponse({"name": name, "ready": True})

    async def metadata(self, request: Request) -> Response:
        """Inputs and outputs."""
        return JSONResponse(self.service.model_metadata(*named(request.scope)))

    async def config(self, request: Request) -> Response:
        """As Triton has it."""
        return JSONResponse(self.service.model_config(*named(request.scope)))

    async def statistics(self, request: Request) -> Response:
        """As Triton has them."""
        return JSONResponse(self.service.statistics(*named(request.scope)))

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

    async def _body(self, request: Request) -> bytes:
        return await self._bodies.read(request.scope, request.receive)

    async def _change(self, verb: str, request: Request) -> Response:
        name, _ = named(request.scope)
        asked = json_object(await self._body(request) or b"{}")
        await self.service.change(verb, name, parameters_of(asked))
        return JSONResponse({"name": name})

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
                allowed(header(request.scope, b"authorization"))
                return await handler(request)
            except RequestError as refusal:
                return refused(refusal)
            except ClientDisconnect:
                return gone()

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

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        """Route by the path as it was sent: a name may have a slash in it, percent-encoded."""
        if scope["type"] == "http" and scope.get("raw_path"):
            if name := model_asked(scope):
                await rest.infer.answer(name, "", scope, receive, send)
                return
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await app(scope, receive, send)

    return routed


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _own_error(request: Request, error: Exception) -> Response:
    return failed(error)
