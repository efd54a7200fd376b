"""Addresses of nodes, as users write them and as errors print them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from duramen.errors import ConfigError

_ADDRESS = re.compile(r"(?:PLAINTEXT://)?(\[[^\]]+\]|[^\[\]:/]+):([0-9]{1,5})")

Address = tuple[str, int]
"""Host and port."""


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Address]:
    """(host, port) of each of "host:port,host:port" or a list of such; ConfigError."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    found = []
    for text in texts:
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or not 0 < int(match[2]) < 65536:
            raise ConfigError(f"bootstrap.servers: {text.strip()!r} is no host:port")
        found.append((match[1].strip("[]"), int(match[2])))
    return found


def address_text(host: str, port: int) -> str:
    """As people write it: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def addresses_text(addresses: Iterable[Address]) -> str:
    """Several, joined by commas."""
    return ",".join(address_text(host, port) for host, port in addresses)
