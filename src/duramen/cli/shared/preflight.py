"""Whether a node listens where the user says, asked before the client library tries for as long as it may."""

from __future__ import annotations

import re
import socket
import time
from typing import Final

import click

from duramen.cli.shared.output import ProgressLine

LOOK_SECONDS: Final = 0.2
"""Between two looks at whether there is an answer."""

_CONNECT_SECONDS: Final = 5.0
_ADDRESS = re.compile(r"(?:[A-Z_]+://)?(\[[^\]]+\]|[^\[\]:/]+):([0-9]{1,5})")
_QUESTION: Final = bytes.fromhex("0000000a 0012 0000 6475726d ffff")
"""ApiVersions, version 0, of a client without a name: Kafka answers it to anybody, and repeats the number in it."""
_NUMBER: Final = slice(8, 12)
_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[^\[\]:/,\s]+")
DEFAULT_PORT: Final = 9092
_ANSWER_BYTES_MAX: Final = 1 << 20


def with_ports(bootstrap: str) -> str:
    """The addresses of --bootstrap; one that is only a host means Kafka's port."""
    addresses = (text.strip() for text in bootstrap.split(","))
    return ",".join(f"{text}:{DEFAULT_PORT}" if _HOST.fullmatch(text) else text for text in addresses)


def find_node(bootstrap: str, timeout: float, *, plain: bool) -> None:
    """Return when one of the addresses leads to a node; else end the command with what is wrong with them.

    timeout: seconds to wait for an answer. plain: without TLS and SASL, so that the node can be asked a question.
    """
    addresses = with_ports(bootstrap).split(",")
    seconds = timeout if len(addresses) == 1 else min(timeout, _CONNECT_SECONDS)
    wrong = ""
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match[2]) > 65535:
            raise click.UsageError(f"--bootstrap {address}: expected host:port.")
        place = (match[1].strip("[]"), int(match[2]))
        try:
            with socket.create_connection(place, timeout=min(timeout, _CONNECT_SECONDS)) as connection:
                found = _wrong_with(connection, address, seconds) if plain else None
        except UnicodeError:
            raise click.UsageError(f"--bootstrap {address}: no host can have this name.") from None
        except OSError as error:
            reason = error.strerror or str(error)
            found = (
                f"cannot reach a node at {bootstrap} ({reason}). Start one with `duramen serve`, "
                "or name another with --bootstrap."
            )
        if found is None:
            return
        wrong = wrong or found
    raise click.ClickException(wrong)


def _wrong_with(connection: socket.socket, address: str, seconds: float) -> str | None:
    """Why who listens there is no node that can be talked to as it is; None where it is one."""
    deadline = time.monotonic() + seconds
    connection.settimeout(LOOK_SECONDS)
    told = b""
    with ProgressLine(f"waiting for {address}") as progress:
        try:
            connection.sendall(_QUESTION)
            while (missing := _missing(told)) and (piece := _next(connection, missing)) != b"":
                told += piece or b""
                if piece is None and time.monotonic() > deadline:
                    return (
                        f"{address} takes connections and does not answer. Is the node busy, or is it no node? "
                        "--timeout waits longer, --bootstrap names another."
                    )
                progress.show()
        except ConnectionError:
            told = b""
    if told[4:8] == _QUESTION[_NUMBER]:
        return None
    return (
        f"{address} does not speak Kafka's protocol in plain text. Name the port of a node with --bootstrap; "
        "for TLS there is -X security.protocol=ssl."
    )


def _missing(told: bytes) -> int:
    """Bytes of the answer that have not come. All of one are read: a node tells of a connection that was cut off."""
    if len(told) < 8:
        return 8 - len(told)
    size = int.from_bytes(told[:4], "big")
    return 4 + size - len(told) if told[4:8] == _QUESTION[_NUMBER] and size <= _ANSWER_BYTES_MAX else 0


def _next(connection: socket.socket, count: int) -> bytes | None:
    """What has come, at most so many bytes; None where nothing has yet, empty where nothing will."""
    try:
        return connection.recv(count)
    except TimeoutError:
        return None
