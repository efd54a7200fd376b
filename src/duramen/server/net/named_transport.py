"""Connecting to a host by its name: a thread looks it up, which takes as long as a name server is silent."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from duramen.ports import Part, Submit, Transport

LANE = "names"

SocketAddress = tuple[socket.AddressFamily, Any]
"""A family, and an address as its sockets take it."""


def numeric_address(host: str, port: int) -> SocketAddress | None:
    """Of a host that is written as a number; None when it is a name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return found[0][0], found[0][4]


def look_up(host: str, port: int) -> SocketAddress:
    """The IPv4 address of a name if it has one, as `bind_tcp`; OSError. Waits for name servers."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(errno.EADDRNOTAVAIL, "no host can have this name") from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


class NamedTransport:
    """Transport port of a connection that begins when its host's name is known; then it hands everything on.

    peer: first the name; from then on the address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        submit: Submit,
        call_soon: Callable[[Callable[[], None]], None],
        connect: Callable[[SocketAddress], Transport],
    ) -> None:
        self.peer = f"{host}:{port}"
        self._call_soon = call_soon
        self._connect = connect
        self._inner: Transport | None = None
        self._error: OSError | None = None
        self._closed = False
        self._reader: Callable[[], None] | None = None
        self._writer: Callable[[], None] | None = None
        submit(LANE, partial(look_up, host, port), self._found)

    def _found(self, address: SocketAddress | None, error: BaseException | None) -> None:
        if self._closed:
            return
        try:
            if error is not None:
                raise error
            assert address is not None
            self._inner = inner = self._connect(address)
        except OSError as failed:
            self._error = failed
            self._tell_reader()
            self._tell_writer()
            return
        self.peer = inner.peer
        inner.set_reader(self._reader)
        inner.set_writer(self._writer)

    def _tell_reader(self) -> None:
        """As a socket would: a failed connect is there to be read and to be sent to."""
        if self._error is not None and self._reader is not None:
            self._call_soon(lambda: self._reader() if self._reader is not None else None)

    def _tell_writer(self) -> None:
        if self._error is not None and self._writer is not None:
            self._call_soon(lambda: self._writer() if self._writer is not None else None)

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self._error is not None:
            raise self._error

    def recv_into(self, view: memoryview) -> int:
        if self._inner is not None:
            return self._inner.recv_into(view)
        self._check()
        return -1

    def send(self, parts: Sequence[Part]) -> int:
        if self._inner is not None:
            return self._inner.send(parts)
        self._check()
        return 0

    def pace(self, bytes_per_second: int) -> bool:
        return self._inner is not None and self._inner.pace(bytes_per_second)

    def set_reader(self, callback: Callable[[], None] | None) -> None:
        if self._inner is not None:
            self._inner.set_reader(callback)
        else:
            self._reader = callback
            self._tell_reader()

    def set_writer(self, callback: Callable[[], None] | None) -> None:
        if self._inner is not None:
            self._inner.set_writer(callback)
        else:
            self._writer = callback
            self._tell_writer()

    def close(self) -> None:
        self._closed = True
        self._reader = self._writer = None
        if self._inner is not None:
            self._inner.close()
