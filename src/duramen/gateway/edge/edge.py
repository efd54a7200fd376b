"""What every request goes through: who may ask, headers for browsers, counts, and a line where it failed."""

from __future__ import annotations

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.refusals import refusal_form
from duramen.gateway.edge.request_guard import UPGRADE, RequestGuard

_LIVE = (b"live=sse", b"live=long-poll")
_DENIAL = "websocket.http.response"
_HEADS = ("http.response.start", "websocket.http.response.start", "websocket.accept")


class Edge:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, guard: RequestGuard, metrics: GatewayMetrics, events: EventLines) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["type"] == "http" else UPGRADE
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        started = time.monotonic()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] in _HEADS:
                status = message.get("status", 101)
                message["headers"] = [*message.get("headers", ()), *self._added(origin)]
            await send(message)

        try:
            self._guard.check(method, headers.get("host"), origin, headers.get("sec-fetch-site"))
        except ProblemError as problem:
            scope["duramen.problem"] = problem
            await _refuse(scope, sending, problem)
        else:
            if method == "OPTIONS":
                await _send(sending, 204, self._guard.preflight_headers(origin), b"")
            else:
                await self._app(scope, receive, sending)
        self._count(scope, method, status, time.monotonic() - started)

    def _added(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        added = {
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": self._guard.resource_policy,
            **self._guard.cors_headers(origin),
        }
        return [(name.encode(), value.encode("latin-1")) for name, value in added.items()]

    def _count(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        operation = scope.get("duramen.operation", "other")
        if scope.get("duramen.abandoned"):
            self._metrics.abandoned.inc()
            return
        self._metrics.requests.labels(operation, str(status)).inc()
        if method != UPGRADE and not any(live in scope.get("query_string", b"") for live in _LIVE):
            self._metrics.seconds.labels(operation).observe(seconds)
        problem = scope.get("duramen.problem")
        if problem is not None:
            self._events.write(
                "error" if status == 500 else "warning" if status > 500 else "info",
                "request-failed",
                status=status,
                code=problem.code,
                method=method,
                path=scope["path"],
                detail=problem.detail,
                ms=round(seconds * 1000),
            )


async def _refuse(scope: Scope, send: Send, problem: ProblemError) -> None:
    body, headers = refusal_form(scope["path"], problem)
    if scope["type"] == "http":
        await _send(send, problem.status, headers, body)
    elif _DENIAL in scope.get("extensions", {}):
        await _send(send, problem.status, headers, body, _DENIAL)
    else:
        await send({"type": "websocket.close"})


async def _send(send: Send, status: int, headers: dict[str, str], body: bytes, kind: str = "http.response") -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    if status != 204:
        raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": f"{kind}.start", "status": status, "headers": raw})
    await send({"type": f"{kind}.body", "body": body})
