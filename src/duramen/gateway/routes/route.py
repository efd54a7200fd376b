"""What a row of the table of routes says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

Handler = Callable[[Request], Awaitable[Response]]
"""What answers an operation."""

SocketHandler = Callable[[WebSocket], Awaitable[None]]
"""What serves an operation whose connection becomes a WebSocket."""


class Parameter(NamedTuple):
    """A parameter of a route. place: path, query or header."""

    name: str
    place: str
    meaning: str
    required: bool = False


class RouteAnswer(NamedTuple):
    """A success. headers: names of those it has; content: the media type of its body, "" for none; body: its JSON."""

    status: int
    meaning: str
    headers: tuple[str, ...] = ()
    content: str = ""
    body: type[msgspec.Struct] | None = None


class RouteRow(NamedTuple):
    """One method of one path. operation and resource: what a permission would name; body: what is sent, "" nothing.

    body_type: its JSON, where that is one type.
    """

    method: str
    path: str
    operation: str
    resource: str
    summary: str
    answers: tuple[RouteAnswer, ...]
    errors: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: str = ""
    body_type: type[msgspec.Struct] | None = None

    @property
    def is_socket(self) -> bool:
        """Whether it is for a WebSocket."""
        return any(answer.status == 101 for answer in self.answers)
