"""Behind a loss of the metadata log no producer id is given out twice, and no leader epoch begun."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from tests.worlds import broker_world
from tests.worlds.broker_world import NOW, InProcess
from tests.worlds.lost_metadata_world import (
    append,
    gone,
    producer_id,
    repaired,
    stopped,
    without,
)

from duramen.model import FIRST_SINK_PRODUCER_ID, TopicPartition
from duramen.partition.metadata.metadata_repair import least_producer_id


def test_a_producer_id_that_logs_know_is_given_to_nobody_else() -> None:
    """His first batch would be taken for the other one's, acknowledged and not stored."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    first = producer_id(line)
    assert append(server, first, b"his") == (0, 0)
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "ProducerIdsRecord") == 1
    again = InProcess(disk)
    second = producer_id(again.connect())
    assert second > first
    assert append(again, second, b"hers") == (0, 1)


def test_a_producer_id_that_nobody_has_written_with_is_given_to_nobody_else() -> None:
    """Its owner's first batch was taken for the other one's, acknowledged and not stored; so it was where the records
    had expired, or their partition was offline."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    first, idle = producer_id(line), producer_id(line)
    assert append(server, first, b"first") == (0, 0)
    disk = stopped(server)
    gone(disk, "directory")
    repaired(disk)
    again = InProcess(disk)
    fresh = producer_id(again.connect())
    assert append(again, fresh, b"of the fresh one") == (0, 1)
    assert append(again, idle, b"of the idle one") == (0, 2)


def test_producer_ids_of_a_partition_that_is_offline_are_given_to_nobody_else() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    first = producer_id(line)
    assert append(server, first, b"his") == (0, 0)
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "ProducerIdsRecord") == 1
    segment = "/data/t-0/00000000000000000000.log"
    disk.rename(segment, "/data/t-0/away")
    disk.sync_directory("/data/t-0")
    again = InProcess(disk)
    assert "partition-offline" in [event for event, _ in again.events]
    second = producer_id(again.connect())
    disk = stopped(again)
    disk.rename("/data/t-0/away", segment)
    disk.sync_directory("/data/t-0")
    assert append(InProcess(disk), second, b"hers") == (0, 1)


@pytest.mark.parametrize("later_ms", [-60_000, 0, 1, 60_000])
def test_each_loss_leaves_the_ids_behind_that_were_given_out_since_the_last_one(later_ms: int) -> None:
    """Also where nobody wrote with them, and whatever the clock says."""
    server = InProcess()
    server.connect().create_topic("t")
    disk = server.disk
    given: list[int] = []
    for number in range(4):
        line = server.connect()
        given += [producer_id(line) for _ in range(1001)]
        disk = stopped(server)
        gone(disk, "directory")
        repaired(disk)
        with patch.object(broker_world, "NOW", NOW + (number + 1) * later_ms):
            server = InProcess(disk)
    assert len(set(given)) == len(given)
    assert max(given) < FIRST_SINK_PRODUCER_ID


def test_the_next_producer_id_is_durable_before_anybody_asks_for_one() -> None:
    """The list is removed behind the first start, in which nobody did: the second one knows of no loss."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    idle = producer_id(line)
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "ProducerIdsRecord") == 1
    disk = stopped(InProcess(disk))
    disk.remove("/data/duramen-lost/losses")
    assert producer_id(InProcess(disk).connect()) > idle


def test_where_producer_ids_begin_behind_a_loss() -> None:
    now, highest = NOW << 19, FIRST_SINK_PRODUCER_ID >> 1
    assert least_producer_id(NOW, 0, (), 0) == now
    assert least_producer_id(NOW, 0, (), 7) == now + 7000
    assert least_producer_id(NOW, now, (), 0) == now + (1 << 32)
    assert least_producer_id(NOW, 0, (5, now, 7), 0) == now + 1 + (1 << 32)
    assert least_producer_id(NOW, 0, (now, FIRST_SINK_PRODUCER_ID, highest), 0) == now + 1 + (1 << 32)
    assert least_producer_id((1 << 42) - 1, 0, (), 1 << 40) < FIRST_SINK_PRODUCER_ID


@pytest.mark.parametrize("lost", [1, 3])
def test_the_leader_epoch_of_a_partition_does_not_fall_behind_that_of_its_records(lost: int) -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"v")
    disk = stopped(server)
    for _ in range(4):
        server = InProcess(disk)
        server.connect().produce("t", b"v")
        before = server.broker.store.partitions[TopicPartition("t", 0)].leader_epoch
        disk = stopped(server)
    seen: list[str] = []

    def is_lost(kind: str, message: Any) -> bool:
        if kind == "RegisterBrokerRecord":
            seen.append(kind)
        return kind == "RegisterBrokerRecord" and 1 < len(seen) <= 1 + lost

    assert without(disk, is_lost) == lost
    again = InProcess(disk)
    partition = again.broker.store.partitions[TopicPartition("t", 0)]
    assert partition.leader_epoch > before
    again.connect().produce("t", b"v")
    assert [epoch for epoch, _ in partition.log.epochs.entries] == [*range(before + 1), partition.leader_epoch]


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("knows", [True, False])
def test_so_it_is_of_a_partition_that_was_offline_at_the_first_start(knows: bool, is_listed: bool) -> None:
    """Its new records were in an epoch that older ones had; the log forgot the epochs behind."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"v")
    disk = stopped(server)
    for _ in range(6):
        server = InProcess(disk)
        server.connect().produce("t", b"v")
        disk = stopped(server)
    seen: list[str] = []

    def is_lost(kind: str, message: Any) -> bool:
        if kind == "RegisterBrokerRecord":
            seen.append(kind)
        return kind == "RegisterBrokerRecord" and 1 < len(seen) <= 6

    assert without(disk, is_lost) == 5
    names = ["00000000000000000000.log"] if knows else ["00000000000000000000.log", "leader-epoch-checkpoint"]
    for name in names:
        disk.rename(f"/data/t-0/{name}", f"/data/t-0/away-{name}")
    disk.sync_directory("/data/t-0")
    again = InProcess(disk)
    assert "partition-offline" in [event for event, _ in again.events]
    disk = stopped(again)
    for name in names:
        disk.rename(f"/data/t-0/away-{name}", f"/data/t-0/{name}")
    disk.sync_directory("/data/t-0")
    if not is_listed:
        disk.remove("/data/duramen-lost/losses")
    again = InProcess(disk)
    partition = again.broker.store.partitions[TopicPartition("t", 0)]
    assert partition.leader_epoch > 6
    assert again.connect().produce("t", b"v").base_offset == 7
    assert [epoch for epoch, _ in partition.log.epochs.entries] == [*range(7), partition.leader_epoch]


def test_a_consumer_that_lives_on_meets_no_older_leader_epoch() -> None:
    """Of a partition whose log has nothing of the last ones it would wait for an epoch that it knows already."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"v")
    disk = stopped(server)
    for _ in range(4):
        server = InProcess(disk)
        before = server.broker.store.partitions[TopicPartition("t", 0)].leader_epoch
        disk = stopped(server)
    gone(disk, "directory")
    repaired(disk)
    for _ in range(3):
        again = InProcess(disk)
        epoch = again.broker.store.partitions[TopicPartition("t", 0)].leader_epoch
        assert epoch > before
        before = epoch
        disk = stopped(again)
