"""Readers that lose the permission: each ends where it is, and what others do goes on."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from duramen.gateway.access.authenticator import Authenticator
from duramen.gateway.access.principal import ANYBODY, Principal
from duramen.gateway.access.request_right import RequestRight
from duramen.gateway.access.running_reads import RunningReads
from duramen.gateway.edge.edge import Edge
from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.request_guard import RequestGuard

RIGHT = RequestRight("read", "a.b")
OK: Mapping[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
PART: Mapping[str, Any] = {"type": "http.response.body", "body": b"x", "more_body": True}


class Switch(Authenticator):
    """Everybody is allowed until nobody is."""

    def __init__(self) -> None:
        self.allowed = True

    def principal(self, _headers: Headers) -> Principal:
        return ANYBODY

    def is_allowed(self, _headers: Headers, right: str, name: str) -> bool:
        assert (right, name) == RIGHT
        return self.allowed

    def refresh(self) -> list[str] | None:
        return []


async def cut(kind: str, first: list[Mapping[str, Any]]) -> list[Any]:
    """What a reader is sent that has got these messages when its permission ends."""
    switch = Switch()
    reads = RunningReads(switch)
    waits = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reads.begin(Headers(scope=scope), RIGHT)
        for message in first:
            await send(dict(message))
        waits.set()
        await asyncio.Event().wait()

    async def receive() -> Any:
        return {}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    edge = Edge(app, RequestGuard({"localhost"}, set()), reads, GatewayMetrics(), EventLines(io.StringIO()))
    scope = {"type": kind, "method": "GET", "path": "/v1/stream/a/b", "headers": [(b"host", b"localhost")],
             "extensions": {"websocket.http.response": {}}}  # fmt: skip
    request = asyncio.ensure_future(edge(scope, receive, send))
    await waits.wait()
    assert reads.recheck() == 0
    switch.allowed = False
    assert reads.recheck() == 1
    await request
    assert not request.cancelling()
    assert reads.recheck() == 0
    return sent


def test_who_has_got_nothing_is_told_to_log_in() -> None:
    start, body = asyncio.run(cut("http", []))
    assert start["status"] == 401
    assert b"urn:duramen:login-needed" in body["body"]


def test_events_end_in_order() -> None:
    assert asyncio.run(cut("http", [OK, PART]))[2:] == [{"type": "http.response.body", "body": b""}]


def test_a_websocket_is_closed_with_the_reason() -> None:
    sent = asyncio.run(cut("websocket", [{"type": "websocket.accept"}]))
    assert sent[1:] == [{"type": "websocket.close", "code": 4401, "reason": "login-needed"}]


def test_a_cancellation_from_elsewhere_is_one() -> None:
    reads = RunningReads(Switch())

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        reads.begin(Headers(scope=scope), RIGHT)
        await asyncio.Event().wait()

    async def run() -> None:
        guard = RequestGuard({"localhost"}, set())
        edge = Edge(app, guard, reads, GatewayMetrics(), EventLines(io.StringIO()))
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
        nothing: Any = None
        request = asyncio.ensure_future(edge(scope, nothing, nothing))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(run())
