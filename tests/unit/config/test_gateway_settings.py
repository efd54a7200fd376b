"""The settings of a gateway: what may stand in its file, and where it may listen."""

from __future__ import annotations

import pytest

from duramen.config import GATEWAY, load_gateway_config
from duramen.errors import ConfigError


def test_defaults_and_overrides() -> None:
    config = load_gateway_config("gateway.hosts=Streams.example\nbootstrap.servers=a:1,b:2", {"gateway.sse.ms": "500"})
    assert str(config.listener) == "http://127.0.0.1:8082"
    assert config.bootstrap == ["a:1", "b:2"]
    assert config.hosts == {"localhost", "127.0.0.1", "::1", "streams.example"}
    assert config.sse_ms == 500
    assert config.body_max_bytes == 8 << 20


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("gateway.listner", "x", "nearest is gateway.listener"),
        ("gateway.listener", "http://0.0.0.0:8082", "needs TLS and logins"),
        ("gateway.listener", "http://example.com:8082", "behind a proxy"),
        ("gateway.listener", "https://127.0.0.1:8082", "needs gateway.tls.certificate"),
        ("gateway.listener", "127.0.0.1:8082", "http://host:port"),
        ("gateway.listener", "http://127.0.0.1:99999", "http://host:port"),
        ("gateway.body.max.bytes", "1", "out of bounds"),
        ("gateway.writes.max.bytes", "1048576", "below"),
        ("bootstrap.servers", "", "empty"),
    ],
)
def test_what_may_not_be(name: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_gateway_config(None, {name: text})


@pytest.mark.parametrize("url", ["http://localhost:0", "http://[::1]:8082", "http://127.8.8.8:1"])
def test_loopback_may_be(url: str) -> None:
    assert str(load_gateway_config(None, {"gateway.listener": url}).listener) == url


TLS = {"gateway.tls.certificate": "c.pem", "gateway.tls.key": "k.pem"}


def test_beyond_loopback_it_needs_tls_and_logins() -> None:
    open_to_all = {"gateway.listener": "https://0.0.0.0:8082", **TLS}
    with pytest.raises(ConfigError, match=r"needs TLS and logins: set gateway\.tokens\.file"):
        load_gateway_config(None, open_to_all)
    with pytest.raises(ConfigError, match="needs TLS and logins: set https://"):
        load_gateway_config(None, {"gateway.listener": "http://0.0.0.0:8082", "gateway.tokens.file": "tokens"})
    config = load_gateway_config(None, {**open_to_all, "gateway.tokens.file": "tokens"})
    assert str(config.listener) == "https://0.0.0.0:8082"
    assert (config.tls_certificate, config.tls_key, config.tokens_file) == ("c.pem", "k.pem", "tokens")


def test_a_certificate_without_tls_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="has no TLS"):
        load_gateway_config(None, TLS)


def test_limits_by_default() -> None:
    config = load_gateway_config(None, {})
    assert (config.body_max_bytes, config.head_max_bytes, config.head_timeout_ms) == (8 << 20, 32 << 10, 10_000)
    assert (config.readers_max, config.reader_max_bytes, config.writes_max_bytes) == (10_000, 256 << 10, 64 << 20)
    assert (config.long_poll_ms, config.request_timeout_ms) == (60_000, 30_000)


def test_settings_have_units() -> None:
    for name, setting in GATEWAY.items():
        assert bool(setting.unit) == name.endswith((".ms", ".bytes"))


def test_where_other_gateways_reach_it() -> None:
    assert load_gateway_config(None, {}).advertised is None
    config = load_gateway_config(None, {"gateway.advertised.listener": "https://Gateway-1:443"})
    assert str(config.advertised) == "https://gateway-1:443"
    assert "gateway-1" in config.hosts
    with pytest.raises(ConfigError, match=r"gateway\.advertised\.listener=gateway-1 is not"):
        load_gateway_config(None, {"gateway.advertised.listener": "gateway-1"})
    tokens = {"gateway.tokens.file": "tokens", "gateway.advertised.listener": "http://gateway-1:8082"}
    with pytest.raises(ConfigError, match="in the clear"):
        load_gateway_config(None, tokens)
