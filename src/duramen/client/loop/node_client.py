"""A client of one node on the Network port: requests out, their replies or the loss of the connection back.

For the simulator's clients, which connect again at once and wait long, as clients do; nodes speak to each other through
a `PeerChannel`. A lost connection fails every request on it; the caller decides what to send again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from duramen.client.protocol.reply_frames import ReplyFrames
from duramen.ports import Clock, Network, Transport
from duramen.wire.frame import encode_request, parse_response
from duramen.wire.messages import API, ApiMessage

MAX_FRAME_BYTES = 64 << 20
CALL_TIMEOUT_S = 30.0
"""Seconds after which a request without a reply ends its connection."""


class NodeRequest(NamedTuple):
    """A request: an API by name, a version, and the message."""

    api: ApiMessage
    version: int
    request: Any


BY_NAME = {api.name: api for api in API.values()}


def call(name: str, version: int, /, **fields: Any) -> NodeRequest:
    """A request of the API `name` with these fields of its request."""
    api = BY_NAME[name]
    return NodeRequest(api, version, api.request.new(**fields))


class NodeClient:
    """A client of the node at host:port, with at most one connection at a time, opened when it is needed."""

    def __init__(self, network: Network, clock: Clock, host: str, port: int, client_id: str) -> None:
        self.client_id = client_id
        self._network = network
        self._clock = clock
        self._host = host
        self._port = port
        self._transport: Transport | None = None
        self._unsent: list[bytes] = []
        self._frames = ReplyFrames(MAX_FRAME_BYTES)
        self._pending: deque[tuple[int, NodeRequest, float, Callable[[Any], None]]] = deque()
        self._correlation_id = 0
        self._watching = False

    def send(self, wanted: NodeRequest, on_reply: Callable[[Any], None]) -> None:
        """Send the request; `on_reply` gets the response, or None when the connection was lost before it came."""
        if self._transport is None:
            self._transport = self._network.connect(self._host, self._port)
            self._transport.set_reader(self._readable)
        self._correlation_id += 1
        parts = encode_request(wanted.api, wanted.version, self._correlation_id, self.client_id, wanted.request)
        self._unsent.extend(bytes(part) for part in parts if not isinstance(part, tuple))
        deadline = self._clock.monotonic() + CALL_TIMEOUT_S
        self._pending.append((self._correlation_id, wanted, deadline, on_reply))
        self._transport.set_writer(self._writable)
        if not self._watching:
            self._watching = True
            self._clock.call_later(CALL_TIMEOUT_S, self._check_deadline)

    def drop(self) -> None:
        """Close the connection; what is pending is lost."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        self._unsent.clear()
        self._frames = ReplyFrames(MAX_FRAME_BYTES)
        pending, self._pending = self._pending, deque()
        for _, _, _, on_reply in pending:
            on_reply(None)

    def _check_deadline(self) -> None:
        self._watching = False
        if self._pending:
            wait = self._pending[0][2] - self._clock.monotonic()
            if wait <= 0:
                self.drop()
            else:
                self._watching = True
                self._clock.call_later(wait, self._check_deadline)

    def _writable(self) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            sent = transport.send(self._unsent)
        except OSError:
            self.drop()
            return
        while sent and self._unsent:
            first = self._unsent[0]
            if sent < len(first):
                self._unsent[0] = first[sent:]
                return
            sent -= len(first)
            del self._unsent[0]
        if not self._unsent:
            transport.set_writer(None)

    def _readable(self) -> None:
        transport = self._transport
        if transport is None:
            return
        frames = self._frames
        try:
            count = transport.recv_into(frames.room())
        except OSError:
            count = 0
        if count == 0:
            self.drop()
            return
        frames.received(max(0, count))
        while self._transport is transport and (frame := frames.take()) is not None:
            expected, wanted, _, on_reply = self._pending.popleft()
            correlation_id, response = parse_response(wanted.api, wanted.version, frame)
            if correlation_id != expected:
                raise ValueError(f"{self.client_id}: reply {correlation_id} came where {expected} was due")
            on_reply(response)
