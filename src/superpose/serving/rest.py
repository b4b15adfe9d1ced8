"""The Open Inference Protocol v2 over HTTP, as an ASGI application."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.resources import files
from typing import Any
from urllib.parse import quote, unquote

from superpose.serving.connection import ClientGoneError, cancel_if_gone
from superpose.serving.http_body import (
    JSON_LENGTH,
    Bodies,
    Receive,
    Response,
    Scope,
    encoded,
    header,
    inputs_of,
    json_response,
    output_forms,
    parameters_of,
    refusal,
    split,
)
from superpose.serving.request_error import RequestError
from superpose.serving.service import Service
from superpose.serving.tokens import Tokens

CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    b"connect-src 'self'; frame-ancestors 'none'"
)
PUBLIC = ([""], ["v2", "health", "live"], ["v2", "health", "ready"])  # without a token
Post = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""A function from the JSON of a request to the JSON of its answer."""
Lifespan = Callable[[], AbstractAsyncContextManager[None]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Application:
    """The ASGI application of one service.

    `lifespan` returns what to enter at the start and leave at the end; `posts` are further paths,
    which have the same tokens and limits.
    """

    def __init__(
        self,
        service: Service,
        tokens: Tokens,
        lifespan: Lifespan,
        posts: Mapping[str, Post] | None = None,
    ) -> None:
        self._service = service
        self._tokens = tokens
        self._lifespan = lifespan
        self._posts = dict(posts or {})
        self._bodies = Bodies(service.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        try:
            response = await self._respond(scope, receive)
        except RequestError as error:
            response = refusal(error)
        except ClientGoneError:
            response = refusal(RequestError(499, "the client is gone"))
        except Exception as error:
            response = refusal(RequestError(500, f"the server failed: {type(error).__name__}"))
            await _send(response, send)
            raise  # the server logs it
        await _send(response, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self._lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        service, tokens = self._service, self._tokens
        path, version = _path(scope)
        authorization = header(scope, b"authorization")
        match path:
            case ["v2", "models", name, "infer"]:
                _require("POST", scope)
                tokens.check(authorization)
                return await self._infer(name, version, scope, receive)
            case ["v2", "repository", "models", name, "load" | "unload" as verb]:
                _require("POST", scope)
                tokens.check_control(authorization)
                request = await self._bodies.read_json(scope, receive)
                await service.change(verb, name, parameters_of(request))
                return json_response({"name": name})
            case _ if path not in PUBLIC:
                tokens.check(authorization)
        match path:
            case ["v2", "repository", "index"]:
                _require("POST", scope)
                request = await self._bodies.read_json(scope, receive)
                return json_response(service.index(request.get("ready") is True))
            case _ if scope["path"] in self._posts:
                _require("POST", scope)
                return await self._post(self._posts[scope["path"]], scope, receive)
            case [""]:
                response = _page()
            case ["metrics"]:
                kind = b"text/plain; version=0.0.4; charset=utf-8"
                response = Response(200, [(b"content-type", kind)], service.traffic.metrics())
            case ["v2"]:
                response = json_response(service.server_metadata())
            case ["v2", "health", "live"]:
                response = json_response({"live": True})
            case ["v2", "health", "ready"]:
                ready = not service.stopping
                response = json_response({"ready": ready}, 200 if ready else 503)
            case ["v2", "models", "stats"]:
                response = json_response(service.statistics())
            case ["v2", "models", name]:
                response = json_response(service.model_metadata(name, version))
            case ["v2", "models", name, "ready"]:
                service.repository.find(name, version)
                response = json_response({"name": name, "ready": True})
            case ["v2", "models", name, "config"]:
                response = json_response(service.model_config(name, version))
            case ["v2", "models", name, "stats"]:
                response = json_response(service.statistics(name, version))
            case _:
                raise RequestError(404, "there is no such path")
        _require("GET", scope)
        return response

    async def _infer(self, name: str, version: str, scope: Scope, receive: Receive) -> Response:
        content = b""
        try:
            with self._service.counting_errors(name):
                content = await self._bodies.read(scope, receive)
                request, binary = split(content, header(scope, JSON_LENGTH))
                inputs = inputs_of(request, binary)
                parameters = parameters_of(request)
                default = parameters.get("binary_data_output", False)
                forms = output_forms(request, default)
            work = self._service.infer(
                name, inputs, version=version, parameters=parameters, outputs=list(forms)
            )
            answer = await cancel_if_gone(scope, work)
        finally:
            self._bodies.release(content)
        binary_outputs = {name for name in answer.outputs if forms.get(name, default) is True}
        return encoded(name, request.get("id"), answer, binary_outputs)

    async def _post(self, post: Post, scope: Scope, receive: Receive) -> Response:
        try:
            return json_response(await post(await self._bodies.read_json(scope, receive)))
        except RequestError as error:  # in the form that clients of OpenAI's paths read
            return refusal(error, {"message": error.message, "code": error.status})


async def _send(response: Response, send: Send) -> None:
    status, headers, body = response
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _path(scope: Scope) -> tuple[list[str], str]:
    """The decoded parts of a path, without `versions/VERSION`, and the version.

    Parts are decoded one by one: a name may hold a slash, percent-encoded.
    """
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    path = [unquote(part) for part in raw.decode("ascii", "replace").split("/")[1:]]
    if path[:2] == ["v2", "models"] and path[3:4] == ["versions"] and len(path) > 4:
        version = path[4]
        return path[:3] + path[5:], version
    return path, ""


def _require(method: str, scope: Scope) -> None:
    if scope["method"] != method and (scope["method"], method) != ("HEAD", "GET"):
        raise RequestError(405, f"this path takes {method}")


def _page() -> Response:
    html = files("superpose.serving").joinpath("page.html").read_bytes()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", CONTENT_SECURITY_POLICY),
    ]
    return Response(200, headers, html)
