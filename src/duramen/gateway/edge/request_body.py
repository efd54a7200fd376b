"""The body of a request within its limits: read whole, or in pieces while it comes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

from starlette.requests import Request

from duramen.gateway.edge.limits import Allowance
from duramen.gateway.edge.problem import ProblemError

PIECES_AT_ONCE: Final = 1_000
"""What is made of a piece may be much larger than the piece."""

_PIECE_BYTES: Final = 64
"""Of memory that a piece takes beside its bytes."""


class BodyCutter(Protocol):
    """What cuts a body into pieces while it comes."""

    @property
    def held(self) -> int:
        """Bytes of a piece that has not ended."""

    @property
    def wrong(self) -> ProblemError | None:
        """Why nothing more will be found in the body."""

    def feed(self, part: bytes) -> list[bytes]:
        """The pieces that end in this part of the body."""

    def end(self) -> list[bytes]:
        """The body is over: what is left of it."""


class LineCutter:
    """Lines without their ends. Blank ones are among them, for lines are counted."""

    wrong: Final = None

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a line that has not ended."""
        return len(self._rest)

    def feed(self, part: bytes) -> list[bytes]:
        """The lines that end in this part of the body."""
        whole, end, tail = part.rpartition(b"\n")
        if not end:
            self._rest += part
            return []
        lines = (bytes(self._rest) + whole).split(b"\n")
        self._rest = bytearray(tail)
        return lines

    def end(self) -> list[bytes]:
        """The last line, if it has no end."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [rest] if rest else []


class RequestBodies:
    """Reads bodies of at most `max_bytes` in `timeout_s`; all that are unanswered count against `unanswered`."""

    def __init__(self, max_bytes: int, timeout_s: float, unanswered: Allowance) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._unanswered = unanswered

    @asynccontextmanager
    async def whole(self, request: Request) -> AsyncIterator[bytes]:
        """The body, which counts as unanswered until the context ends. Problem 408, 413, 415, 503; ClientDisconnect."""
        _check_encoding(request)
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

    async def pieces(self, request: Request, cutter: BodyCutter) -> AsyncGenerator[list[bytes]]:
        """The pieces of a body of any length as they come, at most PIECES_AT_ONCE at a time.

        They count as unanswered until the next ones are asked for. Problem 408 where nothing comes for `timeout_s`, 413
        for a piece of more than `max_bytes`, 415, 503, and what the cutter finds wrong; ClientDisconnect.
        """
        _check_encoding(request)
        stream = aiter(request.stream())
        taken = 0
        try:
            part: bytes | None = b""
            while part is not None:
                part = await self._next(stream)
                size = len(part or b"")
                self._unanswered.take(size)
                taken += size
                found = cutter.end() if part is None else cutter.feed(part)
                short = list(itertools.takewhile(lambda piece: len(piece) <= self._max_bytes, found))
                self._unanswered.take(size := len(found) * _PIECE_BYTES)
                taken += size
                for start in range(0, len(short), PIECES_AT_ONCE):
                    yield short[start : start + PIECES_AT_ONCE]
                if len(short) < len(found) or cutter.held > self._max_bytes:
                    raise self._too_large()
                if cutter.wrong is not None:
                    raise cutter.wrong
                self._unanswered.take(cutter.held - taken)
                taken = cutter.held
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
            413,
            "body-too-large",
            f"more than {self._max_bytes} bytes (gateway.body.max.bytes) are not taken at a time; send less",
            {"stream-body-max-bytes": str(self._max_bytes)},
        )


def _check_encoding(request: Request) -> None:
    """Problem 415 for a body that is compressed: it would be stored as it is, and read as something else."""
    if request.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise ProblemError(
            415,
            "unsupported-type",
            "Content-Encoding: a body is taken as it is (identity)",
            {"accept-encoding": "identity"},
        )
