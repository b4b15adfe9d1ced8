"""The protocol over HTTP in OpenAPI 3.1: what Schemathesis makes requests of."""

from typing import Any

from superpose.serving.tensors import DATATYPES

STATUSES = ["400", "401", "403", "404", "405", "408", "409", "413", "415", "422", "429", "503"]


def array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapping(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


TEXT, DATATYPE = {"type": "string"}, {"enum": list(DATATYPES)}
SHAPE = array({"type": "integer", "minimum": 0})
ANYTHING = {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean"]}}
REQUEST = mapping(
    "inputs",
    id=TEXT,
    parameters=mapping(
        task=TEXT,
        unknown={"enum": ["refuse", "nearest"]},
        timeout={"type": "integer", "minimum": 0},
        binary_data_output={"type": "boolean"},
    ),
    inputs=array(
        mapping(
            "name datatype shape data",
            name=TEXT,
            datatype=DATATYPE,
            shape=SHAPE,
            parameters=ANYTHING,
            data={"type": "array"},
        )
    ),
    outputs=array(mapping("name", name=TEXT, parameters=ANYTHING)),
)
OUTPUT = mapping(
    "name datatype shape", name=TEXT, datatype=DATATYPE, shape=SHAPE, data={"type": "array"}
)
ANSWER = mapping(
    "model_name model_version outputs",
    model_name=TEXT,
    model_version=TEXT,
    id=TEXT,
    parameters=ANYTHING,
    outputs=array(OUTPUT),
)
MODEL = {
    "": ("get", None),
    "/ready": ("get", None),
    "/config": ("get", None),
    "/stats": ("get", None),
    "/infer": ("post", REQUEST),
}
PATHS = {
    "/v2/health/live": ("get", None),
    "/v2/health/ready": ("get", None),
    "/v2": ("get", None),
    "/v2/models/stats": ("get", None),
    **{"/v2/models/{name}" + end: of for end, of in MODEL.items()},
    **{"/v2/models/{name}/versions/{version}" + end: of for end, of in MODEL.items()},
    "/v2/repository/index": ("post", mapping(ready={"type": "boolean"})),
    "/v2/repository/models/{name}/load": ("post", mapping(parameters=mapping())),
    "/v2/repository/models/{name}/unload": ("post", mapping(parameters=ANYTHING)),
}


def content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def operation(path: str, body: Any) -> dict[str, Any]:
    names = [name for name in ("name", "version") if f"{{{name}}}" in path]
    schema = {"type": "string", "minLength": 1}
    answer = content(ANSWER if path.endswith("/infer") else {})
    failure = {"description": "", "content": content(mapping("error", error=TEXT))}
    made = {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": schema} for name in names
        ],
        "responses": {
            "200": {"description": "", "content": answer},
            **dict.fromkeys(STATUSES, failure),
        },
    }
    if body is not None:
        required = path.endswith("/infer")
        made["requestBody"] = {"required": required, "content": content(body)}
    return made


def document() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "superpose", "version": "2"},
        "paths": {path: {verb: operation(path, body)} for path, (verb, body) in PATHS.items()},
        "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"bearer": []}],
    }
