"""A request to another gateway: its answer, or why there is none."""

from __future__ import annotations

import asyncio
import socket

import pytest

from duramen.gateway.access.peer_trust import PeerTrust
from duramen.gateway.consumers.gateway_call import GatewayCall, GatewayGoneError
from duramen.gateway.edge.problem import ProblemError


async def asked(answer: bytes, body: bytes = b"") -> tuple[bytes, int, bytes]:
    """What a server was sent that answers so and hangs up, and what it made of the answer."""
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.readuntil(b"\r\n\r\n"))
        got.extend(await reader.readexactly(len(body)))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        call = GatewayCall()
        try:
            await call.send(f"http://127.0.0.1:{port}", PeerTrust(""), "POST", b"/a?b", [(b"accept", b"x")], body)
            found = b"".join([part async for part in call.body()])
        finally:
            call.close()
    return bytes(got).replace(str(port).encode(), b"PORT"), call.status, found


def test_a_request_and_its_answer() -> None:
    large = b"x" * 300_000
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(large), large)
    sent, status, body = asyncio.run(asked(answer, b"body"))
    assert sent == (
        b"POST /a?b HTTP/1.1\r\nhost: 127.0.0.1:PORT\r\naccept: x\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbody"
    )
    assert (status, body) == (200, large)
    assert asyncio.run(asked(b"HTTP/1.1 204 No Content\r\n\r\n"))[1:] == (204, b"")


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\na: " + b"x" * 300_000]
)
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(ProblemError) as refused:
        asyncio.run(asked(answer))
    assert (refused.value.status, refused.value.retriable) == (503, True)


def test_an_answer_that_ends_too_early() -> None:
    with pytest.raises(ConnectionResetError):
        asyncio.run(asked(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx"))


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(GatewayGoneError):
        asyncio.run(GatewayCall().send(f"http://127.0.0.1:{port}", PeerTrust(""), "GET", b"/", (), b""))
