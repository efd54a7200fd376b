"""Work for a client that may leave meanwhile: nobody waits for it then."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from duramen.gateway.tails.live_readers import disconnected

_T = TypeVar("_T")


async def unless_left(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """What the work returns, which is cancelled when the client leaves: ClientDisconnect. The body was read before."""
    left = asyncio.ensure_future(disconnected(request))
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.wait((left, doing), return_when=asyncio.FIRST_COMPLETED)
        if left.done() and not doing.done():
            raise ClientDisconnect
        return await doing
    finally:
        left.cancel()
        doing.cancel()
