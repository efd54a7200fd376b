"""The address of a namespace: of nodes, of a gateway, or of a directory."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from duramen.client.protocol.stream_names import check_path
from duramen.errors import ConfigError

_FORMS = (
    "duramen://host:port[,host:port]/namespace, duramen+http://host:port/namespace, "
    "duramen+https://host:port/namespace or duramen+file:///directory?namespace=path"
)


class Address(NamedTuple):
    """Nodes ("host:port,..."), a directory, or a gateway ("host:port"), the others empty, and the namespace ("" is the
    root). is_https: whether the gateway is asked over TLS.
    """

    nodes: str
    directory: str
    namespace: str
    gateway: str = ""
    is_https: bool = False


def parse_address(uri: str) -> Address:
    """The parts of an address. ConfigError says what it has to be."""
    try:
        parts = urlsplit(uri)
        if "@" in (parts.netloc if parts.scheme == "duramen+file" else uri):  # not shown: a password may be in it
            raise ConfigError(
                f"an address of streams holds no login; a token is given as token= or in DURAMEN_TOKEN, and the "
                f"address is {_FORMS}"
            )
        if parts.scheme == "duramen":
            return _of_nodes(uri, parts.netloc, parts.path.strip("/"), parts.query or parts.fragment)
        if parts.scheme in ("duramen+http", "duramen+https"):
            found = _of_nodes(uri, parts.netloc, parts.path.strip("/"), parts.query or parts.fragment)
            if not parts.hostname or parts.port is None or "," in parts.netloc:
                raise ConfigError(
                    f"{_shown(uri)} is no address of a gateway: that is {parts.scheme}://host:port/namespace"
                )
            return found._replace(nodes="", gateway=found.nodes, is_https=parts.scheme == "duramen+https")
        if parts.scheme == "duramen+file":
            return _of_directory(uri, parts.netloc, unquote(parts.path), parts.query, parts.fragment)
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{_shown(uri)} is no address of streams ({error}); it is {_FORMS}") from None
    raise ConfigError(f"{_shown(uri)} is no address of streams; it is {_FORMS}")


def _shown(uri: object) -> str:
    """What an error shows of it: a secret may be behind the path."""
    return f"{re.split('[?#]', uri, maxsplit=1)[0] if isinstance(uri, str) else uri!r:.200}"


def _of_nodes(uri: str, nodes: str, namespace: str, rest: str) -> Address:
    if not nodes or rest:
        raise ConfigError(f"{_shown(uri)} is no address of streams; it is {_FORMS}")
    if namespace:
        check_path("namespace", namespace)
    return Address(nodes, "", namespace)


def _of_directory(uri: str, host: str, directory: str, query: str, fragment: str) -> Address:
    if host or fragment or not directory.strip("/"):
        raise ConfigError(f"{_shown(uri)}: a directory's address has three slashes, as in duramen+file:///data/log")
    given = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    namespace = ""
    for key, value in given:
        if key != "namespace":
            raise ConfigError(f"{_shown(uri)}: there is no {key!r}; a directory's address takes `namespace` alone")
        namespace = value.strip("/")
    if namespace:
        check_path("namespace", namespace)
    return Address("", directory, namespace)
