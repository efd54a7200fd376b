"""Sockets to listen at, of the family that their address has; what is said of an address that cannot be used."""

from __future__ import annotations

import errno
import socket

from duramen.errors import ConfigError

_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def bind_tcp(host: str, port: int) -> socket.socket:
    """A TCP socket that is bound and does not listen yet; OSError where the address cannot be used.

    An empty host is every interface, of IPv4 and of IPv6 where the machine has it; so is `::`, as in Kafka. A name is
    its IPv4 address if it has one.
    """
    if host:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise OSError(errno.EADDRNOTAVAIL, "no host can have this name") from None
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        return _bound(family, address)
    try:
        return _bound(socket.AF_INET6, ("::", port))
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
    return _bound(socket.AF_INET, ("0.0.0.0", port))


def _bound(family: int, address: object) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)  # type: ignore[arg-type]
    except OSError:
        sock.close()
        raise
    return sock


def shown_address(host: str, port: int) -> str:
    """As --bootstrap takes it: an IPv6 address in brackets, an IPv4 address that came in by IPv6 as itself."""
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refusal(key: str, address: str, example: str, error: OSError) -> ConfigError:
    """What is wrong with an address that cannot be listened at, and which setting has it."""
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{address} is in use. Stop who listens there, or choose a port: --set {key}={example}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigError(f"no permission to listen at {address}. Choose a port above 1023: --set {key}={example}")
    text = error.strerror or str(error)
    return ConfigError(f"cannot listen at {address} ({text}). Name an address of this machine: --set {key}={example}")
