"""How long a gateway waits for the one that holds a consumer."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from starlette.requests import Request

from duramen.gateway.access.peer_trust import PeerTrust
from duramen.gateway.consumers.consumer_place import ConsumerKey, ConsumerPlace, GatewayIdentity
from duramen.gateway.consumers.consumer_places import ConsumerPlaces
from duramen.gateway.consumers.request_relay import RequestRelay
from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.request_body import RequestBodies

KEY = ConsumerKey("g", "c")
LATE_S, NEVER_S = 0.3, 60.0
"""After which the other gateway answers: LATE_S is above the time limit, and below that with a read in front."""
LIMIT_S, READ_S = 0.1, 10.0
PATIENCE_S = 5.0


class NoBodies:
    @asynccontextmanager
    async def whole(self, _request: Request) -> AsyncIterator[bytes]:
        yield b""


class WatchedPlaces:
    def __init__(self) -> None:
        self.removed: list[Mapping[str, str]] = []

    async def all(self) -> dict[str, ConsumerPlace]:
        return {}

    async def remove(self, gone: Mapping[str, str]) -> None:
        self.removed.append(gone)


def asked(method: str) -> Request:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    path = b"/consumers/g/instances/c"
    scope = {"type": "http", "method": method, "raw_path": path, "query_string": b"", "headers": []}
    return Request(scope, receive)


def run(test: Callable[[RequestRelay, ConsumerPlace], Awaitable[Any]], answer_s: float) -> WatchedPlaces:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(TimeoutError):
            async with asyncio.timeout(answer_s):
                await reader.read()  # until the client hangs up
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()
        closed.set()

    closed = asyncio.Event()

    async def with_gateway() -> WatchedPlaces:
        places = WatchedPlaces()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            relay = RequestRelay(
                cast(ConsumerPlaces, places),
                GatewayIdentity("here", "http://127.0.0.1:1", "m"),
                cast(RequestBodies, NoBodies()),
                PeerTrust(""),
                LIMIT_S,
                READ_S,
                EventLines(io.StringIO()),
                GatewayMetrics(),
            )
            async with asyncio.timeout(PATIENCE_S):
                await test(relay, ConsumerPlace("id", "there", address, "m"))
                await closed.wait()
            await asyncio.sleep(0.01)  # the transports' turn
        return places

    return asyncio.run(with_gateway())


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_read_may_be_in_front_of_a_request(method: str) -> None:
    async def test(relay: RequestRelay, place: ConsumerPlace) -> None:
        request = asked(method)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await (await relay.relayed(request, KEY, place))(request.scope, request.receive, send)
        assert sent[0]["status"] == 204

    run(test, LATE_S)


def test_nothing_that_waits_is_in_front_of_an_end() -> None:
    async def test(relay: RequestRelay, place: ConsumerPlace) -> None:
        with pytest.raises(ProblemError) as refused:
            await relay.relayed(asked("DELETE"), KEY, place)
        assert (refused.value.status, refused.value.retriable) == (503, True)

    assert run(test, NEVER_S).removed == []


def test_a_look_around_takes_no_longer_than_a_request() -> None:
    async def test(relay: RequestRelay, place: ConsumerPlace) -> None:
        await relay.forget_unreachable({place.gateway: place.address})

    assert run(test, NEVER_S).removed == []  # slow is not gone
