"""What a row of the table of routes says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from duramen.gateway.routes.errors import ANY_ACCESS, ANY_REQUEST

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


DURABLE_STREAM: Final = "/v1/stream/{path}"
"""The path of the protocol Durable Streams; what lies below a stream is ours."""

OPEN: Final = "open"
KNOWN: Final = "known"
LISTED: Final = "listed"
COOKIE: Final = "duramen-token"
"""Where a page's token travels: an EventSource sends no headers of its own."""


class RouteRow(NamedTuple):
    """One method of one path. body: what is sent, "" nothing; body_type: its JSON, where
    that is one type.

    right: what a permission has to give on the resource: read, write or admin; KNOWN: anybody who is known, OPEN:
    everybody; LISTED: anybody who is known, and the answer has only the names that they may read. The first parameter
    of the path that `RequestRight` knows names the resource; without, it is everything.
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
    right: str = ""

    @property
    def is_socket(self) -> bool:
        """Whether it is for a WebSocket."""
        return any(answer.status == 101 for answer in self.answers)

    @property
    def is_durable_streams(self) -> bool:
        """Whether it is one of the protocol's own, which clients may give parameters that nobody knows."""
        return self.path == DURABLE_STREAM

    @property
    def refuses_parameters(self) -> bool:
        """Whether a query parameter that it does not have is refused."""
        return self.path.startswith("/v1/") and not self.is_durable_streams

    @property
    def all_errors(self) -> tuple[str, ...]:
        """Codes of all problems that it may be answered with."""
        login = () if self.right == OPEN else ("login-needed",) if self.right in (KNOWN, LISTED) else ANY_ACCESS
        compressed = ("unsupported-type",) if self.body else ()
        named = ("bad-request",) if self.refuses_parameters else ()
        return tuple(dict.fromkeys((*self.errors, *named, *compressed, *login, *ANY_REQUEST)))
