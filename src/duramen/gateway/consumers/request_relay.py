"""Requests to consumers that another gateway holds: sent on to it once, and its answer sent back as it comes."""

from __future__ import annotations

import asyncio
from typing import Final

import httptools
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from duramen.gateway.access.peer_trust import PeerTrust
from duramen.gateway.consumers.abandoned_work import unless_left
from duramen.gateway.consumers.consumer_place import (
    ConsumerKey,
    ConsumerPlace,
    GatewayIdentity,
    consumer_path,
    those_of,
)
from duramen.gateway.consumers.consumer_places import ConsumerPlaces
from duramen.gateway.consumers.gateway_call import GatewayCall, GatewayGoneError, RawHeaders
from duramen.gateway.consumers.held_consumers import no_such_consumer
from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import SOON, ProblemError
from duramen.gateway.edge.request_body import RequestBodies

RELAYED: Final = "duramen-relayed-to"
"""The header of a request that another gateway sends on: the id of the process that it is meant for. Such a request is
never sent on again."""
ABSENT: Final = {"duramen-consumer": "absent"}
"""Headers of the answer to it where the consumer is not there."""

_SENT_ON: Final = frozenset((b"authorization", b"cookie", b"accept", b"content-type"))
_SENT_BACK: Final = frozenset((b"content-type", b"content-length", b"retry-after", b"www-authenticate", b"allow"))


class RequestRelay:
    """Sends requests on for one gateway. timeout_s: until the head of an answer; read_s: of the longest read, which is
    one itself, or has its turn in front of it. A DELETE waits for none: reads in front of it are cut short."""

    def __init__(
        self,
        places: ConsumerPlaces,
        here: GatewayIdentity,
        bodies: RequestBodies,
        trust: PeerTrust,
        timeout_s: float,
        read_s: float,
        events: EventLines,
        metrics: GatewayMetrics,
    ) -> None:
        self._places = places
        self._here = here
        self._bodies = bodies
        self._trust = trust
        self._timeout_s = timeout_s
        self._read_s = read_s
        self._events = events
        self._metrics = metrics

    async def relayed(self, request: Request, key: ConsumerKey, place: ConsumerPlace) -> Response:
        """The answer of the gateway that holds the consumer. Problem 404 where that is gone, or does not have it."""
        self._metrics.relayed.inc()
        async with self._bodies.whole(request) as body:
            scope = request.scope
            target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
            call = GatewayCall()
            try:
                method = "GET" if request.method == "HEAD" else request.method  # whose answer has the length of no body
                await unless_left(request, self._send(call, request, place, method, target, body))
            except BaseException:
                call.close()
                raise
        if is_absent(call):
            call.close()
            await self._places.remove({str(key): place.consumer})
            raise no_such_consumer()
        return _RelayedResponse(call)

    async def is_there(self, request: Request, key: ConsumerKey, place: ConsumerPlace) -> bool:
        """Whether the gateway that is said to hold a consumer does so. request: who wants to know."""
        if not self._here.reaches(place):
            return True
        call = GatewayCall()
        target = f"{consumer_path(key)}/assignments".encode()
        try:
            await self._send(call, request, place, "GET", target, b"")
            return not is_absent(call)
        except ProblemError as problem:
            if problem.status == 404:
                return False
            raise
        finally:
            call.close()

    async def forget_unreachable(self, gateways: dict[str, str]) -> None:
        """Say of the consumers of other processes that do not answer that they are gone. gateways: their addresses."""
        for gateway, address in gateways.items():
            call = GatewayCall()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await call.send(address, self._trust, "GET", b"/healthz", (), b"")
            except GatewayGoneError as error:
                await self._forget(gateway, address, str(error))
            except (ProblemError, TimeoutError):
                continue
            finally:
                call.close()

    async def _send(
        self, call: GatewayCall, request: Request, place: ConsumerPlace, method: str, target: bytes, body: bytes
    ) -> None:
        if not self._here.reaches(place):
            raise ProblemError(
                404,
                "no-such-instance",
                f"Consumer instance not found: a gateway on {place.machine} holds it, and no other machine reaches "
                f"that at {place.address}; gateway.advertised.listener says there where it is reached.",
            )
        headers: RawHeaders = [
            (RELAYED.encode(), place.gateway.encode()),
            *((name, value) for name, value in request.headers.raw if name in _SENT_ON),
        ]
        limit_s = self._timeout_s if method == "DELETE" else self._timeout_s + self._read_s
        try:
            async with asyncio.timeout(limit_s):
                await call.send(place.address, self._trust, method, target, headers, body)
        except GatewayGoneError as error:
            await self._forget(place.gateway, place.address, str(error))
            raise no_such_consumer() from None
        except TimeoutError:
            raise ProblemError(
                503,
                "node-away",
                f"the gateway that holds the consumer, {place.address}, does not answer",
                SOON,
                retriable=True,
            ) from None

    async def _forget(self, gateway: str, address: str, why: str) -> None:
        """What a process held that does not answer is gone. Should it still live, it finds that out by itself."""
        self._events.write("warning", "gateway-gone", address=address, why=why)
        await self._places.remove(those_of(await self._places.all(), gateway))


class _RelayedResponse(Response):
    """The answer of another gateway. Where that ends in the middle, so does this one."""

    def __init__(self, call: GatewayCall) -> None:
        super().__init__(status_code=call.status)
        self._call = call
        self.raw_headers = [(name, value) for name, value in call.headers if name in _SENT_BACK]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in self._call.body():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except (OSError, httptools.HttpParserError):
            return  # the server closes a connection whose answer is not finished
        finally:
            self._call.close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def is_absent(call: GatewayCall) -> bool:
    """Whether a gateway has answered that it does not hold the consumer."""
    return any((name.decode("latin-1"), value.decode("latin-1")) in ABSENT.items() for name, value in call.headers)
