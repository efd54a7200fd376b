"""What clients are told of a listener, and who reaches it."""

from __future__ import annotations

import pytest

from duramen.config import load_broker_config
from duramen.config.listeners import is_loopback, opened_listeners, parse_protocol_map
from duramen.errors import ConfigError


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


BOTH = {"listeners": "PLAINTEXT://h:1,CONTROLLER://h:2", "controller.listener.names": "CONTROLLER"}


def test_a_controller_s_listener_is_opened_and_not_told_to_clients() -> None:
    config = load_broker_config(None, BOTH)
    assert [str(address) for address in config.listeners] == ["PLAINTEXT://h:1"]
    assert config.advertised_listeners == config.listeners
    assert [str(address) for address in config.controller_listeners] == ["CONTROLLER://h:2"]
    assert config.advertised_controller_listeners == config.controller_listeners


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_controller_on_every_interface_tells_the_machine_s_name(host: str) -> None:
    """Unlike one for clients, as in Kafka: the name is put in when the node starts."""
    config = load_broker_config(None, BOTH | {"listeners": f"PLAINTEXT://h:1,CONTROLLER://{host}:2"})
    assert [(told.host, told.port) for told in config.advertised_controller_listeners] == [("", 2)]
    told = {"advertised.listeners": "PLAINTEXT://h:1,CONTROLLER://outside:3"}
    config = load_broker_config(None, BOTH | told)
    assert [(one.host, one.port) for one in config.advertised_controller_listeners] == [("outside", 3)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"controller.listener.names": "CONTROLER"}, "no listener named CONTROLER; add CONTROLER://127.0.0.1:9093"),
        ({"controller.listener.names": "CONTROLLER,OTHER"}, "no listener named OTHER"),
        ({"listeners": "PLAINTEXT://h:1,CONTROLLER://h:1"}, "a port of its own"),
        ({"advertised.listeners": "PLAINTEXT://h:1,CONTROLLER://0.0.0.0:2"}, "names no host"),
        ({"metrics.listener": "h:2"}, "has the port of CONTROLLER://h:2"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}, "says nothing about listener CONTROLLER"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL"}, "CONTROLLER://h:2 would be SSL"),
    ],
)
def test_mistakes_in_a_controller_s_listener(changes: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_broker_config(None, BOTH | changes)


MAP = parse_protocol_map("map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT")


@pytest.mark.parametrize(
    ("roles", "listeners", "names", "words"),
    [
        ("broker", "PLAINTEXT://h:1,CONTROLLER://h:2", "CONTROLLER", "which a node without that role never opens"),
        ("controller", "PLAINTEXT://h:1,CONTROLLER://h:2", "CONTROLLER", "PLAINTEXT://h:1 is none of"),
        ("controller", "", "", "needs one"),
        ("broker,controller", "CONTROLLER://h:2", "CONTROLLER", "no listener is left for clients"),
        ("broker", "CONTROLLER://h:2", "CONTROLLER", "never opens"),
    ],
)
def test_listeners_go_with_the_node_s_roles(roles: str, listeners: str, names: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        opened_listeners(
            [*filter(None, listeners.split(","))], MAP, [*filter(None, names.split(","))], roles.split(",")
        )


def test_a_lone_role_opens_its_own_listeners_only() -> None:
    opened = opened_listeners(["CONTROLLER://h:2"], MAP, ["controller"], ["controller"])
    assert (opened.broker, [str(address) for address in opened.controller]) == ((), ["CONTROLLER://h:2"])
    opened = opened_listeners(["PLAINTEXT://h:1"], MAP, ["CONTROLLER"], ["broker"])  # by that name it finds controllers
    assert ([str(address) for address in opened.broker], opened.controller) == (["PLAINTEXT://h:1"], ())
