"""What another broker that follows partitions here is sent, told and refused, and what its positions acknowledge."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest
from tests.worlds.broker_world import InProcess
from tests.worlds.replica_world import BROKER_EPOCH, Replica, ReplicatedBroker, offsets

from duramen.errors import ErrorCode
from duramen.partition.replica.partition import Partition
from duramen.server.api.authorizer import Operation, Resource
from duramen.wire.messages import API

T = ("t", 0)


@pytest.fixture
def server() -> ReplicatedBroker:
    return ReplicatedBroker()


def append(server: ReplicatedBroker, topic: str, *values: bytes) -> Any:
    """Produce with acks=1: the answer once it is durable here."""
    line = server.connect()
    line.ask_produce(topic, *values, acks=1)
    server.run()
    return line.produced()


def refused(server: ReplicatedBroker, *named: Any, node_id: int = 2) -> Any:
    """What a new follower is told of the one partition that it names."""
    (data,) = Replica(server, node_id).fetch(*named).values()
    assert not data.records
    return data


# ---- from an append to the watermark ---------------------------------------------------------------------------------


def test_unsynced_records_are_sent_and_three_durable_ends_move_the_watermark(server: ReplicatedBroker) -> None:
    partition = server.copied()
    first, second = Replica(server, 2), Replica(server, 3)
    first.ask((partition, 0))
    second.ask((partition, 0))
    server.lanes.held.add("journal")
    producer = server.connect()
    producer.ask_produce("t", b"a", b"b")
    told = first.told()[T]
    assert (offsets(told), told.high_watermark, partition.durable_end) == ([0, 1], 0, 0)
    assert offsets(second.told()[T]) == [0, 1]
    first.ask((partition, 2))
    second.ask((partition, 2))
    server.run()
    assert partition.high_watermark == 0, "the leader's own disk has not got it"
    assert producer.produced() is None
    server.lanes.held.clear()
    server.run()
    assert partition.high_watermark == 2
    assert producer.produced().error_code == 0


def test_the_watermark_waits_for_the_last_of_the_replicas(server: ReplicatedBroker) -> None:
    partition = server.copied()
    producer = server.connect()
    producer.ask_produce("t", b"a")
    first, second = Replica(server, 2), Replica(server, 3)
    first.ask((partition, 1))
    server.run()
    assert (producer.produced(), partition.high_watermark) == (None, 0)
    second.ask((partition, 1))
    server.run()
    assert (producer.produced().error_code, partition.high_watermark) == (0, 1)


def test_nothing_is_read_for_what_was_answered_until_it_is_named_again(server: ReplicatedBroker) -> None:
    partition = server.copied()
    replica = Replica(server)
    replica.ask((partition, 0))
    append(server, "t", b"a")
    assert offsets(replica.told()[T]) == [0]
    append(server, "t", b"b")
    replica.ask(wait=50)
    assert replica.answer() is None
    server.pass_ms(60)
    assert replica.told() == {}
    assert offsets(replica.fetch((partition, 1))[T]) == [1]


def test_a_poll_of_nothing_new_touches_no_partition(server: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = server.copied()
    replica = Replica(server)
    replica.ask((partition, 0))
    server.pass_ms(25)
    assert replica.told()[T].high_watermark == 0
    touched: list[str] = []
    for name in ("fetched_by", "read_as_replica", "watch_end", "unwatch_end"):
        monkeypatch.setattr(Partition, name, lambda *_, name=name: touched.append(name))
    for _ in range(3):
        replica.ask(wait=500)
        assert replica.answer() is None
        server.pass_ms(501)
        assert replica.told() == {}
    assert touched == []


def test_all_ends_of_a_fetch_are_taken_before_a_producer_is_answered(
    server: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [server.copied("t"), server.copied("u")]
    for partition in both:
        append(server, partition.tp.topic, b"x")
    Replica(server, 3).ask(*((partition, 1) for partition in both))
    server.run()
    order: list[str] = []
    fetched_by, settle = Partition.fetched_by, Partition.settle_fetched
    monkeypatch.setattr(
        Partition, "fetched_by", lambda self, *said: order.append(f"end of {self.tp.topic}") or fetched_by(self, *said)
    )
    monkeypatch.setattr(
        Partition, "settle_fetched", lambda self: order.append(f"settles {self.tp.topic}") or settle(self)
    )
    Replica(server, 2).ask(*((partition, 1) for partition in both))
    server.run()
    assert order == ["end of t", "end of u", "settles t", "settles u"]
    assert [partition.high_watermark for partition in both] == [1, 1]


def test_where_the_watermark_does_not_move_nothing_settles(
    server: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = server.copied()
    append(server, "t", b"x")
    settled: list[Any] = []
    monkeypatch.setattr(Partition, "settle_fetched", settled.append)
    Replica(server, 2).ask((partition, 1))
    server.run()
    assert settled == []


@pytest.mark.parametrize("purpose", ["page-cache", "page-cache-catch-up"])
def test_a_log_end_counts_nothing_for_a_topic_that_is_stable_by_now(server: ReplicatedBroker, purpose: str) -> None:
    stable = server.copied()
    cached = server.copied("p", **{"duramen.ack.durability": "page-cache"})
    for topic in ("t", "p"):
        append(server, topic, b"x")
    for node_id in (2, 3):
        Replica(server, node_id, purpose).ask((stable, 1), (cached, 1))
    server.run()
    assert (stable.high_watermark, cached.high_watermark) == (0, 1)
    for node_id in (2, 3):
        Replica(server, node_id, "stable").ask((stable, 1))
    server.run()
    assert stable.high_watermark == 1


# ---- what is told without records ------------------------------------------------------------------------------------


def test_a_watermark_alone_is_told_within_20_ms_and_has_not_to_be_named(server: ReplicatedBroker) -> None:
    partition = server.copied()
    append(server, "t", b"x")
    replica = Replica(server, 2)
    assert offsets(replica.fetch((partition, 0))[T]) == [0]
    replica.ask((partition, 1))
    server.pass_ms(30)
    assert replica.answer() is None, "it knows the watermark, 0"
    Replica(server, 3).ask((partition, 1))
    server.pass_ms(5)
    assert replica.answer() is None
    server.pass_ms(16)
    told = replica.told()[T]
    assert (told.high_watermark, told.error_code, offsets(told)) == (1, 0, [])
    replica.ask()
    append(server, "t", b"y")
    assert offsets(replica.told()[T]) == [1]


def test_a_log_start_alone_is_told_within_20_ms(server: ReplicatedBroker) -> None:
    partition = server.copied()
    append(server, "t", b"x", b"y")
    for node_id in (2, 3):
        Replica(server, node_id).ask((partition, 2))
    replica = Replica(server, 3)
    replica.ask((partition, 2))
    server.pass_ms(25)
    assert replica.told()[T].log_start_offset == 0
    replica.ask()
    request = API[21].request
    wanted = request.DeleteRecordsTopic(
        name="t", partitions=[request.DeleteRecordsPartition(partition_index=0, offset=1)]
    )
    server.connect().ask(21, 2, topics=[wanted], timeout_ms=1000)
    server.pass_ms(21)
    assert replica.told()[T].log_start_offset == 1


def test_a_watermark_goes_with_records_of_others(server: ReplicatedBroker) -> None:
    both = [server.copied("t"), server.copied("u")]
    append(server, "t", b"x")
    replica = Replica(server)
    replica.fetch((both[0], 0), (both[1], 0))
    replica.ask((both[0], 1))
    server.run()
    Replica(server, 3).ask((both[0], 1))
    append(server, "u", b"y")
    told = replica.told()
    assert (told["t", 0].high_watermark, offsets(told["u", 0])) == (1, [0])


# ---- who is refused --------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_known(server: ReplicatedBroker) -> None:
    partition = server.copied()
    _, wanted = Replica(server).place(partition, 0)
    data = refused(server, (b"\7" * 16, wanted))
    assert (data.error_code, data.high_watermark) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)


def test_the_metadata_log_is_followed_through_the_controllers_listener_alone(server: ReplicatedBroker) -> None:
    partition = server.partition("__cluster_metadata")
    data = refused(server, (partition, 0))
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("behind", "code"), [(1, ErrorCode.FENCED_LEADER_EPOCH), (-1, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_another_leader_epoch(server: ReplicatedBroker, behind: int, code: ErrorCode) -> None:
    partition = server.copied()
    append(server, "t", b"x")
    replica = Replica(server)
    data = refused(server, replica.place(partition, 1, current_leader_epoch=partition.leader_epoch - behind))
    assert (data.error_code, data.high_watermark, data.log_start_offset) == (code, 0, 0)
    assert data.current_leader.leader_epoch == (partition.leader_epoch if behind > 0 else -1)
    Replica(server, 3).ask((partition, 1))
    server.run()
    assert partition.high_watermark == 0, "its end counted nothing"


def test_no_leader_epoch_proves_nothing(server: ReplicatedBroker) -> None:
    partition = server.copied()
    data = refused(server, Replica(server).place(partition, 0, current_leader_epoch=-1))
    assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_who_is_none_of_the_replicas_asks_again(server: ReplicatedBroker) -> None:
    server.connect().create_topic("t")
    partition = server.replicate(replicas=(1, 2))
    assert refused(server, (partition, 0), node_id=3).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_another_node_leads(server: ReplicatedBroker) -> None:
    partition = server.copied()
    place = Replica(server).place(partition, 0)
    partition.resign(3, partition.leader_epoch + 1, (1, 2, 3), (1, 2, 3))
    data = refused(server, place)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (3, partition.leader_epoch)


def test_a_process_that_was_replaced_acknowledges_nothing(server: ReplicatedBroker) -> None:
    partition = server.copied()
    append(server, "t", b"x")
    replica, other = Replica(server, 2), Replica(server, 3)
    other.ask((partition, 1))
    assert replica.fetch((partition, 0))[T].error_code == 0
    server.register(2, BROKER_EPOCH + 5)
    replica.ask((partition, 1))
    assert replica.answer().error_code == ErrorCode.STALE_BROKER_EPOCH
    assert partition.high_watermark == 0
    replica.broker_epoch = BROKER_EPOCH + 5
    replica.ask((partition, 1))
    server.run()
    assert partition.high_watermark == 1


@pytest.mark.parametrize(("node_id", "epoch"), [(2, BROKER_EPOCH + 1), (9, BROKER_EPOCH)])
def test_a_registration_that_is_not_known_here_yet_asks_again(
    server: ReplicatedBroker, node_id: int, epoch: int
) -> None:
    partition = server.copied()
    replica = Replica(server, node_id)
    replica.broker_epoch = epoch
    replica.ask((partition, 0))
    assert replica.answer().error_code == ErrorCode.REPLICA_NOT_AVAILABLE


def test_a_node_does_not_follow_itself(server: ReplicatedBroker) -> None:
    partition = server.copied()
    replica = Replica(server, 1)
    replica.ask((partition, 0))
    assert replica.answer().error_code == ErrorCode.INVALID_REQUEST


def test_another_directory_than_the_metadata_knows_counts_nothing(server: ReplicatedBroker) -> None:
    partition = server.copied()
    partitions = server.image.topic("t").partitions
    node = server.image.brokers[2]
    here, there = node.directories[0], bytes(15) + b"e"
    server.image.brokers[2] = node._replace(directories=(here, there))
    partitions[0] = partitions[0]._replace(directories=(bytes(16), there, there))
    assert refused(server, (partition, 0)).error_code == ErrorCode.LOG_DIR_NOT_FOUND
    named = Replica(server).place(partition, 0, replica_directory_id=there)
    Replica(server).ask(named)
    server.image.brokers[2] = node  # the one that the metadata knows is gone
    append(server, "t", b"x")
    assert offsets(Replica(server).fetch((partition, 0))[T]) == [0]


class NoClusterActions:
    def denied(
        self, principal: str, host: str, operation: Operation, resource: Resource, names: Iterable[str]
    ) -> frozenset[str]:
        return frozenset(names) if operation is Operation.CLUSTER_ACTION else frozenset()


def test_only_who_may_act_for_the_cluster_is_a_replica(server: ReplicatedBroker) -> None:
    partition = server.copied()
    server.broker.access.authorizer = NoClusterActions()
    replica = Replica(server)
    replica.ask((partition, 0))
    assert replica.answer().error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not server.broker.acceptor.replicas


def test_another_cluster(server: ReplicatedBroker) -> None:
    partition = server.copied()
    replica = Replica(server)
    replica.ask((partition, 0), cluster_id="another")
    assert replica.answer().error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


# ---- histories -------------------------------------------------------------------------------------------------------


def test_an_offset_that_is_not_in_the_log_comes_with_where_the_log_is(server: ReplicatedBroker) -> None:
    partition = server.copied()
    append(server, "t", b"x", b"y", b"z")
    for node_id in (2, 3):
        Replica(server, node_id).ask((partition, 3))
    server.run()
    partition.log.advance_start(2)
    for offset, epoch in ((1, None), (1, 0), (4, -1), (-1, -1)):
        data = refused(server, Replica(server).place(partition, offset, epoch))
        found = (data.error_code, data.high_watermark, data.log_start_offset)
        assert found == (ErrorCode.OFFSET_OUT_OF_RANGE, 3, 2), offset
        assert data.diverging_epoch.end_offset == -1


def test_a_history_that_parts_from_this_one(server: ReplicatedBroker) -> None:
    partition = server.copied()
    append(server, "t", b"x", b"y")
    first = partition.leader_epoch
    server.replicate()
    server.replicate()
    append(server, "t", b"z")
    assert partition.leader_epoch == first + 2
    for offset, epoch, parted in ((3, first, (first, 2)), (3, first + 1, (first, 2)), (4, first + 2, (first + 2, 3))):
        data = refused(server, Replica(server).place(partition, offset, epoch))
        assert data.error_code == 0
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == parted, (offset, epoch)
        assert (data.high_watermark, data.log_start_offset) == (0, 0)
    assert partition.high_watermark == 0, "none of these ends counted"
    assert offsets(Replica(server).fetch((partition, 2))[T]) == [2]


def test_records_older_than_all_that_is_known_here_agree_with_nothing(server: ReplicatedBroker) -> None:
    partition = server.copied()
    old = partition.leader_epoch
    append(server, "t", b"x", b"y")
    server.replicate()
    append(server, "t", b"z")
    for node_id in (2, 3):
        Replica(server, node_id).ask((partition, 3))
    server.run()
    partition.log.advance_start(2)
    data = refused(server, Replica(server).place(partition, 2, old))
    assert (data.error_code, data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, -1, 2)


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_is_of_its_connection_and_goes_on_by_its_numbers(server: ReplicatedBroker) -> None:
    partition = server.copied()
    append(server, "t", b"x")
    replica = Replica(server)
    assert offsets(replica.fetch((partition, 0))[T]) == [0]
    assert replica.session_id > 0
    other = Replica(server)
    other.session_id, other.session_epoch = replica.session_id, 1
    other.ask((partition, 1))
    assert other.answer().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (0x7FFFFFFF, 2):
        replica.ask((partition, 1), session_epoch=epoch)
        assert replica.line.closed is False
        server.run()
        assert replica.line.answer(1, 18).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    replica.ask(session_id=replica.session_id + 1)
    server.run()
    assert replica.line.answer(1, 18).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert offsets(replica.fetch((partition, 0))[T]) == [0], "none of this has ended it"


def test_a_full_request_begins_another_one(server: ReplicatedBroker) -> None:
    both = [server.copied("t"), server.copied("u")]
    append(server, "t", b"x")
    replica = Replica(server)
    replica.fetch((both[0], 0))
    before = replica.session_id
    replica.session_id = replica.session_epoch = 0
    replica.ask((both[1], 0))
    append(server, "t", b"y")
    append(server, "u", b"z")
    assert list(replica.told()) == [("u", 0)]
    assert replica.session_id != before
    assert len(server.broker.fetch_sessions.of_replicas) == 1


def test_another_process_does_not_go_on_in_a_session(server: ReplicatedBroker) -> None:
    partition = server.copied()
    append(server, "t", b"x")
    replica = Replica(server)
    replica.fetch((partition, 0))
    server.register(2, BROKER_EPOCH + 1)
    replica.broker_epoch += 1
    replica.ask((partition, 1))
    assert replica.answer().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_sessions_of_replicas_are_none_of_consumers() -> None:
    server = ReplicatedBroker(max_incremental_fetch_session_cache_slots="1")
    partition = server.copied()
    append(server, "t", b"x")
    replicas = [Replica(server, node_id) for node_id in (2, 3)]
    for replica in replicas:
        replica.fetch((partition, 0))
    consumer = server.connect()
    consumer.ask_fetch("t", 0, session_epoch=0)
    server.run()
    reply = consumer.answer(1, 12)
    assert reply.session_id > 0
    assert len(server.broker.fetch_sessions) == 1
    for replica in replicas:
        replica.ask((partition, 1), wait=0)
        server.pass_ms(1)
        replica.told()
    again = server.connect()
    again.ask_fetch("t", 0, session_epoch=0)
    server.run()
    assert again.answer(1, 12).session_id == 0, "the slot is taken by the other consumer"


def test_a_fetch_outside_of_any_session_is_answered_about_each_partition(server: ReplicatedBroker) -> None:
    both = [server.copied("t"), server.copied("u")]
    append(server, "t", b"x")
    replica = Replica(server)
    replica.ask((both[0], 0), (both[1], 0), session_epoch=-1)
    told = replica.told()
    assert (offsets(told["t", 0]), offsets(told["u", 0])) == ([0], [])
    assert replica.session_id == 0
    assert len(server.broker.fetch_sessions.of_replicas) == 0


def test_what_is_forgotten_is_told_no_more(server: ReplicatedBroker) -> None:
    both = [server.copied("t"), server.copied("u")]
    replica = Replica(server)
    replica.ask((both[0], 0), (both[1], 0))
    server.pass_ms(25)
    replica.told()
    replica.ask(forget=(both[0],), wait=100)
    append(server, "t", b"x")
    server.pass_ms(30)
    assert replica.answer() is None
    append(server, "u", b"x")
    assert list(replica.told()) == [("u", 0)]


# ---- how much --------------------------------------------------------------------------------------------------------


def test_an_answer_brings_whole_batches_within_its_bounds_and_who_had_some_goes_last(server: ReplicatedBroker) -> None:
    topics = ["t", "u", "v"]
    for topic in topics:
        server.copied(topic)
        for _ in range(3):
            append(server, topic, bytes(1000))
    replica = Replica(server)
    ends = dict.fromkeys(topics, 0)
    named = topics
    order: list[str] = []
    for _ in range(5):
        told = replica.fetch(*((server.partition(topic), ends[topic]) for topic in named), max_bytes=2500)
        assert sum(len(data.records) for data in told.values()) <= 2500
        named = [topic for topic, _ in told]
        for topic in named:
            found = offsets(told[topic, 0])
            assert found == list(range(ends[topic], ends[topic] + len(found)))
            ends[topic] += len(found)
        order += named
    assert ends == dict.fromkeys(topics, 3)
    assert order == ["t", "u", "v", "t", "u", "v"]


def test_one_batch_comes_whatever_its_size(server: ReplicatedBroker) -> None:
    partitions = [server.copied(topic) for topic in ("t", "u")]
    for topic in ("t", "u"):
        append(server, topic, bytes(1000))
    tight = Replica(server)
    named = [tight.place(partition, 0, partition_max_bytes=10) for partition in partitions]
    assert [offsets(data) for data in tight.fetch(*named, max_bytes=10).values()] == [[0]]
    assert list(tight.fetch((partitions[0], 1), max_bytes=10)) == [("u", 0)]


def test_enough_bytes_or_enough_time(server: ReplicatedBroker) -> None:
    partition = server.copied()
    replica = Replica(server)
    replica.ask((partition, 0))
    server.pass_ms(25)
    replica.told()
    replica.ask(min_bytes=3000, wait=500)
    append(server, "t", bytes(1000))
    append(server, "t", bytes(1000))
    assert replica.answer() is None
    append(server, "t", bytes(1000))
    assert offsets(replica.told()[T]) == [0, 1, 2]
    replica.ask((partition, 3), min_bytes=3000, wait=500)
    append(server, "t", bytes(1000))
    assert replica.answer() is None
    server.pass_ms(501)
    assert offsets(replica.told()[T]) == [3]


# ---- consumers and a node alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("replica_id", [-1, -2])
def test_consumers_and_verifying_tools_read_up_to_the_watermark(server: ReplicatedBroker, replica_id: int) -> None:
    partition = server.copied()
    append(server, "t", b"x")
    reader = Replica(server, replica_id)
    reader.broker_epoch = -1
    assert offsets(reader.fetch((partition, 0), wait=0)[T]) == []
    for node_id in (2, 3):
        Replica(server, node_id).ask((partition, 1))
    server.run()
    reader = Replica(server, replica_id)
    assert offsets(reader.fetch((partition, 0), wait=0)[T]) == [0]
    assert len(server.broker.acceptor.replicas) == 2


def test_a_node_alone_has_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("duramen.server.handlers.replica_fetch", "duramen.server.reads.replica_sessions")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"x")
    assert len(line.fetch("t", 0).records) > 0
    assert not [name for name in names if name in sys.modules]
