"""Effects of decisions, and records that are part of a transaction."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.unit.partition.host.test_host import Counter
from tests.worlds.machine_fakes import FakeClock, FakePartition

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.partition.host.host import Host
from duramen.wire.batch import ABORT, COMMIT, Marker

PRODUCER = ProducerEpoch(7, 3)
OTHER = ProducerEpoch(8, 0)


class World:
    """A host whose effects are noted, not carried out."""

    def __init__(self, partition: FakePartition | None = None) -> None:
        self.partition = partition or FakePartition()
        self.machine = Counter()
        self.events: list[Any] = []
        self.host = Host(self.partition, self.machine, FakeClock())
        self.host.on_effect = lambda effect: self.events.append(("effect", effect))
        self.host.load()

    def submit(self, *command: Any) -> None:
        self.host.submit(command, self.events.append)

    def end(self, producer: ProducerEpoch, *, commit: bool) -> None:
        append = partial(self.partition.append_marker, producer, commit, 0, 0)
        marker = Marker(COMMIT if commit else ABORT, 0)
        self.host.end_transaction(producer, marker, append, lambda error: self.events.append(("ended", error)))


@pytest.fixture
def world() -> World:
    return World()


def test_effects_wait_for_the_commit_and_come_in_order(world: World) -> None:
    world.submit("ask", "a", "b")
    world.submit("look", "c")
    assert world.events == []
    world.partition.commit()
    assert world.events == ["asked", ("effect", "a"), ("effect", "b"), 1, ("effect", "c")]


def test_effects_without_records_run_at_once_where_all_is_committed(world: World) -> None:
    world.submit("look", "now")
    assert world.events == [0, ("effect", "now")]


def test_a_refused_decision_has_no_effects(world: World) -> None:
    world.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.submit("ask", "never")
    world.partition.refuse = None
    world.submit("add", 1)
    world.partition.commit()
    assert [event for event in world.events if isinstance(event, tuple)] == []


def test_a_caller_waits_for_what_an_effect_brings(world: World) -> None:
    world.submit("wait", "draw")
    [(_, (_, ticket))] = world.events
    world.events.clear()
    world.host.resume(ticket, ("found", 42))
    world.host.resume(ticket, ("found", 43))
    assert world.events == [42], "and is answered once"


def test_an_effect_whose_caller_was_given_up_still_runs_when_it_is_committed(world: World) -> None:
    world.submit("ask", "late")
    world.host._give_up(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    world.submit("look", "last")
    assert [event for event in world.events if isinstance(event, tuple)] == []
    world.partition.commit()
    assert [event[1] for event in world.events if isinstance(event, tuple)] == ["late", "last"]


def test_a_host_that_failed_carries_out_nothing(world: World) -> None:
    world.submit("ask", "never")
    world.host.fail(KafkaError(ErrorCode.NOT_COORDINATOR))
    world.partition.commit()
    assert [event for event in world.events if isinstance(event, tuple)] == []
    world.host.resume(1, ("found", 1))


def test_records_of_a_transaction_count_when_its_marker_commits(world: World) -> None:
    world.partition.commit_at_once = True
    world.submit("add in", PRODUCER, 5, 6)
    world.submit("add in", OTHER, 100)
    world.submit("read")
    world.end(PRODUCER, commit=True)
    world.end(OTHER, commit=False)
    world.submit("read")
    assert world.events == ["pending", "pending", 0, ("ended", None), ("ended", None), 11]


def test_a_marker_is_answered_when_it_is_committed_and_seen_by_reads_only_then(world: World) -> None:
    world.submit("add in", PRODUCER, 5)
    world.partition.commit()
    world.events.clear()
    world.end(PRODUCER, commit=True)
    world.submit("read")
    assert world.events == []
    world.partition.commit()
    assert sorted(map(str, world.events)) == ["('ended', None)", "5"]


def test_a_refused_marker_changes_nothing(world: World) -> None:
    world.partition.commit_at_once = True
    world.submit("add in", PRODUCER, 5)
    world.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.end(PRODUCER, commit=True)
    assert world.events[-1][1].code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.machine.total == 0
    assert PRODUCER in world.machine.pending


def test_markers_are_refused_before_the_load_and_after_the_end() -> None:
    host = Host(FakePartition(), Counter(), FakeClock())
    errors: list[KafkaError | None] = []
    host.end_transaction(PRODUCER, Marker(COMMIT, 0), lambda now, done: pytest.fail("appended"), errors.append)
    host.load()
    host.fail(KafkaError(ErrorCode.NOT_COORDINATOR))
    host.end_transaction(PRODUCER, Marker(COMMIT, 0), lambda now, done: pytest.fail("appended"), errors.append)
    assert [error.code for error in errors if error] == [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]


def test_replay_equals_what_was_live_and_asks_for_what_is_still_due(world: World) -> None:
    world.submit("add in", PRODUCER, 5)
    world.submit("add in", OTHER, 6)
    world.submit("add", 1)
    world.end(PRODUCER, commit=True)
    world.partition.commit()
    again = World(world.partition)
    assert (again.machine.total, again.machine.pending) == (world.machine.total, world.machine.pending)
    assert (again.machine.total, again.machine.pending) == (6, {OTHER: [6]})
    assert again.events == [("effect", ("again", OTHER))]
    assert again.machine.applied == world.machine.applied


def test_an_effect_in_the_same_journal_does_not_wait(world: World) -> None:
    world.host.keeps_order = lambda effect: effect != "elsewhere"
    world.submit("ask", "here", "elsewhere")
    assert world.events == [("effect", "here")]
    world.partition.commit()
    assert world.events == [("effect", "here"), "asked", ("effect", "elsewhere")]


def test_an_effect_in_the_same_journal_needs_the_record_all_the_same(world: World) -> None:
    world.host.keeps_order = lambda effect: True
    world.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.submit("ask", "never")
    assert [event for event in world.events if isinstance(event, tuple)] == []


def test_who_appends_to_the_same_journal_is_answered_before_the_commit(world: World) -> None:
    world.host.submit(("add", 1), world.events.append, is_ordered=True)
    world.submit("read")
    assert world.events == [1], "and others wait"
    world.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.host.submit(("add", 1), world.events.append, is_ordered=True)
    assert world.events[1].code is ErrorCode.NOT_ENOUGH_REPLICAS
    world.partition.commit()
    assert world.events[2:] == [1]
