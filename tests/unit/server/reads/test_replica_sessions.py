"""Sessions of replicas alone: lists, timers and what an event costs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import Agenda
from tests.worlds.partition_world import Lanes

from duramen.server.reads.replica_sessions import ANSWERED, LATE, QUIET, READY, ReplicaPosition, ReplicaSession

TOPIC = b"t" * 16


class FakePartition:
    """Where a partition stands, and who watches."""

    def __init__(self) -> None:
        self.closed = False
        self.log = self.replication = self
        self.end_offset = self.high_watermark = self.start_offset = 0
        self.is_leader = True
        self.epoch = 5
        self.watchers: list[Any] = []

    def watch_end(self, callback: Any) -> None:
        self.watchers.append(callback)

    def unwatch_end(self, callback: Any) -> None:
        self.watchers.remove(callback)

    def move(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, name, value)
        for callback in self.watchers:
            callback(self)


class Told:
    """What stands for a partition's data in an answer."""

    def __init__(self, partition: FakePartition) -> None:
        self.high_watermark = partition.high_watermark
        self.log_start_offset = partition.start_offset


class World:
    """A session, and the answers that it asked for."""

    def __init__(self) -> None:
        self.clock = Agenda()
        self.session = ReplicaSession(7, 2, 1000, self.clock, Lanes())
        self.answers: list[tuple[bool, bool]] = []
        self.partitions: list[FakePartition] = []

    def name(self, index: int, offset: int) -> ReplicaPosition:
        while len(self.partitions) <= index:
            self.partitions.append(FakePartition())
        position = self.session.name(TOPIC, index)
        position.epoch = 5
        position.offset = offset
        partition: Any = self.partitions[index]
        self.session.follow(position, partition)
        return position

    def wait(self) -> None:
        self.answers.clear()

        def answer(*, due: bool, expired: bool) -> None:
            self.answers.append((due, expired))

        self.session.answer = answer
        self.session.wait(0.5)

    def run(self) -> None:
        while self.clock.ready:
            self.clock.ready.pop(0)()

    def pass_ms(self, milliseconds: int) -> None:
        self.clock.now_ms += milliseconds
        due = [timer for at, _, timer in sorted(self.clock.timers[:]) if at <= self.clock.monotonic()]
        self.clock.timers = [entry for entry in self.clock.timers if entry[2] not in due]
        for timer in due:
            if timer.callback is not None:
                timer.callback()
        self.run()


@pytest.fixture
def world() -> World:
    return World()


def test_however_often_it_moves_a_partition_is_listed_once_and_the_fetch_woken_once(world: World) -> None:
    position = world.name(0, 0)
    world.wait()
    for end in range(1, 6):
        world.partitions[0].move(end_offset=end)
    assert (position.state, list(world.session.ready)) == (READY, [position])
    assert len(world.clock.ready) == 1
    world.run()
    assert world.answers == [(False, False)]


def test_who_was_answered_is_left_alone_until_it_is_named(world: World) -> None:
    position = world.name(0, 0)
    world.partitions[0].move(end_offset=1)
    world.session.told(position, Told(world.partitions[0]), answered=True)
    world.wait()
    world.partitions[0].move(end_offset=2, high_watermark=1, is_leader=False)
    assert (position.state, world.clock.ready) == (ANSWERED, [])
    world.partitions[0].move(is_leader=True)
    assert world.name(0, 1).state == READY


def test_a_watermark_waits_for_20_ms_and_for_a_fetch(world: World) -> None:
    position = world.name(0, 0)
    world.session.told(position, Told(world.partitions[0]), answered=False)
    assert position.state == QUIET
    world.partitions[0].move(high_watermark=1)
    assert position.state == LATE
    world.pass_ms(100)
    world.wait()
    assert world.answers == []
    world.pass_ms(21)
    assert world.answers == [(True, False)]
    world.session.told(position, Told(world.partitions[0]), answered=False)
    assert (position.state, list(world.session.late)) == (QUIET, [])


def test_records_take_the_place_of_a_watermark(world: World) -> None:
    position = world.name(0, 0)
    world.wait()
    assert position.state == LATE, "it has not been told anything"
    world.partitions[0].move(end_offset=1)
    assert (position.state, list(world.session.late), list(world.session.ready)) == (READY, [], [position])


def test_it_was_moved_back_to_where_it_was(world: World) -> None:
    """Named again while it is ready: it is looked at anew."""
    position = world.name(0, 0)
    world.partitions[0].move(end_offset=3)
    assert world.name(0, 3) is position
    assert position.state == LATE
    assert list(world.session.ready) == []


def test_a_new_object_in_the_place_of_a_partition(world: World) -> None:
    position = world.name(0, 0)
    old = world.partitions[0]
    world.session.told(position, Told(old), answered=False)
    world.partitions[0] = FakePartition()
    world.name(0, 0)
    assert (old.watchers, len(world.partitions[0].watchers)) == ([], 1)
    assert position.state == LATE, "what was told was of the other one"
    old.move(end_offset=9)
    assert position.state == LATE


def test_the_wait_ends_once(world: World) -> None:
    world.wait()
    world.pass_ms(499)
    assert world.answers == []
    world.pass_ms(1)
    assert world.answers == [(True, True)]
    world.session.end_wait()
    world.pass_ms(1000)
    assert world.answers == [(True, True)]


def test_nothing_happens_in_one_that_is_closed(world: World) -> None:
    world.name(0, 0)
    world.name(1, 0)
    world.wait()
    world.partitions[0].move(end_offset=1)
    world.session.close()
    assert [partition.watchers for partition in world.partitions] == [[], []]
    world.run()
    world.pass_ms(1000)
    assert world.answers == []
    world.session.interrupt()
    assert world.answers == []


def test_what_is_forgotten_is_watched_no_more(world: World) -> None:
    world.name(0, 0)
    world.partitions[0].move(end_offset=1)
    world.session.forget(TOPIC, 0)
    world.session.forget(TOPIC, 0)
    assert (world.partitions[0].watchers, list(world.session.ready), world.session.positions) == ([], [], {})
