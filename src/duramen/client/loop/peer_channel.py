"""A channel to another node for one purpose: requests out, in order, each with a deadline; its replies or None back.

It connects when there is something to send, waits before it connects again, and tells when the process at the other end
is gone. Whoever sends decides what to send again: a lost connection answers everything on it with None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from duramen.client.loop.node_client import NodeRequest
from duramen.client.loop.probe import AddressProbe, address_of, is_from_there
from duramen.client.protocol.reply_frames import ReplyFrames
from duramen.errors import DuramenError
from duramen.ports import Clock, Entropy, FileSpan, Network, Part, Timer, Transport
from duramen.wire.frame import encode_request, parse_response, part_size

OnReply = Callable[[Any], None]
"""Gets the response, or None when there will be none; called once, never from within `send`."""

JITTER = 0.2
"""Share by which a pause is longer or shorter, so that nodes do not come back in step."""

MOST_LOOKS = 3
"""Looks at a peer that ends connections and answers nothing."""


class ChannelLimits(NamedTuple):
    """Bounds of one channel. requests, unsent_bytes: what may wait, for a reply and to be sent; more is refused.

    max_frame_bytes: of a reply. connect_s: after which a connect counts as lost. backoff_s: the pause after the first
    failure, doubled by each that follows up to max_backoff_s. probes: connects that must be refused, 50 ms apart,
    before the process counts as gone.
    """

    requests: int = 100
    unsent_bytes: int = 16 << 20
    max_frame_bytes: int = 64 << 20
    connect_s: float = 2.0
    backoff_s: float = 0.02
    max_backoff_s: float = 1.0
    probes: int = 1


DEFAULT_LIMITS = ChannelLimits()


class _Sent(NamedTuple):
    """A request that has no reply yet."""

    correlation_id: int
    request: NodeRequest
    parts: list[Part]
    size: int
    deadline: float
    on_reply: OnReply


class PeerChannel:
    """One channel to host:port.

    `on_died` is called when the other side ended a connection that stood (a killed process sends FIN as often as RST)
    and its address then refuses. A connect that hangs, or that never succeeded, proves nothing.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        entropy: Entropy,
        host: str,
        port: int,
        client_id: str,
        *,
        on_died: Callable[[], None] | None = None,
        limits: ChannelLimits = DEFAULT_LIMITS,
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.on_died = on_died
        self.last_error = ""
        """Why the last connection ended, or did not come about."""
        self.ended_at: tuple[str, int] | None = None
        """Where the peer was when it ended a connection."""
        self._network = network
        self._clock = clock
        self._entropy = entropy
        self._limits = limits
        self._closed = False
        self._transport: Transport | None = None
        self._connected = False
        self._writing = False
        """Whether the transport is to tell when it takes bytes again."""
        self._flushing = False
        """Whether this turn of the loop ends with a flush."""
        self._frames = ReplyFrames(limits.max_frame_bytes)
        self._waiting: deque[_Sent] = deque()
        """Requests for the next connection."""
        self._sent: deque[_Sent] = deque()
        """Requests of this connection, in the order in which their replies come."""
        self._unsent: deque[Part] = deque()
        self._unsent_bytes = 0
        self._correlation_id = 0
        self._failures = 0
        self._not_before = clock.monotonic()
        self._dial: Timer | None = None
        """Until the next connect, then until it must have succeeded."""
        self._alarm: Timer | None = None
        self._alarm_at = 0.0
        self._probe: AddressProbe | None = None
        self._looks = 0
        """Probes since the last reply. That a connection stands shows nothing: the backlog of a process that ends takes
        some more. A peer that closes every connection is not looked at for ever."""

    @property
    def connected(self) -> bool:
        """Whether a connection stands."""
        return self._connected

    @property
    def pending(self) -> int:
        """Requests without a reply."""
        return len(self._waiting) + len(self._sent)

    # ---- sending ---------------------------------------------------------------------------------------------

    def send(self, request: NodeRequest, on_reply: OnReply, timeout: float) -> None:
        """Send the request after those before it. None comes back when it is refused, lost, or `timeout` (s) over.

        A reply that is late ends the connection: whatever came then would be out of order.
        """
        limits = self._limits
        if self._closed or self.pending >= limits.requests:
            self._clock.call_soon(partial(on_reply, None))
            return
        self._correlation_id = self._correlation_id % 0x7FFFFFFF + 1
        parts = encode_request(request.api, request.version, self._correlation_id, self.client_id, request.request)
        size = sum(map(part_size, parts))
        if self._unsent_bytes and self._unsent_bytes + size > limits.unsent_bytes:
            self._clock.call_soon(partial(on_reply, None))
            return
        now = self._clock.monotonic()
        sent = _Sent(self._correlation_id, request, parts, size, now + timeout, on_reply)
        self._unsent_bytes += size
        if self._connected:
            self._put(sent)
            self._flush_last()
        else:
            self._waiting.append(sent)
            self._connect_later(now)
        if self._alarm is None or sent.deadline < self._alarm_at:
            self._set_alarm(sent.deadline)

    def _put(self, sent: _Sent) -> None:
        self._sent.append(sent)
        self._unsent.extend(sent.parts)
        sent.parts.clear()

    def _flush_last(self) -> None:
        """All that this turn of the loop sends leaves together."""
        if not self._flushing and not self._writing:
            self._flushing = True
            self._clock.call_last(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        transport = self._transport
        if transport is None or not self._connected or not (self._unsent or self._writing):
            return
        try:
            sent = transport.send(list(self._unsent))
        except OSError as error:
            self._end(str(error), from_there=is_from_there(error))
            return
        self._unsent_bytes -= sent
        unsent = self._unsent
        while sent:
            first = unsent.popleft()
            size = part_size(first)
            if sent < size:
                unsent.appendleft(_rest(first, sent))
                break
            sent -= size
        if bool(unsent) != self._writing:
            self._writing = not self._writing
            transport.set_writer(self._flush if self._writing else None)

    # ---- connecting ------------------------------------------------------------------------------------------

    def _connect_later(self, now: float) -> None:
        if self._transport is None and self._dial is None:
            self._dial = self._clock.call_later(max(0.0, self._not_before - now), self._connect)

    def _connect(self) -> None:
        self._dial = None
        if not self._waiting:
            return
        try:
            transport = self._network.connect(self.host, self.port)
        except OSError as error:
            self._end(str(error), from_there=False)
            return
        self._transport = transport
        self._dial = self._clock.call_later(self._limits.connect_s, self._connect_hangs)
        transport.set_reader(self._readable)
        transport.set_writer(self._connects)

    def _connect_hangs(self) -> None:
        self._dial = None
        self._end(f"no connection within {self._limits.connect_s} s", from_there=False)

    def _connects(self) -> None:
        """The transport takes bytes, or the connect has failed."""
        transport = self._transport
        if transport is None:
            return
        try:
            transport.send(())
        except OSError as error:
            self._end(str(error), from_there=False)
            return
        self._connected = True
        self._writing = True
        self._cancel_dial()
        self._cancel_probe()
        while self._waiting:
            self._put(self._waiting.popleft())
        transport.set_writer(self._flush)
        self._flush()

    # ---- receiving -------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            room = self._frames.room()
            received = transport.recv_into(room)
            if received == 0:
                self._end("closed by the other side", from_there=True)
            if received <= 0:
                return
            self._frames.received(received)
            self._take_replies()
        except OSError as error:
            self._end(str(error), from_there=is_from_there(error))
        except DuramenError as error:
            self._end(f"not understood: {error}", from_there=False)

    def _take_replies(self) -> None:
        frames = self._frames
        while self._transport is not None and frames is self._frames and (frame := frames.take()) is not None:
            if not self._sent:
                self._end("a reply that nobody asked for", from_there=False)
                return
            sent = self._sent[0]
            correlation_id, response = parse_response(sent.request.api, sent.request.version, frame)
            if correlation_id != sent.correlation_id:
                self._end(f"reply {correlation_id} came where {sent.correlation_id} was due", from_there=False)
                return
            self._sent.popleft()
            self._failures = self._looks = 0
            # After this event: what a reply leads to may end the connection, or fail.
            self._clock.call_soon(partial(sent.on_reply, response))

    # ---- deadlines -------------------------------------------------------------------------------------------

    def _set_alarm(self, due: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = due
        self._alarm = self._clock.call_later(max(0.0, due - self._clock.monotonic()), self._look)

    def _look(self) -> None:
        """Some deadline may be over: of what was sent the connection's, of what waits its own."""
        self._alarm = None
        now = self._clock.monotonic()
        if any(sent.deadline <= now for sent in self._sent):
            self._end("no reply in time", from_there=False)
        for sent in [sent for sent in self._waiting if sent.deadline <= now]:
            self._waiting.remove(sent)
            self._unsent_bytes -= sent.size
            self._clock.call_soon(partial(sent.on_reply, None))
        if self.pending:
            self._set_alarm(min(sent.deadline for sent in (*self._sent, *self._waiting)))

    # ---- the end ---------------------------------------------------------------------------------------------

    def _end(self, reason: str, *, from_there: bool) -> None:
        """This connection, or the attempt at one, is over: what was on it or waited for it is lost."""
        self.last_error = reason
        stood, transport = self._connected, self._transport
        self._hang_up()
        limits = self._limits
        pause = min(limits.max_backoff_s, limits.backoff_s * 2 ** min(self._failures, 16))
        self._failures += 1
        self._not_before = self._clock.monotonic() + pause * self._entropy.uniform(1 - JITTER, 1 + JITTER)
        if stood and from_there and self._looks < MOST_LOOKS and self.on_died is not None and transport is not None:
            self._looks += 1
            self._cancel_probe()
            self.ended_at = address_of(transport)
            self._probe = AddressProbe(self._network, self._clock, *self.ended_at, self._died, times=limits.probes)
        self._lose()

    def _hang_up(self) -> None:
        self._cancel_dial()
        transport, self._transport = self._transport, None
        self._connected = self._writing = False
        if transport is not None:
            transport.close()
            self._frames = ReplyFrames(self._limits.max_frame_bytes)

    def _lose(self) -> None:
        lost = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for sent in lost:
            self._clock.call_soon(partial(sent.on_reply, None))

    def _cancel_dial(self) -> None:
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None

    def _cancel_probe(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def _died(self) -> None:
        self._probe = None
        if self.on_died is not None:
            self.on_died()

    def move(self, host: str, port: int) -> None:
        """The node has another address: what is on the way to the old one is lost, and nothing is held against it."""
        if (host, port) != (self.host, self.port):
            self.host, self.port = host, port
            self._cancel_probe()
            self._hang_up()
            self._failures = self._looks = 0
            self._not_before = self._clock.monotonic()
            self._lose()

    def close(self) -> None:
        """Nothing more is sent, and nothing of it is left; what is pending is lost."""
        self._closed = True
        self._cancel_probe()
        self._hang_up()
        self._lose()


def _rest(part: Part, sent: int) -> Part:
    """What is left of a part of which so many bytes were sent."""
    if isinstance(part, FileSpan):
        return FileSpan(part.file, part.position + sent, part.length - sent)
    return memoryview(part)[sent:]
