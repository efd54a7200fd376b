"""What every request goes through: who may ask, headers for browsers, counts, and a line where it failed."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duramen.gateway.access.authenticator import login_needed
from duramen.gateway.access.principal import SENDER, Principal
from duramen.gateway.access.running_reads import RunningReads
from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.http_protocol import chunks_of
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.refusals import refusal_form
from duramen.gateway.edge.request_guard import UPGRADE, RequestGuard

_LIVE = (b"live=sse", b"live=long-poll")
_DENIAL = "websocket.http.response"
_HEADS = ("http.response.start", "websocket.http.response.start", "websocket.accept")


class Edge:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: ASGIApp,
        guard: RequestGuard,
        reads: RunningReads,
        metrics: GatewayMetrics,
        events: EventLines,
    ) -> None:
        self._app = app
        self._guard = guard
        self._reads = reads
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
            self._guard.check(method, _only(headers.getlist("host")), origin, headers.get("sec-fetch-site"))
        except ProblemError as problem:
            scope["duramen.problem"] = problem
            await refuse(scope, sending, problem)
        else:
            if method == "OPTIONS":
                await _send(sending, 204, self._guard.preflight_headers(origin), b"")
            else:
                await self._answered(scope, receive, sending)
        self._count(scope, method, status, time.monotonic() - started)

    async def _answered(self, scope: Scope, receive: Receive, sending: Send) -> None:
        """Answer it; a reader that may not read any more is told so, or its answer ends where it is."""
        started = has_length = False

        async def watching(message: Message) -> None:
            nonlocal started, has_length
            if message["type"] in _HEADS:
                started = True
                has_length = any(name == b"content-length" for name, _ in message.get("headers", ()))
            await sending(message)

        try:
            await self._app(scope, receive, watching)
        except asyncio.CancelledError:
            if not self._reads.was_cut():
                raise
            problem = login_needed("the right to read it is gone", "Bearer")
            chunks = chunks_of(scope)
            if not started:
                scope["duramen.problem"] = problem
                await refuse(scope, sending, problem)
            elif scope["type"] == "websocket":
                await sending({"type": "websocket.close", "code": 4000 + problem.status, "reason": problem.code})
            elif chunks is None or (chunks.is_ready() and not has_length):
                await sending({"type": "http.response.body", "body": b""})
            else:
                chunks.abort()
                await asyncio.sleep(0)
        finally:
            self._reads.end()

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
        principal: Principal | None = scope.get(SENDER)
        if problem is not None:
            self._events.write(
                "error" if problem.code == "bug" else "warning" if status > 500 else "info",
                "request-failed",
                status=status,
                code=problem.code,
                method=method,
                path=scope["path"],
                **({"principal": principal.name} if principal is not None and principal.name else {}),
                detail=problem.detail,
                ms=round(seconds * 1000),
            )


def _only(values: list[str]) -> str | None:
    return values[0] if len(values) == 1 else None


async def refuse(scope: Scope, send: Send, problem: ProblemError) -> None:
    """Answer a request, or one for a WebSocket that is not open yet, with a problem."""
    status, body, headers = refusal_form(scope["path"], problem)
    if scope["type"] == "http":
        await _send(send, status, headers, body)
    elif _DENIAL in scope.get("extensions", {}):
        await _send(send, status, headers, body, _DENIAL)
    else:
        await send({"type": "websocket.close"})


async def _send(send: Send, status: int, headers: dict[str, str], body: bytes, kind: str = "http.response") -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    if status != 204:
        raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": f"{kind}.start", "status": status, "headers": raw})
    await send({"type": f"{kind}.body", "body": body})
