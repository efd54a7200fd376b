"""Bytes of partitions as the nodes tell them: all of it, or why not."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from duramen.cli.shared import sizes
from duramen.cli.shared.connection import ClusterAccess
from duramen.cli.shared.node_look import KnownNode
from duramen.cli.shared.sizes import sizes_of


def directory(path: str, *partitions: tuple[str, int, int]) -> Any:
    """What one directory holds: topic, number and bytes of each."""
    return {
        "log_dir": path,
        "topics": [
            {"name": name, "partitions": [{"partition_index": number, "partition_size": size}]}
            for name, number, size in partitions
        ],
    }


NODES = [KnownNode(1, "a", 1), KnownNode(2, "b", 2)]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """What each node answers; a text: why it does not."""
    found: dict[int, Any] = {}

    def asked(places: list[tuple[str, int]], _seconds: float, ask: Any) -> list[Any]:
        def call(key: int, _request: Any, _until: float, *, port: int) -> Any:
            assert key == 35
            return found[port]

        told = []
        for _, port in places:
            connection = SimpleNamespace(call=partial(call, port=port))
            told.append(found[port] if isinstance(found[port], str) else ask(connection, 1.0))
        return told

    monkeypatch.setattr(sizes, "asked", asked)
    return found


def answer(*directories: Any, error: int = 0) -> Any:
    def told(fields: Any) -> Any:
        if isinstance(fields, dict):
            return SimpleNamespace(**{name: told(value) for name, value in fields.items()})
        return [told(each) for each in fields] if isinstance(fields, list) else fields

    return SimpleNamespace(error_code=error, results=told(list(directories)))


def test_copies_and_directories_are_added(nodes: dict[int, Any]) -> None:
    nodes[1] = answer(directory("/a", ("t", 0, 100), ("t", 1, 7)), directory("/b", ("u", 0, 5)))
    nodes[2] = answer(directory("/a", ("t", 0, 90)))
    found = sizes_of(ClusterAccess("a:1", 1.0, {}), NODES)
    assert (found.trouble, found.of("t", 0), found.of("u", 0), found.of("u", 1)) == (None, 190, 5, None)
    assert (found.of_topic("t", [0, 1, 2]), found.of_topic("v", [0])) == (197, None)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (answer(error=31), "node 2 does not say how many bytes: CLUSTER_AUTHORIZATION_FAILED"),
        ("it hung up", "node 2 does not say how many bytes: it hung up"),
    ],
)
def test_a_part_of_the_nodes_is_no_sum(nodes: dict[int, Any], last: Any, said: str) -> None:
    nodes[1], nodes[2] = answer(directory("/a", ("t", 0, 100))), last
    found = sizes_of(ClusterAccess("a:1", 1.0, {}), NODES)
    assert (found.trouble, found.of("t", 0)) == (said, None)


def test_connections_that_our_client_does_not_make_are_said() -> None:
    found = sizes_of(ClusterAccess("a:1", 1.0, {"security.protocol": "ssl"}), NODES)
    assert found.trouble == "bytes are asked for over plain connections only"
