"""What clients are told of a listener, and who reaches it."""

from __future__ import annotations

import pytest

from duramen.config import load_broker_config
from duramen.config.listeners import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_the_loopback_is_open_to_this_machine_only(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "broker.example"])
def test_everything_else_is_open_to_others(host: str) -> None:
    assert not is_loopback(host)


def test_a_listener_on_every_interface_goes_with_an_address_for_clients() -> None:
    config = load_broker_config("listeners=PLAINTEXT://0.0.0.0:9092\nadvertised.listeners=PLAINTEXT://a:9092", {})
    assert [str(told) for told in config.advertised_listeners] == ["PLAINTEXT://a:9092"]
    assert [told.host for told in load_broker_config("listeners=PLAINTEXT://:9092", {}).advertised_listeners] == [""]
