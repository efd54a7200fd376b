"""What is closed, or open for one writer, stays so when leaders die, on replicas that come back and on new ones."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.copies_world import TOPIC, CopiesWorld

from duramen.client.loop.node_client import call
from duramen.errors import ErrorCode
from duramen.sim.world.node import WALL_START_MS
from duramen.wire.batch import build_batch


def ask(world: CopiesWorld, node_id: int, *values: bytes, writer: int = -1, sequence: int = -1, **fields: Any) -> Any:
    """ConditionalAppend; the answer."""
    rows = [(b"k", value, (), WALL_START_MS) for value in values]
    epoch = -1 if writer < 0 else 0
    records = build_batch(rows, producer_id=writer, producer_epoch=epoch, base_sequence=sequence) if values else None
    given = {"topic_name": TOPIC, "partition": 0, "timeout_ms": 5000, "records": records, **fields}
    return world.ask_broker_of(node_id, call("ConditionalAppend", 0, **given))


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_nothing_follows_a_close_whoever_leads(durability: str) -> None:
    world = CopiesWorld(duramen_ack_durability=durability)
    world.produce(b"a")
    first = world.leader()
    assert ask(world, first, b"b", expected_offset=0).error_code == ErrorCode.END_IS_ELSEWHERE
    answer = ask(world, first, b"b", expected_offset=1, close=True)
    told = (answer.error_code, answer.base_offset, answer.end_offset, answer.copies, answer.closed)
    assert told == (0, 1, 3, len(world.image().isr), True)
    follower = world.followers()[0]
    assert ask(world, follower, b"c").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.world.nodes[first].kill()
    world.clients.pop(first, None)
    assert world.until(lambda: world.image().leader not in (first, -1), 30.0)
    second = world.leader()
    assert world.send_and_wait(second, b"late").error_code == ErrorCode.POLICY_VIOLATION
    late = ask(world, second, b"late")
    assert (late.error_code, late.closed, late.end_offset) == (ErrorCode.STREAM_CLOSED, True, 3)
    again = ask(world, second, close=True)
    assert (again.error_code, again.duplicate, again.closed) == (0, True, True)
    world.start(first)
    world.join(first)
    assert world.until(world.are_equal, 30.0)
    assert [each.log.producers.closed_at for each in world.partitions()] == [2, 2, 2]


def test_a_replica_that_begins_with_the_log_start_finds_it_closed() -> None:
    world = CopiesWorld()
    leader = world.leader()
    late = world.followers()[0]
    world.world.nodes[late].kill()
    assert world.in_sync(*world.running)
    for value in (b"a", b"b"):
        world.produce(value)
    assert ask(world, leader, close=True).error_code == 0
    world.delete_before(-1)
    assert world.partition(leader).log_start_offset == 2
    world.start(late)
    world.join(late)
    assert world.until(world.are_equal, 30.0)
    log = world.partition(late).log
    assert (log.start_offset, log.producers.closed_at) == (2, 2)


def open_writer(world: CopiesWorld, node_id: int, name: str) -> int:
    """OpenWriter; the producer id."""
    wanted = call("OpenWriter", 0, topic_name=TOPIC, partition=0, name=name, timeout_ms=5000)
    answer = world.ask_broker_of(node_id, wanted)
    assert answer.error_code == 0, answer
    return int(answer.producer_id)


def test_a_fenced_writer_stays_fenced_whoever_leads() -> None:
    world = CopiesWorld(duramen_writer_exclusive="true")
    first = world.leader()
    old = open_writer(world, first, "old")
    assert ask(world, first, b"a", writer=old, sequence=0).base_offset == 1
    in_flight: list[Any] = []
    records = build_batch([(b"k", b"b", (), WALL_START_MS)], producer_id=old, producer_epoch=0, base_sequence=1)
    given = {"topic_name": TOPIC, "partition": 0, "timeout_ms": 5000, "records": records}
    world.ask_broker(first, call("ConditionalAppend", 0, **given), in_flight.append)
    new = open_writer(world, first, "new")
    assert new not in (old, -1)
    assert in_flight[0].error_code == 0, "it came before the opening"
    world.world.nodes[first].kill()
    world.clients.pop(first, None)
    assert world.until(lambda: world.image().leader not in (first, -1), 30.0)
    second = world.leader()
    for sequence in (1, 2):
        fenced = ask(world, second, b"x", writer=old, sequence=sequence)
        assert fenced.error_code == ErrorCode.PRODUCER_FENCED
        assert "'new'" in fenced.error_message
    assert ask(world, second, b"c", writer=new, sequence=0, expected_offset=4).error_code == 0
    assert world.send_and_wait(second, b"x").error_code == ErrorCode.PRODUCER_FENCED
    third = open_writer(world, second, "third")
    assert ask(world, second, b"x", writer=new, sequence=1).error_code == ErrorCode.PRODUCER_FENCED
    world.start(first)
    world.join(first)
    assert world.until(world.are_equal, 30.0)
    writers = [each.log.producers.stream.writer for each in world.partitions()]
    assert [writer.producer_id for writer in writers] == [third] * 3
