"""The server's own description of its HTTP interface, in OpenAPI 3.1."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from superpose.serving.service import NEAREST, REFUSE
from superpose.serving.tensors import DATATYPES

STATUSES = {
    "400": "The request is malformed, or does not fit the model.",
    "401": "A token is needed.",
    "403": "Control calls are off.",
    "404": "There is no such model, task or version.",
    "405": "There is no such method here.",
    "408": "The timeout ended, or the request took too long to arrive.",
    "409": "The change cannot be made; what was served before still is.",
    "413": "The request is too large.",
    "415": "The body is compressed.",
    "422": "The network cannot compute these inputs, no task fits, or JSON has no such number.",
    "429": "The queue is full: try again after Retry-After seconds.",
    "503": "The server is stopping, or out of memory.",
}
OBJECT: dict[str, Any] = {"type": "object"}
PARAMETERS = {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean"]}}
SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}}
REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {
            "type": "object",
            "properties": {
                "task": {"type": "string", "description": "of the whole model; or auto"},
                "unknown": {
                    "enum": [REFUSE, NEAREST],
                    "description": "what is done with rows that fit no task, if task is auto",
                },
                "timeout": {"type": "integer", "minimum": 0, "description": "microseconds"},
                "binary_data_output": {"type": "boolean"},
            },
        },
        "inputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "datatype", "shape", "data"],
                "properties": {
                    "name": {"type": "string"},
                    "datatype": {"enum": list(DATATYPES)},
                    "shape": SHAPE,
                    "parameters": PARAMETERS,
                    "data": {"type": "array"},
                },
            },
        },
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": PARAMETERS},
            },
        },
    },
}
RESPONSE = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "parameters": PARAMETERS,
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "datatype", "shape"],
                "properties": {
                    "name": {"type": "string"},
                    "datatype": {"enum": list(DATATYPES)},
                    "shape": SHAPE,
                    "data": {"type": "array"},
                },
            },
        },
    },
}
INDEX = {"type": "object", "properties": {"ready": {"type": "boolean"}}}
CHANGE = {
    "type": "object",
    "properties": {
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: {"type": "string"} for name in ("file", "old", "calibration")},
        }
    },
}


def description() -> dict[str, Any]:
    """The document at `/openapi.json`."""
    one: list[tuple[str, str, str, Any]] = [
        ("", "get", "Inputs and outputs of a task.", None),
        ("/ready", "get", "Whether a task is served.", None),
        ("/config", "get", "The configuration of a task.", None),
        ("/stats", "get", "Counts and times of a task.", None),
        ("/infer", "post", "Run rows under a task.", REQUEST),
    ]
    models = "/v2/models/{name}"
    change = "/v2/repository/models/{name}"
    paths = [
        ("/v2/health/live", "get", "The process answers.", None),
        ("/v2/health/ready", "get", "The server takes requests.", None),
        ("/v2", "get", "Name, version and extensions.", None),
        ("/v2/models/stats", "get", "Counts and times of all tasks.", None),
        *((models + end, *rest) for end, *rest in one),
        *((models + "/versions/{version}" + end, *rest) for end, *rest in one),
        ("/v2/repository/index", "post", "All names and their states.", INDEX),
        (change + "/load", "post", "Load the file again, or a task.", CHANGE),
        (change + "/unload", "post", "Serve a name no longer.", CHANGE),
    ]
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "superpose", "version": version("superpose")},
        "paths": {},
        "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"bearer": []}],
    }
    for path, method, summary, body in paths:
        document["paths"].setdefault(path, {})[method] = _operation(path, summary, body)
    return document


def _operation(path: str, summary: str, body: Any) -> dict[str, Any]:
    named = [name for name in ("name", "version") if f"{{{name}}}" in path]
    answer = RESPONSE if path.endswith("/infer") else {}
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
            }
            for name in named
        ],
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {"schema": answer}}},
            **{status: _failure(told) for status, told in STATUSES.items()},
        },
    }
    if body is not None:
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": path.endswith("/infer"), "content": content}
    return operation


def _failure(told: str) -> dict[str, Any]:
    schema = {**OBJECT, "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {"description": told, "content": {"application/json": {"schema": schema}}}
