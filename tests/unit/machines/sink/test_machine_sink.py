"""The sink machine alone: who may do what, what a commit holds, and that a replay gives the same state."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord, TimerFired
from duramen.machines.sink import SinkMachine
from duramen.machines.sink import machine as rules
from duramen.machines.sink.commands import (
    COMMITTED,
    AbortStaged,
    AdmitStage,
    Claimed,
    ClaimEpoch,
    CommitStaged,
    DescribeSink,
    FinishCommit,
    MoveStaged,
    NewHandle,
    RecordStaged,
    ReleaseSink,
    ShareDone,
    TopicIdsDeleted,
)
from duramen.machines.sink.footprint import needed_bytes, oldest_staged
from duramen.machines.sink.machine import CLEAN
from duramen.machines.sink.pieces import Pieces, StagedPart, StagedRange
from duramen.wire.batch import MAX_SEQUENCE
from duramen.wire.records import sinks as schema
from duramen.wire.records import versioned
from duramen.wire.schema import Message

NOW = 1_760_000_000_000
DAY = 86_400_000
T, U = b"t" * 16, b"u" * 16


class World:
    """A machine with its log; a code where it refuses."""

    def __init__(self) -> None:
        self.machine = SinkMachine()
        self.machine.on_loaded(NOW)
        self.log: list[LogRecord] = []
        self.now = NOW
        self.staged = 0

    def do(self, command: Any) -> Any:
        try:
            outcome = self.machine.decide(command, 1, self.now)
        except KafkaError as error:
            return error.code
        for record in outcome.records:
            self.log.append(record)
            self.machine.apply(record, len(self.log), self.now)
        return outcome.replies[0][1]

    def write(self, key: bytes, message: Message, version: int, **fields: Any) -> None:
        """A record of an older version."""
        record = LogRecord(key, versioned.encode(message, message.new(**fields), version))
        self.log.append(record)
        self.machine.apply(record, len(self.log), self.now)

    def clean(self) -> None:
        """Every slice of tombstones that is due."""
        before = -1
        while before != len(self.log):
            before = len(self.log)
            self.do(TimerFired(CLEAN))

    def claim(self, run: str = "r", **fields: Any) -> Any:
        return self.do(ClaimEpoch(**{"sink_id": "s", "run_id": run, "ephemeral": False, "producer_id": 7, **fields}))

    def stage(self, epoch: int, batch: int, *targets: tuple[bytes, int], records: int = 2) -> list[int]:
        """A handle for each target."""
        handles = []
        for topic, partition in targets:
            handles.append(NewHandle(self.staged, (StagedPart(topic, partition, records, 100),)))
            self.staged += records
        assert self.do(RecordStaged("s", epoch, batch, "task", tuple(handles))) is False
        return [handle.first_offset for handle in handles]

    def stage_wide(self, epoch: int, batch: int, *parts: StagedPart) -> int:
        """One handle with all of these."""
        handle = NewHandle(self.staged, parts)
        self.staged += sum(part.records for part in parts)
        assert self.do(RecordStaged("s", epoch, batch, "task", (handle,))) is False
        return handle.first_offset

    def move(self, handle: int, first: int | None = None) -> Any:
        """To the end of the staging log; first: where it is thought to be."""
        staged = self.machine.sinks["s"].staged.get(handle)
        command = MoveStaged("s", handle, staged.first_offset if staged and first is None else first or 0, self.staged)
        self.staged += staged.records if staged else 2
        return self.do(command)

    def commit(self, epoch: int, batch: int, *handles: int) -> Any:
        return self.do(CommitStaged("s", epoch, batch, handles, None))

    def finish(self, batch: int) -> Any:
        shares = self.machine.sinks["s"].commits[batch].shares
        return self.do(FinishCommit("s", batch, 7, tuple(ShareDone(0, 1, False) for _ in shares)))

    def replayed(self, log: list[LogRecord] | None = None) -> SinkMachine:
        fresh = SinkMachine()
        for offset, record in enumerate(self.log if log is None else log):
            fresh.apply(record, offset, NOW)
        fresh.on_loaded(self.now)
        return fresh

    def compacted(self) -> list[LogRecord]:
        """The log with the last record of each key only, tombstones gone."""
        last = {record.key: number for number, record in enumerate(self.log)}
        return [r for number, r in enumerate(self.log) if last[r.key] == number and r.value is not None]


@pytest.fixture
def world() -> World:
    return World()


def test_epochs_grow_with_runs_and_stay_with_a_run(world: World) -> None:
    first = world.claim("a")
    assert isinstance(first, Claimed)
    assert world.claim("a") == first
    assert world.claim("b").epoch == first.epoch + 1
    assert world.claim("a") == ErrorCode.PRODUCER_FENCED
    assert world.do(AdmitStage("s", first.epoch, 0, 1)) == ErrorCode.PRODUCER_FENCED
    assert world.machine.sinks["s"].producer_id == 7


def test_so_many_runs_are_known_and_older_ones_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of Spark's that names its batch is a run: of one each second the node kept all, for ever."""
    monkeypatch.setattr(rules, "MAX_RUNS", 3)
    epochs = [world.claim(f"run-{number}").epoch for number in range(9)]
    assert epochs == list(range(epochs[0], epochs[0] + 9))
    assert list(world.machine.sinks["s"].runs) == ["run-6", "run-7", "run-8"]
    assert world.claim("run-6") == ErrorCode.PRODUCER_FENCED
    assert world.do(AdmitStage("s", epochs[0], 0, 1)) == ErrorCode.PRODUCER_FENCED
    assert world.replayed().sinks == world.machine.sinks
    world.clean()
    assert world.replayed(world.compacted()).sinks == world.machine.sinks
    # The sink, and the three runs that are known.
    assert len(world.compacted()) == 4
    assert world.do(ReleaseSink("s", epochs[-1])) is True
    world.clean()
    assert world.compacted() == []


def test_shares_follow_the_order_of_the_handles_and_sequences_go_on(world: World) -> None:
    epoch = world.claim().epoch
    a, b, c = world.stage(epoch, 0, (T, 0), (U, 1), (T, 0))
    assert world.commit(epoch, 0, c, b, a).already is False
    shares = {share.target: share for share in world.machine.sinks["s"].commits[0].shares}
    assert list(shares[(T, 0)].pieces) == [StagedRange(4, 6, 100), StagedRange(0, 2, 100)]
    assert (shares[(T, 0)].base_sequence, shares[(T, 0)].records) == (0, 4)
    assert world.commit(epoch, 1, *world.stage(epoch, 1, (T, 0))).already is False
    assert world.machine.sinks["s"].commits[1].shares[0].base_sequence == 4


def test_sequences_begin_again_behind_the_greatest(world: World) -> None:
    epoch = world.claim().epoch
    for batch in range(2):
        world.commit(epoch, batch, *world.stage(epoch, batch, (T, 0), records=(MAX_SEQUENCE >> 1) + batch))
        world.finish(batch)
    world.commit(epoch, 2, *world.stage(epoch, 2, (T, 0), records=3))
    assert world.machine.sinks["s"].commits[2].shares[0].base_sequence == MAX_SEQUENCE
    assert world.machine.sinks["s"].sequences == {(T, 0): 2}


def test_only_so_many_committed_batches_may_be_on_their_way(world: World) -> None:
    epoch = world.claim().epoch
    for batch in range(rules.MAX_UNFINISHED):
        assert world.commit(epoch, batch).already is False
    assert world.commit(epoch, 99) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.do(ReleaseSink("s", epoch)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.finish(0) is True
    assert world.commit(epoch, 99).already is False


def test_more_handles_than_a_commit_can_name_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_HANDLES", 3)
    epoch = world.claim().epoch
    world.stage(epoch, 0, (T, 0), (T, 1))
    assert world.do(AdmitStage("s", epoch, 0, 1000)) is False
    world.stage(epoch, 0, (T, 0))
    assert world.do(AdmitStage("s", epoch, 0, 1)) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_more_parts_than_can_be_gone_through_at_once_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_PARTS", 4)
    epoch = world.claim().epoch
    handle = world.stage_wide(epoch, 0, *(StagedPart(T, n, 1, 10) for n in range(3)))
    assert world.do(AdmitStage("s", epoch, 0, 1)) is False
    assert world.do(AdmitStage("s", epoch, 0, 2)) == ErrorCode.RECORD_LIST_TOO_LARGE
    assert world.replayed().sinks["s"].staged_parts == 3
    world.commit(epoch, 0, handle)
    assert world.do(AdmitStage("s", epoch, 1, 4)) is False


def test_a_handle_gives_every_partition_its_own(world: World) -> None:
    """As one call stages for many partitions; in each they stand in the order of the handles."""
    epoch = world.claim().epoch
    a = world.stage_wide(epoch, 0, StagedPart(T, 0, 2, 20), StagedPart(U, 0, 3, 30), StagedPart(T, 1, 1, 10))
    b = world.stage_wide(epoch, 0, StagedPart(U, 0, 4, 40), StagedPart(T, 0, 5, 50))
    assert world.move(a) is True
    moved = world.machine.sinks["s"].staged[a].first_offset
    assert world.commit(epoch, 0, b, a).already is False
    commit = world.machine.sinks["s"].commits[0]
    assert {share.target: list(share.pieces) for share in commit.shares} == {
        (U, 0): [StagedRange(b, b + 4, 40), StagedRange(moved + 2, moved + 5, 30)],
        (T, 0): [StagedRange(b + 4, b + 9, 50), StagedRange(moved, moved + 2, 20)],
        (T, 1): [StagedRange(moved + 5, moved + 6, 10)],
    }
    assert [(share.records, share.bytes) for share in commit.shares] == [(7, 70), (7, 70), (1, 10)]
    assert world.machine.oldest_needed() == b
    for log in (world.log, world.compacted()):
        assert world.replayed(log).sinks == world.machine.sinks


def test_handles_stay_in_the_log_until_their_batch_is_finished(world: World) -> None:
    """The commit names them only: where their records are is in their own."""
    epoch = world.claim("a").epoch
    handle = world.stage_wide(epoch, 0, StagedPart(T, 0, 2, 20), StagedPart(U, 0, 3, 30))
    world.commit(epoch, 0, handle)
    world.claim("b")
    world.now += 2 * DAY
    world.clean()
    again = world.replayed(world.compacted())
    assert [piece for share in again.sinks["s"].commits[0].shares for piece in share.pieces] == [
        StagedRange(0, 2, 20),
        StagedRange(2, 5, 30),
    ]
    kept = len(world.compacted())
    world.finish(0)
    world.clean()
    assert len(world.compacted()) == kept - 1 + 2, "the handle is gone; each partition's position came"
    assert world.replayed(world.compacted()).sinks == world.machine.sinks


def test_what_was_written_when_a_handle_was_of_one_partition_is_read(world: World) -> None:
    """Versions 0 and 1 of a handle, version 0 of a commit: a directory may be in the middle of a batch."""
    epoch = world.claim().epoch
    old = {"epoch": epoch, "task": "t", "topic_id": T, "next_offset": 12, "bytes": 50, "staged_ms": NOW}
    world.write(
        rules.records.staged_key("s", 2), schema.StagedValue, 1, batch_id=7, partition=1, first_offset=10, **old
    )
    world.write(rules.records.staged_key("s", 10), schema.StagedValue, 0, batch_id=7, partition=0, **old)
    world.commit(epoch, 7, 10, 2)
    shares = [(s.target, list(s.pieces)) for s in world.machine.sinks["s"].commits[7].shares]
    assert shares == [((T, 0), [StagedRange(10, 12, 50)]), ((T, 1), [StagedRange(10, 12, 50)])]
    share = schema.CommitValue.CommittedShare(
        topic_id=T, partition=0, base_sequence=2, records=3, bytes=9,
        pieces=[schema.CommitValue.StagedPiece(first_offset=20, next_offset=23, bytes=9)],
    )  # fmt: skip
    value = {"epoch": epoch, "committed_ms": NOW, "state": COMMITTED, "producer_id": 7, "shares": [share]}
    world.write(rules.records.commit_key("s", 8), schema.CommitValue, 0, **value)
    commit = world.machine.sinks["s"].commits[8]
    assert list(commit.shares[0].pieces) == [StagedRange(20, 23, 9)]
    assert commit.needed_from == 20
    assert world.replayed().sinks == world.machine.sinks
    world.finish(7)
    world.finish(8)
    world.clean()
    assert not [r for r in world.compacted() if r.key and int.from_bytes(r.key[:2], "big") == schema.STAGED]


def test_more_than_could_be_told_apart_afterwards_is_not_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = world.claim().epoch
    half = rules.MAX_UNDER_WAY // 2
    for batch in range(2):
        assert world.commit(epoch, batch, *world.stage(epoch, batch, (T, 0), records=half)).already is False
    more = world.stage(epoch, 2, (T, 0), records=1)
    assert world.commit(epoch, 2, *more) == ErrorCode.RECORD_LIST_TOO_LARGE
    world.finish(0)
    assert world.commit(epoch, 2, *more).already is False
    monkeypatch.setattr(rules, "MAX_TARGETS", 1)
    wide = world.stage(epoch, 3, (T, 0), (T, 1))
    assert world.commit(epoch, 3, *wide) == ErrorCode.RECORD_LIST_TOO_LARGE
    assert world.commit(epoch, 3, *wide[:1]).already is False


def test_a_later_batch_may_finish_first_and_find_the_topic_gone(world: World) -> None:
    epoch = world.claim().epoch
    world.commit(epoch, 0, *world.stage(epoch, 0, (T, 0), (U, 0)))
    world.commit(epoch, 1, *world.stage(epoch, 1, (T, 0)))
    assert world.do(FinishCommit("s", 1, 7, (ShareDone(-1, -1, True),))) is True
    assert world.do(FinishCommit("s", 0, 7, (ShareDone(0, 1, False), ShareDone(0, 1, False)))) is True
    assert not list(world.machine.unfinished())
    assert world.machine.sinks["s"].sequences == {(U, 0): 2}
    assert world.replayed().sinks == world.machine.sinks


def test_what_is_unfinished_and_staged_says_what_is_needed(world: World) -> None:
    epoch = world.claim().epoch
    assert world.machine.oldest_needed() is None
    a, b = world.stage(epoch, 0, (T, 0), (T, 1))
    assert world.machine.oldest_needed() == a
    world.commit(epoch, 0, b)
    assert world.machine.oldest_needed() == b
    assert [commit.batch_id for _, commit in world.machine.unfinished()] == [0]
    world.finish(0)
    assert world.machine.oldest_needed() is None


def test_what_is_moved_is_needed_at_its_new_place_only(world: World) -> None:
    first, second = world.stage(world.claim().epoch, 0, (T, 0), (T, 1))
    epoch = world.machine.sinks["s"].epoch
    assert needed_bytes(world.machine.sinks.values()) == 200
    assert oldest_staged(world.machine.sinks.values()) == ("s", first, world.machine.sinks["s"].staged[first])
    assert world.move(first) is True
    assert world.machine.oldest_needed() == second
    assert oldest_staged(world.machine.sinks.values()) == ("s", second, world.machine.sinks["s"].staged[second])
    assert world.move(second) is True
    assert world.machine.oldest_needed() == 4
    assert world.replayed(world.compacted()).sinks == world.machine.sinks
    world.commit(epoch, 0, second, first)
    pieces = [share.pieces for share in world.machine.sinks["s"].commits[0].shares]
    assert pieces == [Pieces([StagedRange(6, 8, 100)]), Pieces([StagedRange(4, 6, 100)])]
    assert oldest_staged(world.machine.sinks.values()) is None
    assert needed_bytes(world.machine.sinks.values()) == 200


def test_only_what_is_still_where_it_was_thought_to_be_is_moved(world: World) -> None:
    epoch = world.claim().epoch
    (handle,) = world.stage(epoch, 0, (T, 0))
    before = len(world.log)
    assert world.do(MoveStaged("other", handle, handle, 10)) is False
    assert world.move(handle, first=99) is False
    assert world.move(handle + 1) is False
    assert len(world.log) == before
    world.commit(epoch, 0, handle)
    assert world.move(handle, first=handle) is False
    assert world.machine.sinks["s"].commits[0].shares[0].pieces == Pieces([StagedRange(handle, handle + 2, 100)])


def test_a_move_makes_nothing_younger_and_an_old_piece_is_swept_all_the_same(world: World) -> None:
    (handle,) = world.stage(world.claim().epoch, 0, (T, 0))
    world.now += DAY - 1
    assert world.move(handle) is True
    world.clean()
    assert handle in world.machine.sinks["s"].staged
    world.now += 1
    world.clean()
    assert world.machine.sinks["s"].staged == {}
    assert world.replayed(world.compacted()).sinks == world.machine.sinks


def test_a_batch_that_is_still_being_staged_keeps_what_it_staged_long_ago(world: World) -> None:
    epoch = world.claim().epoch
    handles: list[int] = []
    for _ in range(4):  # a batch whose tasks take three times as long as staged records are kept
        handles += world.stage(epoch, 0, (T, 0))
        world.now += DAY - 1
        world.clean()
    assert sorted(world.machine.sinks["s"].staged) == handles
    other = world.stage(epoch, 1, (T, 0))  # another batch, which keeps none of this one
    world.now += 1
    world.clean()
    assert list(world.machine.sinks["s"].staged) == other
    assert world.commit(epoch, 0, *handles) is ErrorCode.RESOURCE_NOT_FOUND
    assert world.replayed(world.compacted()).sinks == world.machine.sinks


def test_an_abort_lets_go_what_it_names_and_nothing_of_a_commit(world: World) -> None:
    epoch = world.claim().epoch
    a, b, c = world.stage(epoch, 0, (T, 0), (T, 1), (T, 2))
    assert tuple(world.do(AbortStaged("s", epoch, 0, (a, 12345)))) == (False, 1, 0)
    assert tuple(world.do(AbortStaged("s", epoch, 1, None))) == (False, 0, 0)
    world.commit(epoch, 0, b, c)
    assert tuple(world.do(AbortStaged("s", epoch, 0, None))) == (True, 0, 0)
    assert len(world.machine.sinks["s"].commits[0].shares) == 2


def test_tombstones_leave_nothing_behind(world: World) -> None:
    epoch = world.claim(ephemeral=True).epoch
    for batch in range(50):
        world.commit(epoch, batch, *world.stage(epoch, batch, (T, 0), (U, 0))[:1])
        world.finish(batch)
    world.stage(epoch, 99, (T, 0))
    world.now += 8 * DAY
    world.clean()
    assert world.machine.sinks == {}
    assert world.compacted() == []


def test_a_deleted_topic_is_forgotten_but_not_under_a_batch_that_is_on_its_way(world: World) -> None:
    epoch = world.claim().epoch
    for batch, topic in enumerate((T, U)):
        world.commit(epoch, batch, *world.stage(epoch, batch, (topic, 0)))
    world.finish(0)
    assert world.do(TopicIdsDeleted((T, U))) is True
    world.clean()
    assert world.machine.sinks["s"].sequences == {(U, 0): 2}
    assert world.do(FinishCommit("s", 1, 7, (ShareDone(-1, -1, True),))) is True
    assert world.machine.sinks["s"].sequences == {}


def test_a_run_that_claims_a_released_sink_keeps_it_over_the_cleaning(world: World) -> None:
    epoch = world.claim().epoch
    world.stage(epoch, 0, (T, 0))
    assert world.do(ReleaseSink("s", epoch)) is True
    world.now += 1000
    again = world.claim()
    assert again.epoch > epoch
    world.clean()
    assert world.claim() == again
    assert world.do(DescribeSink("s")).staged_handles == 0


@pytest.mark.parametrize("passed_ms", [0, -DAY])
def test_a_released_sink_is_claimed_with_an_epoch_it_never_had(world: World, passed_ms: int) -> None:
    """In the same second, or where the clock was set back: else what the old run still sends would be the new one's."""
    epochs = [world.claim(run).epoch for run in "abc"]
    assert world.do(ReleaseSink("s", epochs[-1])) is True
    world.now += passed_ms
    assert world.claim("d", producer_id=8).epoch > epochs[-1]
    for epoch in epochs:
        assert world.commit(epoch, 0) is ErrorCode.PRODUCER_FENCED


def test_a_finish_that_comes_again_means_the_sink_it_was_for(world: World) -> None:
    epoch = world.claim().epoch
    world.commit(epoch, 0, *world.stage(epoch, 0, (T, 0)))
    late = FinishCommit("s", 0, 7, (ShareDone(0, 1, False),))
    assert world.do(late) is True
    assert world.do(ReleaseSink("s", epoch)) is True
    assert world.do(late) is True, "nothing is left to be done"
    world.now += 1000
    epoch = world.claim(producer_id=8).epoch
    world.commit(epoch, 0, *world.stage(epoch, 0, (T, 0)))
    assert world.do(late) is True
    assert [commit.state for _, commit in world.machine.unfinished()] == [COMMITTED]


def test_what_nobody_decides_is_a_bug(world: World) -> None:
    with pytest.raises(TypeError, match="not a sink command"):
        world.machine.decide("what?", 1, NOW)


@pytest.mark.parametrize("seed", range(30))
def test_a_replay_gives_the_same_state_of_the_whole_log_and_of_a_compacted_one(seed: int) -> None:
    random, world = Random(seed), World()
    epoch, batch, handles = world.claim("r0").epoch, 0, []
    for step in range(150):
        world.now += random.choice((1, 1000, 3_600_000))
        choice = random.randrange(12)
        if choice >= 10:
            oldest = oldest_staged(world.machine.sinks.values())
            if oldest is not None:
                assert world.move(oldest[1]) is True
        elif choice < 4:
            targets = [(random.choice((T, U)), random.randrange(3)) for _ in range(random.randint(1, 3))]
            if random.random() < 0.5:
                handles += world.stage(epoch, batch, *targets)
            else:
                handles.append(
                    world.stage_wide(epoch, batch, *(StagedPart(*t, random.randint(1, 4), 9) for t in targets))
                )
        elif choice < 7:
            if world.commit(epoch, batch, *random.sample(handles, random.randint(0, len(handles)))) not in (
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.RESOURCE_NOT_FOUND,
            ):
                batch += random.randint(1, 3)
            handles = []
        elif choice < 8:
            unfinished = [commit.batch_id for _, commit in world.machine.unfinished()]
            if unfinished:
                world.finish(random.choice(unfinished))
        elif choice < 9:
            world.clean()
        else:
            epoch, handles = world.claim(f"r{step}").epoch, []
    for log in (world.log, world.compacted()):
        again = world.replayed(log)
        assert again.sinks == world.machine.sinks
        assert again.oldest_needed() == world.machine.oldest_needed()
