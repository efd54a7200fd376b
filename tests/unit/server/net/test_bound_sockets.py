"""Which address families a listener opens, and what is said of an address that cannot be used."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Any

import pytest
from tests.worlds.served_node import has_ipv6

from duramen.ports import Transport
from duramen.server.net import bound_sockets
from duramen.server.net.bound_sockets import bind_tcp, refusal, shown_address
from duramen.server.net.loop import EventLoop
from duramen.server.net.os_ports import SocketNetwork


@pytest.mark.parametrize("host", ["", "::"])
def test_every_interface_is_also_that_of_ipv6(host: str) -> None:
    """It was IPv4 without a host, IPv6 alone with `[::]` where the system says so."""
    if not has_ipv6():
        pytest.skip("no IPv6 here")
    loop = EventLoop()
    accepted: list[Transport] = []
    listener = SocketNetwork(loop).listen(host, 0, accepted.append)
    shown = []
    with ExitStack() as stack:
        for asked in ("127.0.0.1", "::1"):
            connection = stack.enter_context(socket.create_connection((asked, listener.port), timeout=30))
            shown.append(shown_address(*connection.getsockname()[:2]))
        while len(accepted) < 2:
            loop.turn()
        assert [transport.peer for transport in accepted] == shown
        assert shown[0].startswith("127.0.0.1:")
        assert shown[1].startswith("[::1]:")
        for transport in accepted:
            transport.close()
    listener.close()
    loop.close()


def test_ipv6_that_asks_for_ipv6_alone_is_overruled() -> None:
    if not has_ipv6():
        pytest.skip("no IPv6 here")
    with bind_tcp("::", 0) as bound:
        assert bound.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 0


def test_a_machine_without_ipv6_listens_by_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without(family: int, *arguments: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *arguments)

    monkeypatch.setattr(bound_sockets.socket, "socket", without)
    with bind_tcp("", 0) as bound:
        assert bound.getsockname()[0] == "0.0.0.0"
    with pytest.raises(OSError, match="Address family"):
        bind_tcp("::1", 0)


def test_a_port_that_is_taken_in_one_family_is_taken() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken, pytest.raises(OSError, match="in use"):
        bind_tcp("", taken.getsockname()[1])


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_ipv4_and_names_stay_what_they_are(host: str) -> None:
    with bind_tcp(host, 0) as bound:
        assert bound.family == socket.AF_INET


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("::ffff:1.2.3.4", "1.2.3.4:5"),
        ("1.2.3.4", "1.2.3.4:5"),
        ("fe80::1", "[fe80::1]:5"),
        ("a.example", "a.example:5"),
    ],
)
def test_addresses_are_shown_as_they_are_typed(host: str, shown: str) -> None:
    assert shown_address(host, 5) == shown


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EADDRINUSE, "x"),
            "A://h:1 is in use. Stop who listens there, or choose a port: --set k=A://i:P",
        ),
        (
            PermissionError(errno.EACCES, "x"),
            "no permission to listen at A://h:1. Choose a port above 1023: --set k=A://i:P",
        ),
        (
            OSError(errno.EADDRNOTAVAIL, "not here"),
            "cannot listen at A://h:1 (not here). Name an address of this machine: --set k=A://i:P",
        ),
    ],
)
def test_what_is_wrong_with_an_address(error: OSError, said: str) -> None:
    assert str(refusal("k", "A://h:1", "A://i:P", error)) == said


def test_a_name_that_no_host_can_have() -> None:
    with pytest.raises(OSError, match="no host can have this name"):
        bind_tcp("a" * 70, 0)
