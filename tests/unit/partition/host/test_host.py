"""The host: answers only behind commits, all or nothing, and a reload that equals the live state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.worlds.machine_fakes import FakeClock, FakePartition

from duramen.errors import BugError, ClosedError, DuramenError, ErrorCode, KafkaError, StorageError
from duramen.machines.contract import LogRecord, Outcome, ProducerEpoch, TimerFired, TransactionMarks
from duramen.partition.host.host import Host
from duramen.partition.host.load_turns import LoadTurns
from duramen.partition.host.replay import STEP_RECORDS
from duramen.wire.batch import COMMIT, build_batch, marker_of


class Counter:
    """A machine that adds: enough to see records, replies, timers and refusals."""

    def __init__(self, marks: TransactionMarks | None = None) -> None:
        self.transaction_marks = marks
        self.total = 0
        self.applied: list[int] = []
        self.open: list[int] | None = None
        self.fired: list[Any] = []
        self.taken_back: list[Any] = []
        self.controls: list[LogRecord] = []
        self.pending: dict[ProducerEpoch, list[int]] = {}

    def decide(self, command: Any, ticket: int, now: int) -> Outcome:
        match command:
            case ("add", *numbers):
                records = [LogRecord(b"add", str(number).encode()) for number in numbers]
                return Outcome(records, [(ticket, self.total + sum(numbers))], if_refused=("refused", tuple(numbers)))
            case ("read",):
                return Outcome(replies=[(ticket, self.total)])
            case ("open",):
                return Outcome(replies=[(ticket, self.open)])
            case ("ask", *effects):
                return Outcome([LogRecord(b"add", b"1")], [(ticket, "asked")], effects=effects)
            case ("look", *effects):
                return Outcome(replies=[(ticket, self.total)], effects=effects)
            case ("wait", effect):
                return Outcome(effects=[(effect, ticket)])
            case ("found", what):
                return Outcome(replies=[(ticket, what)])
            case ("add in", producer, *numbers):
                records = [LogRecord(b"add", str(number).encode()) for number in numbers]
                return Outcome(records, [(ticket, "pending")], producer=producer)
            case ("beat",):
                return Outcome(replies=[(ticket, "alive")], immediate=True)
            case ("park",):
                return Outcome(timers=[(("wake", ticket), now + 500)])
            case ("timer", due):
                return Outcome(replies=[(ticket, None)], timers=[("t", None if due is None else now + due)])
            case ("refused", numbers):
                self.taken_back.append(numbers)
                return Outcome()
            case ("bad",):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "bad")
            case TimerFired(("wake", parked)):
                return Outcome(replies=[(parked, "woken")])
            case TimerFired(key):
                self.fired.append((key, now))
                return Outcome()
        raise TypeError(command)

    def apply(self, record: LogRecord, offset: int, timestamp: int, producer: ProducerEpoch | None = None) -> None:
        assert record.value is not None
        if producer is not None:
            self.pending.setdefault(producer, []).append(int(record.value))
            self.applied.append(offset)
            return
        if record.key == b"begin":
            self.open = []
        elif record.key == b"end":
            assert self.open is not None
            self.total += sum(self.open)
            self.open = None
        elif record.key == b"abort":
            self.open = None
        elif self.open is not None:
            self.open.append(int(record.value))
        else:
            self.total += int(record.value)
        self.applied.append(offset)

    def apply_control(self, record: LogRecord, offset: int, producer: ProducerEpoch | None = None) -> None:
        marker = marker_of(record.key, record.value)
        if marker is None or producer is None:
            self.controls.append(record)
            return
        added = self.pending.pop(producer, [])
        if marker.type == COMMIT:
            self.total += sum(added)

    def on_loaded(self, now: int) -> Outcome:
        if self.open is not None:
            return Outcome(records=[LogRecord(b"abort", b"")])
        return Outcome(timers=[("loaded", now + 1000)], effects=[("again", each) for each in self.pending])


MARKS = TransactionMarks(LogRecord(b"begin", b""), LogRecord(b"end", b""), LogRecord(b"abort", b""))


def loaded(partition: FakePartition, clock: FakeClock, machine: Counter | None = None, **options: Any) -> Host:
    host = Host(partition, machine or Counter(), clock, **options)
    host.load()
    return host


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def partition() -> FakePartition:
    return FakePartition()


def test_two_writes_and_a_read_answer_in_order_and_only_when_committed(
    clock: FakeClock, partition: FakePartition
) -> None:
    host = loaded(partition, clock)
    answers: list[Any] = []
    host.submit(("add", 1), answers.append)
    host.submit(("add", 2, 3), answers.append)
    host.submit(("read",), answers.append)
    assert answers == []
    partition.commit(1)
    assert answers == [1]
    partition.commit(2)
    assert answers == [1], "half of a batch is not committed"
    partition.commit(3)
    assert answers == [1, 6, 6]
    host.submit(("read",), answers.append)
    assert answers == [1, 6, 6, 6], "nothing is uncommitted, a read need not wait"


def test_a_read_waits_for_what_it_saw(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock)
    answers: list[Any] = []
    host.submit(("add", 7), lambda _: None)
    host.submit(("read",), answers.append)
    assert answers == []
    partition.commit()
    assert answers == [7]


def test_heartbeats_do_not_wait(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock)
    answers: list[Any] = []
    host.submit(("add", 1), lambda _: None)
    host.submit(("beat",), answers.append)
    assert answers == ["alive"]


def test_a_refused_append_applies_nothing_and_the_machine_takes_back(
    clock: FakeClock, partition: FakePartition
) -> None:
    machine = Counter()
    host = loaded(partition, clock, machine)
    answers: list[Any] = []
    for refusal in (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), OSError(28, "No space left on device")):
        partition.refuse = refusal
        host.submit(("add", 5, 6), answers.append)
        partition.refuse = None
    assert [answer.code for answer in answers] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ]
    assert (machine.total, machine.applied, partition.log_end_offset) == (0, [], 0)
    assert machine.taken_back == [(5, 6), (5, 6)]
    host.submit(("add", 1), answers.append)
    partition.commit()
    assert answers[2] == 1


def test_a_late_commit_is_answered_with_outcome_unknown_and_still_observed(
    clock: FakeClock, partition: FakePartition
) -> None:
    host = loaded(partition, clock, commit_timeout_ms=1000)
    seen: list[Any] = []
    host.observers.append(lambda records, end: seen.extend(records))
    answers: list[Any] = []
    host.submit(("add", 5), answers.append)
    clock.advance(600)
    host.submit(("add", 6), answers.append)
    clock.advance(399)
    assert answers == []
    clock.advance(1)
    assert [answer.code for answer in answers] == [ErrorCode.REQUEST_TIMED_OUT]
    assert "outcome unknown" in answers[0].message
    assert answers[0].retriable
    partition.commit()
    assert answers[1:] == [11]
    assert [record.value for record in seen] == [b"5", b"6"]
    clock.advance(10_000)
    assert len(answers) == 2


def test_a_read_behind_an_unknown_outcome_is_told_so_at_once(clock: FakeClock, partition: FakePartition) -> None:
    """It would wait as long as the write has, and learn no more; behind the commit it is answered as ever."""
    host = loaded(partition, clock, commit_timeout_ms=1000)
    answers: list[Any] = []
    host.submit(("add", 5), lambda _: None)
    host.submit(("read",), answers.append)
    clock.advance(1000)
    assert [answer.code for answer in answers] == [ErrorCode.REQUEST_TIMED_OUT]
    host.submit(("add", 6), answers.append)
    host.submit(("read",), answers.append)
    host.submit(("beat",), answers.append)
    assert [answer.code for answer in answers[1:2]] == [ErrorCode.REQUEST_TIMED_OUT]
    assert answers[2:] == ["alive"]
    partition.commit(1)
    host.submit(("read",), answers.append)
    assert answers[3:] == []
    partition.commit()
    assert answers[3:] == [11, 11]


def test_observers_hear_of_records_before_the_answers_leave(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock)
    events: list[Any] = []
    host.observers.append(lambda records, end: events.append([record.value for record in records]))
    host.submit(("add", 1), events.append)
    host.submit(("add", 2), events.append)
    partition.commit()
    assert events == [[b"1"], 1, [b"2"], 3]


def test_a_callback_may_submit_and_order_is_kept(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock)
    events: list[Any] = []

    def first(answer: Any) -> None:
        events.append(("first", answer))
        host.submit(("read",), lambda total: events.append(("inner", total)))

    host.submit(("add", 1), first)
    host.submit(("add", 2), lambda answer: events.append(("second", answer)))
    partition.commit()
    assert events == [("first", 1), ("second", 3), ("inner", 3)]


def test_errors_of_decide_answer_the_caller(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock)
    answers: list[Any] = []
    host.submit(("bad",), answers.append)
    assert [answer.code for answer in answers] == [ErrorCode.INVALID_REQUEST]


def test_timers_fire_once_move_and_cancel(clock: FakeClock, partition: FakePartition) -> None:
    machine = Counter()
    host = loaded(partition, clock, machine)
    clock.advance(1000)
    assert machine.fired.pop(0)[0] == "loaded"
    answers: list[Any] = []
    host.submit(("park",), answers.append)
    host.submit(("timer", 1000), lambda _: None)
    clock.advance(900)
    assert answers == ["woken"]
    host.submit(("timer", 1000), lambda _: None)
    clock.advance(999)
    assert machine.fired == []
    clock.advance(1)
    assert [key for key, _ in machine.fired] == ["t"]
    host.submit(("timer", 1000), lambda _: None)
    host.submit(("timer", 10), lambda _: None)
    clock.advance(10)
    assert len(machine.fired) == 2
    host.submit(("timer", 10), lambda _: None)
    host.submit(("timer", None), lambda _: None)
    clock.advance(10_000)
    assert len(machine.fired) == 2


def test_the_wall_clock_may_jump_without_firing_timers(clock: FakeClock, partition: FakePartition) -> None:
    machine = Counter()
    host = loaded(partition, clock, machine)
    clock.advance(1000)
    machine.fired.clear()
    host.submit(("timer", 1000), lambda _: None)
    clock.wall += 3_600_000
    clock.advance(999)
    assert machine.fired == []
    clock.advance(1)
    assert len(machine.fired) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_reload_equals_the_live_state(clock: FakeClock, seed: int) -> None:
    rng = random.Random(seed)
    partition = FakePartition(segment=rng.choice([100, 300, 10_000]))
    machine = Counter(MARKS)
    host = loaded(partition, clock, machine, max_batch_bytes=300)
    for _ in range(rng.randrange(1, 40)):
        partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS) if rng.random() < 0.2 else None
        partition.accept_before_refusal = rng.randrange(4)
        host.submit(("add", *[rng.randrange(1000) for _ in range(rng.randrange(1, 30))]), lambda _: None)
        partition.refuse = None
        partition.commit()
        if rng.random() < 0.1:
            host = loaded(partition, clock, machine := Counter(MARKS), max_batch_bytes=300)
            partition.commit()
    host.submit(("read",), lambda _: None)  # with which it aborts what is open
    again = Counter(MARKS)
    partition.commit()
    loaded(partition, clock, again)
    assert again.open is None
    assert (again.total, again.applied) == (machine.total, machine.applied)


def test_an_outcome_beyond_one_batch_is_all_or_nothing(clock: FakeClock, partition: FakePartition) -> None:
    machine = Counter(MARKS)
    host = loaded(partition, clock, machine, max_batch_bytes=200)
    answers: list[Any] = []
    host.submit(("add", *range(20)), answers.append)
    assert partition.batch_count > 3
    assert answers == []
    partition.commit(partition.log_end_offset - 1)
    assert answers == []
    partition.commit()
    assert answers == [190]
    partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    partition.accept_before_refusal = 2
    partition.refusals = 1
    host.submit(("add", *range(20)), answers.append)
    assert answers[1].code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (machine.total, machine.open, host.failed) == (190, None, None)


@pytest.mark.parametrize("more", [0, 1, 3])
def test_an_outcome_that_cannot_be_closed_is_refused_and_closed_before_anything_else_is_written(
    clock: FakeClock, partition: FakePartition, more: int
) -> None:
    """The disk is full. What is decided next may go by offsets, so the abort comes before the decision."""
    machine = Counter(MARKS)
    host = loaded(partition, clock, machine, max_batch_bytes=200)
    answers: list[Any] = []
    partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    partition.accept_before_refusal = 2
    for numbers in [range(20), *[range(1)] * more]:
        host.submit(("add", *numbers), answers.append)
    assert [answer.code for answer in answers] == [ErrorCode.KAFKA_STORAGE_ERROR] * (more + 1)
    assert machine.taken_back == [tuple(range(20)), *[(0,)] * more]
    assert (host.failed, machine.total) == (None, 0)
    assert machine.open is not None
    partition.refuse = None
    host.submit(("open",), answers.append)
    host.submit(("add", 7), answers.append)
    host.submit(("add", *range(20)), answers.append)
    partition.commit()
    assert answers[more + 1 :] == [None, 7, 197]
    again = Counter(MARKS)
    loaded(partition, clock, again)
    assert (again.total, again.open) == (197, None)


def test_the_next_load_aborts_an_outcome_that_was_never_closed(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock, Counter(MARKS), max_batch_bytes=200)
    partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    partition.accept_before_refusal = 2
    host.submit(("add", *range(20)), lambda _: None)
    partition.refuse = None
    partition.commit()
    machine = Counter(MARKS)
    loaded(partition, clock, machine)
    assert (machine.total, machine.open) == (0, None)


def test_an_outcome_too_large_for_a_machine_without_marks_is_refused(
    clock: FakeClock, partition: FakePartition
) -> None:
    machine = Counter()
    host = loaded(partition, clock, machine, max_batch_bytes=200)
    answers: list[Any] = []
    host.submit(("add", *range(20)), answers.append)
    assert [answer.code for answer in answers] == [ErrorCode.MESSAGE_TOO_LARGE]
    assert machine.total == 0


def test_nothing_is_decided_before_the_load_and_a_sliced_load_waits_for_the_commit(
    clock: FakeClock, partition: FakePartition
) -> None:
    writer = loaded(partition, clock)
    for number in range(50):
        writer.submit(("add", number), lambda _: None)
    partition.commit(30)
    machine = Counter()
    host = Host(partition, machine, clock)
    done: list[DuramenError | None] = []
    host.start_loading(done.append)
    answers: list[Any] = []
    host.submit(("read",), answers.append)
    assert [answer.code for answer in answers] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    clock.advance(10)
    assert done == []
    partition.commit()
    clock.advance(10)
    assert done == [None]
    host.submit(("read",), answers.append)
    assert answers[1] == sum(range(50))


def test_loads_take_turns_in_small_slices(clock: FakeClock) -> None:
    """Fifty coordinators with as many records each held up a node that had started for seconds."""
    partitions = [FakePartition(), FakePartition()]
    for partition in partitions:
        writer = loaded(partition, clock)
        writer.submit(("add", *[1] * (STEP_RECORDS + 100)), lambda _: None)
        partition.commit()
    turns: list[Callable[[], None]] = []
    clock.call_soon = turns.append  # type: ignore[assignment,method-assign]
    order = LoadTurns(clock)
    machines = [Counter(), Counter()]
    done: list[Any] = []
    for machine, partition in zip(machines, partitions, strict=True):
        Host(partition, machine, clock).start_loading(done.append, order)
    seen = []
    while turns:
        assert len(turns) == 1, "one slice of one of them"
        turns.pop()()
        seen.append((len(machines[0].applied), len(machines[1].applied), len(done)))
    assert seen == [(500, 0, 0), (600, 0, 1), (600, 500, 1), (600, 600, 2)]


def test_closing_answers_everybody_once(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock)
    answers: list[Any] = []
    host.submit(("add", 1), answers.append)
    host.submit(("park",), answers.append)
    host.close()
    assert [type(answer) for answer in answers] == [ClosedError, ClosedError]
    partition.commit()
    clock.advance(100_000)
    host.submit(("read",), answers.append)
    assert len(answers) == 3
    assert isinstance(answers[2], ClosedError)
    assert not partition.watchers


def test_a_failed_log_answers_all_waiters_with_its_error(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock)
    answers: list[Any] = []
    host.submit(("add", 1), answers.append)
    host.submit(("read",), answers.append)
    host.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "sync failed"))
    assert [answer.code for answer in answers] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_damage_in_the_log_fails_the_load(clock: FakeClock, partition: FakePartition) -> None:
    writer = loaded(partition, clock)
    writer.submit(("add", 1), lambda _: None)
    writer.submit(("add", 2), lambda _: None)
    partition.commit()
    partition.damage()
    with pytest.raises(KafkaError, match="CRC") as caught:
        loaded(partition, clock)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    host = Host(partition, Counter(), clock)
    done: list[Any] = []
    host.start_loading(done.append)
    clock.advance(1)
    assert [error.code for error in done] == [ErrorCode.CORRUPT_MESSAGE]
    assert host.failed is done[0]


def test_a_disk_that_fails_during_a_load_is_a_storage_error(
    clock: FakeClock, partition: FakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(partition, clock).submit(("add", 1), lambda _: None)
    partition.commit()

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(partition, "read", fail)
    host = Host(partition, Counter(), clock)
    done: list[Any] = []
    host.start_loading(done.append)
    clock.advance(1)
    assert isinstance(host.failed, StorageError)
    assert done == [host.failed]


def test_control_batches_are_seen_but_change_nothing(clock: FakeClock, partition: FakePartition) -> None:
    partition.append_local(build_batch([(b"\0\0\0\2", b"leader", (), 0)], control=True), 0)
    partition.commit()
    machine = Counter()
    host = loaded(partition, clock, machine)
    host.submit(("add", 4), lambda _: None)
    assert machine.applied == [1]
    assert machine.controls == [LogRecord(b"\0\0\0\2", b"leader")]


def test_a_load_may_begin_behind_a_snapshot(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock)
    for number in range(5):
        host.submit(("add", number), lambda _: None)
        partition.commit()
    machine = Counter()
    Host(partition, machine, clock).load(3)
    assert machine.applied == [3, 4]


def test_a_load_begins_once(clock: FakeClock, partition: FakePartition) -> None:
    host = loaded(partition, clock)
    with pytest.raises(BugError):
        host.load()
