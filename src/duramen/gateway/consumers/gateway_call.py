"""A request to another gateway, and its answer while it comes: HTTP/1.1, one connection for each."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from typing import Final
from urllib.parse import urlsplit

import httptools

from duramen.gateway.access.peer_trust import PeerTrust
from duramen.gateway.edge.problem import SOON, ProblemError

CONNECT_S: Final = 3.0

_PART: Final = 64 << 10
_HEAD_MAX: Final = 64 << 10

RawHeaders = Iterable[tuple[bytes, bytes]]


class GatewayGoneError(Exception):
    """Nothing takes a connection there, and nothing of the request was done."""


class GatewayCall:
    """One request. status, headers: of the answer, once it was `sent`; `close` it, whatever happens."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self._parts: list[bytes] = []
        self._has_head = False
        self._is_over = False

    async def send(
        self, address: str, trust: PeerTrust, method: str, target: bytes, headers: RawHeaders, body: bytes
    ) -> None:
        """Send it, and read the head of the answer. GatewayGoneError; Problem 503 where it does not answer."""
        parts = urlsplit(address)
        is_https = parts.scheme == "https"
        try:
            async with asyncio.timeout(CONNECT_S):
                self._reader, self._writer = await asyncio.open_connection(
                    parts.hostname, parts.port, ssl=trust.context if is_https else None
                )
        except ssl.SSLError as error:
            raise _away(f"its certificate is not trusted here (gateway.tls.ca): {error.reason or error}") from None
        except (OSError, TimeoutError, ValueError) as error:
            raise GatewayGoneError(str(error) or "nothing answers") from None
        head = [method.encode() + b" " + target + b" HTTP/1.1", b"host: " + parts.netloc.encode()]
        head += [name + b": " + value for name, value in headers]
        head += [b"connection: close", b"content-length: %d" % len(body), b"", b""]
        try:
            self._writer.write(b"\r\n".join(head) + body)
            await self._writer.drain()
            taken = 0
            while not self._has_head:
                taken += await self._read()
                if taken > _HEAD_MAX + _PART:
                    raise _away("its answer has no end of its head")
        except (OSError, httptools.HttpParserError) as error:
            raise _away(str(error) or type(error).__name__) from None

    async def body(self) -> AsyncIterator[bytes]:
        """The body of the answer, in parts. It ends early where the connection does."""
        while True:
            for part in self._parts:
                yield part
            self._parts.clear()
            if self._is_over:
                return
            await self._read()

    async def _read(self) -> int:
        assert self._reader is not None
        part = await self._reader.read(_PART)
        if not part:
            raise ConnectionResetError("the connection ended in front of the answer")
        self._parser.feed_data(part)
        return len(part)

    def close(self) -> None:
        """Hang up."""
        if self._writer is not None:
            self._writer.transport.abort()

    # ---- what the parser finds -----------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is over."""
        self.status = self._parser.get_status_code()
        self._has_head = True

    def on_body(self, part: bytes) -> None:
        """Some of the body."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """The answer is over."""
        self._is_over = True


def _away(why: str) -> ProblemError:
    return ProblemError(
        503, "node-away", f"the gateway that holds the consumer does not answer: {why}", SOON, retriable=True
    )
