"""DeleteRecords of partitions with copies elsewhere: every live replica's log begins there before it is answered."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import Line
from tests.worlds.replica_world import BROKER_EPOCH, Replica, ReplicatedBroker

from duramen.errors import ErrorCode
from duramen.partition.replica.partition import Partition
from duramen.wire.messages import API

DELETE, VERSION = 21, 2


@pytest.fixture
def server() -> ReplicatedBroker:
    return ReplicatedBroker()


def filled(server: ReplicatedBroker) -> tuple[Partition, Replica, Replica]:
    """A partition with ten records on all three nodes, and its followers."""
    partition = server.copied()
    server.connect().ask_produce("t", *[b"x"] * 10, acks=1)
    server.run()
    replicas = Replica(server, 2), Replica(server, 3)
    for replica in replicas:
        replica.ask((partition, 10))
    server.run()
    assert partition.high_watermark == 10
    for replica in replicas:
        server.pass_ms(30)
        replica.told()
    return partition, *replicas


def ask(server: ReplicatedBroker, offset: int = 5, timeout_ms: int = 10_000) -> Line:
    line = server.connect()
    request = API[DELETE].request
    wanted = request.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [request.DeleteRecordsTopic(name="t", partitions=[wanted])]
    line.ask(DELETE, VERSION, topics=topics, timeout_ms=timeout_ms)
    server.pass_ms(50)
    return line


def answer(line: Line) -> tuple[int, int] | None:
    """Error and low watermark, None as long as there is no answer."""
    reply: Any = line.answer(DELETE, VERSION)
    if reply is None:
        return None
    entry = reply.topics[0].partitions[0]
    return entry.error_code, entry.low_watermark


def follow(server: ReplicatedBroker, replica: Replica, partition: Partition, start: int, **said: Any) -> None:
    """The replica says that its log begins there."""
    replica.ask(replica.place(partition, 10, log_start_offset=start, **said))
    server.pass_ms(50)


def test_it_is_answered_when_all_have_followed(server: ReplicatedBroker) -> None:
    partition, second, third = filled(server)
    line = ask(server)
    assert partition.log_start_offset == 5
    assert answer(line) is None
    follow(server, second, partition, 5)
    assert answer(line) is None
    follow(server, third, partition, 4)
    assert answer(line) is None
    third.told()
    follow(server, third, partition, 5)
    assert answer(line) == (0, 5)


def test_who_is_dead_is_not_waited_for(server: ReplicatedBroker) -> None:
    partition, second, _ = filled(server)
    server.image.brokers[3] = server.image.brokers[3]._replace(fenced=True)
    line = ask(server)
    follow(server, second, partition, 7)
    assert answer(line) == (0, 5)
    line = ask(server, 6)
    assert answer(line) == (0, 6), "at once: there already"


def test_who_dies_meanwhile_is_not_waited_for_either(server: ReplicatedBroker) -> None:
    partition, second, _ = filled(server)
    line = ask(server)
    follow(server, second, partition, 5)
    del server.image.brokers[3]
    server.pass_ms(50)
    assert answer(line) == (0, 5)


def test_when_its_time_is_over_it_says_how_far_they_are(server: ReplicatedBroker) -> None:
    partition, second, third = filled(server)
    line = ask(server, timeout_ms=500)
    follow(server, second, partition, 5)
    follow(server, third, partition, 3)
    assert answer(line) is None
    server.pass_ms(500)
    assert answer(line) == (ErrorCode.REQUEST_TIMED_OUT, 3)
    assert partition.log_start_offset == 5


def test_what_is_led_elsewhere_meanwhile_is_not_waited_for(server: ReplicatedBroker) -> None:
    partition, _, _ = filled(server)
    line = ask(server)
    partition.resign(2, partition.leader_epoch + 1)
    server.pass_ms(50)
    assert answer(line) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_what_an_older_process_said_counts_nothing(server: ReplicatedBroker) -> None:
    partition, second, third = filled(server)
    line = ask(server)
    follow(server, second, partition, 5)
    partition.replication.starts(3, BROKER_EPOCH - 1, 5)
    server.pass_ms(50)
    assert answer(line) is None
    partition.replication.starts(3, BROKER_EPOCH, 5)
    server.pass_ms(50)
    assert answer(line) == (0, 5)
    assert third.node_id == 3


def test_who_has_hung_up_is_not_answered(server: ReplicatedBroker) -> None:
    partition, second, _ = filled(server)
    line = ask(server)
    line.close()
    server.pass_ms(100)
    follow(server, second, partition, 5)
    assert answer(line) is None
