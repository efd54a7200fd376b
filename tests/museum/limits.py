"""Sizes that somebody else claims: nothing is allocated for a number that nobody has checked."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import cramjam
from tests.museum.exhibit import Replaced, exhibit, promise
from tests.worlds.broker_world import InProcess

from duramen.errors import KafkaError
from duramen.server.net import connection
from duramen.wire import compression

MIB = 1 << 20


def peak_of(work: Callable[[], Any]) -> int:
    """Most bytes allocated while it runs."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@exhibit(
    "a-web-request-for-a-gigabyte",
    source="https://issues.apache.org/jira/browse/KAFKA-4090",
    guard="a frame's size is compared with socket.request.max.bytes when its four bytes have arrived",
    without=Replaced(connection, "_refuse_size", lambda original: lambda size, receiver: None),
)
def web_request() -> None:
    """Bytes of another protocol (TLS, HTTP) read as a length made clients and brokers allocate gigabytes."""
    server = InProcess()
    line = server.connect()
    line._arrived += b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    server.run()
    promise(line.closed, "a connection that announces 1.2 GB is closed, not waited for")


def _no_room_needed(original: Callable[..., bytes]) -> Callable[..., bytes]:
    def block(data: memoryview, room: int, max_bytes: int) -> bytes:
        return original(data, 1 << 40, 1 << 40)

    return block


@exhibit(
    "snappy-length-taken-on-trust",
    source="https://nvd.nist.gov/vuln/detail/CVE-2023-34455",
    guard="a block's stated length is held against what is still allowed before a buffer is made",
    without=Replaced(compression, "_snappy_block", _no_room_needed),
)
def snappy_length() -> None:
    """snappy-java allocated whatever a chunk said it would become: a few bytes could end a Kafka broker."""
    bomb = bytes(cramjam.snappy.compress_raw(bytes(64 * MIB)))
    stream = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(bomb)) + bomb

    def inflate() -> None:
        try:
            compression.decompress(compression.SNAPPY, stream, 2 * MIB)
        except KafkaError:
            return

    promise(peak_of(inflate) < 16 * MIB, "a batch that may become 2 MiB never takes 64")
