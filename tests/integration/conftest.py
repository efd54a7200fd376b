"""One real server for the tests of this folder that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import Served


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running server with Kafka's defaults, but few threads' worth of offsets partitions."""
    folder: Path = tmp_path_factory.mktemp("served")
    # Batches made by hand have fixed timestamps, which retention would find too old.
    server = Served(folder, {"offsets.topic.num.partitions": "2", "log.retention.ms": "-1"})
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_gateway(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    """A gateway in front of it, with its defaults, for tests that leave it as they found it."""
    gateway = ServedGateway(tmp_path_factory.mktemp("shared-gateway"), served.bootstrap)
    gateway.start()
    yield gateway
    gateway.kill()
