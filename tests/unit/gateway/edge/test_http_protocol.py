"""Connections that do not do their part: each is closed, with what it was owed where that is possible."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from duramen.gateway.edge.http_protocol import bounded_protocol

HEAD_S = 0.15
UNREAD_S = 0.15
HEAD = b"POST /a HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n"
LONG_S = 20.0


async def answers_at_once(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def answers_never(_scope: Scope, receive: Receive, _send: Send) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answers_for_ever(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Its end is an error, as of an application whose client has left."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(1000):
        await send({"type": "http.response.body", "body": b"z" * 100_000, "more_body": True})


def served(
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
    client: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    """Run a client against an application behind the protocol."""

    async def run() -> None:
        config = uvicorn.Config(
            app, http=bounded_protocol(2048, HEAD_S, UNREAD_S), ws="none", lifespan="off", log_config=None
        )
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: config.http_protocol_class(config, state, {}), "127.0.0.1", 0)  # type: ignore[call-arg,arg-type]
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(LONG_S):
            await client(reader, writer)
            writer.close()
            while state.connections:
                await asyncio.sleep(0.01)
        server.close()

    asyncio.run(run())


async def closed(reader: asyncio.StreamReader) -> bytes:
    """All that came until the connection was closed."""
    found = b""
    try:
        while part := await reader.read(65536):
            found += part
    except ConnectionError:
        pass
    return found


async def flooded(writer: asyncio.StreamWriter, part: bytes, most: int) -> int:
    """Send it again and again until the connection is closed; how many bytes that took."""
    sent = 0
    try:
        while sent < most:
            writer.write(part)
            sent += len(part)
            await writer.drain()
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize(
    "body", [b"content-length: 9000000\r\n\r\nabc", b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n"]
)
def test_a_body_that_nobody_waits_for_is_not_waited_for(body: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + body)
        assert (await closed(reader)).endswith(b"\r\n\r\nok")

    served(answers_at_once, client)


def test_what_is_left_of_a_body_does_not_end_the_connection() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            writer.write(HEAD + b"content-length: 4\r\n\r\nab")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.write(b"cd")
        await asyncio.sleep(1.5 * HEAD_S)
        writer.write(HEAD + b"content-length: 0\r\n\r\n")
        await reader.readuntil(b"ok")

    served(answers_at_once, client)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (CHUNKED + b"0\r\n", b"x: " + b"y" * 1000 + b"\r\n"),
        (CHUNKED + b"0\r\nx: ", b"y" * 4096),
        (CHUNKED + b"1;", b"y" * 4096),
    ],
    ids=["trailers", "one trailer", "an extension"],
)
def test_chunks_that_are_mostly_framing_end_it(first: bytes, again: bytes) -> None:
    async def client(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        assert await flooded(writer, again, 100 << 20) < 100 << 20

    served(answers_never, client)


def test_chunks_of_one_byte_are_taken() -> None:
    async def client(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        assert await flooded(writer, b"1\r\na\r\n" * 1000, 600_000) == 600_000

    served(answers_never, client)


def test_requests_that_do_not_wait_for_answers_end_it() -> None:
    async def client(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
        assert await flooded(writer, request * 100, 100 << 20) < 100 << 20

    served(answers_never, client)


def test_some_requests_at_once_are_answered_in_order() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200)
        for _ in range(200):
            await reader.readuntil(b"ok")

    served(answers_at_once, client)


def test_an_answer_that_is_not_taken_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(3 * UNREAD_S)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await closed(reader)) < 100_000_000

    served(answers_for_ever, client)
    caplog.clear()
