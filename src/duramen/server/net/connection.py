"""Connections: bytes in, frames out of them, replies back in request order.

One wake-up of a connection receives what is there, handles every whole frame of it, and sends all replies together.
Frames that fit are parsed in a scratch buffer shared by all connections; a bigger one gets a buffer of its own that
grows with what has arrived. What was announced is promised to it before; where it does not fit into the bound of all
connections, its socket is not read until it does, and those who came first go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Protocol

from duramen.errors import DuramenError
from duramen.ports import FileSpan, Part, Transport
from duramen.server.net.listener_type import ListenerType
from duramen.server.net.receive_buffers import BufferPool
from duramen.server.net.reply_memory import UnreadReplies
from duramen.server.net.send_queue import Outbox

SCRATCH_BYTES = 128 * 1024
FIRST_GROWTH_BYTES = 1024 * 1024
"""Most that is given at once to a frame of which little has arrived, if the last one was that large, too."""

UNPROVEN_BYTES = 4096
"""What the first unfinished frame of a connection gets: thousands of connections may begin a frame and stop."""

RECEIVE_TURN_BYTES = 2 * 1024 * 1024
"""What one connection may bring before the loop turns to the next one."""

TURN_SECONDS = 0.02
"""How long requests that a connection sent together are handled before the loop turns to the next one: a small request
may ask for much."""

KEPT_BY_REFERENCE_BYTES = 16 * 1024
"""Frames above this may be referred to after their request was handled, so their buffer is not written over."""

MAX_PENDING_REQUESTS = 256

STARVED_CHECK_SECONDS = 0.005
"""How often is looked for buffer memory while somebody waits for it: nobody tells when a buffer is free."""

_SIZE = Struct(">i")
SIZE_BYTES = _SIZE.size


class PendingReply(Protocol):
    """The place that a reply keeps in its connection's order."""

    parts: list[Part] | tuple[Part, ...] | None
    """The whole reply; None until it is complete."""


class ProtocolError(DuramenError):
    """The peer does not speak the protocol: its connection is closed, and only that."""


class ReceiveContext:
    """What the connections of one loop and one type of listener share: scratch buffer, pool, limits and dispatcher."""

    def __init__(
        self,
        listener_type: ListenerType,
        pool: BufferPool,
        max_frame_bytes: int,
        on_frame: Callable[[ClientConnection, memoryview], None],
        on_closed: Callable[[ClientConnection, str], None],
        monotonic: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], None],
        call_last: Callable[[Callable[[], None]], None],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.listener_type = listener_type
        self.pool = pool
        self.max_frame_bytes = max_frame_bytes
        self.on_frame = on_frame
        self.on_closed = on_closed
        self.monotonic = monotonic
        self.call_soon = call_soon
        self.call_last = call_last
        self._unsent: dict[ClientConnection, None] = {}
        self.call_later = call_later
        self.unread = UnreadReplies(monotonic)
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.scratch_kept = False
        self.starved: dict[ClientConnection, int] = {}
        """Who is not read for want of memory, oldest first, and the size of the frame that waits (0: not known)."""
        self._looking = False
        """Whether `_look` will be called."""
        self.congested: Callable[[], bool] = lambda: False
        """Whether the store wants a pause from its writers."""
        self.on_peer: Callable[[ClientConnection], None] = lambda connection: None
        """One of its connections has shown that another node is at its end."""
        self.bytes_in = 0
        self.bytes_out = 0

    def retire_scratch(self) -> None:
        """Somebody may keep views of the scratch buffer: leave it to them and take another."""
        self.scratch_kept = False
        self.scratch_view.release()
        self.pool.release(self.scratch)
        self.pool.lent_bytes += SCRATCH_BYTES
        self.scratch = self.pool.acquire(SCRATCH_BYTES)
        self.pool.lent_bytes -= SCRATCH_BYTES
        self.scratch_view = memoryview(self.scratch)

    def send_last(self, connection: ClientConnection) -> None:
        """Send what the connection has at the end of this turn of the loop, unless it is sent before."""
        if not self._unsent:
            self.call_last(self._send_unsent)
        self._unsent[connection] = None

    def _send_unsent(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for connection in unsent:
            if connection.outbox.size and not connection.outbox.waits:
                connection.flush()

    @property
    def is_short(self) -> bool:
        """Whether a frame waits for memory."""
        return any(self.starved.values())

    @property
    def room(self) -> int:
        """What may be received into the scratch buffer: little while memory is short, for the rest has to be kept."""
        return UNPROVEN_BYTES if self.starved or self.pool.exhausted else SCRATCH_BYTES

    def starve(self, connection: ClientConnection, size: int) -> None:
        """Read no more from it until the store is relieved and there is memory for a frame of this size."""
        connection.mute("memory")
        self.starved[connection] = size
        if size and not self._looking:
            self._looking = True
            self.call_later(STARVED_CHECK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = False
        self.feed_starved()
        if self.is_short:
            self._looking = True
            self.call_later(STARVED_CHECK_SECONDS, self._look)

    def feed_starved(self) -> None:
        """Let connections that waited for memory read again, oldest first, as far as there is some."""
        while self.starved and not self.congested():
            connection, size = next(iter(self.starved.items()))
            if size and connection.muted == {"memory"} and not connection.admit(size):
                return
            del self.starved[connection]
            connection.unmute("memory")


class ClientConnection:
    """One client connection: its listener, principal, mute state, partial frame and pending replies."""

    __slots__ = (
        "_buffer",
        "_filled",
        "_held",
        "_need",
        "_on_close",
        "_promised",
        "_receiver",
        "_sending",
        "_usual",
        "client_bytes",
        "client_id",
        "closed",
        "ended_by_peer",
        "frame_started",
        "last_active",
        "listener",
        "muted",
        "outbox",
        "pending",
        "principal",
        "read_cold_at",
        "software",
        "transport",
    )

    def __init__(self, receiver: ReceiveContext, transport: Transport, listener: str, principal: str) -> None:
        self._receiver = receiver
        self.transport = transport
        self.listener = listener
        self.principal = principal
        self.software = ("unknown", "unknown")
        self.client_id = ""
        self.client_bytes = b""
        self.muted: set[str] = set()
        self.pending: deque[PendingReply] = deque()
        self.closed = False
        self.ended_by_peer = False
        """Whether the other side ended it."""
        self.last_active = receiver.monotonic()
        self.read_cold_at = float("-inf")
        """When it asked last for what had to come from the disk."""
        self._on_close: dict[Callable[[], None], None] = {}
        self._buffer: bytearray | None = None
        self._filled = 0
        self._need = 0
        self._promised = 0
        self._usual = UNPROVEN_BYTES
        self._held: memoryview | None = None
        self.frame_started: float | None = None
        """When the unfinished frame began, if there is one with a buffer of its own."""
        self.outbox = Outbox(transport, receiver, self.flush)
        self._sending = False
        transport.set_reader(self.on_readable)

    @property
    def receiver(self) -> ReceiveContext:
        """What it shares with the others that came through a listener of this type."""
        return self._receiver

    @property
    def listener_type(self) -> ListenerType:
        """What the listener is for that it came through."""
        return self._receiver.listener_type

    def become_peer(self) -> None:
        """Another node is at its end, whatever listener it came through."""
        self._receiver.on_peer(self)

    def move(self, receiver: ReceiveContext) -> None:
        """Share with others from now on; while a frame of it is being handled, of which the rest belongs to it."""
        before, self._receiver = self._receiver, receiver
        before.pool.promised_bytes -= self._promised
        receiver.pool.promised_bytes += self._promised
        before.starved.pop(self, None)
        self.unmute("memory")
        self.outbox.move(receiver)

    # ---- receiving -------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """The socket has bytes. Errors of this peer end this connection and no other."""
        try:
            self._sending = True
            self._receive()
        except (OSError, DuramenError) as error:
            self._fail(error)
        finally:
            self._sending = False
        outbox = self.outbox
        if outbox.size and not outbox.waits:
            self.flush()

    def _receive(self) -> None:
        receiver = self._receiver
        self.last_active = receiver.monotonic()
        if receiver.congested():
            receiver.starve(self, 0)
            return
        if self._held is not None:
            held, self._held = self._held, None
            self._take_frames(held, len(held))
        budget = RECEIVE_TURN_BYTES
        while budget > 0 and not self.closed and not self.muted and self._held is None:
            if self._buffer is None and self._usual > SCRATCH_BYTES:
                received, room = self._receive_size()
            elif self._buffer is None:
                room = receiver.room
                received = self.transport.recv_into(receiver.scratch_view[:room])
                if received > 0:
                    try:
                        self._take_frames(receiver.scratch_view, received)
                    finally:
                        # Also when a later frame was garbage: what came before it may be on its way to the disk.
                        if receiver.scratch_kept:
                            receiver.retire_scratch()
            else:
                received, room = self._receive_frame()
            if received == 0:
                self.ended_by_peer = True
                raise ProtocolError("closed by the peer")
            if received < 0:
                return
            receiver.bytes_in += received
            budget -= received
            if received < room:
                return

    def _take_frames(self, view: memoryview, received: int) -> None:
        """Handle the whole frames in view[:received] and set aside the rest."""
        receiver = self._receiver
        position = 0
        is_over = False
        while received - position >= 4 and not self.muted and not is_over:
            (size,) = _SIZE.unpack_from(view, position)
            if not 0 < size <= receiver.max_frame_bytes:
                _refuse_size(size, receiver)
            if received - position - 4 < size:
                break
            if size > KEPT_BY_REFERENCE_BYTES:
                receiver.scratch_kept = True
            receiver.on_frame(self, view[position + 4 : position + 4 + size])
            position += 4 + size
            if self.closed:
                return
            if position < received:
                is_over = receiver.monotonic() - self.last_active > TURN_SECONDS
        left = received - position
        if left and (self.muted or is_over):
            self._held = memoryview(bytearray(view[position:received]))
            if is_over and not self.muted:
                receiver.call_soon(self._resume)
        elif left:
            (size,) = _SIZE.unpack_from(view, position) if left >= 4 else (0,)
            self._start_frame(SIZE_BYTES + size, view[position:received])

    def _start_frame(self, need: int, begun: memoryview) -> None:
        """Give it a buffer, or keep what has arrived of it until there is memory."""
        if need == SIZE_BYTES:
            self._buffer = bytearray(SIZE_BYTES)
        elif need <= UNPROVEN_BYTES or self._promised or (not self._receiver.starved and self.admit(need)):
            self._buffer = self._lend(max(self._first_bytes(need), len(begun)))
        else:
            self._held = memoryview(bytearray(begun))
            self._receiver.starve(self, need)
            return
        self._need = need
        self._filled = len(begun)
        self.frame_started = self.last_active
        self._buffer[: self._filled] = begun

    def admit(self, size: int) -> bool:
        """Promise memory to its next frame, if there is so much."""
        self._promised = self._receiver.pool.promise(size)
        return self._promised > 0

    def _lend(self, size: int) -> bytearray:
        buffer = self._receiver.pool.acquire(size)
        self._keep_promise(len(buffer))
        return buffer

    def _keep_promise(self, size: int) -> None:
        size = min(size, self._promised)
        self._promised -= size
        self._receiver.pool.promised_bytes -= size

    def _first_bytes(self, need: int) -> int:
        return min(need, max(UNPROVEN_BYTES, min(self._usual, FIRST_GROWTH_BYTES)))

    def _receive_size(self) -> tuple[int, int]:
        """The size of a frame that is probably large: what follows is then received where it stays."""
        begun = memoryview(bytearray(SIZE_BYTES))
        received = self.transport.recv_into(begun)
        if received > 0:
            size = _announced(begun, self._receiver) if received == SIZE_BYTES else 0
            self._start_frame(SIZE_BYTES + size, begun[:received])
        return received, SIZE_BYTES

    def _receive_rest_of_size(self, begun: bytearray) -> int:
        """Fewer bytes had arrived than say how large the frame is."""
        received = self.transport.recv_into(memoryview(begun)[self._filled :])
        if received > 0:
            self._filled += received
            if self._filled == SIZE_BYTES:
                self._buffer = None
                self._start_frame(SIZE_BYTES + _announced(begun, self._receiver), memoryview(begun))
        return received

    def _receive_frame(self) -> tuple[int, int]:
        receiver = self._receiver
        buffer = self._buffer
        assert buffer is not None
        if self._need == SIZE_BYTES:
            received = self._receive_rest_of_size(buffer)
            return received, received  # the rest of the frame is probably there already
        if self._filled == len(buffer):
            buffer = self._grow(buffer, min(self._need, 4 * len(buffer)))
        end = min(len(buffer), self._need)
        received = self.transport.recv_into(memoryview(buffer)[self._filled : end])
        room = end - self._filled
        if received <= 0:
            return received, room
        self._filled += received
        if self._filled == self._need:
            self._buffer = None
            self.frame_started = None
            self._usual = max(self._need, self._usual // 2)  # small ones between large ones do not make it forget
            self._keep_promise(self._promised)
            receiver.pool.release(buffer)
            receiver.on_frame(self, memoryview(buffer)[4 : self._need])
        return received, room

    def _grow(self, buffer: bytearray, size: int) -> bytearray:
        pool = self._receiver.pool
        bigger = pool.acquire(size)
        bigger[: self._filled] = memoryview(buffer)[: self._filled]
        pool.take_back(buffer)
        self._keep_promise(len(bigger) - len(buffer))
        self._buffer = bigger
        return bigger

    def know_client(self, raw: bytes, length: int) -> None:
        """The client id of a request header differs from the last one's; ProtocolError when it is not one."""
        if length < -1 or len(raw) != max(length, 0):
            raise ProtocolError(f"a client id of {length} bytes, {len(raw)} are there")
        try:
            self.client_id = raw.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"client id: {error}") from error
        self.client_bytes = raw

    # ---- muting ----------------------------------------------------------------------------------------------

    def mute(self, reason: str) -> None:
        """Take no more requests until every reason is gone: "throttle", "backlog", "memory", "cold", "large"."""
        if not self.muted and not self.closed:
            self.transport.set_reader(None)
        self.muted.add(reason)

    def unmute(self, reason: str) -> None:
        if reason in self.muted:
            self.muted.discard(reason)
            if not self.muted and not self.closed:
                self.transport.set_reader(self.on_readable)
                if self._held is not None:
                    self._receiver.call_soon(self._resume)

    def _resume(self) -> None:
        """Requests that arrived before the connection was muted: the socket will not tell of them again."""
        if self._held is not None and not self.muted and not self.closed:
            self.on_readable()

    # ---- replying --------------------------------------------------------------------------------------------

    def expect(self, request: PendingReply) -> None:
        """A request was taken on: its reply keeps its place in the order."""
        self.pending.append(request)
        if len(self.pending) >= MAX_PENDING_REQUESTS:
            self.mute("backlog")

    def ready(self, request: PendingReply) -> None:
        """Its reply is complete: queue every reply whose turn it is, and send unless a wake-up will do it."""
        pending = self.pending
        outbox = self.outbox
        if pending and pending[0] is not request:
            outbox.set_aside(request.parts or ())
        while pending and (parts := pending[0].parts) is not None:
            size = 0
            for part in parts:
                outbox.parts.append(part)
                size += part.length if type(part) is FileSpan else len(part)
            outbox.size += size
            if pending.popleft() is not request:
                outbox.take_back(parts)
        if outbox.waits:
            outbox.weigh()
        elif outbox.size and not self._sending:
            # What else this turn of the loop has for it goes with it.
            self._receiver.send_last(self) if pending else self.flush()
        if self.is_backed_up:
            self.mute("backlog")
        elif self.muted:
            self._relieve()

    @property
    def is_backed_up(self) -> bool:
        """Whether more is to be sent already than a client may leave unread."""
        return self.outbox.size + self.outbox.early > self._receiver.unread.most_unsent_bytes

    def _relieve(self) -> None:
        if not self.is_backed_up and len(self.pending) < MAX_PENDING_REQUESTS:
            self.unmute("backlog")

    def flush(self) -> None:
        """Send what the socket takes; the rest when it is writable again."""
        if self.closed:
            return
        outbox, before = self.outbox, self.outbox.size
        try:
            outbox.send()
        except OSError as error:
            self._fail(error)
            return
        if 0 < outbox.size < before:
            self.last_active = self._receiver.monotonic()  # who takes a long reply piece by piece is not idle
        if self.muted:
            self._relieve()

    # ---- the end ---------------------------------------------------------------------------------------------

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once when the connection ends, unless `forget` comes first."""
        self._on_close[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        self._on_close.pop(callback, None)

    def _fail(self, error: Exception) -> None:
        self.ended_by_peer |= isinstance(error, ConnectionResetError | BrokenPipeError)
        self.close(str(error))

    def close(self, reason: str) -> None:
        """End the connection; pending requests go on, their replies go nowhere."""
        if self.closed:
            return
        self.closed = True
        self.transport.close()
        if self._buffer is not None:
            if self._need > SIZE_BYTES:
                self._receiver.pool.release(self._buffer)
            self._buffer = None
        self._keep_promise(self._promised)
        self.frame_started = None
        self._held = None
        self._receiver.starved.pop(self, None)
        self.outbox.clear()
        self.pending.clear()
        callbacks, self._on_close = self._on_close, {}
        for callback in callbacks:
            callback()
        self._receiver.on_closed(self, reason)


def _announced(begun: bytearray | memoryview, receiver: ReceiveContext) -> int:
    """The size of the frame that begins with these bytes; ProtocolError when it cannot be."""
    (size,) = _SIZE.unpack_from(begun)
    if not 0 < size <= receiver.max_frame_bytes:
        _refuse_size(size, receiver)
    return int(size)


def _refuse_size(size: int, receiver: ReceiveContext) -> None:
    raise ProtocolError(
        f"a frame of {size} bytes was announced, the limit is {receiver.max_frame_bytes} "
        "(socket.request.max.bytes, or queued.max.request.bytes where memory allows less)"
    )
