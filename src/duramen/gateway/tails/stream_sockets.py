"""Readers that follow by WebSocket: they say where they begin, and by credits how much may be sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from duramen.errors import DuramenError
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.limits import Allowance
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.routes.route import SocketHandler
from duramen.gateway.streams.stream_path import topic_of
from duramen.gateway.streams.streams import Streams
from duramen.gateway.tails.followed_partitions import FollowedPartitions
from duramen.gateway.tails.live_readers import HEARTBEAT_S
from duramen.gateway.tails.socket_messages import (
    ReaderCredits,
    SocketStart,
    close_code,
    parse_start,
    problem_message,
    records_message,
)
from duramen.gateway.tails.topic_readers import TopicReaders

_END: Final = 1000
_RESTART: Final = 1012

START_S: Final = 10.0
"""How long the first message of a reader may take."""

Renew = Callable[[], Awaitable[None]]
"""Asks whether what is followed is still there, and renews its TTL. Problem 404."""


class StreamSockets:
    """Serves WebSockets. renew_s: how often a stream that is followed is renewed."""

    def __init__(
        self,
        streams: Streams,
        topics: TopicReaders,
        allowance: Allowance,
        renew_s: float,
        clock: GatewayClock,
        metrics: GatewayMetrics,
        stopping: asyncio.Event,
    ) -> None:
        self._streams = streams
        self._topics = topics
        self._allowance = allowance
        self._renew_s = renew_s
        self._clock = clock
        self._metrics = metrics
        self._stopping = stopping

    def sockets(self) -> dict[str, SocketHandler]:
        """By operation, as the table of routes names them."""
        return {"followStream": self.follow_stream, "followRecords": self.follow_records}

    async def follow_stream(self, socket: WebSocket) -> None:
        """Records of a stream, from a position on."""
        async with self._answered(socket):
            topic = topic_of(socket.path_params["path"])
            start = await self._start(socket)

            async def renew() -> None:
                await self._streams.topics.touch(await self._streams.topics.get(topic))

            await renew()
            await self._follow(socket, await self._topics.stream(topic, start.reader_start()), start, renew)

    async def follow_records(self, socket: WebSocket) -> None:
        """Records of the partitions of a topic, from a position on."""
        async with self._answered(socket):
            topic = socket.path_params["topic"]
            start = await self._start(socket)

            async def renew() -> None:
                await self._topics.partitions(topic)

            await self._follow(socket, await self._topics.topic(topic, start.reader_start()), start, renew)

    # ---- what each of them is ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _answered(self, socket: WebSocket) -> AsyncIterator[None]:
        """A connection that is closed after it, with the problem if there was one."""
        await socket.accept()
        try:
            try:
                yield
            except DuramenError as error:
                raise problem_of(error) from error
        except WebSocketDisconnect:
            return
        except ProblemError as problem:
            socket.scope["duramen.problem"] = problem
            await _close(socket, close_code(problem), problem_message(problem), problem.code)
        else:
            await _close(socket, _RESTART if self._stopping.is_set() else _END)

    async def _start(self, socket: WebSocket) -> SocketStart:
        try:
            async with asyncio.timeout(START_S):
                return parse_start(await _message(socket))
        except TimeoutError:
            raise ProblemError(408, "body-timeout", f"the first message has not come in {START_S:.0f} s") from None

    async def _follow(self, socket: WebSocket, followed: FollowedPartitions, start: SocketStart, renew: Renew) -> None:
        """Send what comes until all is closed, the reader has left or the gateway ends. Problems as of what is read."""
        self._allowance.check()
        credits = ReaderCredits(start.credits, self._clock.monotonic_s())
        given = asyncio.Event()
        with self._allowance.one(), self._metrics.readers.track_inprogress():
            heard = asyncio.ensure_future(self._hear(socket, credits, given))
            try:
                await self._send(socket, followed, credits, given, heard, renew)
            finally:
                followed.leave()
                heard.cancel()
                heard.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _hear(self, socket: WebSocket, credits: ReaderCredits, given: asyncio.Event) -> None:
        """Take credits until the reader leaves. Problem 400, 429."""
        try:
            while True:
                credits.hear(await _message(socket), self._clock.monotonic_s())
                given.set()
        finally:
            given.set()

    async def _send(
        self,
        socket: WebSocket,
        followed: FollowedPartitions,
        credits: ReaderCredits,
        given: asyncio.Event,
        heard: asyncio.Future[None],
        renew: Renew,
    ) -> None:
        renew_at_s = self._clock.monotonic_s() + self._renew_s
        sent = ""
        heartbeat_s = 0.0
        while not self._stopping.is_set():
            if heard.done():
                heard.result()
            now_s = self._clock.monotonic_s()
            if now_s >= renew_at_s:
                renew_at_s = now_s + self._renew_s
                await renew()
            if credits.left == 0:
                given.clear()
                await _until(given, renew_at_s - now_s)
                continue
            portion = await followed.next(credits.left)
            if portion is not None:
                credits.take(portion.records)
            moved = now_s >= heartbeat_s and followed.position != sent  # over what the reader does not want
            if (portion is not None and portion.records) or followed.closed or moved:
                sent, heartbeat_s = followed.position, now_s + HEARTBEAT_S
                await socket.send_text(
                    records_message(
                        b"" if portion is None else portion.lines,
                        sent,
                        credits.left,
                        up_to_date=followed.up_to_date,
                        closed=followed.closed,
                        advanced=followed.advanced,
                    )
                )
            if followed.closed:
                return
            if portion is None:
                await followed.wait(now_s, min(renew_at_s, max(heartbeat_s, now_s + 1)), heard)


async def _until(given: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await given.wait()
    except TimeoutError:
        return


async def _message(socket: WebSocket) -> str | bytes:
    """The next message; WebSocketDisconnect."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    text = message.get("text")
    found: str | bytes = message["bytes"] if text is None else text
    return found


async def _close(socket: WebSocket, code: int, message: str = "", reason: str = "") -> None:
    """Close the connection, after a message if there is one."""
    try:
        if socket.application_state == WebSocketState.CONNECTED:
            if message:
                await socket.send_text(message)
            await socket.close(code, reason)
    except WebSocketDisconnect:
        return
