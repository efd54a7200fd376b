"""Which nodes answer, and so which partitions can be asked about."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from tests.worlds.served_node import free_port

from duramen.cli.shared import node_look
from duramen.cli.shared.connection import ClusterAccess
from duramen.cli.shared.node_look import served

PLACES = [("t", 0), ("t", 1), ("t", 2)]
PLAIN = ClusterAccess("127.0.0.1:9092", 30, {})


def metadata(leaders: list[int], ports: dict[int, int]) -> Any:
    brokers = {node: SimpleNamespace(id=node, host="127.0.0.1", port=port) for node, port in ports.items()}
    partitions = {number: SimpleNamespace(leader=leader) for number, leader in enumerate(leaders)}
    return SimpleNamespace(brokers=brokers, topics={"t": SimpleNamespace(partitions=partitions)})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_look, "NODE_SECONDS", 0.2)


@pytest.mark.usefixtures("quick")
def test_partitions_of_a_leader_that_refuses_or_says_nothing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = metadata([1, 2, -1], {1: free_port(), 2: silent.getsockname()[1]})
        assert served(PLAIN, told, PLACES) == [("t", 2)], "one without a leader is answered at once"
    monkeypatch.setattr(node_look, "asked", lambda places, seconds, ask: [None, "refused"])
    assert served(PLAIN, told, PLACES) == [("t", 0), ("t", 2)]


def test_one_node_alone_is_not_asked_whether_it_is_there() -> None:
    assert served(PLAIN, metadata([1, 1, 1], {1: free_port()}), PLACES) == PLACES


def test_over_tls_our_own_client_asks_nobody() -> None:
    told = metadata([1, 2, 1], {1: free_port(), 2: free_port()})
    assert served(ClusterAccess("127.0.0.1:9092", 30, {"security.protocol": "ssl"}), told, PLACES) == PLACES
