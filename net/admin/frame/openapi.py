"""`/openapi.json`, generated from the table of routes, so it lists exactly the paths that are served."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from .call import Field, Json, Route

JSON: Final = "application/json"


def document(routes: Sequence[Route]) -> Json:
    """The API as an OpenAPI 3.1 document."""
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Barnabas admin API",
            "version": "3",
            "description": "Uses paths and objects of Confluent's REST API v3 where they exist.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


_ERROR: Json = {
    "type": "object",
    "required": ["error_code", "message"],
    "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}},
}


# Of every answer that comes from the metadata of the cluster.
_UNCONFIRMED: Final = Field(
    name="unconfirmed", type="object", description="Only without a quorum: how old the metadata is, and who is down."
)


def _operation(route: Route) -> Json:
    operation: Json = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "responses": {
            **{str(int(status)): _answer(route, status) for status in (route.status, *route.also)},
            "default": {
                "description": "An error",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    names = re.findall(r"\{(\w+)\}", route.path)
    if names or route.query:
        operation["parameters"] = [_parameter(name) for name in names] + [_query(field) for field in route.query]
    if route.body:
        schema = {"schema": _schema(route.body)}
        operation["requestBody"] = {"required": True, "content": {"application/json": schema}}
    return operation


def _answer(route: Route, status: int) -> Json:
    answer: Json = {"description": HTTPStatus(status).phrase}
    if route.answer:
        fields = route.answer
        if route.method == "GET" and route.path.startswith("/v3/") and _UNCONFIRMED.name not in _names(fields):
            fields = (*fields, _UNCONFIRMED)
        answer["content"] = {"application/json": {"schema": _schema(fields, is_open=True)}}
    elif route.media != JSON:
        answer["content"] = {route.media: {"schema": {"type": "string"}}}
    for media in route.also_media:
        answer["content"][media] = {"schema": {"type": "string"}}
    return answer


def _names(fields: Sequence[Field]) -> set[str]:
    return {field.name for field in fields}


def _operation_id(route: Route) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", route.path.replace("/-/", "/all/").lower()).strip("_")
    return f"{route.method.lower()}_{words}"


def _parameter(name: str) -> Json:
    kind = "integer" if name in ("broker_id", "partition_id") else "string"
    return {"name": name, "in": "path", "required": True, "schema": {"type": kind}}


def _query(field: Field) -> Json:
    return {"name": field.name, "in": "query", "description": field.description, "schema": {"type": field.type}}


def _schema(fields: Sequence[Field], *, is_open: bool = False) -> Json:
    """`is_open`: answers may get more fields, without another version of the API."""
    properties: dict[str, Any] = {field.name: _property(field, is_open=is_open) for field in fields}
    required = [field.name for field in fields if field.required]
    shape: Json = {"type": "object", "properties": properties, "additionalProperties": is_open}
    return shape | ({"required": required} if required else {})


def _property(field: Field, *, is_open: bool) -> Json:
    shape: Json = {"description": field.description}
    if field.type != "any":
        shape["type"] = [field.type, "null"] if field.nullable else field.type
    if field.only:
        shape["const"] = field.only
    if field.items:
        shape["items"] = {"type": field.items}
    if not field.fields:
        return shape
    inner = _schema(field.fields, is_open=is_open)
    return shape | ({"items": inner} if field.type == "array" else inner | {"type": shape["type"]})
