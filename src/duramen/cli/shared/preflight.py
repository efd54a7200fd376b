"""Whether a node listens where the user says, and can be reached where it sends clients; and whether a gateway does.

Asked before the client library tries for as long as it may.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Final

import click

from duramen.cli.shared.handshake import ILLEGAL_SASL_STATE, LOOK_SECONDS, Address, Conversation, speaks_tls
from duramen.cli.shared.output import ProgressLine

_CONNECT_SECONDS: Final = 5.0
_FURTHER_SECONDS: Final = 3.0
"""For what is asked behind the first answer, and for an address that clients are told to use."""
_TOLD_ANSWER_SECONDS: Final = 5.0
"""For the first answer at an address that clients are told to use: the node has just answered elsewhere."""
_QUICK_SECONDS: Final = 1.0
"""For an address to answer, where there are others."""
_MOST_TRIED: Final = 16
"""Addresses of nodes, at once."""
_ADDRESS = re.compile(r"(?:[A-Z_]+://)?(\[[^\]]+\]|[^\[\]:/]+):([0-9]+)")
_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[^\[\]:/,\s]+")
DEFAULT_PORT: Final = 9092
_MAX_PORT: Final = 65535
_NO_KAFKA: Final = "nobody speaks Kafka's protocol in plain text"
_SILENT: Final = "connections are taken and not answered"


def with_ports(bootstrap: str) -> str:
    """The addresses of --bootstrap; one that is only a host means Kafka's port."""
    addresses = (text.strip() for text in bootstrap.split(","))
    return ",".join(f"{text}:{DEFAULT_PORT}" if _HOST.fullmatch(text) else text for text in addresses)


def places_of(bootstrap: str) -> list[Address]:
    """The addresses of --bootstrap as they are connected to, without those that are none."""
    found = [_ADDRESS.fullmatch(text) for text in with_ports(bootstrap).split(",")]
    return [(match[1].strip("[]"), int(match[2])) for match in found if match and int(match[2]) <= _MAX_PORT]


def _answering_first(addresses: list[str]) -> list[str]:
    """Those in front that answer at once: one that stands still costs its whole time-out."""

    def stands_still(address: str) -> bool:
        places = places_of(address)
        if not places:
            return False  # it is told what is wrong with it
        try:
            with socket.create_connection(places[0], timeout=_QUICK_SECONDS) as connection:
                Conversation(connection, address).speaks_kafka(_QUICK_SECONDS)
        except TimeoutError:
            return True
        except (OSError, UnicodeError):
            return False  # it is found out again in no time
        return False

    with ThreadPoolExecutor(_MOST_TRIED, "preflight") as threads:
        late = list(threads.map(stands_still, addresses))
    return [each for _, each in sorted(zip(late, addresses, strict=True), key=lambda pair: pair[0])]


def find_node(
    bootstrap: str, timeout: float, protocol: str = "plaintext", mechanism: str = "GSSAPI", *, otherwise: str = ""
) -> str:
    """The first of the addresses that leads to a node; without any the command ends with what is wrong with them.

    timeout: seconds to wait for an answer. protocol, mechanism: as librdkafka's security.protocol, sasl.mechanism.
    otherwise: what else may be meant by an address where something else listens, rather than TLS by -X.
    """
    addresses = with_ports(bootstrap).split(",")
    if len(addresses) > 1 and protocol == "plaintext":
        addresses = _answering_first(addresses)
    seconds = timeout if len(addresses) == 1 else min(timeout, _CONNECT_SECONDS)
    wrong = ""
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise click.UsageError(f"--bootstrap {address or repr(address)}: {_malformed(address)}.")
        if len(match[2].lstrip("0")) > 5 or int(match[2]) > _MAX_PORT:
            raise click.UsageError(f"--bootstrap {address}: a port is at most {_MAX_PORT}.")
        place = (match[1].strip("[]"), int(match[2]))
        try:
            with socket.create_connection(place, timeout=min(timeout, _CONNECT_SECONDS)) as connection:
                if protocol in ("ssl", "sasl_ssl"):
                    found = _wrong_with_tls(
                        connection, place, address, min(timeout, _FURTHER_SECONDS), protocol, mechanism
                    )
                else:
                    found = _wrong_with(connection, place, address, seconds, protocol, mechanism, otherwise)
        except UnicodeError:
            raise click.UsageError(f"--bootstrap {address}: no host can have this name.") from None
        except OSError as error:
            reason = error.strerror or str(error)
            found = (
                f"cannot reach a node at {bootstrap} ({reason}). Start one with `duramen serve`, "
                "or name another with --bootstrap."
            )
        if found is None:
            return address
        wrong = wrong or found
    raise click.ClickException(wrong)


def _malformed(address: str) -> str:
    """What is wrong with a text that is no address."""
    if not address:
        return f"it is empty; an address is HOST[:PORT], such as 127.0.0.1:{DEFAULT_PORT}"
    if address.startswith(":") and address[1:].isdecimal():
        return f"it names no host; here it would be 127.0.0.1{address}"
    if address.count(":") > 1 and "://" not in address and "[" not in address:
        return f"a host of IPv6 stands in brackets, [HOST]:PORT, such as [::1]:{DEFAULT_PORT}"
    return f"it is not HOST[:PORT], such as 127.0.0.1:{DEFAULT_PORT}"


def _wrong_with(
    connection: socket.socket,
    place: Address,
    address: str,
    seconds: float,
    protocol: str,
    mechanism: str,
    otherwise: str,
) -> str | None:
    """Why who listens there is no node that can be talked to as it is; None where it is one."""
    conversation = Conversation(connection, address)
    sasl = protocol == "sasl_plaintext"
    otherwise = otherwise or f"for TLS there is -X security.protocol={'sasl_ssl' if sasl else 'ssl'}"
    try:
        if not conversation.speaks_kafka(seconds):
            return (
                f"{address} does not speak Kafka's protocol in plain text. Name the port of a node with --bootstrap; "
                f"{otherwise}."
            )
    except TimeoutError:
        return (
            f"{address} takes connections and does not answer. Is the node busy, or is it no node? "
            "--timeout waits longer, --bootstrap names another."
        )
    further = min(seconds, _FURTHER_SECONDS)
    with contextlib.suppress(TimeoutError):  # then the client library will find out
        if sasl:
            if conversation.login_error(mechanism, further) == ILLEGAL_SASL_STATE:
                return f"{address} has no login: its listener is PLAINTEXT. Leave out -X security.protocol={protocol}."
        else:
            told = conversation.brokers(further)
            if told and place not in told:
                return _wrong_with_told(address, told[:_MOST_TRIED], further, min(seconds, _TOLD_ANSWER_SECONDS))
    return None


def _wrong_with_tls(
    connection: socket.socket, place: Address, address: str, seconds: float, protocol: str, mechanism: str
) -> str | None:
    """Why TLS cannot be spoken with who listens there, where that is a node without TLS; None otherwise."""
    if speaks_tls(connection, place[0], seconds):
        return None
    with (
        contextlib.suppress(OSError),
        socket.create_connection(place, timeout=seconds) as again,
    ):
        conversation = Conversation(again, address)
        if conversation.speaks_kafka(seconds):
            spoken, lacks = "plaintext", "TLS"
            if protocol == "sasl_ssl":
                spoken = "sasl_plaintext"
                with contextlib.suppress(TimeoutError):  # then it may have a login
                    if conversation.login_error(mechanism, seconds) == ILLEGAL_SASL_STATE:
                        spoken, lacks = "plaintext", "TLS, and has no login"
            return (
                f"{address} speaks Kafka's protocol in plain text, not {lacks}. "
                f"Use -X security.protocol={spoken}, or name the port of a TLS listener with --bootstrap."
            )
    return None


def _wrong_with_told(address: str, told: list[Address], seconds: float, answer_seconds: float) -> str | None:
    """Why none of the addresses that a node tells clients leads to a node; None where one does.

    seconds, answer_seconds: to wait for a connection, and then for an answer.
    """
    results: SimpleQueue[tuple[Address, str | None]] = SimpleQueue()

    def connect(place: Address) -> None:
        try:
            with socket.create_connection(place, timeout=seconds) as connection:
                try:
                    kafka = Conversation(connection, address).speaks_kafka(answer_seconds)
                except TimeoutError:
                    results.put((place, _SILENT))
                else:
                    results.put((place, None if kafka else _NO_KAFKA))
        except TimeoutError:
            results.put((place, f"no answer in {seconds:g} s"))
        except UnicodeError:
            results.put((place, "no host can have this name"))
        except (OSError, OverflowError) as error:
            results.put((place, getattr(error, "strerror", None) or str(error)))

    for place in told:  # at once, and in threads: looking up a name knows no time-out
        threading.Thread(target=connect, args=[place], daemon=True).start()
    reasons = dict.fromkeys(told, f"no answer in {seconds:g} s")
    waiting = set(told)
    deadline = time.monotonic() + seconds + answer_seconds + 2 * LOOK_SECONDS
    with ProgressLine("trying the address that the node tells clients") as progress:
        while waiting and time.monotonic() < deadline:
            progress.show()
            with contextlib.suppress(Empty):
                place, reason = results.get(timeout=LOOK_SECONDS)
                if reason is None:
                    return None
                reasons[place] = reason
                waiting.discard(place)
    (first, reason), *others = reasons.items()
    shown = f"[{first[0]}]:{first[1]}" if ":" in first[0] else f"{first[0]}:{first[1]}"
    if reason in (_SILENT, _NO_KAFKA):
        more = f" and {len(others)} more, none of which leads to a node: there" if others else ", where"
        more += f" {reason}"
    else:
        more = f" and {len(others)} more, none of which can be reached" if others else ", which cannot be reached"
        more += f" ({reason})"
    return f"the node at {address} tells clients to use {shown}{more}; see advertised.listeners of the node."


def find_gateway(address: str, timeout: float, option: str, *, is_https: bool) -> None:
    """End the command with what is wrong where no gateway can be reached. What is wrong with TLS is left to the caller.

    address: host:port. timeout: seconds to wait for an answer. option: what names the address.
    """
    places = places_of(address)
    if not places:
        raise click.UsageError(f"{option} {address}: a gateway's address is HOST:PORT, a port at most {_MAX_PORT}.")
    try:
        with socket.create_connection(places[0], timeout=min(timeout, _CONNECT_SECONDS)) as connection:
            if is_https or _speaks_http(connection, address, timeout):
                return
    except TimeoutError:
        raise click.ClickException(
            f"{address} does not answer. Is the gateway busy, or is it none? --timeout waits longer, "
            f"{option} names another."
        ) from None
    except UnicodeError:
        raise click.UsageError(f"{option} {address}: no host can have this name.") from None
    except OSError as error:
        raise click.ClickException(
            f"cannot reach a gateway at {address} ({error.strerror or error}). Start one with `duramen gateway`, "
            f"or name another with {option}."
        ) from None
    with contextlib.suppress(OSError), socket.create_connection(places[0], timeout=_FURTHER_SECONDS) as connection:
        if speaks_tls(connection, places[0][0], _FURTHER_SECONDS):
            return
    raise click.ClickException(
        f"{address} does not speak HTTP. Name a gateway with {option} duramen+http://HOST:PORT; a node is named by "
        "duramen://HOST:PORT."
    )


def _speaks_http(connection: socket.socket, address: str, seconds: float) -> bool:
    """Whether the answer to a first request is HTTP, whatever it says; TimeoutError where none comes."""
    connection.settimeout(seconds)
    try:
        connection.sendall(f"HEAD /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        return connection.recv(5, socket.MSG_WAITALL) == b"HTTP/"
    except ConnectionError:
        return False
