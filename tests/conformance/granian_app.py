"""The gateway's application for another ASGI server, which also starts and ends it (`lifespan`).

    STREAMS_CLUSTER=127.0.0.1:9092 granian --interface asgi --port 8082 tests.conformance.granian_app:app

Pushed events go through ASGI there, as with any server but uvicorn.
"""

from __future__ import annotations

import os
import sys

from starlette.types import Receive, Scope, Send

from duramen.config import load_gateway_config
from duramen.gateway.access.authenticator import NoLogin
from duramen.gateway.gateway import Gateway


class LazyGateway:
    """A gateway that is made when the server says that it begins: in its loop."""

    def __init__(self) -> None:
        self._gateway: Gateway | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._gateway is not None:
            await self._gateway.app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        config = load_gateway_config(None, {"bootstrap.servers": os.environ["STREAMS_CLUSTER"]})
        async with Gateway(config, NoLogin(), sys.stderr) as self._gateway:
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self._gateway.stopping.set()
        await send({"type": "lifespan.shutdown.complete"})


app = LazyGateway()
