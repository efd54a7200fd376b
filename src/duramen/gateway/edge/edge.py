"""What every request goes through: who may ask, headers for browsers, counts, and a line where it failed."""

from __future__ import annotations

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.refusals import refusal_form
from duramen.gateway.edge.request_guard import RequestGuard

_LIVE = (b"live=sse", b"live=long-poll")


class Edge:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, guard: RequestGuard, metrics: GatewayMetrics, events: EventLines) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        started = time.monotonic()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *self._added(origin)]
            await send(message)

        try:
            self._guard.check(scope["method"], headers.get("host"), origin, headers.get("sec-fetch-site"))
        except ProblemError as problem:
            scope["duramen.problem"] = problem
            body, added = refusal_form(scope["path"], problem)
            await _send(sending, problem.status, added, body)
        else:
            if scope["method"] == "OPTIONS":
                await _send(sending, 204, self._guard.preflight_headers(origin), b"")
            else:
                await self._app(scope, receive, sending)
        self._count(scope, status, time.monotonic() - started)

    def _added(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        added = {
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": self._guard.resource_policy,
            **self._guard.cors_headers(origin),
        }
        return [(name.encode(), value.encode("latin-1")) for name, value in added.items()]

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        operation = scope.get("duramen.operation", "other")
        if scope.get("duramen.abandoned"):
            self._metrics.abandoned.inc()
            return
        self._metrics.requests.labels(operation, str(status)).inc()
        if not any(live in scope.get("query_string", b"") for live in _LIVE):
            self._metrics.seconds.labels(operation).observe(seconds)
        problem = scope.get("duramen.problem")
        if problem is not None:
            self._events.write(
                "error" if status == 500 else "warning" if status > 500 else "info",
                "request-failed",
                status=status,
                code=problem.code,
                method=scope["method"],
                path=scope["path"],
                detail=problem.detail,
                ms=round(seconds * 1000),
            )


async def _send(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    if status != 204:
        raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
