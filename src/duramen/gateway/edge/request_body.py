"""The body of a request: read whole, within its limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from duramen.gateway.edge.limits import Allowance
from duramen.gateway.edge.problem import ProblemError


class RequestBodies:
    """Reads bodies of at most `max_bytes` in `timeout_s`; all that are unanswered count against `unanswered`."""

    def __init__(self, max_bytes: int, timeout_s: float, unanswered: Allowance) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._unanswered = unanswered

    @asynccontextmanager
    async def whole(self, request: Request) -> AsyncIterator[bytes]:
        """The body, which counts as unanswered until the context ends. Problem 408, 413, 503; ClientDisconnect."""
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise self._too_large()
        taken = 0
        parts: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(self._timeout_s):
                    async for part in request.stream():
                        self._unanswered.take(len(part))
                        taken += len(part)
                        if taken > self._max_bytes:
                            raise self._too_large()
                        parts.append(part)
            except TimeoutError:
                raise ProblemError(
                    408, "body-timeout", "the body did not arrive in time", {"connection": "close"}, retriable=True
                ) from None
            yield b"".join(parts)
        finally:
            self._unanswered.take(-taken)

    async def lines(self, request: Request) -> AsyncGenerator[list[bytes]]:
        """The lines of a body of any length as they come, without empty ones and without their ends.

        They count as unanswered until the next ones are asked for. Problem 408 where nothing comes for `timeout_s`, 413
        for a line of more than `max_bytes`, 503; ClientDisconnect.
        """
        stream = aiter(request.stream())
        rest, taken, more = b"", 0, True
        try:
            while more:
                part = await self._next(stream)
                more = part is not None
                self._unanswered.take(len(part or b""))
                taken += len(part or b"")
                whole, end, tail = (rest + (part or b"")).rpartition(b"\n")
                rest = tail if more else b""
                if len(rest) > self._max_bytes:
                    raise self._too_large()
                found = (whole if more else whole + end + tail).split(b"\n")
                if lines := [line for line in found if line.strip()]:
                    yield lines
                self._unanswered.take(len(rest) - taken)
                taken = len(rest)
        finally:
            self._unanswered.take(-taken)

    async def _next(self, stream: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await anext(stream, None)
        except TimeoutError:
            raise ProblemError(408, "body-timeout", "no more of the body arrived in time", retriable=True) from None

    def _too_large(self) -> ProblemError:
        return ProblemError(
            413, "body-too-large", f"a body has at most {self._max_bytes} bytes (gateway.body.max.bytes); send less"
        )
