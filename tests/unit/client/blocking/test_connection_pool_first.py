"""A first connection that never comes about: how long it is tried for, and that a node that was there is waited for."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from tests.spark.log_node import log_node

from duramen.client import Cluster
from duramen.errors import DeadlineError, NothingThereError


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("addresses", [1, 2])
def test_where_nothing_listens_it_is_said_before_the_calls_limit(addresses: int) -> None:
    servers = ",".join(closed_port() for _ in range(addresses))
    begun = time.monotonic()
    with Cluster(servers, timeout_s=60, first_contact_s=0.1) as cluster:
        with pytest.raises(NothingThereError) as raised:
            cluster.metadata()
        with pytest.raises(NothingThereError):
            cluster.metadata()
    assert time.monotonic() - begun < 20  # of 60
    assert f"bootstrap.servers={servers}" in str(raised.value)
    assert "refused" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_address_that_takes_a_connection_is_waited_for() -> None:
    """Something listens, and says nothing yet: a node that is busy with its start."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        servers = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            Cluster(servers, timeout_s=0.6, request_timeout_s=0.2, first_contact_s=0.01) as cluster,
            pytest.raises(DeadlineError),
        ):
            cluster.metadata()


def test_a_node_that_was_reached_is_waited_for_as_long_as_calls_last(tmp_path: Path) -> None:
    with log_node(tmp_path) as node, Cluster(node.bootstrap, timeout_s=30, first_contact_s=0.01) as cluster:
        cluster.metadata()
        node.kill()
        with pytest.raises(DeadlineError):
            cluster.call(1, 3, None, timeout_s=0.5)
        node.start()
        assert cluster.metadata().nodes


def test_an_address_that_does_not_answer_leaves_time_for_the_next(tmp_path: Path) -> None:
    """The first took all the time of the call, and the error blamed the second, which was there."""
    with socket.create_server(("127.0.0.1", 0)) as listener, log_node(tmp_path) as node:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
        with Cluster(f"{silent},{node.bootstrap}", timeout_s=4) as cluster:
            assert cluster.metadata().nodes
        node.kill()
        with Cluster(f"{silent},{node.bootstrap}", timeout_s=0.4) as cluster, pytest.raises(DeadlineError) as raised:
            cluster.metadata()
        assert silent in str(raised.value)
        assert node.bootstrap in str(raised.value)
