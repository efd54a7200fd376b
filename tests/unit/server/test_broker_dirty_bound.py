"""`duramen.dirty.max.bytes`: write-back begins at half of it, hurries at all of it, and far above it writers pause."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.errors import ErrorCode
from duramen.partition.store.maintenance import CONGESTED_DIRTY

BOUND = 1 << 20
VALUE = b"v" * 200_000


class Node:
    """A broker with a page-cache topic, whose checkpoints run when the test says so."""

    def __init__(self) -> None:
        self.server = InProcess(duramen_dirty_max_bytes=str(BOUND))
        self.line = self.server.connect()
        self.line.create_topic("t", duramen_ack_durability="page-cache")
        self.server.pass_ms(3000)
        self.server.lanes.held.add("checkpoint")
        self.count = 0

    def produce(self, line: Line, times: int = 1) -> Any:
        """The last reply; None when the broker did not read the request."""
        reply = None
        for _ in range(times):
            reply = line.produce("t", VALUE)
            if reply is not None:
                assert reply.error_code == 0
                assert reply.base_offset == self.count
                self.count += 1
        return reply

    @property
    def syncing(self) -> int:
        """Jobs of a checkpoint that wait for their lane."""
        return sum(lane == "checkpoint" for lane, _, _ in self.server.lanes.waiting)

    @property
    def share(self) -> float:
        return self.server.broker.store.directories[0].dirty_share

    def fill(self, share: float) -> None:
        while self.share < share:
            assert self.produce(self.line) is not None


@pytest.fixture
def node() -> Node:
    return Node()


def test_below_half_nothing_is_written_back_early(node: Node) -> None:
    node.produce(node.line, 2)
    assert 0.3 < node.share < 0.5
    node.server.pass_ms(5000)
    assert node.syncing == 0


def test_from_half_on_the_next_maintenance_writes_back(node: Node) -> None:
    node.fill(0.5)
    assert node.share < 1
    assert node.syncing == 0, "not at once: once a second is enough"
    node.server.pass_ms(1100)
    assert node.syncing == 1
    node.server.lanes.held.clear()
    node.server.run()
    assert node.share == 0


def test_from_the_bound_on_it_does_not_wait_for_the_maintenance(node: Node) -> None:
    node.fill(1)
    node.produce(node.line)
    assert node.syncing == 1, "no time has passed"
    node.fill(2)
    assert node.syncing == 1, "one at a time"
    written = node.share
    node.server.lanes.held.clear()
    node.server.run()
    assert node.share < written
    assert node.share <= 1, "what came meanwhile was written back in turn"


def test_far_above_the_bound_nobody_is_read_from_until_the_disk_has_caught_up(node: Node) -> None:
    other = node.server.connect()
    node.fill(CONGESTED_DIRTY)
    held = node.share
    assert held < CONGESTED_DIRTY + 1
    for line in (node.line, other):
        line.ask_produce("t", VALUE)
    node.server.pass_ms(60_000)
    assert node.share == held, "time alone changes nothing"
    assert other.produced() is None
    assert node.line.produced() is None
    node.server.lanes.held.clear()
    node.server.pass_ms(2000)
    replies = [line.produced() for line in (node.line, other)]
    assert sorted((reply.error_code, reply.base_offset) for reply in replies) == [(0, node.count), (0, node.count + 1)]
    assert node.share < 1
    assert other.fetch("t", node.count, most=1 << 20).error_code == 0, "and readers go on as well"
    assert other.produce("t", VALUE).error_code == 0


def test_a_pause_holds_again_and_again(node: Node) -> None:
    for _ in range(3):
        node.server.lanes.held.add("checkpoint")
        while node.produce(node.line) is not None:
            assert node.share < CONGESTED_DIRTY + 1
        node.server.lanes.held.clear()
        node.server.pass_ms(2000)
        reply = node.line.produced()
        assert reply is not None
        assert (reply.error_code, reply.base_offset) == (0, node.count)
        node.count += 1


def test_a_disk_that_fails_meanwhile_ends_the_pause(node: Node) -> None:
    node.fill(CONGESTED_DIRTY)
    assert node.produce(node.line) is None
    node.server.disk.fault = lambda call: OSError(5, "EIO") if call.operation == "sync" else None
    node.server.lanes.held.clear()
    node.server.pass_ms(2000)
    reply = node.line.produced()
    assert reply is not None
    assert reply.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.line.fetch("t", 0).error_code == 0, "reads go on"
