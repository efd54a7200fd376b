"""One connection to a node on asyncio: many requests in flight, answers matched to them by correlation id.

A caller that is cancelled, or whose time is over, leaves the connection as it is; the answer is dropped when it comes.
After any error the connection is closed: nothing more can be understood on it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from duramen.client.protocol import versions
from duramen.client.protocol.addresses import Address, address_text
from duramen.client.protocol.reply_frames import ReplyFrames
from duramen.client.protocol.request_pieces import request_pieces
from duramen.client.protocol.versions import API_VERSIONS, ApiVersions
from duramen.errors import NetworkError, NoConnectionError
from duramen.ports import Part
from duramen.wire.errors import DecodeError
from duramen.wire.frame import SIZE_BYTES, encode_request, parse_response, part_size
from duramen.wire.messages import API, ApiMessage


class ConnectionLimits(NamedTuple):
    """Bounds of each connection.

    max_frame_bytes: longest answer that memory is taken for. in_flight: requests without an answer, those of cancelled
    callers included. unsent_bytes: written and not yet taken by the system; later requests wait. silence_s: without a
    byte while an answer is due (beyond what the request lets the node wait), after which the connection is given up.
    idle_s: without a request, after which it is closed.
    """

    max_frame_bytes: int = 256 << 20
    in_flight: int = 256
    unsent_bytes: int = 1 << 20
    silence_s: float = 15.0
    idle_s: float = 240.0


class _InFlight(NamedTuple):
    """A request without an answer."""

    api: ApiMessage
    version: int
    answer: asyncio.Future[Any]
    sent_at: float
    wait_s: float


class _Turn(NamedTuple):
    """A caller in the queue: what it waits for, and the bytes that it will send."""

    comes: asyncio.Future[None]
    size: int


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection to an address that has agreed on versions.

    `call` raises NoConnectionError when the request was not sent, NetworkError when it is not known to have been
    answered, DecodeError when the answer makes no sense, KafkaError UNSUPPORTED_VERSION.
    """

    def __init__(
        self,
        address: Address,
        client_id: str,
        limits: ConnectionLimits,
        on_quiet: Callable[[AsyncConnection], None],
        on_closed: Callable[[AsyncConnection], None],
    ) -> None:
        """on_quiet: called when the last answer that was due has come. on_closed: once, however it ended."""
        self.address = address
        self.name = address_text(*address)
        self.closed = False
        self.versions = ApiVersions({})
        self._loop = asyncio.get_running_loop()
        self._client_id = client_id
        self._limits = limits
        self._on_quiet = on_quiet
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._frames = ReplyFrames(limits.max_frame_bytes)
        self._correlation_id = 0
        self._in_flight: dict[int, _InFlight] = {}
        self._unsent: list[Part] = []
        """Sent at the end of this turn of the loop, all together."""
        self._unsent_bytes = 0
        self._paused = False
        """Whether the system takes no more bytes now."""
        self._throttled_until = 0.0
        self._queue: deque[_Turn] = deque()
        """Callers that wait for room."""
        self._admitted = 0
        """Callers that were let in and have not run yet, and what they will send."""
        self._admitted_bytes = 0
        self._active_at = self._loop.time()
        """When the last bytes came, or a request that is not answered was sent where no answer was due."""
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        address: Address,
        client_id: str,
        limits: ConnectionLimits,
        until: float,
        *,
        on_quiet: Callable[[AsyncConnection], None],
        on_closed: Callable[[AsyncConnection], None],
    ) -> Self:
        """Connect and ask for versions, by the moment `until` (of the loop's clock)."""
        connection = cls(address, client_id, limits, on_quiet, on_closed)
        try:
            async with asyncio.timeout_at(until):
                await connection._loop.create_connection(lambda: connection, *address)
        except TimeoutError:
            raise NoConnectionError(f"cannot reach {connection.name}: it did not answer in time") from None
        except OSError as error:
            raise NoConnectionError(f"cannot reach {connection.name}: {error}") from error
        try:
            await connection._negotiate(until)
        except DecodeError as error:
            raise DecodeError(versions.no_node(connection.name, error)) from error
        except NetworkError as error:
            raise NoConnectionError(str(error)) from error
        finally:
            if not connection.versions.ranges:
                connection.close("versions were not agreed on")
        if connection.closed:
            raise NoConnectionError(f"{connection.name}: the node hung up")
        return connection

    async def _negotiate(self, until: float) -> None:
        steps = versions.negotiation(self.name)
        spoken = next(steps)
        while True:
            response = await self._exchange(API_VERSIONS, spoken.version(API_VERSIONS), versions.question(), until)
            try:
                spoken = steps.send(response)
            except StopIteration as done:
                self.versions = done.value
                return

    # ---- requests --------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._in_flight)

    async def call(self, key: int, request: Any, until: float, highest: int | None = None, wait_s: float = 0.0) -> Any:
        """The response, in the highest version both sides speak. wait_s: how long the node may hold it back."""
        return await self._exchange(key, self.versions.version(key, highest), request, until, wait_s)

    async def send_only(self, key: int, request: Any, until: float, highest: int | None = None) -> None:
        """Send a request that is not answered (Produce with acks=0)."""
        version = self.versions.version(key, highest)
        parts = encode_request(API[key], version, self._next_id(), self._client_id, request)
        size = sum(map(part_size, parts))
        await self._room(size, until)
        self._write(parts, size)
        if not self._in_flight:
            self._active_at = self._loop.time()

    async def _exchange(self, key: int, version: int, request: Any, until: float, wait_s: float = 0.0) -> Any:
        api = API[key]
        correlation_id = self._next_id()
        parts = encode_request(api, version, correlation_id, self._client_id, request)
        size = sum(map(part_size, parts))
        await self._room(size, until)
        loop = self._loop
        answer: asyncio.Future[Any] = loop.create_future()
        now = loop.time()
        self._write(parts, size)
        self._in_flight[correlation_id] = _InFlight(api, version, answer, now, wait_s)
        self._watch_for(now + wait_s)
        late = loop.call_at(until, self._late, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                answer.exception()  # it was too late for the caller: no one else will look at it
            raise
        finally:
            late.cancel()

    def _late(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_exception(NetworkError(f"{self.name} did not answer in time"))

    def _next_id(self) -> int:
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return correlation_id

    # ---- sending ---------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return not (
            self.closed
            or self._paused
            or len(self._in_flight) + self._admitted >= self._limits.in_flight
            or self._unsent_bytes + self._admitted_bytes >= self._limits.unsent_bytes
            or self._throttled_until > self._loop.time()
        )

    async def _room(self, size: int, until: float) -> None:
        """Wait in the queue until so many bytes may be sent; NoConnectionError when that is never."""
        if not self._queue and not self._admitted and self._has_room():
            return
        if self.closed:
            raise NoConnectionError(f"{self.name}: the connection was closed")
        turn = _Turn(self._loop.create_future(), size)
        self._queue.append(turn)
        late = self._loop.call_at(until, self._too_late, turn.comes)
        try:
            await turn.comes
        except asyncio.CancelledError:
            if turn.comes.done() and not turn.comes.cancelled() and turn.comes.exception() is None:
                self._run(turn)
                self._admit()
            raise
        finally:
            late.cancel()
        self._run(turn)
        if self.closed:
            raise NoConnectionError(f"{self.name}: the connection was closed")

    def _run(self, turn: _Turn) -> None:
        self._admitted -= 1
        self._admitted_bytes -= turn.size

    def _too_late(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            turn.set_exception(NoConnectionError(f"{self.name} had no room for the request in time"))

    def _admit(self) -> None:
        """Let as many in as there is room for."""
        queue = self._queue
        while queue and (queue[0].comes.done() or self._has_room()):
            turn = queue.popleft()
            if not turn.comes.done():
                self._admitted += 1
                self._admitted_bytes += turn.size
                turn.comes.set_result(None)

    def _write(self, parts: list[Part], size: int) -> None:
        """At once where the node has nothing to do for us, else together with all that this turn of the loop sends."""
        if not self._unsent:
            if not self._in_flight:
                self._send(parts)
                return
            self._loop.call_soon(self._flush)
        self._unsent += parts
        self._unsent_bytes += size

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._unsent_bytes = 0
        self._send(unsent)
        if self._queue:
            self._admit()

    def _send(self, parts: list[Part]) -> None:
        if self._transport is not None and not self.closed:
            for piece in request_pieces(parts):
                self._transport.write(piece)

    def pause_writing(self) -> None:
        """The system takes no more bytes now."""
        self._paused = True
        self._watch_for(self._loop.time())

    def resume_writing(self) -> None:
        """It takes them again."""
        self._paused = False
        self._admit()

    # ---- receiving -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self._limits.unsent_bytes)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.closed:
            transport.abort()
            return
        self._watch_for(self._loop.time())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to receive next."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self._active_at = self._loop.time()
        frames = self._frames
        frames.received(nbytes)
        try:
            while not self.closed and (frame := frames.take()) is not None:
                self._answered(frame)
        except DecodeError as error:
            self._nonsense(error)
            return
        if self._queue:
            self._admit()
        if not self._in_flight and not self.closed:
            self._on_quiet(self)

    def _answered(self, frame: memoryview) -> None:
        asked = self._in_flight.pop(int.from_bytes(frame[:SIZE_BYTES], "big"), None)
        if asked is None:
            raise DecodeError("an answer that was not asked for")
        if asked.answer.done():  # its caller is gone
            return
        try:
            _, response = parse_response(asked.api, asked.version, frame)
        except DecodeError as error:
            asked.answer.set_exception(error)
            self.close(f"an answer that makes no sense: {error}")
            return
        asked.answer.set_result(response)
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            # The node asks not to be asked again for a while (KIP-219).
            self._throttled_until = self._active_at + throttle_ms / 1000
            self._loop.call_at(self._throttled_until + 0.001, self._admit)

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended by itself."""
        self.close(str(exc) if exc is not None and str(exc) else "the node hung up")

    # ---- the end ---------------------------------------------------------------------------------------------

    def _nonsense(self, error: DecodeError) -> None:
        """Bytes that are no answer to anything: the oldest request, whose turn it was, gets the error."""
        for asked in self._in_flight.values():
            if not asked.answer.done():
                asked.answer.set_exception(error)
                break
        self.close(f"not understood: {error}")

    def close(self, reason: str) -> None:
        """Hang up; every request in flight is answered by a NetworkError, those in the queue by NoConnectionError."""
        if self.closed:
            return
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()
        in_flight, self._in_flight = self._in_flight, {}
        for asked in in_flight.values():
            if not asked.answer.done():
                asked.answer.set_exception(NetworkError(f"{self.name}: {reason}"))
        queue, self._queue = self._queue, deque()
        for turn in queue:
            if not turn.comes.done():
                turn.comes.set_exception(NoConnectionError(f"{self.name}: {reason}"))
        self._unsent.clear()
        self._on_closed(self)

    # ---- silence ---------------------------------------------------------------------------------------------

    def _watch_for(self, begun: float) -> None:
        """Something is due by `begun` and the limit of silence: look then, unless that is planned sooner."""
        limits = self._limits
        when = begun + (limits.silence_s if self._in_flight or self._paused else limits.idle_s)
        if self._watch is None or self._watch.when() > when:
            if self._watch is not None:
                self._watch.cancel()
            self._watch = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """Close it if nothing came for too long, or nothing was asked; else look again when that may be."""
        now = self._loop.time()
        limits = self._limits
        asked = next(iter(self._in_flight.values()), None)
        if asked is not None:
            end = max(self._active_at, asked.sent_at) + asked.wait_s + limits.silence_s
            reason = "it did not answer in time"
        elif self._paused:
            end, reason = self._active_at + limits.silence_s, "it takes no bytes"
        else:
            end, reason = self._active_at + limits.idle_s, "idle"
        if end <= now:
            self.close(reason)
        else:
            self._watch = self._loop.call_at(end, self._look)
