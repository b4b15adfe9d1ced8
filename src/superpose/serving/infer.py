"""`POST …/infer` over HTTP, an ASGI application by itself.

A server is asked for it most, and the routes, requests and responses of Starlette would take as
long as all that is done here.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from superpose.serving.connection import unless_gone
from superpose.serving.http_body import (
    HEADER,
    Bodies,
    Headers,
    answered,
    header,
    inputs_of,
    objects,
    parameters_of,
    refused,
    split,
    text_of,
)
from superpose.serving.request_error import RequestError
from superpose.serving.service import Service
from superpose.serving.tokens import Tokens

BEFORE, AFTER = b"/v2/models/", b"/infer"  # the name of a model in a path


class Infer:
    """Runs requests of one service."""

    def __init__(self, service: Service, tokens: Tokens, bodies: Bodies) -> None:
        self._service = service
        self._tokens = tokens
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an endpoint of Starlette's, which looked at the path."""
        await self.answer(*named(scope), scope, receive, send)

    async def answer(
        self, name: str, version: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request for a model."""
        try:
            self._tokens.check(header(scope, b"authorization"))
            headers, body = await self._answered(name, version, scope, receive)
        except RequestError as refusal:
            await refused(refusal)(scope, receive, send)
        except ClientDisconnect:
            await gone()(scope, receive, send)
        except Exception as error:
            await failed(error)(scope, receive, send)
            raise  # the server logs it
        else:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _answered(
        self, name: str, version: str, scope: Scope, receive: Receive
    ) -> tuple[Headers, bytes]:
        """Run a request, unless its client goes away."""
        with self._bodies.held() as held:
            with self._service.counting(name):
                body = await held.read(scope, receive)
                asked, blob = split(body, header(scope, HEADER))
                inputs = inputs_of(asked, blob)
                parameters = parameters_of(asked)
                default = parameters.get("binary_data_output", False)
                forms = {
                    text_of(output, "name", "an output"): parameters_of(output).get("binary_data")
                    for output in objects(asked, "outputs")
                }
            work = self._service.infer(
                name, inputs, version=version, parameters=parameters, outputs=list(forms)
            )
            answer = await unless_gone(scope, work)
        forms = {one: default if forms.get(one) is None else forms[one] for one in answer.outputs}
        binary = {one for one, form in forms.items() if form is True}
        return answered(name, asked.get("id"), answer, binary)


def model_asked(scope: Scope) -> str:
    """The model that a request is for, if it is `POST /v2/models/NAME/infer`; else nothing."""
    path = scope["raw_path"]
    if scope["method"] != "POST" or not path.startswith(BEFORE) or not path.endswith(AFTER):
        return ""
    name: str = scope["path"][len(BEFORE) : -len(AFTER)]  # in which percents are decoded
    return "" if "/" in name else name  # which was a slash, or part of a name


def named(scope: Scope) -> tuple[str, str]:
    """The names of a model and its version that Starlette found in a path."""
    parameters = scope["path_params"]
    return unquote(parameters.get("name", "")), unquote(parameters.get("version", ""))


def gone() -> Response:
    """The answer that nobody reads."""
    return refused(RequestError(499, "the client is gone"))


def failed(error: Exception) -> Response:
    """The answer to what should not happen."""
    return JSONResponse({"error": f"the server failed: {type(error).__name__}"}, 500)
