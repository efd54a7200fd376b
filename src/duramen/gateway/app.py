"""The ASGI application: the table of routes over the handlers, and what every request goes through."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from duramen.client.aio import AsyncCluster
from duramen.errors import DuramenError
from duramen.gateway.access.authenticator import Authenticator
from duramen.gateway.access.principal import SENDER
from duramen.gateway.access.request_right import check_rows, right_of
from duramen.gateway.access.running_reads import RunningReads
from duramen.gateway.edge import metrics as metrics_page
from duramen.gateway.edge.edge import Edge, refuse
from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.refusals import refusal_form
from duramen.gateway.edge.request_guard import RequestGuard
from duramen.gateway.routes.openapi import openapi
from duramen.gateway.routes.query_names import QueryNames
from duramen.gateway.routes.route import OPEN, Handler, RouteRow, SocketHandler
from duramen.gateway.routes.table import ROUTES

_STREAMS = "/v1/stream/"
_STREAM_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})

READY_S = 2.0
"""How long `/readyz` waits for the cluster."""


def make_app(
    handlers: Mapping[str, Handler],
    sockets: Mapping[str, SocketHandler],
    cluster: AsyncCluster,
    guard: RequestGuard,
    authenticator: Authenticator,
    reads: RunningReads,
    metrics: GatewayMetrics,
    events: EventLines,
) -> Edge:
    """The application. handlers, sockets: by the operation of a route, all but those of the process itself."""
    check_rows(ROUTES)
    access = RouteAccess(authenticator, reads)

    async def health(_request: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def readiness(_request: Request) -> Response:
        try:
            async with asyncio.timeout(READY_S):
                await cluster.metadata([])
        except TimeoutError:
            raise ProblemError(503, "node-away", "no node of the cluster answers", retriable=True) from None
        return Response(b"ready\n", media_type="text/plain")

    async def counters(_request: Request) -> Response:
        return Response(metrics.page(), headers={"content-type": metrics_page.MEDIA_TYPE})

    description = msgspec.json.encode(openapi(ROUTES))

    async def described(_request: Request) -> Response:
        return Response(description, media_type="application/json")

    async def upgrade_needed(_request: Request) -> Response:
        raise ProblemError(
            426, "upgrade-needed", "this path is for a WebSocket", {"upgrade": "websocket", "connection": "upgrade"}
        )

    every = {
        **handlers,
        **dict.fromkeys(sockets, upgrade_needed),
        "health": health,
        "readiness": readiness,
        "metrics": counters,
        "openapi": described,
    }
    app = Starlette(
        routes=[route for path, rows in _by_path().items() for route in _routes(path, rows, every, sockets, access)],
        exception_handlers={
            ProblemError: _refused,
            DuramenError: _failed,
            HTTPException: _not_there,
            ClientDisconnect: _left,
            Exception: _bug,
        },
    )
    app.router.redirect_slashes = False
    return Edge(app, guard, reads, metrics, events)


class RouteAccess:
    """Who may use the routes of one gateway."""

    def __init__(self, authenticator: Authenticator, reads: RunningReads) -> None:
        self._authenticator = authenticator
        self._reads = reads

    def enter(self, connection: HTTPConnection, row: RouteRow) -> None:
        """Problem 401 or 403. What only reads is asked again as long as it is answered."""
        if row.right == OPEN:
            return
        principal = self._authenticator.principal(connection.headers)
        connection.scope[SENDER] = principal
        right = right_of(row, connection.path_params)
        right.check(principal)
        if row.right == "read":
            self._reads.begin(connection.headers, right)


def _by_path() -> Mapping[str, list[RouteRow]]:
    found: dict[str, list[RouteRow]] = {}
    for row in ROUTES:
        found.setdefault(row.path, []).append(row)

    def place(path: str) -> tuple[bool, bool]:
        """Routes are tried one after the other: those of streams first, and what takes all that is left last."""
        return not path.startswith(_STREAMS), path.endswith("{path}")

    return {path: found[path] for path in sorted(found, key=place)}


def _routes(
    path: str,
    rows: list[RouteRow],
    handlers: Mapping[str, Handler],
    sockets: Mapping[str, SocketHandler],
    access: RouteAccess,
) -> list[BaseRoute]:
    by_method = {row.method: row for row in rows}
    query_names = {row.operation: QueryNames(row) for row in rows}

    async def answer(request: Request) -> Response:
        row = by_method.get(request.method) or by_method["GET"]  # HEAD of what only knows GET
        request.scope["duramen.operation"] = row.operation
        access.enter(request, row)
        query_names[row.operation].check(request.query_params)
        return await handlers[row.operation](request)

    pattern = path.replace("{path}", "{path:path}").replace("{consumer_id}", "{consumer_id:path}")  # base64 has slashes
    found: list[BaseRoute] = [Route(pattern, answer, methods=list(by_method))]
    if path.startswith(_STREAMS) and not path.endswith("{path}"):  # else what takes all that is left takes its POST
        served = {*by_method, *(["HEAD"] if "GET" in by_method else [])}
        found.append(Route(pattern, _refused_method(served), methods=sorted(_STREAM_METHODS - served)))
    found += [
        WebSocketRoute(pattern, _socket(row, sockets[row.operation], access, query_names[row.operation]))
        for row in rows
        if row.is_socket
    ]
    return found


def _refused_method(served: Iterable[str]) -> Handler:
    allow = {"allow": ", ".join(sorted(served))}

    async def refused(request: Request) -> Response:
        raise _no_such_method(request, allow)

    return refused


def _no_such_method(request: Request, headers: Mapping[str, str]) -> ProblemError:
    return ProblemError(405, "no-such-method", f"{request.method} is not served here", headers)


def _socket(row: RouteRow, handler: SocketHandler, access: RouteAccess, names: QueryNames) -> SocketHandler:
    async def serve(socket: WebSocket) -> None:
        socket.scope["duramen.operation"] = row.operation
        try:
            access.enter(socket, row)
            names.check(socket.query_params)
        except ProblemError as problem:
            socket.scope["duramen.problem"] = problem
            await socket.receive()  # that it wants to connect
            await refuse(socket.scope, socket.send, problem)
        else:
            await handler(socket)

    return serve


def _said(request: Request, problem: ProblemError) -> Response:
    request.scope["duramen.problem"] = problem
    status, body, headers = refusal_form(request.scope["path"], problem)
    return Response(body, status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    return _said(request, error) if isinstance(error, ProblemError) else await _bug(request, error)


async def _failed(request: Request, error: Exception) -> Response:
    return _said(request, problem_of(error)) if isinstance(error, DuramenError) else await _bug(request, error)


async def _not_there(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        return _said(request, _no_such_method(request, error.headers or {}))
    return _said(request, ProblemError(404, "not-found", "there is nothing here; /openapi.json lists what there is"))


async def _left(request: Request, _error: Exception) -> Response:
    request.scope["duramen.abandoned"] = True
    return Response(status_code=400)


async def _bug(request: Request, error: Exception) -> Response:
    detail = f"{type(error).__name__}: a fault of the gateway; its log has the place"
    return _said(request, ProblemError(500, "bug", detail))
