"""The first words with who listens at an address: in plain text, and as TLS.

Written out byte by byte: the messages' codecs would take a command longer to load than the node to answer.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from typing import Final

from duramen.cli.shared.output import ProgressLine

LOOK_SECONDS: Final = 0.2
"""Between two looks at whether there is an answer."""

Address = tuple[str, int]

ILLEGAL_SASL_STATE: Final = 34
_API_VERSIONS: Final = (18, 0, b"")
_BROKERS: Final = (3, 1, bytes(4))
"""Metadata, version 1, of no topic."""
_NUMBER: Final = b"durm"
"""Stands in each question, and the answer repeats it."""
_ANSWER_BYTES_MAX: Final = 1 << 20


class Conversation:
    """Questions to who listens at the other end of a connection, one after the other."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        """address: as it is shown."""
        connection.settimeout(LOOK_SECONDS)
        self._connection = connection
        self._address = address

    def speaks_kafka(self, seconds: float) -> bool:
        """Whether it says which versions it serves, which Kafka tells anybody. TimeoutError where nothing comes."""
        return self._ask(*_API_VERSIONS, seconds) is not None

    def brokers(self, seconds: float) -> list[Address]:
        """Where it sends clients, as far as it says so. TimeoutError where nothing comes."""
        answer = self._ask(*_BROKERS, seconds)
        try:
            return _brokers(answer) if answer else []
        except (struct.error, UnicodeDecodeError):
            return []

    def login_error(self, mechanism: str, seconds: float) -> int | None:
        """The code with which it answers who is about to log in, None without one. TimeoutError where nothing comes."""
        name = mechanism.encode()
        answer = self._ask(17, 0, struct.pack(">h", len(name)) + name, seconds)
        return struct.unpack_from(">h", answer)[0] if answer and len(answer) >= 2 else None

    def _ask(self, key: int, version: int, body: bytes, seconds: float) -> bytes | None:
        """The answer behind its number; None where what comes is none, or the connection ends."""
        question = struct.pack(">hh4sh", key, version, _NUMBER, -1) + body
        deadline = time.monotonic() + seconds
        told = b""
        with ProgressLine(f"waiting for {self._address}") as progress, contextlib.suppress(ConnectionError):
            self._connection.sendall(struct.pack(">i", len(question)) + question)
            while (missing := _missing(told)) and (piece := self._next(missing)) != b"":
                told += piece or b""
                if piece is None and time.monotonic() > deadline:
                    raise TimeoutError
                progress.show()
        return told[8:] if told[4:8] == _NUMBER and not _missing(told) else None

    def _next(self, count: int) -> bytes | None:
        """What has come, at most so many bytes; None where nothing has yet, empty where nothing will."""
        try:
            return self._connection.recv(count)
        except TimeoutError:
            return None


def _missing(told: bytes) -> int:
    """Bytes of the answer that have not come. All of one are read: a node tells of a connection that was cut off."""
    if len(told) < 8:
        return 8 - len(told)
    size = int.from_bytes(told[:4], "big")
    return max(0, 4 + size - len(told)) if told[4:8] == _NUMBER and size <= _ANSWER_BYTES_MAX else 0


def _brokers(answer: bytes) -> list[Address]:
    (count,), position = struct.unpack_from(">i", answer), 4
    found = []
    for _ in range(count):
        _, length = struct.unpack_from(">ih", answer, position)
        host = answer[position + 6 : position + 6 + length].decode()
        port, rack = struct.unpack_from(">ih", answer, position + 6 + length)
        position += 12 + length + max(rack, 0)
        found.append((host, port))
    return found


def speaks_tls(connection: socket.socket, host: str, seconds: float) -> bool:
    """Whether who listens there answers a TLS hello, be it with a refusal. Nothing is verified, and nothing is told."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection.settimeout(seconds)
    try:
        with context.wrap_socket(connection, server_hostname=host):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return False
