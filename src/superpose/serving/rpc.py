"""The Open Inference Protocol v2 over gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from superpose import SuperposeError
from superpose.serving.messages import SERVICE, message, methods
from superpose.serving.request_error import RequestError
from superpose.serving.service import Answer, Service
from superpose.serving.tensors import TensorData, from_bytes, from_list
from superpose.serving.tokens import Tokens

CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
CONTENTS = {
    **{name: f"{name.lower()}_contents" for name in ("BOOL", "INT64", "FP32", "FP64")},
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "UINT8": "uint_contents",
}
STREAMED = 64  # requests of one stream that run at a time
CALLS_PER_BODY = 64


class Rpc:
    def __init__(self, service: Service, tokens: Tokens) -> None:
        self.service = service
        self.tokens = tokens
        limits = service.limits
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limits.body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", int(limits.read_seconds * 1e3)),
            ],
            maximum_concurrent_rpcs=CALLS_PER_BODY
            * max(1, limits.bodies_bytes // limits.body_bytes),
        )
        handlers = {method.name: self._handler(method) for method in methods()}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )

    async def start(self, host: str, port: int) -> int:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise SuperposeError(f"{address} cannot be listened on for gRPC") from error
        await self._server.start()
        return bound

    async def stop(self, seconds: float) -> None:
        await self._server.stop(seconds)

    async def infer(self, request: Any) -> Any:
        """Run a request; gRPC cancels it if the client disconnects."""
        with self.service.counting_errors(request.model_name):
            inputs = _inputs(request)
        answer = await self.service.infer(
            request.model_name,
            inputs,
            version=request.model_version,
            parameters=_values(request.parameters),
            outputs=[output.name for output in request.outputs],
        )
        return _response(request, answer)

    async def stream(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Run the requests of a stream side by side; answers keep their order."""
        running: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(STREAMED)

        async def start_all() -> None:
            async for request in requests:
                await running.put(asyncio.create_task(self._streamed(request)))
            await running.put(None)

        starting = asyncio.create_task(start_all())
        current: asyncio.Task[Any] | None = None
        try:
            while (current := await running.get()) is not None:
                yield await current
        finally:
            starting.cancel()
            while current is not None:
                current.cancel()
                current = None if running.empty() else running.get_nowait()

    async def _streamed(self, request: Any) -> Any:
        response = message("ModelStreamInferResponse")
        try:
            return response(infer_response=await self.infer(request))
        except RequestError as error:
            empty = message("ModelInferResponse")(id=request.id, model_name=request.model_name)
            return response(error_message=error.message, infer_response=empty)

    def _handler(self, method: Any) -> Any:
        name, service = method.name, self.service
        request_type = message(method.input_type.name)
        response_type = message(method.output_type.name)
        coding = {
            "request_deserializer": request_type.FromString,
            "response_serializer": response_type.SerializeToString,
        }
        check: Callable[[str | None], None] = self.tokens.check
        if name.startswith("RepositoryModel"):
            check = self.tokens.check_control
        elif name in ("ServerLive", "ServerReady"):
            check = _no_check

        async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async with _refusing(context, check):
                async for response in self.stream(requests):
                    yield response

        async def unary(request: Any, context: Any) -> Any:
            async with _refusing(context, check):
                if name == "ModelInfer":
                    return await self.infer(request)
                if name.startswith("RepositoryModel"):
                    verb = name.removeprefix("RepositoryModel").lower()
                    await service.change(verb, request.model_name, _values(request.parameters))
                    return response_type()
                return ParseDict(_ANSWERS[name](service, request), response_type())

        if name == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(stream, **coding)
        return grpc.unary_unary_rpc_method_handler(unary, **coding)


def _model_ready(service: Service, request: Any) -> dict[str, Any]:
    try:
        service.repository.find(request.name, request.version)
    except RequestError:
        return {"ready": False}
    return {"ready": True}


_ANSWERS: dict[str, Callable[[Service, Any], dict[str, Any]]] = {
    "ServerLive": lambda service, request: {"live": True},
    "ServerReady": lambda service, request: {"ready": not service.stopping},
    "ModelReady": _model_ready,
    "ServerMetadata": lambda service, request: service.server_metadata(),
    "ModelMetadata": lambda service, request: service.model_metadata(request.name, request.version),
    "ModelConfig": lambda service, r: {"config": service.model_config(r.name, r.version)},
    "ModelStatistics": lambda service, request: service.statistics(request.name, request.version),
    "RepositoryIndex": lambda service, request: {"models": service.index(request.ready)},
}
"""The fields of a method's answer."""


def _no_check(authorization: str | None) -> None:
    pass


@asynccontextmanager
async def _refusing(context: Any, check: Callable[[str | None], None]) -> AsyncIterator[None]:
    try:
        check(dict(context.invocation_metadata() or ()).get("authorization"))
        yield
    except RequestError as error:
        code = CODES.get(error.status, grpc.StatusCode.INVALID_ARGUMENT)
        after = error.retry_after
        trailing = () if after is None else (("retry-after", str(after)),)
        await context.abort(code, error.message, trailing)


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in parameters.items()}
    return {name: getattr(parameters[name], kind) for name, kind in chosen.items() if kind}


def _inputs(request: Any) -> dict[str, TensorData]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(400, f"{len(request.inputs)} inputs, and raw contents of {len(raw)}")
    tensors: dict[str, TensorData] = {}
    for place, item in enumerate(request.inputs):
        name, shape = item.name, list(item.shape)
        if name in tensors:
            raise RequestError(400, f"input {name!r} is there twice")
        if raw:
            if item.HasField("contents"):
                raise RequestError(400, f"input {name!r} has contents, and raw contents too")
            tensors[name] = from_bytes(name, item.datatype, shape, raw[place])
            continue
        if item.datatype not in CONTENTS:
            raise RequestError(400, f"input {name!r}: send {item.datatype} as raw contents")
        numbers = list(getattr(item.contents, CONTENTS[item.datatype]))
        tensors[name] = from_list(name, item.datatype, shape, numbers)
    return tensors


def _response(request: Any, answer: Answer) -> Any:
    response = message("ModelInferResponse")(
        model_name=request.model_name, model_version=answer.version, id=request.id
    )
    response.parameters["task"].string_param = answer.task
    if answer.unknown:
        response.parameters["unknown"].string_param = answer.unknown
    for name, tensor in answer.outputs.items():
        response.outputs.add(name=name, datatype=tensor.datatype, shape=list(tensor.shape))
        response.raw_output_contents.append(tensor.to_bytes())
    return response
