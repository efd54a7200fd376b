"""Where partitions begin and end, also where nobody leads them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import click
import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from duramen.cli.commands import consume
from duramen.cli.shared.connection import EARLIEST, LATEST, ClusterAccess, at_time, ends_of, offsets_at
from duramen.cli.shared.message_source import MessageSource


class _Admin:
    """librdkafka's answer where none of the partitions has a leader."""

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError._NOENT, "No leaders found")))
        return dict.fromkeys(asked, answer)


def test_partitions_that_nobody_leads_are_offline() -> None:
    admin: Any = _Admin()
    assert ends_of(ClusterAccess("127.0.0.1:1", 5.0, {}), admin, [("t", 0), ("t", 1)]) == {}


class _Silent:
    """Its answer where the leader of partition 1 did not answer: no error, and an offset that none is."""

    def list_offsets(self, asked: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        found: dict[TopicPartition, Future[Any]] = {}
        for place in asked:
            found[place] = Future()
            found[place].set_result(SimpleNamespace(offset=OFFSET_INVALID if place.partition == 1 else 5))
        return found


@pytest.mark.parametrize("spec", [EARLIEST, LATEST, at_time(7)])
def test_a_leader_that_does_not_answer_ends_the_command(spec: OffsetSpec) -> None:
    """`consume --last` ended in a KeyError, after four times --timeout."""
    admin: Any = _Silent()
    cluster = ClusterAccess("127.0.0.1:1", 5.0, {})
    with pytest.raises(click.ClickException, match=r"^t-1: no leader answers; `duramen status`"):
        offsets_at(cluster, admin, [("t", 0), ("t", 1)], spec)
    assert offsets_at(cluster, admin, [("t", 0)], spec) == {("t", 0): 5}


def test_newest_records_of_a_partition_that_went_offline_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: dict[tuple[str, int], tuple[int, int]] = {("t", 0): (0, 5)}
    monkeypatch.setattr(consume, "ends_of", lambda *_, **__: ends)
    monkeypatch.setattr(ClusterAccess, "admin", lambda _: None)
    cluster, nothing = ClusterAccess("127.0.0.1:1", 5.0, {}), MessageSource(lambda *_: [], lambda: True, None)
    chosen = [TopicPartition("t", 0, 4), TopicPartition("t", 1, 4)]
    reader: Any = None
    with pytest.raises(click.ClickException, match=r"^t-1: no leader answers"):
        consume._newest(cluster, reader, chosen, nothing, 1, committed=True)
