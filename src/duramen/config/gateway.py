"""The configuration of one gateway: defaults, the file and the command line, resolved into typed values."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from duramen.config.gateway_settings import GATEWAY_SETTINGS
from duramen.config.properties import parse_properties
from duramen.config.setting import Setting, Value
from duramen.config.suggestions import Nearest
from duramen.errors import ConfigError

GATEWAY: Mapping[str, Setting] = {setting.name: setting for setting in GATEWAY_SETTINGS}
"""Settings of a gateway, by name."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class HttpAddress(NamedTuple):
    """Where to listen: a host without brackets, and a port (0: a free one)."""

    host: str
    port: int
    is_https: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_https else ''}://{host}:{self.port}"

    def moved(self, ports: int) -> HttpAddress:
        """So many ports further; a free port stays one."""
        return self._replace(port=self.port and self.port + ports)


class GatewayConfig:
    """Every setting as an attribute; times in ms, sizes in bytes. `load_gateway_config` has checked the values."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        known: dict[str, Any] = {name: values.get(name, setting.default_value) for name, setting in GATEWAY.items()}
        self.listener: HttpAddress = parse_http_address(known["gateway.listener"])
        self.bootstrap: list[str] = known["bootstrap.servers"]
        self.hosts: frozenset[str] = frozenset(
            name.lower().strip("[]") for name in (*LOOPBACK_NAMES, self.listener.host, *known["gateway.hosts"])
        )
        self.origins: frozenset[str] = frozenset(origin.lower().rstrip("/") for origin in known["gateway.origins"])
        self.tls_certificate: str = known["gateway.tls.certificate"]
        self.tls_key: str = known["gateway.tls.key"]
        self.tokens_file: str = known["gateway.tokens.file"]
        self.body_max_bytes: int = known["gateway.body.max.bytes"]
        self.head_max_bytes: int = known["gateway.head.max.bytes"]
        self.head_timeout_ms: int = known["gateway.head.timeout.ms"]
        self.request_timeout_ms: int = known["gateway.request.timeout.ms"]
        self.writes_max_bytes: int = known["gateway.writes.max.bytes"]
        self.readers_max: int = known["gateway.readers.max"]
        self.reader_max_bytes: int = known["gateway.reader.max.bytes"]
        self.expiry_delay_ms: int = known["gateway.expiry.delay.ms"]
        self.tail_max_bytes: int = known["gateway.tail.max.bytes"]
        self.chunks_max_bytes: int = known["gateway.chunks.max.bytes"]
        self.old_reads_max: int = known["gateway.old.reads.max"]
        self.tail_linger_ms: int = known["gateway.tail.linger.ms"]
        self.long_poll_ms: int = known["gateway.long.poll.ms"]
        self.sse_ms: int = known["gateway.sse.ms"]
        advertised = known["gateway.advertised.listener"]
        self.advertised: HttpAddress | None = (
            parse_http_address(advertised, "gateway.advertised.listener") if advertised else None
        )
        if self.advertised is not None:
            self.hosts |= {self.advertised.host.lower()}
        self.tls_ca: str = known["gateway.tls.ca"]
        self.consumers_max: int = known["gateway.consumers.max"]
        self.consumer_idle_ms: int = known["gateway.consumer.idle.ms"]


def gateway_setting(name: str) -> Setting:
    """The gateway's setting of this name; ConfigError when there is none, with the nearest if one is near."""
    setting = GATEWAY.get(name)
    if setting is None:
        nearest = Nearest(GATEWAY).to(name)
        raise ConfigError(f"unknown gateway setting {name}" + (f"; the nearest is {nearest}" if nearest else ""))
    return setting


def load_gateway_config(file_text: str | None, overrides: Mapping[str, str]) -> GatewayConfig:
    """The settings of a .properties file (None: there is none) with `overrides` over them.

    ConfigError for an unknown name, with the nearest, and for a value that may not be.
    """
    texts = {**(parse_properties(file_text) if file_text is not None else {}), **overrides}
    values: dict[str, Value] = {}
    for name, text in texts.items():
        values[name] = gateway_setting(name).parse(text)
    config = GatewayConfig(values)
    if not config.bootstrap:
        raise ConfigError("bootstrap.servers is empty; name a node as host:port")
    if config.body_max_bytes > config.writes_max_bytes:
        raise ConfigError(
            f"gateway.writes.max.bytes={config.writes_max_bytes} is below "
            f"gateway.body.max.bytes={config.body_max_bytes}: no longest body would ever be taken"
        )
    _check_access(config)
    return config


def _check_access(config: GatewayConfig) -> None:
    """TLS where it is asked for, and beyond loopback both TLS and logins; ConfigError."""
    listener = config.listener
    has_files = bool(config.tls_certificate) and bool(config.tls_key)
    if listener.is_https and not has_files:
        raise ConfigError(f"gateway.listener={listener} needs gateway.tls.certificate and gateway.tls.key, in PEM")
    if not listener.is_https and (config.tls_certificate or config.tls_key):
        raise ConfigError(f"gateway.tls.* is set, but gateway.listener={listener} has no TLS; https:// does")
    advertised = config.advertised
    if advertised is not None and config.tokens_file and not advertised.is_https and not _is_loopback(advertised.host):
        raise ConfigError(
            f"gateway.advertised.listener={advertised}: other gateways would send tokens there in the clear; advertise "
            "https://"
        )
    if _is_loopback(listener.host) or (listener.is_https and config.tokens_file):
        return
    missing = [] if listener.is_https else ["https:// with gateway.tls.certificate and gateway.tls.key"]
    if not config.tokens_file:
        missing.append("gateway.tokens.file with a line of `duramen gateway token`")
    raise ConfigError(
        f"gateway.listener={listener} is not loopback, which needs TLS and logins: set {' and '.join(missing)}; or "
        "listen on http://127.0.0.1:8082, behind a proxy that has both"
    )


def parse_http_address(text: str, name: str = "gateway.listener") -> HttpAddress:
    """http://host:port or https://host:port. ConfigError that says what is wrong with it."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
        parts = urlsplit("")
    is_https = parts.scheme == "https"
    if (
        not (is_https or parts.scheme == "http")
        or not host
        or port is None
        or parts.path.strip("/")
        or parts.query
        or parts.username
    ):
        raise ConfigError(f"{name}={text} is not of the form http://host:port")
    return HttpAddress(host, port, is_https)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
