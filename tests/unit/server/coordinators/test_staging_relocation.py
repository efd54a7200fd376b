"""What is staged and left alone does not hold up the staging log, and can be committed as ever."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess, after_power_cut
from tests.worlds.sink_client import Sink, batch, values

from duramen.model import STAGING_TOPIC, TopicPartition
from duramen.partition.metadata import controller
from duramen.server.coordinators.staging_relocation import RelocationRules

MIB = 1 << 20
SETTLED_MS = 60_000
ONE_LOG = {"duramen_sink_topic_num_partitions": "1"}
LEFT = ["left", "alone", "long"]


class World:
    """A broker with one staging log of small segments, and a sink whose driver staged something and went."""

    def __init__(self) -> None:
        self.server = InProcess(**ONE_LOG, log_segment_delete_delay_ms="0")
        self.server.broker.sinks.relocation_rules = RelocationRules(2 * MIB, SETTLED_MS, 5000)
        self.server.connect().create_topic("t")
        self.server.connect().create_topic("u")
        self.server.connect().create_topic("v")
        self.gone = Sink(self.server, "gone")
        self.handle = self.stage_left()
        self.busy = Sink(self.server, "busy")
        self.batches = 0

    def stage_left(self) -> int:
        """One handle of two partitions."""
        data = batch(*LEFT[:2]) + batch(*LEFT[2:])
        answer = self.gone.stage(0, ("v", 0, batch("beside")), ("t", 0, data))
        handle, same = (topic.partitions[0].handle for topic in answer.topics)
        assert handle == same
        return int(handle)

    def work(self, batches: int) -> None:
        """So many batches of 600 kB go through the staging log."""
        for number in range(self.batches, self.batches + batches):
            handle = self.busy.handle(number, "u", f"{number}:" + "x" * 600_000)
            assert self.busy.commit(number, handle).state == 2
        self.batches += batches

    def grow_old(self) -> None:
        self.server.clock.now_ms += SETTLED_MS
        self.server.pass_ms(3000)

    @property
    def log_start(self) -> int:
        return self.server.broker.store.partitions[TopicPartition(STAGING_TOPIC, 0)].log_start_offset

    @property
    def moved(self) -> int:
        relocations = [each.relocation for each in self.server.broker.sinks.running()]
        return sum(each.moved for each in relocations if each is not None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(controller, "SINK_SEGMENT_BYTES", MIB)
    return World()


def committed_by(server: InProcess, world: World) -> list[str]:
    """What a reader sees when the driver comes back after all."""
    sink = Sink(server, "gone")
    assert sink.epoch == world.gone.epoch
    answer = sink.commit(0, world.handle)
    assert (answer.error_code, answer.state, answer.already_committed) == (0, 2, False)
    assert sink.commit(0, world.handle).already_committed
    assert values(server, "v") == ["beside"]
    return values(server, "t")


def test_the_log_behind_it_goes_and_it_can_still_be_committed(world: World) -> None:
    world.work(8)
    assert world.log_start <= world.handle
    world.grow_old()
    assert world.moved == 1
    assert world.log_start > 8
    for _ in range(2):
        world.server.clock.now_ms += 10 * 60_000
        world.server.pass_ms(3000)
    kept = [path for path in world.server.disk.contents() if STAGING_TOPIC in path and path.endswith(".log")]
    assert len(kept) == 1
    assert committed_by(world.server, world) == LEFT


def test_nothing_moves_that_is_young_or_holds_up_little(world: World) -> None:
    world.work(8)
    world.server.pass_ms(3000)
    assert world.moved == 0, "it is young"
    world.grow_old()
    assert world.moved == 1
    world.work(2)
    world.grow_old()
    assert world.moved == 1, "it is old, and 1.2 MB lie behind it"
    world.work(8)
    world.server.pass_ms(3000)
    assert world.moved == 2
    assert committed_by(world.server, world) == LEFT


def test_many_pieces_move_one_after_the_other(world: World) -> None:
    handles = [world.handle, *(world.stage_left() for _ in range(20))]
    world.work(8)
    world.grow_old()
    assert world.moved == len(handles)
    assert world.gone.commit(0, *reversed(handles)).state == 2
    assert values(world.server, "t") == LEFT * len(handles)


def test_a_commit_that_overtakes_the_copy_is_carried_out_from_the_old_place(world: World) -> None:
    world.work(8)
    world.server.lanes.held.add("staging")
    world.grow_old()  # it is being read
    world.gone.ask_commit(0, world.handle, timeout_ms=1 << 30)
    world.server.run()
    world.server.lanes.held.clear()
    world.server.run()
    assert world.gone.committed().state == 2
    assert world.moved == 0
    assert values(world.server, "t") == LEFT
    world.server.pass_ms(3000)
    assert values(after_power_cut(world.server, **ONE_LOG), "t") == LEFT


def test_an_abort_that_overtakes_the_copy_leaves_nothing(world: World) -> None:
    world.work(8)
    world.server.lanes.held.add("staging")
    world.grow_old()
    assert world.gone.abort(0).error_code == 0
    world.server.lanes.held.clear()
    world.server.pass_ms(3000)
    assert (world.moved, world.gone.describe().staged_handles) == (0, 0)
    end = world.server.broker.store.partitions[TopicPartition(STAGING_TOPIC, 0)].log_end_offset
    assert world.log_start == end


def test_what_is_given_up_while_it_is_read_in_pieces_is_no_failure(world: World) -> None:
    assert world.gone.abort(0).error_code == 0
    world.gone.stage(1, ("t", 0, b"".join(batch("y" * 600_000) for _ in range(4))))  # more than is read at once
    world.work(8)
    world.server.lanes.held.add("staging")
    world.grow_old()
    assert world.gone.abort(1).error_code == 0
    world.server.pass_ms(3000)  # the log behind it begins
    world.server.lanes.held.clear()
    world.server.run()
    assert [event for event, _ in world.server.events if event == "staging-not-moved"] == []
    assert world.moved == 0


def test_a_power_cut_between_any_two_steps_changes_nothing(world: World) -> None:
    world.work(8)
    server, seen = world.server, []
    server.clock.now_ms += SETTLED_MS
    server.lanes.held.add("journal")
    for step in range(12):
        server.pass_ms(1000)
        seen.append((world.moved, world.log_start > 8))
        assert committed_by(after_power_cut(server, step, **ONE_LOG), world) == LEFT, seen
        server.step_journal()
    assert seen[0] == (0, False)
    assert seen[-1] == (1, True)


def test_a_piece_that_cannot_be_read_is_told_and_tried_again_later(world: World) -> None:
    world.work(8)
    path = next(p for p in sorted(world.server.disk.contents()) if STAGING_TOPIC in p and p.endswith(".log"))
    world.server.disk.damage(path, 70)
    world.grow_old()
    told = [fields for event, fields in world.server.events if event == "staging-not-moved"]
    assert (len(told), world.moved) == (1, 0)
    world.server.disk.damage(path, 70)
    world.server.pass_ms(6000)
    assert world.moved == 1
    assert committed_by(world.server, world) == LEFT
