"""A small Kafka client for the simulator: requests out, replies or their loss back, and scripts on top of that.

It speaks through the Network port with the production codecs. A lost connection fails every request on it; the
scripts decide what to send again. A script is a generator that yields what it waits for: a `Call` or several
(pipelined on one connection, answered in order), or a number of seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from duramen.ports import Clock, Network, Transport
from duramen.wire.frame import SIZE_BYTES, encode_request, parse_response, read_frame_size
from duramen.wire.messages import API, ApiMessage

MAX_FRAME_BYTES = 64 << 20
CALL_TIMEOUT_S = 30.0
"""Virtual seconds after which a request without a reply ends its connection."""


class Call(NamedTuple):
    """One request: an API by name, a version, and the message."""

    api: ApiMessage
    version: int
    request: Any


Wish = Call | list[Call] | float
Value = TypeVar("Value")
Steps = Generator[Wish, Any, Value]
"""A part of a script that ends with a value."""
Script = Generator[Wish, Any, None]

BY_NAME = {api.name: api for api in API.values()}


def call(name: str, version: int, **fields: Any) -> Call:
    """A Call of the API `name` with these fields of its request."""
    api = BY_NAME[name]
    return Call(api, version, api.request.new(**fields))


class Client:
    """One client with at most one connection at a time, opened when it is needed."""

    def __init__(self, network: Network, clock: Clock, host: str, port: int, client_id: str) -> None:
        self.client_id = client_id
        self._network = network
        self._clock = clock
        self._host = host
        self._port = port
        self._transport: Transport | None = None
        self._unsent: list[bytes] = []
        self._received = bytearray()
        self._pending: deque[tuple[int, Call, float, Callable[[Any], None]]] = deque()
        self._correlation_id = 0
        self._watching = False

    def send(self, wanted: Call, on_reply: Callable[[Any], None]) -> None:
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
        self._received.clear()
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
        chunk = bytearray(65536)
        try:
            count = transport.recv_into(memoryview(chunk))
        except OSError:
            count = 0
        if count == 0:
            self.drop()
            return
        self._received += chunk[: max(0, count)]
        while self._transport is transport and self._next_reply():
            pass

    def _next_reply(self) -> bool:
        received = self._received
        if len(received) < SIZE_BYTES:
            return False
        end = SIZE_BYTES + read_frame_size(memoryview(bytes(received[:SIZE_BYTES])), 0, MAX_FRAME_BYTES)
        if len(received) < end:
            return False
        frame = bytes(received[SIZE_BYTES:end])
        del received[:end]
        expected, wanted, _, on_reply = self._pending.popleft()
        correlation_id, response = parse_response(wanted.api, wanted.version, memoryview(frame))
        if correlation_id != expected:
            raise ValueError(f"{self.client_id}: reply {correlation_id} came where {expected} was due")
        on_reply(response)
        return True


class Actor:
    """Runs one script on one client, from its first step to its last."""

    def __init__(self, client: Client, clock: Clock, script: Script) -> None:
        self.client = client
        self.finished = False
        self._clock = clock
        self._script = script
        clock.call_soon(lambda: self._resume(None))

    def _resume(self, answer: Any) -> None:
        try:
            wish = self._script.send(answer)
        except StopIteration:
            self.finished = True
            return
        if isinstance(wish, list):
            self._send_all(wish)
        elif isinstance(wish, Call):
            self.client.send(wish, self._resume_soon)
        else:
            self._clock.call_later(wish, lambda: self._resume(None))

    def _resume_soon(self, answer: Any) -> None:
        self._clock.call_soon(lambda: self._resume(answer))

    def _send_all(self, wishes: list[Call]) -> None:
        answers: list[Any] = [None] * len(wishes)
        missing = len(wishes)

        def on_reply(place: int, answer: Any) -> None:
            nonlocal missing
            answers[place] = answer
            missing -= 1
            if not missing:
                self._resume_soon(answers)

        for place, wish in enumerate(wishes):
            self.client.send(wish, lambda answer, place=place: on_reply(place, answer))  # type: ignore[misc]
