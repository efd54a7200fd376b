"""An answer whose sender has to know whether it left: what it holds is not given a second time."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class ConfirmedResponse(Response):
    """Sends its body, and calls `on_end` in front of its end: with True where the socket has taken all of it, and the
    client had not hung up by then."""

    def __init__(self, request: Request, body: bytes, media_type: str, on_end: Callable[[bool], None]) -> None:
        super().__init__(body, media_type=media_type)
        self._request = request
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_sent = False
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            # A server lets a part wait until the socket has taken those before it.
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            is_sent = not await self._request.is_disconnected()
        finally:
            self._on_end(is_sent)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
