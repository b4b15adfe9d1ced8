"""The Open Inference Protocol v2 over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from superpose.errors import SuperposeError
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
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
STREAMED = 64  # requests of one stream that are worked on at a time
Call = Any  # grpc.aio.ServicerContext


class Rpc:
    """The calls of one service."""

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
            maximum_concurrent_rpcs=max(1, limits.bodies_bytes // limits.body_bytes) * 64,
        )
        handlers = {one.name: self._handler(one) for one in methods()}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; the port that was got."""
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            got = self._server.add_insecure_port(where)
        except RuntimeError as error:
            raise SuperposeError(f"{where} cannot be listened on for gRPC") from error
        await self._server.start()
        return got

    async def stop(self, seconds: float) -> None:
        """Take no more calls, and end those that were accepted."""
        await self._server.stop(seconds)

    async def server_live(self, asked: Any) -> dict[str, Any]:
        """The process answers."""
        return {"live": True}

    async def server_ready(self, asked: Any) -> dict[str, Any]:
        """The server takes requests."""
        return {"ready": self.service.ready()}

    async def model_ready(self, asked: Any) -> dict[str, Any]:
        """A task is served."""
        try:
            self.service.repository.find(asked.name, asked.version)
        except RequestError:
            return {"ready": False}
        return {"ready": True}

    async def server_metadata(self, asked: Any) -> dict[str, Any]:
        """Name, version and extensions."""
        return self.service.server_metadata()

    async def model_metadata(self, asked: Any) -> dict[str, Any]:
        """Inputs and outputs."""
        return self.service.model_metadata(asked.name, asked.version)

    async def model_config(self, asked: Any) -> dict[str, Any]:
        """As Triton has it."""
        return {"config": self.service.model_config(asked.name, asked.version)}

    async def model_statistics(self, asked: Any) -> dict[str, Any]:
        """As Triton has them."""
        return self.service.statistics(asked.name, asked.version)

    async def repository_index(self, asked: Any) -> dict[str, Any]:
        """All names and their states."""
        return {"models": self.service.index(asked.ready)}

    async def repository_model_load(self, asked: Any) -> dict[str, Any]:
        """Load the file again, or a task."""
        await self.service.change("load", asked.model_name, _values(asked.parameters))
        return {}

    async def repository_model_unload(self, asked: Any) -> dict[str, Any]:
        """Serve a name no longer."""
        await self.service.change("unload", asked.model_name, _values(asked.parameters))
        return {}

    async def infer(self, asked: Any) -> Any:
        """Run a request; if its client goes away the call is cancelled."""
        with self.service.counting(asked.model_name):
            inputs = _inputs(asked)
        answer = await self.service.infer(
            asked.model_name,
            inputs,
            version=asked.model_version,
            parameters=_values(asked.parameters),
            outputs=[output.name for output in asked.outputs],
        )
        return _answered(asked, answer)

    async def stream(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Requests of one stream share batches; answers keep the order of the requests."""
        running: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(STREAMED)

        async def begin() -> None:
            async for asked in requests:
                await running.put(asyncio.create_task(self._streamed(asked)))
            await running.put(None)

        beginning = asyncio.create_task(begin())
        current: asyncio.Task[Any] | None = None
        try:
            while (current := await running.get()) is not None:
                yield await current
        finally:
            beginning.cancel()
            while current is not None:
                current.cancel()
                current = None if running.empty() else running.get_nowait()

    async def _streamed(self, asked: Any) -> Any:
        response = message("ModelStreamInferResponse")
        try:
            return response(infer_response=await self.infer(asked))
        except RequestError as refusal:
            return response(
                error_message=refusal.message,
                infer_response=message("ModelInferResponse")(
                    id=asked.id, model_name=asked.model_name
                ),
            )

    def _handler(self, described: Any) -> Any:
        """How a call is read, answered and written."""
        asked = message(described.input_type.name)
        answered = message(described.output_type.name)
        reading = {
            "request_deserializer": asked.FromString,
            "response_serializer": answered.SerializeToString,
        }
        control = described.name in ("RepositoryModelLoad", "RepositoryModelUnload")
        free = described.name in ("ServerLive", "ServerReady")
        check: Callable[[str | None], None] = (
            self.tokens.check_control
            if control
            else (lambda header: None)
            if free
            else self.tokens.check
        )
        if described.name == "ModelStreamInfer":

            async def streamed(requests: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]:
                await _checked(call, check)
                async for one in self.stream(requests):
                    yield one

            return grpc.stream_stream_rpc_method_handler(streamed, **reading)

        own = self.infer if described.name == "ModelInfer" else self._told(described.name, answered)

        async def unary(request: Any, call: Call) -> Any:
            await _checked(call, check)
            try:
                return await own(request)
            except RequestError as refusal:
                await _abort(call, refusal)

        return grpc.unary_unary_rpc_method_handler(unary, **reading)

    def _told(self, name: str, answered: Any) -> Callable[[Any], Any]:
        """A call whose answer is what the service tells, field for field."""
        method = getattr(self, "".join(f"_{c.lower()}" if c.isupper() else c for c in name)[1:])

        async def told(request: Any) -> Any:
            return ParseDict(await method(request), answered())

        return told


async def _checked(call: Call, check: Callable[[str | None], None]) -> None:
    metadata = dict(call.invocation_metadata() or ())
    try:
        check(metadata.get("authorization"))
    except RequestError as refusal:
        await _abort(call, refusal)


async def _abort(call: Call, refusal: RequestError) -> None:
    code = CODES.get(refusal.status, grpc.StatusCode.INVALID_ARGUMENT)
    after = refusal.retry_after
    trailing = () if after is None else (("retry-after", str(after)),)
    await call.abort(code, refusal.message, trailing)


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as plain values."""
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in parameters.items()}
    return {name: getattr(parameters[name], kind) for name, kind in chosen.items() if kind}


def _inputs(asked: Any) -> dict[str, TensorData]:
    raw = asked.raw_input_contents
    if raw and len(raw) != len(asked.inputs):
        raise RequestError(400, f"{len(asked.inputs)} inputs, and raw contents of {len(raw)}")
    tensors: dict[str, TensorData] = {}
    for place, given in enumerate(asked.inputs):
        name, shape = given.name, list(given.shape)
        if name in tensors:
            raise RequestError(400, f"input {name!r} is there twice")
        if raw:
            if given.HasField("contents"):
                raise RequestError(400, f"input {name!r} has contents, and raw contents too")
            tensors[name] = from_bytes(name, given.datatype, shape, raw[place])
            continue
        if given.datatype not in CONTENTS:
            raise RequestError(400, f"input {name!r}: send {given.datatype} as raw contents")
        numbers = list(getattr(given.contents, CONTENTS[given.datatype]))
        tensors[name] = from_list(name, given.datatype, shape, numbers)
    return tensors


def _answered(asked: Any, answer: Answer) -> Any:
    response = message("ModelInferResponse")(
        model_name=asked.model_name, model_version=answer.version, id=asked.id
    )
    response.parameters["task"].string_param = answer.task
    if answer.unknown:
        response.parameters["unknown"].string_param = answer.unknown
    for name, tensor in answer.outputs.items():
        response.outputs.add(name=name, datatype=tensor.datatype, shape=list(tensor.shape))
        response.raw_output_contents.append(tensor.to_bytes())
    return response
