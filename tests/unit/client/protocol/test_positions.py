"""Positions and what they name: through truncation, lost records, compaction and a log start that moves meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import EARLIEST, LATEST, ListedOffset
from duramen.client.protocol.positions import (
    AtOffset,
    AtTime,
    BelowStartError,
    DlsnDivergedError,
    LogPlace,
    OffsetQuestion,
    Position,
    Question,
    check_later_leader,
    find_place,
)
from duramen.dlsn import BEFORE_FIRST, FIRST, INVALID, Dlsn, dlsn_at
from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.wire.batch import build_batch

TP = TopicPartition("t", 0)


class Stored:
    """A log of (leader epoch, records) for each batch; record n has the timestamp 10 * n."""

    def __init__(self, *batches: tuple[int, int], start: int = 0) -> None:
        self.start = start
        self.batches: list[tuple[int, int, int]] = []
        """(epoch, base offset, end)"""
        self.end = 0
        self.epoch = 0
        """In which it is led; nobody gives one twice."""
        for epoch, count in batches:
            self.write(epoch, count)
        self.moves: list[int] = []
        """Log starts that are taken on before the next fetches."""

    def write(self, epoch: int, count: int) -> None:
        self.epoch = max(self.epoch, epoch)
        self.batches.append((epoch, self.end, self.end + count))
        self.end += count

    def positions(self) -> list[Dlsn]:
        """Of all records."""
        return [dlsn_at(offset, base, epoch) for epoch, base, end in self.batches for offset in range(base, end)]

    def find(self, wanted: Position) -> LogPlace:
        lookup = find_place(wanted)
        question = next(lookup)
        while True:
            try:
                question = lookup.send(self._answer(question))
            except StopIteration as found:
                place: LogPlace = found.value
                return place

    def _answer(self, question: Question) -> ListedOffset | FetchedBytes | None:
        if isinstance(question, OffsetQuestion):
            time = question.timestamp
            if time in (EARLIEST, LATEST):
                return ListedOffset(self.start if time == EARLIEST else self.end, -1, self.epoch)
            offset = max(self.start, -(-time // 10))
            return ListedOffset(offset if offset < self.end else -1, -1, -1)
        if self.moves:
            self.start = self.moves.pop(0)
        if not self.start <= question.offset <= self.end:
            return None
        for epoch, base, end in self.batches:
            if end > question.offset:
                rows = [(None, b"v", (), 0)] * (end - base)
                data = memoryview(build_batch(rows, base_offset=base, leader_epoch=epoch))  # type: ignore[arg-type]
                return FetchedBytes(TP, question.offset, data, end, self.end, self.end, self.start, [])
        return FetchedBytes(TP, question.offset, memoryview(b""), question.offset, self.end, self.end, self.start, [])


histories = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=6).map(
    lambda steps: [(sum(each for each, _ in steps[: number + 1]), count) for number, (_, count) in enumerate(steps)]
)


@given(histories, st.data())
def test_each_record_is_found_where_it_is_stored_or_was_truncated(
    history: list[tuple[int, int]], data: st.DataObject
) -> None:
    log = Stored(*history)
    log.start = data.draw(st.integers(0, log.end))
    for position in log.positions():
        if position.offset < log.start:
            for wanted in (position, AtOffset(position.offset)):
                with pytest.raises(BelowStartError) as caught:
                    log.find(wanted)
                assert caught.value.first.offset == log.start
        else:
            assert log.find(position) == (position.offset, position, False, log.start, log.end)
            assert log.find(AtOffset(position.offset)).dlsn == position
            assert log.find(AtTime(10 * position.offset)).dlsn == position
        behind = position.next
        if behind.offset >= log.start:
            assert log.find(behind).offset == behind.offset
    at_end = log.find(AtOffset(LATEST))
    assert at_end == log.find(AtTime(10**9))
    assert (at_end.offset, at_end.is_end) == (log.end, True)
    log.write(history[-1][0] + 1, 2)
    assert log.find(at_end.dlsn).offset == at_end.offset


@given(histories, st.integers(0, 20), st.integers(0, 4))
def test_a_record_that_was_lost_is_never_taken_for_another(history: list[tuple[int, int]], cut: int, more: int) -> None:
    """The log is cut at a batch, and others come in its place in a later epoch."""
    log = Stored(*history)
    before = log.positions()
    kept = history[: cut % len(history)]
    again = Stored(*kept, *[(history[-1][0] + 1, 1)] * more) if kept or more else Stored(*history)
    again.epoch = history[-1][0] + 1
    there = set(again.positions())
    for position in before:
        if position in there or position <= FIRST:
            assert again.find(position).dlsn == (position if position in there else again.positions()[0])
        else:
            with pytest.raises(DlsnDivergedError):
                again.find(position)


def test_the_beginning_is_there_in_each_log_that_was_not_truncated() -> None:
    for log in (Stored((0, 2)), Stored((7, 2))):
        assert log.find(BEFORE_FIRST).offset == log.find(FIRST).offset == 0
    empty = Stored((3, 0))
    assert empty.find(AtOffset(EARLIEST)) == (0, FIRST, True, 0, 0)
    with pytest.raises(BelowStartError) as caught:
        Stored((0, 2), (1, 2), start=3).find(BEFORE_FIRST)
    assert caught.value.first.dlsn == Dlsn(2, 2, 1)


def test_what_was_compacted_away_is_passed_over() -> None:
    log = Stored((0, 2), (1, 3), (2, 2))
    del log.batches[1]
    assert log.find(Dlsn(2, 2, 1)) == (5, Dlsn(3, 5, 0), False, 0, 7)


def test_a_log_start_that_moves_meanwhile_is_looked_at_once_more() -> None:
    log = Stored((0, 2), (1, 2))
    log.moves = [3]
    assert log.find(AtOffset(EARLIEST)).dlsn == Dlsn(2, 2, 1)
    log = Stored((0, 2), (1, 2))
    log.moves = [3]
    with pytest.raises(BelowStartError):
        log.find(AtOffset(1))


def test_what_is_nowhere_is_refused() -> None:
    log = Stored((0, 2))
    with pytest.raises(KafkaError, match="above the end"):
        log.find(AtOffset(3))
    with pytest.raises(ValueError, match="no position"):
        log.find(INVALID)
    with pytest.raises(DlsnDivergedError, match="ends at offset 2"):
        log.find(Dlsn(1, 2, 0))


def test_a_leader_of_the_past_does_not_say_that_a_record_is_lost() -> None:
    past = Stored((0, 2))
    with pytest.raises(KafkaError, match="later leader") as refused:
        past.find(Dlsn(2, 2, 1))
    assert refused.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert refused.value.retriable


def test_a_later_leader_is_waited_for_where_there_may_be_one() -> None:
    wanted = Dlsn(9, 0, 0)
    error = KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, "an old leader")
    check_later_leader(error, wanted, 3, 4.9)
    for replicas, waited_s in ((3, 5.0), (1, 0.0)):
        with pytest.raises(DlsnDivergedError):
            check_later_leader(error, wanted, replicas, waited_s)
    other = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another one")
    with pytest.raises(KafkaError) as raised:
        check_later_leader(other, wanted, 1, 9.0)
    assert raised.value is other
