"""Listener addresses: their syntax, and which of them this node opens."""

from __future__ import annotations

import ipaddress
import re
from functools import partial
from typing import Final, NamedTuple

from duramen.config.mistakes import mistakes_of, raise_all
from duramen.errors import ConfigError

_LISTENER = re.compile(r"([A-Za-z0-9_.-]+)://(\[[0-9A-Fa-f:.%]*\]|[^\[\]:/]*):([0-9]+)", re.ASCII)
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^\[\]:/]*):([0-9]+)", re.ASCII)
MAX_PORT: Final = 65535
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class ListenerAddress(NamedTuple):
    """One address: listener name (upper case), host ("" is every interface) and port (0 picks one)."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listener(key: str, text: str) -> ListenerAddress:
    """`NAME://host:port`; ConfigError otherwise. IPv6 hosts stand in brackets."""
    match = _LISTENER.fullmatch(text)
    if match is None:
        raise ConfigError(f"{key}: {text!r} is not NAME://host:port")
    _check_port(key, text, match[3])
    return ListenerAddress(match[1].upper(), match[2].strip("[]"), int(match[3]))


def parse_host_port(key: str, text: str) -> tuple[str, int]:
    """`host:port`; ConfigError otherwise."""
    match = _HOST_PORT.fullmatch(text)
    if match is None:
        raise ConfigError(f"{key}: {text!r} is not host:port")
    _check_port(key, text, match[2])
    return match[1].strip("[]"), int(match[2])


def _check_port(key: str, text: str, port: str) -> None:
    if len(port.lstrip("0")) > 5 or int(port) > MAX_PORT:
        raise ConfigError(f"{key}: {text!r} has a port above {MAX_PORT}")


def parse_protocol_map(key: str, text: str) -> dict[str, str]:
    """Security protocol by listener name, from `NAME:PROTOCOL,…`; ConfigError otherwise."""
    protocols: dict[str, str] = {}
    wrong = []
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = pair.partition(":")
        if not colon or not name.strip() or protocol.strip().upper() not in _PROTOCOLS:
            wrong.append(ConfigError(f"{key}: {pair!r} is not NAME:PROTOCOL with one of {', '.join(_PROTOCOLS)}"))
        protocols[name.strip().upper()] = protocol.strip().upper()
    raise_all(wrong)
    return protocols


def client_listeners(
    listeners: list[str], protocols: dict[str, str], controller_names: list[str]
) -> tuple[ListenerAddress, ...]:
    """The listeners to open: all but the controller's, checked for names, ports and protocols; ConfigError."""
    key = "listeners"
    raise_all(mistakes_of(partial(parse_listener, key, text) for text in listeners))
    parsed = [parse_listener(key, text) for text in listeners]
    names = [listener.name for listener in parsed]
    ports = [listener.port for listener in parsed if listener.port]
    if len(set(names)) != len(names):
        raise ConfigError(f"{key}: each listener needs a name of its own")
    if len(set(ports)) != len(ports):
        raise ConfigError(f"{key}: each listener needs a port of its own")
    quorum = {name.upper() for name in controller_names}
    opened = tuple(listener for listener in parsed if listener.name not in quorum)
    if not opened:
        raise ConfigError(f"{key}: no listener is left for clients, for example PLAINTEXT://127.0.0.1:9092")
    raise_all(mistakes_of(partial(_check_protocol, key, listener, protocols) for listener in opened))
    return opened


def _check_protocol(key: str, listener: ListenerAddress, protocols: dict[str, str]) -> None:
    protocol = protocols.get(listener.name)
    if protocol is None:
        raise ConfigError(f"listener.security.protocol.map says nothing about listener {listener.name}")
    if protocol != "PLAINTEXT":
        raise ConfigError(f"{key}: {listener} would be {protocol}; this release serves PLAINTEXT listeners only")


def _is_any_address(host: str) -> bool:
    """Whether it is 0.0.0.0 or [::], however it is spelt: an address to listen at, not to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name, or empty
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener at this host; a name other than localhost counts as open."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def share_port(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Whether two addresses to listen at cannot both be had; two names of one machine may escape this."""
    if one[1] != other[1] or one[1] == 0:
        return False
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (one[0], other[0])}
    return len(hosts) == 1 or any(not host or _is_any_address(host) for host in hosts)


def advertised_listeners(
    opened: tuple[ListenerAddress, ...], advertised: list[str] | None, controller_names: list[str]
) -> tuple[ListenerAddress, ...]:
    """What clients are told to connect to, one address a listener and in the same order; ConfigError.

    Without advertised.listeners these are the listeners themselves: a port of 0 is replaced once it is known, an
    empty host by this machine's name.
    """
    key = "advertised.listeners"
    if advertised is None:
        for listener in opened:
            if _is_any_address(listener.host):
                line = f"{key}={listener.name}://HOST:{listener.port}"
                raise ConfigError(
                    f"{key} cannot use the nonroutable meta-address {listener.host}, which listeners has; add "
                    f"{line} with the name that clients reach this machine by"
                )
        return opened
    quorum = {name.upper() for name in controller_names}
    told = {listener.name: listener for listener in (parse_listener(key, text) for text in advertised)}
    strangers = told.keys() - {listener.name for listener in opened} - quorum
    if strangers:
        raise ConfigError(f"{key}: there is no listener named {min(strangers)}")
    for listener in told.values():
        if listener.name not in quorum and (not listener.host or _is_any_address(listener.host)):
            raise ConfigError(f"{key}: {listener} names no host that a client could connect to")
    missing = [listener.name for listener in opened if listener.name not in told]
    if missing:
        raise ConfigError(f"{key}: an address for listener {missing[0]} is missing")
    return tuple(told[listener.name] for listener in opened)
