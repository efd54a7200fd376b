"""uvicorn's HTTP protocol with bounds for the head of a request, its bytes and the time that it takes to arrive, and
with a way to write parts of a response past ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from duramen.gateway.edge.problem import MEDIA_TYPE, bad_request

_FRAMING_PER_BYTE: Final = 16
"""Of a chunked body: a chunk of one byte takes five, and may have a short extension."""
_PIPELINE_MAX: Final = 256
"""Requests of one connection that wait for the answers of those before; one more ends it."""
_EXTENSION: Final = "duramen.response"


class ResponseChunks:
    """The body of a response that has begun, in chunks of HTTP/1.1. It may be written while the application waits."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def is_ready(self) -> bool:
        """Whether the client is there and the system has taken all that was written."""
        return not self._transport.is_closing() and not self._transport.get_write_buffer_size()

    def write(self, part: bytes) -> None:
        """Send a part, which may not be empty."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))

    def abort(self) -> None:
        """Close the connection; what the client has not read is lost."""
        self._transport.abort()


def chunks_of(scope: Mapping[str, Any]) -> ResponseChunks | None:
    """The body of the response to a request; None under other servers and for HTTP/1.0."""
    found = scope.get("extensions", {}).get(_EXTENSION, {}).get("chunks")
    return found if isinstance(found, ResponseChunks) and scope["http_version"] == "1.1" else None


@contextmanager
def aborted_after(chunks: ResponseChunks | None, seconds: float) -> Iterator[None]:
    """A client that reads so little that its response lasts so long is cut; it knows its last position."""
    if chunks is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(seconds, chunks.abort)
    try:
        yield
    finally:
        timer.cancel()


def bounded_protocol(head_max_bytes: int, head_timeout_s: float, unread_s: float) -> type[HttpToolsProtocol]:
    """The class of connections whose heads keep these bounds; what does not is answered 431 or 408 and closed.

    A body that is sent on when its request has been answered may take as long as a head; then the connection is closed.
    So it is where chunks come with more of their own bytes (extensions, trailers) than is of use, and where a client
    takes nothing of an answer for unread_s.
    """

    class BoundedProtocol(HttpToolsProtocol):
        """One connection."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_bytes = 0
            self._in_head = True
            self._timer: asyncio.TimerHandle | None = None
            self._body_bytes = 0
            self._framing_bytes = 0
            self._unread_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._stop_unread_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes == len(data):
                    self._start_timer()
                # Parsed in pieces: a body after the head does not count.
                while data and self._in_head and not self.transport.is_closing():
                    room = head_max_bytes + 1 - (self._head_bytes - len(data))
                    if room <= 0:
                        self._refuse(b"431 Request Header Fields Too Large")
                        return
                    super().data_received(data[:room])
                    data = data[room:]
            if data and not self.transport.is_closing():
                self._framing_bytes += len(data)
                super().data_received(data)
                most = head_max_bytes + _FRAMING_PER_BYTE * self._body_bytes
                if not self._in_head and self._framing_bytes > most and not self.transport.is_closing():
                    self.transport.abort()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._stop_timer()
            self.scope.setdefault("extensions", {})[_EXTENSION] = {"chunks": ResponseChunks(self.transport)}
            if len(self.pipeline) < _PIPELINE_MAX:
                super().on_headers_complete()
            else:
                self.transport.abort()

        def on_body(self, body: bytes) -> None:
            self._body_bytes += len(body)
            self._framing_bytes -= len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_head = True
            self._head_bytes = self._body_bytes = self._framing_bytes = 0
            self._stop_timer()
            cycle: RequestResponseCycle | None = self.cycle  # none where a WebSocket was asked for
            if cycle is not None and cycle.response_complete and self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.pipeline:
                self.flow.pause_reading()  # until those that came are answered
            if not self._in_head and self.cycle.response_complete and self._timer is None:
                # What is left of the body goes nowhere. To close at once could take the answer from the client.
                self._timer = self.loop.call_later(head_timeout_s, self.transport.close)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._unread_timer is None:
                self._unread_timer = self.loop.call_later(unread_s, self.transport.abort)

        def resume_writing(self) -> None:
            self._stop_unread_timer()
            super().resume_writing()

        def _stop_unread_timer(self) -> None:
            if self._unread_timer is not None:
                self._unread_timer.cancel()
                self._unread_timer = None

        def send_400_response(self, _msg: str) -> None:
            problem = bad_request("request", "it is no HTTP/1.1: its head or the framing of its body is malformed")
            body = problem.body()
            head = f"connection: close\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n\r\n"
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
            self.transport.close()

        def _start_timer(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(head_timeout_s, self._refuse, b"408 Request Timeout")

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, status: bytes) -> None:
            self._stop_timer()
            if not self.transport.is_closing():
                self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                self.transport.close()

    return BoundedProtocol
