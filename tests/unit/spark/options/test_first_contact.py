"""A cluster that was never reached is given up soon, by every kind of query; one that was is waited for."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructType

from duramen.errors import DeadlineError, NothingThereError
from duramen.spark.options import first_contact
from duramen.spark.sink.sink import batch_writer, stream_writer
from duramen.spark.source.batch_reader import DuramenReader
from duramen.spark.source.stream_reader import DuramenStreamReader

SCHEMA = StructType().add("value", BinaryType())
QUERIES: list[Callable[[dict[str, str]], Any]] = [
    lambda given: DuramenReader({**given, "subscribe": "t"}, SCHEMA).partitions(),
    lambda given: DuramenStreamReader({**given, "subscribe": "t"}, SCHEMA).initialOffset(),
    lambda given: batch_writer({**given, "topic": "t"}, SCHEMA, False),
    lambda given: stream_writer({**given, "topic": "t", "sinkId": "s"}, SCHEMA),
]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    monkeypatch.setenv(first_contact.DRIVER_FOLDERS, f"{tmp_path},/nowhere")
    monkeypatch.setattr(first_contact, "FIRST_CONTACT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return {"kafka.bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}"}


@pytest.mark.parametrize("query", QUERIES)
def test_nothing_that_listens_is_an_error_soon(query: Callable[[dict[str, str]], Any], given: dict[str, str]) -> None:
    begun = time.monotonic()
    with pytest.raises(NothingThereError, match=r"no node answers at bootstrap.servers=.*refused"):
        query(given)
    assert time.monotonic() - begun < 15


def test_a_cluster_that_this_driver_has_reached_is_waited_for(given: dict[str, str]) -> None:
    servers = given["kafka.bootstrap.servers"]
    assert first_contact.first_contact_s(servers) == 0.1
    first_contact.reached(servers)
    assert first_contact.first_contact_s(servers) is None
    assert first_contact.first_contact_s("other:9092") == 0.1
    with pytest.raises(DeadlineError):
        batch_writer({**given, "topic": "t", "kafka.delivery.timeout.ms": "500"}, SCHEMA, False)


def test_outside_of_spark_nothing_is_written_down() -> None:
    first_contact.reached("x:1", {})
    assert first_contact.first_contact_s("x:1", {}) == first_contact.FIRST_CONTACT_S
