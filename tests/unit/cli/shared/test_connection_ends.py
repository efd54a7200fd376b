"""Where partitions begin and end, also where nobody leads them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from duramen.cli.shared.connection import ClusterAccess, ends_of


class _Admin:
    """librdkafka's answer where none of the partitions has a leader."""

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError._NOENT, "No leaders found")))
        return dict.fromkeys(asked, answer)


def test_partitions_that_nobody_leads_are_offline() -> None:
    admin: Any = _Admin()
    assert ends_of(ClusterAccess("127.0.0.1:1", 5.0, {}), admin, [("t", 0), ("t", 1)]) == {}
