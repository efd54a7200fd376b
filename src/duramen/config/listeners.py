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


class OpenedListeners(NamedTuple):
    """The addresses that this node listens at: those for clients and brokers, and those of its controller."""

    broker: tuple[ListenerAddress, ...]
    controller: tuple[ListenerAddress, ...]


def opened_listeners(
    listeners: list[str], protocols: dict[str, str], controller_names: list[str], roles: list[str]
) -> OpenedListeners:
    """The listeners to open, checked for names, ports, protocols and the node's roles; ConfigError.

    A controller that says nothing of a listener has none: nobody else has to reach the only voter of a cluster.
    """
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
    opened = OpenedListeners(
        tuple(listener for listener in parsed if listener.name not in quorum),
        tuple(listener for listener in parsed if listener.name in quorum),
    )
    _check_roles(key, opened, quorum, roles)
    raise_all(mistakes_of(partial(_check_protocol, key, listener, protocols) for listener in parsed))
    return opened


def _check_roles(key: str, opened: OpenedListeners, quorum: set[str], roles: list[str]) -> None:
    """What Kafka demands of a node that is broker, controller or both."""
    names = "controller.listener.names"
    if "controller" not in roles:
        if opened.controller:
            raise ConfigError(
                f"{key}: {opened.controller[0]} is of {names}, which a node without that role never opens"
            )
    elif missing := quorum - {listener.name for listener in opened.controller}:
        name = min(missing)
        raise ConfigError(f"{names}: there is no listener named {name}; add {name}://127.0.0.1:9093 to {key}")
    if "broker" in roles:
        if not opened.broker:
            raise ConfigError(f"{key}: no listener is left for clients, for example PLAINTEXT://127.0.0.1:9092")
    elif opened.broker:
        raise ConfigError(f"{key}: {opened.broker[0]} is none of {names}, and a node that is no broker serves no other")
    elif not opened.controller:
        raise ConfigError(f"{names} names none of {key}, and a controller that is no broker needs one")


def _check_protocol(key: str, listener: ListenerAddress, protocols: dict[str, str]) -> None:
    protocol = protocols.get(listener.name)
    if protocol is None:
        raise ConfigError(f"listener.security.protocol.map says nothing about listener {listener.name}")
    if protocol != "PLAINTEXT":
        raise ConfigError(f"{key}: {listener} would be {protocol}; this release serves PLAINTEXT listeners only")


def is_any_address(host: str) -> bool:
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
    return len(hosts) == 1 or any(not host or is_any_address(host) for host in hosts)


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
            if is_any_address(listener.host):
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
        if is_any_address(listener.host) or (not listener.host and listener.name not in quorum):
            raise ConfigError(f"{key}: {listener} names no host that a client could connect to")
    missing = [listener.name for listener in opened if listener.name not in told]
    if missing:
        raise ConfigError(f"{key}: an address for listener {missing[0]} is missing")
    return tuple(told[listener.name] for listener in opened)


def advertised_controllers(
    opened: tuple[ListenerAddress, ...], advertised: list[str] | None
) -> tuple[ListenerAddress, ...]:
    """What brokers, controllers and tools are told of the controller's listeners, in the same order.

    Where advertised.listeners says nothing of one it is the listener itself, and an address that means every interface
    is no host: unlike for clients, Kafka then takes this machine's name.
    """
    told = {
        listener.name: listener for listener in (parse_listener("advertised.listeners", t) for t in advertised or ())
    }
    return tuple(
        told.get(listener.name, listener._replace(host="") if is_any_address(listener.host) else listener)
        for listener in opened
    )
