"""Addresses of namespaces, and the topics that streams are."""

from __future__ import annotations

import pytest

from duramen.client.protocol.stream_names import name_of, topic_of
from duramen.errors import ConfigError
from duramen.streams.address import Address, parse_address


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("duramen://a:1,b:2/x/y", Address("a:1,b:2", "", "x/y")),
        ("duramen://a:1/", Address("a:1", "", "")),
        ("duramen+file:///data/a%20log?namespace=x/y", Address("", "/data/a log", "x/y")),
        ("duramen+http://a:8082/x/y", Address("", "", "x/y", "a:8082")),
        ("duramen+http://[::1]:8082", Address("", "", "", "[::1]:8082")),
        ("duramen+https://a:8443/x", Address("", "", "x", "a:8443", True)),
        ("duramen+file:///data/a@b", Address("", "/data/a@b", "")),
        ("duramen+file:///data", Address("", "/data", "")),
    ],
)
def test_an_address_has_nodes_or_a_directory_and_a_namespace(uri: str, found: Address) -> None:
    assert parse_address(uri) == found


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "http://a",
        "duramen://",
        "duramen://a:1/x?y=1",
        "duramen://me:secret@a:1/x",
        "duramen://a:1/../x",
        "duramen+file://data/log",
        "duramen+file:///",
        "duramen+file:///data?name=x",
        "duramen+file:///data?namespace=x//y",
        "duramen://[a",
        "duramen+http://a/x",
        "duramen+http://a:1,b:2/x",
        "duramen+http://a:1/x?y=1",
        "duramen+https://a/x",
        "https://a:1/x",
    ],
)
def test_another_address_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "duramen+https://secret@a:1/x",
        "duramen+https://me:secret@a:1/x",
        "duramen+https:/me:secret@a:1/x",
        "duramen+https://a:1/x?token=secret",
        "duramen+https://a/x#secret",
        "https://a:1/x?token=secret",
    ],
)
def test_an_error_shows_no_secret(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"duramen\+https://host:port/namespace") as found:
        parse_address(uri)
    assert "secret" not in str(found.value)


def test_a_stream_is_the_topic_of_its_path() -> None:
    assert topic_of("finance/eu", "a/b") == "finance.eu.a.b"
    assert name_of("finance/eu", "finance.eu.a.b") == "a/b"
    assert topic_of("", "a") == "a"
    assert [name_of("finance", other) for other in ("finance", "financial.a", "finance.", "finance..a")] == [None] * 4
    assert [name_of("", own) for own in ("__consumer_offsets", "_duramen_namespaces")] == [None] * 2
    with pytest.raises(ConfigError, match="249"):
        topic_of("n", "x" * 248)
