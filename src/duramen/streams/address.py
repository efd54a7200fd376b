"""The address of a namespace: of nodes, of a gateway, or of a directory."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from duramen.client.protocol.stream_names import check_path
from duramen.errors import ConfigError

_FORMS = (
    "duramen://host:port[,host:port]/namespace, duramen+http://host:port/namespace "
    "or duramen+file:///directory?namespace=path"
)


class Address(NamedTuple):
    """Nodes ("host:port,..."), a directory, or a gateway ("host:port"), the others empty, and the namespace ("" is the
    root).
    """

    nodes: str
    directory: str
    namespace: str
    gateway: str = ""


def parse_address(uri: str) -> Address:
    """The parts of an address. ConfigError says what it has to be."""
    try:
        parts = urlsplit(uri)
        if "@" in parts.netloc:  # not shown: a password may be in it
            raise ConfigError(f"an address of streams holds no login; it is {_FORMS}")
        if parts.scheme == "duramen":
            return _of_nodes(uri, parts.netloc, parts.path.strip("/"), parts.query or parts.fragment)
        if parts.scheme == "duramen+http":
            found = _of_nodes(uri, parts.netloc, parts.path.strip("/"), parts.query or parts.fragment)
            if not parts.hostname or parts.port is None or "," in parts.netloc:
                raise ConfigError(
                    f"{uri!r:.200} is no address of a gateway: that is duramen+http://host:port/namespace"
                )
            return found._replace(nodes="", gateway=found.nodes)
        if parts.scheme == "duramen+file":
            return _of_directory(uri, parts.netloc, unquote(parts.path), parts.query, parts.fragment)
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{uri!r:.200} is no address of streams ({error}); it is {_FORMS}") from None
    raise ConfigError(f"{uri!r:.200} is no address of streams; it is {_FORMS}")


def _of_nodes(uri: str, nodes: str, namespace: str, rest: str) -> Address:
    if not nodes or rest:
        raise ConfigError(f"{uri!r:.200} is no address of streams; it is {_FORMS}")
    if namespace:
        check_path("namespace", namespace)
    return Address(nodes, "", namespace)


def _of_directory(uri: str, host: str, directory: str, query: str, fragment: str) -> Address:
    if host or fragment or not directory.strip("/"):
        raise ConfigError(f"{uri!r:.200}: a directory's address has three slashes, as in duramen+file:///data/log")
    given = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    namespace = ""
    for key, value in given:
        if key != "namespace":
            raise ConfigError(f"{uri!r:.200}: there is no {key!r}; a directory's address takes `namespace` alone")
        namespace = value.strip("/")
    if namespace:
        check_path("namespace", namespace)
    return Address("", directory, namespace)
