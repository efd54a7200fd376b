"""One real server for the tests of this folder that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
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
