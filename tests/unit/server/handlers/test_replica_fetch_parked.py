"""Fetches of replicas that wait: what ends the wait, and that nothing is left of those that ended."""

from __future__ import annotations

from errno import ENOSPC

import pytest
from tests.worlds.replica_world import Replica, ReplicatedBroker, offsets

from duramen.errors import ErrorCode
from duramen.partition.replica.partition import Partition
from duramen.server.handlers import replica_fetch
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

T = ("t", 0)


@pytest.fixture
def server() -> ReplicatedBroker:
    return ReplicatedBroker()


@pytest.fixture
def waiting(server: ReplicatedBroker) -> Replica:
    """A follower of `t` and `u` that knows all there is, and waits."""
    replica = Replica(server)
    replica.ask(*((server.copied(topic), 0) for topic in ("t", "u")))
    server.pass_ms(25)
    assert len(replica.told()) == 2
    replica.ask()
    assert replica.answer() is None
    return replica


def watchers(partition: Partition) -> int:
    return len(partition._end_watchers or ())


def test_all_that_a_turn_brought_comes_in_one_answer(server: ReplicatedBroker, waiting: Replica) -> None:
    lines = [server.connect() for _ in range(4)]
    for line, topic in zip(lines, ("t", "u", "t", "u"), strict=True):
        line.ask_produce(topic, b"x", acks=1)  # all of them before the loop goes on
    told = waiting.told()
    assert [offsets(told[topic, 0]) for topic in ("t", "u")] == [[0, 1], [0, 1]]


def test_another_node_leads_by_now(server: ReplicatedBroker, waiting: Replica) -> None:
    partition = server.partition()
    partition.resign(3, partition.leader_epoch + 1, (1, 2, 3), (1, 2, 3))
    told = waiting.told()
    assert list(told) == [T]
    assert told[T].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert told[T].current_leader.leader_id == 3


def test_it_is_led_here_in_another_epoch(server: ReplicatedBroker, waiting: Replica) -> None:
    partition = server.replicate()
    told = waiting.told()
    assert told[T].error_code == ErrorCode.FENCED_LEADER_EPOCH
    waiting.ask((partition, 0))
    server.connect().ask_produce("t", b"x")
    assert offsets(waiting.told()[T]) == [0]


def test_the_topic_is_deleted(server: ReplicatedBroker, waiting: Replica) -> None:
    partition = server.partition()
    state = API[20].request.DeleteTopicState(name="t")
    server.connect().call(20, 6, topics=[state], timeout_ms=1000)
    (told,) = waiting.told().values()
    assert told.error_code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    waiting.ask(forget=(partition,), wait=10)
    server.pass_ms(11)
    assert waiting.told() == {}
    assert watchers(partition) == 0


def test_nothing_is_left_when_the_connection_ends(server: ReplicatedBroker, waiting: Replica) -> None:
    partitions = [server.partition(topic) for topic in ("t", "u")]
    assert [watchers(partition) for partition in partitions] == [1, 1]
    (connection,) = server.broker.acceptor.replicas
    connection.close("test")
    assert [watchers(partition) for partition in partitions] == [0, 0]
    assert len(server.broker.fetch_sessions.of_replicas) == 0
    assert not server.broker.acceptor.replicas
    server.connect().ask_produce("t", b"x")
    server.pass_ms(70_000)
    assert waiting.line.answer(1, 18) is None


def test_a_second_fetch_ends_the_wait_of_the_first(server: ReplicatedBroker, waiting: Replica) -> None:
    waiting.session_epoch += 1
    waiting.ask(wait=10)
    waiting.session_epoch -= 1
    assert waiting.told() == {}
    server.pass_ms(11)
    assert waiting.told() == {}


def test_a_follower_that_has_a_smaller_watermark_is_told_of_it_again(server: ReplicatedBroker) -> None:
    """It had named the partition once more when the answer with the watermark came, and left that aside."""
    partition = server.copied()
    replica = Replica(server)
    line = server.connect()
    line.ask_produce("t", b"x", acks=1)
    for node_id in (2, 3):
        partition.fetched_by(node_id, replica.broker_epoch, 1, 0.0)
    replica.ask(replica.place(partition, 1, high_watermark=0))
    server.pass_ms(25)
    assert replica.told()[T].high_watermark == 1
    replica.ask(replica.place(partition, 1, high_watermark=0))
    server.pass_ms(25)
    assert replica.told()[T].high_watermark == 1
    replica.ask(replica.place(partition, 1, high_watermark=1))
    server.pass_ms(25)
    assert replica.answer() is None


def test_the_wait_ends_when_it_was_asked_to(server: ReplicatedBroker, waiting: Replica) -> None:
    server.pass_ms(59_000)
    assert waiting.answer() is None
    server.pass_ms(1100)
    assert waiting.told() == {}


def test_two_followers_wait_for_themselves(server: ReplicatedBroker, waiting: Replica) -> None:
    partition = server.partition()
    other = Replica(server, 3)
    other.ask((partition, 0))
    server.connect().ask_produce("t", b"x", acks=1)
    assert offsets(waiting.told()[T]) == offsets(other.told()[T]) == [0]
    assert watchers(partition) == 2
    waiting.ask((partition, 1))
    server.connect().ask_produce("t", b"y", acks=1)
    assert offsets(waiting.told()[T]) == [1]
    other.ask()
    assert other.answer() is None, "it has not said that it has the first one"


@pytest.fixture
def wide(server: ReplicatedBroker) -> list[Partition]:
    """The partitions of a topic that has more of them than an answer."""
    request = API[19].request
    topic = request.CreatableTopic(name="wide", num_partitions=replica_fetch.MOST_ANSWERED + 300, replication_factor=1)
    assert server.connect().call(19, 7, topics=[topic], timeout_ms=10_000).topics[0].error_code == 0
    server.run()
    return [server.replicate("wide", index) for index in range(replica_fetch.MOST_ANSWERED + 300)]


def test_a_request_of_many_partitions_is_taken_in_steps(server: ReplicatedBroker, wide: list[Partition]) -> None:
    replica = Replica(server)
    replica.ask(*((partition, 0) for partition in wide))
    server.pass_ms(25)
    first = replica.told()
    assert len(first) == replica_fetch.MOST_ANSWERED
    replica.ask()
    server.pass_ms(25)
    second = replica.told()
    assert {*first, *second} == {("wide", index) for index in range(len(wide))}
    assert len(first) + len(second) == len(wide)
    request = API[0].request
    data = request.TopicProduceData(
        name="wide", partition_data=[request.PartitionProduceData(index=7, records=build_batch([(b"k", b"v", (), 1)]))]
    )
    replica.ask()
    server.connect().ask(0, 9, acks=1, timeout_ms=1000, topic_data=[data])
    told = replica.told()
    assert [(key, offsets(each)) for key, each in told.items()] == [(("wide", 7), [0])]


def test_a_connection_that_ends_while_its_request_is_taken(server: ReplicatedBroker, wide: list[Partition]) -> None:
    replica = Replica(server)
    server.lanes.held.add("large")
    replica.ask(*((partition, 0) for partition in wide))
    server.run()
    server.lanes.held.clear()
    server.lanes.step()  # it is decoded
    for _ in range(3):
        server.clock.ready.pop(0)()
    for connection in server.broker.acceptor.everybody:
        if connection.transport is replica.line:
            connection.close("test")
    server.run()
    assert sum(map(watchers, wide)) == 0
    assert len(server.broker.fetch_sessions.of_replicas or ()) == 0


def test_what_a_full_disk_keeps_from_being_written_comes_later(
    server: ReplicatedBroker, waiting: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = server.partition()
    path = partition.log.active.path
    server.disk.fault = lambda call: (
        OSError(ENOSPC, "full") if call.operation == "pwritev" and call.path == path else None
    )
    looks: list[Partition] = []
    read = Partition.read_as_replica
    monkeypatch.setattr(Partition, "read_as_replica", lambda self, *said: looks.append(self) or read(self, *said))
    server.connect().ask_produce("t", b"x", acks=1)
    assert waiting.answer() is None
    server.pass_ms(300)
    assert waiting.answer() is None
    assert 2 <= len(looks) <= 17, "not each turn"
    assert not [event for event, _ in server.events if event == "read-failed"]
    server.disk.fault = None
    server.pass_ms(2000)
    assert offsets(waiting.told()[T]) == [0]


def test_an_append_behind_the_commit_comes_with_the_next_one(server: ReplicatedBroker, waiting: Replica) -> None:
    partition = server.partition("u")
    session = server.broker.fetch_sessions.of_replicas.of(next(iter(server.broker.acceptor.replicas)))
    answer = session.answer

    def append_first(**how: bool) -> None:
        if partition.log_end_offset == 0:
            partition.append_local(build_batch([(b"k", b"v", (), 1)]), 0)
        answer(**how)

    session.answer = append_first
    writes = partition.log.active.flushed
    server.connect().ask_produce("t", b"x", acks=1)
    told = waiting.told()
    assert list(told) == [T]
    assert writes == 0
    waiting.ask()
    assert offsets(waiting.told()["u", 0]) == [0]
