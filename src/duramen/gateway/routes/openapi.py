"""`/openapi.json`: the table of routes as OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from duramen.gateway.edge.problem import MEDIA_TYPE, ProblemBody
from duramen.gateway.routes.errors import ANY_REQUEST, ERRORS
from duramen.gateway.routes.route import RouteRow
from duramen.version import VERSION


def openapi(routes: Sequence[RouteRow]) -> dict[str, Any]:
    """The description of these routes."""
    _, schemas = msgspec.json.schema_components([ProblemBody], ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for row in routes:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Duramen gateway", "version": VERSION, "description": "Streams over HTTP."},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(row: RouteRow) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": row.operation, "summary": row.summary, "tags": [row.resource]}
    if row.parameters:
        operation["parameters"] = [
            {
                "name": parameter.name,
                "in": parameter.place,
                "description": parameter.meaning,
                "required": parameter.required,
                "schema": {"type": "string"},
            }
            for parameter in row.parameters
        ]
    if row.body:
        operation["requestBody"] = {"description": row.body, "required": False, "content": {"*/*": {}}}
    operation["responses"] = _responses(row)
    return operation


def _responses(row: RouteRow) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for answer in row.answers:
        responses[str(answer.status)] = {
            "description": answer.meaning,
            **(
                {"headers": {name: {"schema": {"type": "string"}} for name in answer.headers}} if answer.headers else {}
            ),
            **({"content": {answer.content: {}}} if answer.content else {}),
        }
    by_status: dict[int, list[str]] = {}
    for code in (*row.errors, *ANY_REQUEST):
        by_status.setdefault(ERRORS[code][0], []).append(code)
    for status, codes in sorted(by_status.items()):
        responses[str(status)] = {
            "description": ", ".join(codes),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
        }
    return responses
