"""An answer whose lines are sent while the body of its request still comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

NDJSON: Final = "application/x-ndjson"


class ReportResponse(Response):
    """The lines of a report. Unlike starlette's streams it leaves the messages of the request to who reads its body."""

    def __init__(self, lines: AsyncGenerator[bytes], media_type: str = NDJSON) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines; a client that leaves ends it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._lines) as lines:
                async for some in lines:
                    await send({"type": "http.response.body", "body": some, "more_body": True})
        except ClientDisconnect:
            scope["duramen.abandoned"] = True
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
