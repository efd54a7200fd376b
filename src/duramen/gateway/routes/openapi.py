"""`/openapi.json`: the table of routes as OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from duramen.gateway.confluent.rest_errors import RestError, rest_status, version_of
from duramen.gateway.edge.media_type import JSON
from duramen.gateway.edge.problem import ProblemBody
from duramen.gateway.edge.refusals import refusal_type
from duramen.gateway.routes.errors import ERRORS
from duramen.gateway.routes.route import COOKIE, OPEN, RouteRow
from duramen.version import VERSION

References = Mapping[type[msgspec.Struct], dict[str, Any]]
"""Of the schema of each type of bodies."""


def openapi(routes: Sequence[RouteRow]) -> dict[str, Any]:
    """The description of these routes."""
    named = [answer.body for row in routes for answer in row.answers] + [row.body_type for row in routes]
    types: list[type[msgspec.Struct]] = list(dict.fromkeys([ProblemBody, RestError, *filter(None, named)]))
    found, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    references: References = dict(zip(types, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in routes:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Duramen gateway", "version": VERSION, "description": "Streams over HTTP."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
        "security": [{"token": []}, {"cookie": []}, {}],
    }


_FRAMING: Final = ("Transfer-Encoding", "Content-Length")
"""Headers that say where a body ends: programs that are made from the description set them on their own."""


def _operation(row: RouteRow, references: References) -> dict[str, Any]:
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
            if parameter.name not in _FRAMING
        ]
    if row.body:
        content = {"*/*": {}} if row.body_type is None else {JSON: {"schema": references[row.body_type]}}
        operation["requestBody"] = {"description": row.body, "required": False, "content": content}
    if row.right == OPEN:
        operation["security"] = []
    operation["responses"] = _responses(row, references)
    return operation


def _responses(row: RouteRow, references: References) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for answer in row.answers:
        responses[str(answer.status)] = {
            "description": answer.meaning,
            **(
                {"headers": {name: {"schema": {"type": "string"}} for name in answer.headers}} if answer.headers else {}
            ),
            **({"content": {answer.content: _schema(answer.body, references)}} if answer.content else {}),
        }
    form = refusal_type(row.path)
    version = version_of(row.path)
    body = RestError if version else ProblemBody
    by_status: dict[int, list[str]] = {}
    for code in row.all_errors:
        by_status.setdefault(rest_status(version, code, ERRORS[code][0]), []).append(code)
    for status, codes in sorted(by_status.items()):
        responses[str(status)] = {
            "description": ", ".join(codes),
            "content": {form: {"schema": references[body]}},
        }
    return responses


def _schema(body: type[msgspec.Struct] | None, references: References) -> dict[str, Any]:
    return {} if body is None else {"schema": references[body]}
