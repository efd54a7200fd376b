"""Replicas that ask for what is not in memory, or is damaged: others of their session do not wait for it."""

from __future__ import annotations

import pytest
from tests.worlds.replica_world import Replica, ReplicatedBroker, offsets

from duramen.errors import ErrorCode
from duramen.partition.replica.partition import Partition
from duramen.server.reads import replica_sessions

T, U = ("t", 0), ("u", 0)
REPLICA_LANES = {"replica", "replica-catch-up"}


@pytest.fixture
def server() -> ReplicatedBroker:
    """`t` has ten records of 100 KB that are not in memory."""
    world = ReplicatedBroker(log_segment_bytes="1048576")
    world.copied("t")
    world.copied("u")
    for number in range(10):
        append(world, "t", bytes([number]) * 100_000)
    world.forget_cache()
    return world


def append(server: ReplicatedBroker, topic: str, value: bytes) -> None:
    line = server.connect()
    line.ask_produce(topic, value, acks=1)
    server.run()
    assert line.produced().error_code == 0


def catch_up(server: ReplicatedBroker, replica: Replica, partition: Partition, first: int = 0) -> list[int]:
    """All offsets that a follower gets from there on."""
    found: list[int] = []
    end = first
    while end < partition.log_end_offset:
        told = replica.fetch((partition, end))
        new = offsets(told["t", 0])
        assert new
        found += new
        end = found[-1] + 1
    return found


def test_what_is_not_in_memory_is_read_beside_the_loop(server: ReplicatedBroker) -> None:
    replica = Replica(server)
    assert catch_up(server, replica, server.partition()) == list(range(10))


def test_others_of_the_session_do_not_wait_for_it(server: ReplicatedBroker) -> None:
    t, u = server.partition("t"), server.partition("u")
    replica = Replica(server)
    server.lanes.held |= REPLICA_LANES
    replica.ask((t, 0), (u, 0))
    append(server, "u", b"x")
    told = replica.told()
    assert offsets(told[U]) == [0]
    assert T not in told
    (connection,) = server.broker.acceptor.replicas
    assert not connection.muted
    replica.ask((u, 1))
    append(server, "u", b"y")
    assert offsets(replica.told()[U]) == [1]
    replica.ask((u, 2))
    assert replica.answer() is None
    server.lanes.held.clear()
    assert offsets(replica.told()[T])[0] == 0


def test_it_waits_behind_no_consumer(server: ReplicatedBroker) -> None:
    consumers = [server.connect() for _ in range(4)]
    for node_id in (2, 3):
        Replica(server, node_id).ask((server.partition(), 10))
    server.run()
    server.forget_cache()
    server.lanes.held |= {"cold-0", "cold-1", "recent"}
    for consumer in consumers:
        consumer.ask_fetch("t", 0)
    server.run()
    assert len(server.broker.cold_reads) > 0
    replica = Replica(server, 2, "catch-up")
    assert catch_up(server, replica, server.partition()) == list(range(10))
    assert [consumer.fetched() for consumer in consumers] == [None] * 4
    assert not server.broker.cold_reads.bytes_read, "nor do they pay for it"


@pytest.mark.parametrize("purpose", ["catch-up", "page-cache-catch-up"])
def test_who_is_in_sync_does_not_wait_for_who_is_far_behind(server: ReplicatedBroker, purpose: str) -> None:
    server.lanes.held.add("replica-catch-up")
    behind = Replica(server, 2, purpose)
    behind.ask((server.partition(), 0))
    assert behind.answer() is None
    assert catch_up(server, Replica(server, 3), server.partition()) == list(range(10))
    server.lanes.held.clear()
    assert offsets(behind.told()[T])[0] == 0


def test_what_was_read_for_another_position_is_not_sent(server: ReplicatedBroker) -> None:
    partition = server.partition()
    replica = Replica(server)
    server.lanes.held |= REPLICA_LANES
    replica.ask((partition, 0), wait=10)
    server.pass_ms(11)
    replica.told()
    replica.ask((partition, 5))
    server.run()
    server.lanes.held.clear()
    assert offsets(replica.told()[T])[0] == 5


def test_what_is_read_and_not_sent_is_bounded(server: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["t", *(f"c{number}" for number in range(5))]
    for name in names[1:]:
        server.copied(name)
        append(server, name, bytes(100_000))
    server.forget_cache()
    monkeypatch.setattr(replica_sessions, "COLD_BYTES", 250_000)
    server.lanes.held |= REPLICA_LANES
    replica = Replica(server)
    replica.ask(*(replica.place(server.partition(name), 0, partition_max_bytes=110_000) for name in names))
    server.run()
    assert len([entry for entry in server.lanes.waiting if entry[0] in REPLICA_LANES]) == 2
    server.lanes.held.clear()
    found: dict[str, list[int]] = {}
    while len(found) < len(names):
        told = replica.told()
        found.update({topic: offsets(data) for (topic, _), data in told.items() if data.records})
        replica.ask()
    assert found == {name: [0] for name in names}
    session = server.broker.fetch_sessions.of_replicas.of(next(iter(server.broker.acceptor.replicas)))
    assert session._reserved == 0


def test_the_connection_ends_meanwhile(server: ReplicatedBroker) -> None:
    replica = Replica(server)
    server.lanes.held |= REPLICA_LANES
    replica.ask((server.partition(), 0))
    server.run()
    (connection,) = server.broker.acceptor.replicas
    connection.close("test")
    server.lanes.held.clear()
    server.run()
    assert len(server.broker.fetch_sessions.of_replicas) == 0


def test_it_is_not_led_here_any_more_when_it_has_been_read(server: ReplicatedBroker) -> None:
    partition = server.partition()
    replica = Replica(server)
    server.lanes.held |= REPLICA_LANES
    replica.ask((partition, 0))
    server.run()
    partition.resign(3, partition.leader_epoch + 1, (1, 2, 3), (1, 2, 3))
    server.lanes.held.clear()
    told = replica.told()[T]
    assert (told.error_code, offsets(told)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(server: ReplicatedBroker) -> Partition:
    """`t`, whose fourth record is damaged."""
    partition = server.partition()
    server.disk.damage(partition.log.segments[0].path, 350_000)
    return partition


def read_failed(server: ReplicatedBroker) -> list[object]:
    return [fields for event, fields in server.events if event == "read-failed"]


def test_what_is_sound_comes_and_then_an_error_that_is_reported_once(
    server: ReplicatedBroker, damaged: Partition
) -> None:
    replica = Replica(server)
    append(server, "u", b"x")
    replica.ask((damaged, 0), (server.partition("u"), 0))
    found: dict[tuple[str, int], list[int]] = {}
    while len(found) < 2:
        found.update({key: offsets(data) for key, data in replica.told().items() if data.records})
        if len(found) < 2:
            replica.ask()
    assert found == {T: [0, 1, 2], U: [0]}
    for _ in range(3):
        told = replica.fetch((damaged, 3))[T]
        assert (told.error_code, offsets(told)) == (ErrorCode.CORRUPT_MESSAGE, [])
        assert (told.high_watermark, told.log_start_offset) == (0, 0)
    assert len(read_failed(server)) == 1
    path = damaged.log.segments[0].path
    told_ranges = [fields for event, fields in server.events if event == "damage"]
    assert [fields["path"] for fields in told_ranges] == [path]
    replica.ask((server.partition("u"), 1))
    append(server, "u", b"y")
    assert offsets(replica.told()[U]) == [1], "others go on"


def test_a_disk_that_does_not_read(server: ReplicatedBroker) -> None:
    partition = server.partition()
    path = partition.log.segments[0].path
    server.disk.fault = lambda call: (
        OSError(5, "no") if call.operation in ("pread", "read_cold") and call.path == path else None
    )
    replica = Replica(server)
    told = replica.fetch((partition, 0))[T]
    assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    server.disk.fault = None
    assert offsets(replica.fetch((partition, 0))[T])[0] == 0
