"""Large requests are handled in steps: what ends or changes between two of them."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.model import TopicPartition
from duramen.ports import Part
from duramen.server.api.authorizer import AllowAll, Operation, Resource
from duramen.server.api.sliced_work import SlicedWork, Work
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

PRODUCE, FETCH, COMMIT, DESCRIBE_SEGMENTS = 0, 1, 8, 10010
BATCH = bytes(build_batch([(b"k", b"v" * 10, (), 1_760_000_000_000)]))


def ask_much(line: Line, acks: int = -1) -> None:
    """A Produce that is taken in many steps."""
    request = API[PRODUCE].request
    batches = [request.PartitionProduceData(index=0, records=BATCH) for _ in range(3000)]
    line.ask(
        PRODUCE, 9, acks=acks, timeout_ms=1000, topic_data=[request.TopicProduceData(name="t", partition_data=batches)]
    )


@pytest.mark.parametrize("steps", [0, 1, 3, 10, 40])
@pytest.mark.parametrize("acks", [-1, 0])
def test_a_connection_that_ends_while_its_produce_is_taken_leaves_nothing(steps: int, acks: int) -> None:
    """It was known for ever as one that waits, and kept the memory of its frame."""
    server = InProcess()
    server.connect().create_topic("t")
    line = server.connect_slowly(0)
    line.ask(18, 0)
    server.run()
    assert line.writer is not None, "a reply is unread, or nobody would hear of the connection's end"
    ask_much(line, acks)
    while not server.broker.appends.outstanding:
        if server.clock.ready:
            server.clock.ready.pop(0)()
        else:
            server.lanes.step()
    for _ in range(steps):
        server.clock.ready.pop(0)()

    def reset(parts: Iterable[Part]) -> int:
        raise ConnectionResetError("reset by the peer")

    line.send = reset  # type: ignore[assignment,method-assign]
    line.writer()
    assert line.closed
    server.lines.remove(line)
    server.pass_ms(60_000)
    assert not server.broker.appends.outstanding
    gc.collect()
    server.broker.acceptor.pool.reclaim()
    assert server.broker.acceptor.pool.lent_bytes == 0


def test_segments_under_a_lease_are_there_however_long_the_others_of_the_request_took() -> None:
    server = InProcess(None, log_flush_offset_checkpoint_interval_ms="1000", log_retention_check_interval_ms="1000")
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="20000", retention_bytes="1", file_delete_delay_ms="0")
    log = server.broker.store.partitions[TopicPartition("t", 0)].log
    log.lease(0, server.clock.wall_ms() + 5000)
    for _ in range(15):
        assert line.produce("t", b"x" * 5000).error_code == 0
    server.pass_ms(4000)
    request = API[DESCRIBE_SEGMENTS].request
    wanted = [
        request.WantedPartition(partition_index=n, start_offset=-1, end_offset=-1, current_leader_epoch=-1)
        for n in range(150)
    ]
    topics = [request.WantedTopic(name="t", partitions=wanted)]
    line.ask(DESCRIBE_SEGMENTS, 0, topics=topics, lease_ms=60_000, target_bytes=1 << 30)
    waits = server.clock.ready[:]
    assert waits, "it is taken in steps"
    server.clock.ready.clear()
    server.pass_ms(3000)
    server.clock.ready += waits
    server.run()
    answer = line.answer(DESCRIBE_SEGMENTS, 0)
    sealed = [each.base_offset for each in answer.topics[0].partitions[0].segments if each.is_sealed]
    assert sealed
    assert answer.lease_id >= 0
    assert all(server.disk.exists(f"/data/t-0/{base:020}.log") for base in sealed)
    server.pass_ms(120_000)
    assert not any(server.disk.exists(f"/data/t-0/{base:020}.log") for base in sealed), "the lease is over"


def test_leases_of_a_request_whose_connection_ends_are_over() -> None:
    server = InProcess()
    line = server.connect_slowly(0)
    server.connect().create_topic("t")
    log = server.broker.store.partitions[TopicPartition("t", 0)].log
    lease = server.broker.segments.lease(log, 0)
    assert server.broker.segments.grant([lease], 0) == (-1, 0)
    assert not lease.is_held(0)
    assert not line.closed


class DenySecrets(AllowAll):
    """Nobody may touch the topic `secret`."""

    def denied(
        self, principal: str, peer: str, operation: Operation, resource: Resource, names: Iterable[str]
    ) -> frozenset[str]:
        return frozenset(name for name in names if resource is Resource.TOPIC and name == "secret")


def test_a_fetch_session_goes_on_with_nothing_that_is_denied() -> None:
    """Its next request names no topic: it was asked of the authorizer for those only that a request names."""
    server = InProcess()
    line = server.connect()
    line.create_topic("secret")
    line.produce("secret", b"x" * 20)
    server.broker.access.authorizer = DenySecrets()
    request = API[FETCH].request
    partitions = [request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    topics = [request.FetchTopic(topic="secret", partitions=partitions)]
    first = line.call(FETCH, 12, session_epoch=0, max_wait_ms=0, min_bytes=1, topics=topics)
    assert first.responses[0].partitions[0].error_code == 29
    after = line.call(FETCH, 12, session_id=first.session_id, session_epoch=1, max_wait_ms=0, min_bytes=1, topics=[])
    assert after.responses[0].partitions[0].error_code == 29
    assert not after.responses[0].partitions[0].records


def test_what_ends_a_request_comes_before_the_next_one() -> None:
    """Each that is decoded stays in memory until its reply is made, which came behind the decoding of all others."""
    server = InProcess()
    work = SlicedWork(server.clock, server.lanes)
    done: list[str] = []

    def named(name: str) -> Work:
        yield None
        done.append(name)

    server.connect()
    connection = next(iter(server.broker.acceptor.connections))
    for name in ("first", "second", "third"):
        work.add(connection, named(name))
    work.add(connection, named("the first one's reply"), begun=True)
    server.run()
    assert done == ["first", "the first one's reply", "second", "third"]
