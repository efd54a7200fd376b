"""A refusal in the form of the API that was asked: a problem of RFC 9457, or an error of Confluent's API. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from duramen.gateway.confluent.rest_errors import V2_JSON, V3_JSON, rest_error, rest_status, version_of
from duramen.gateway.edge.problem import MEDIA_TYPE, ProblemError

_TYPES: Final = {0: MEDIA_TYPE, 2: V2_JSON, 3: V3_JSON}


class RefusalForm(NamedTuple):
    """What is sent."""

    status: int
    body: bytes
    headers: dict[str, str]


def refusal_form(path: str, problem: ProblemError) -> RefusalForm:
    """The answer to a request of this path."""
    version = version_of(path)
    body = msgspec.json.encode(rest_error(version, problem)) if version else problem.body()
    status = rest_status(version, problem.code, problem.status)
    return RefusalForm(status, body, {**problem.headers, "content-type": refusal_type(path)})


def refusal_type(path: str) -> str:
    """Its media type."""
    return _TYPES[version_of(path)]
