"""One blocking connection to a node: frames out and in, with a time limit on every wait and a bound on every frame.

Requests may be sent ahead (`send`) and their answers taken later (`receive`), in the order of sending. After any
error the connection is closed: nothing more can be understood on it.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any

from duramen.client.protocol import versions
from duramen.client.protocol.addresses import address_text
from duramen.client.protocol.request_pieces import request_pieces
from duramen.client.protocol.versions import API_VERSIONS, ApiVersions
from duramen.errors import KafkaError, NetworkError, NoConnectionError
from duramen.wire.errors import DecodeError
from duramen.wire.frame import SIZE_BYTES, encode_request, parse_response, read_frame_size
from duramen.wire.messages import API, ApiMessage

MAX_FRAME_BYTES = 256 << 20
"""A longer answer is refused before memory is taken for it."""
RECEIVE_BYTES = 1 << 20


class BlockingConnection:
    """A connection to host:port that has agreed on versions. Every failure is a NetworkError or a DecodeError."""

    def __init__(self, host: str, port: int, client_id: str, until: float, max_frame_bytes: int) -> None:
        """Connect and ask for versions, by the moment `until` (monotonic)."""
        self.address = address_text(host, port)
        self.closed = False
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._correlation_id = 0
        self._waiting: deque[tuple[int, ApiMessage, int]] = deque()
        self._size = bytearray(SIZE_BYTES)
        self._throttled_until = 0.0
        try:
            self._socket = socket.create_connection((host, port), timeout=_left(until, self.address))
        except OSError as error:
            raise NoConnectionError(f"cannot reach {self.address}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError as error:
            self.close()
            raise NetworkError(f"{self.address}: {error}") from error
        try:
            self.versions = self._negotiate(until)
        except DecodeError as error:
            raise DecodeError(versions.no_node(self.address, error)) from error
        except KafkaError:
            self.close()
            raise

    def _negotiate(self, until: float) -> ApiVersions:
        steps = versions.negotiation(self.address)
        self.versions = next(steps)
        while True:
            response = self.call(API_VERSIONS, versions.question(), until)
            try:
                self.versions = steps.send(response)
            except StopIteration as done:
                served: ApiVersions = done.value
                return served

    def call(self, key: int, request: Any, until: float, highest: int | None = None) -> Any:
        """The response, in the highest version both sides speak; KafkaError UNSUPPORTED_VERSION, NetworkError."""
        self.send(key, request, until, highest)
        return self.receive(until)

    def send(self, key: int, request: Any, until: float, highest: int | None = None) -> None:
        """Send a request whose response comes with a later `receive`."""
        api = API[key]
        version = self.versions.version(key, highest)
        self._wait_out_throttle(until)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = encode_request(api, version, self._correlation_id, self._client_id, request)
        self._waiting.append((self._correlation_id, api, version))
        try:
            for piece in request_pieces(parts):
                self._socket.settimeout(_left(until, self.address))
                self._socket.sendall(piece)
        except OSError as error:
            raise self._broken(error) from error

    def send_only(self, key: int, request: Any, until: float, highest: int | None = None) -> None:
        """Send a request that is not answered (Produce with acks=0)."""
        self.send(key, request, until, highest)
        self._waiting.pop()

    def receive(self, until: float, latest: float | None = None) -> Any:
        """The response to the oldest request that waits for one.

        latest: when it has to be there whole, where `until` is only for how long the node may be silent.
        """
        expected, api, version = self._waiting[0]
        silence_s = until - time.monotonic()
        try:
            self._fill(memoryview(self._size), until)
            size = read_frame_size(memoryview(self._size), 0, self._max_frame_bytes)
            frame = memoryview(bytearray(size))
            if latest is None:
                self._fill(frame, until)
            else:
                for start in range(0, size, RECEIVE_BYTES):
                    self._fill(frame[start : start + RECEIVE_BYTES], min(latest, time.monotonic() + silence_s))
            correlation_id, response = parse_response(api, version, frame)
        except OSError as error:
            raise self._broken(error) from error
        except DecodeError:
            self.close()
            raise
        if correlation_id != expected:
            raise self._broken(f"answer {correlation_id} came where {expected} was due")
        self._waiting.popleft()
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._throttled_until = time.monotonic() + throttle_ms / 1000
        return response

    def _wait_out_throttle(self, until: float) -> None:
        """The node asked not to be asked again for a while (KIP-219)."""
        pause = min(self._throttled_until, until) - time.monotonic()
        if pause > 0:
            time.sleep(pause)

    def _fill(self, view: memoryview, until: float) -> None:
        filled = 0
        while filled < len(view):
            self._socket.settimeout(_left(until, self.address))
            count = self._socket.recv_into(view[filled:], min(len(view) - filled, RECEIVE_BYTES))
            if count == 0:
                raise ConnectionResetError("the node hung up")
            filled += count

    def _broken(self, reason: object) -> NetworkError:
        self.close()
        return NetworkError(f"{self.address}: {reason}")

    def is_usable(self) -> bool:
        """Whether it is open, nothing is left over on it, and the node did not hang up meanwhile."""
        if self.closed or self._waiting:
            return False
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Hang up; again has no effect."""
        self.closed = True
        self._waiting.clear()
        self._socket.close()


def _left(until: float, address: str) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"{address} did not answer in time")
    return left
