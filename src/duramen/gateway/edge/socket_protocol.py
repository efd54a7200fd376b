"""uvicorn's WebSocket protocol with bounds for what a client sends that nobody has read, or does not read itself."""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

MESSAGE_MAX_BYTES: Final = 64 << 10
"""Of a client: what it sends are positions and credits."""

_UNREAD_MAX: Final = 128
_FRAGMENTS_MAX: Final = 128
_PONGS_MAX_BYTES: Final = 1 << 20
_POLICY: Final = 1008
_LINGER_S: Final = 1.0


class BoundedSocketProtocol(WebSocketsSansIOProtocol):
    """One connection. More messages at a time, or more fragments of one, than are of use close it (1008); pings whose
    answers the client does not read end it, and so does a client that reads nothing when it is to be closed."""

    def send_receive_event_to_app(self) -> None:
        if self.queue.qsize() < _UNREAD_MAX:
            super().send_receive_event_to_app()
        else:
            self._refuse("too many messages at a time")

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < _FRAGMENTS_MAX:
            super().handle_cont(event)
        else:
            self._refuse("too many fragments")

    def handle_ping(self) -> None:
        if self.transport.get_write_buffer_size() > _PONGS_MAX_BYTES:
            self.transport.abort()
        else:
            super().handle_ping()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._abort_unread()

    async def send(self, message: Any) -> None:
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.close" and self.close_timer is not None:
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)

    def _abort_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _refuse(self, why: str) -> None:
        """Close it; what still comes is read for a moment and dropped, or the client would not see why."""
        self.frames = []
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.fail(_POLICY, why)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": _POLICY, "reason": why})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(_LINGER_S, self.transport.abort)
