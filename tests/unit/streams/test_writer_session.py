"""Writers whose answers are lost, and two that begin the same epoch at once: upon a log of lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from duramen.client.protocol.producers import ProducerProgress
from duramen.dlsn import dlsn_at
from duramen.errors import ClosedError, DeadlineError, ErrorCode
from duramen.streams.errors import OtherTxidsError, WriterFencedError
from duramen.streams.immediate import run
from duramen.streams.link import AppendTerms, StreamKind, StreamLink
from duramen.streams.records import Row, StoredBatch, StreamRecord, StreamSpot, Stretch
from duramen.streams.stream_calls import StreamCalls
from duramen.streams.writer_session import WriterSession, WriterWish, open_session
from duramen.wire.conditional_answer import ConditionalAnswer


class ListedBatches:
    """A back end that holds the batches of one stream, and knows those of named writers again."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Sequence[Row]]] = []
        self.kind_now = StreamKind("none", "")
        self.turns: dict[tuple[int, int, int], int] = {}
        self.loses = 0
        """So many answers are lost, of batches that are stored."""
        self.append_time = -1
        """The timestamp of all records, where the topic stamps its own."""

    async def append(self, _topic: str, rows: Sequence[Row], terms: AppendTerms) -> ConditionalAnswer:
        turn = terms.writer
        newest = -1 if turn is None else (await self.progress("", "", turn.producer_id)).epoch
        if turn is not None and turn.epoch < newest:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
            return ConditionalAnswer(code, "", -1, -1, -1, 0, False, 0, newest, False, True, 1)
        known = None if turn is None else self.turns.get(turn[1:])
        if known is None:
            known = sum(len(batch) for _, batch in self.batches)
            self.batches.append((known, list(rows)))
            if turn is not None:
                self.turns[turn[1:]] = known
            duplicate = False
        else:
            duplicate = True
        if self.loses:
            self.loses -= 1
            raise DeadlineError("no answer")
        end = known + len(rows)
        return ConditionalAnswer(
            ErrorCode.NONE,
            "",
            known,
            end - 1,
            end,
            0,
            duplicate,
            -1,
            -1,
            False,
            True,
            1,
            log_append_time_ms=self.append_time,
        )

    async def progress(self, _topic: str, _name: str, producer_id: int) -> ProducerProgress:
        known = [turn for turn in self.turns if turn[0] == producer_id]
        return ProducerProgress(max((epoch for _, epoch, _ in known), default=-1), 0)

    async def fetch(self, _topic: str, spot: StreamSpot) -> Stretch:
        found = []
        for base, rows in self.batches:
            records = [
                StreamRecord(base + at, dlsn_at(base + at, base, 0), self._when(row), row[0], row[1], ())
                for at, row in enumerate(rows)
            ]
            if base >= spot.offset:
                found.append(StoredBatch(0, records, False))
        return Stretch(found, spot)

    def _when(self, row: Row) -> int:
        return row[3] if self.append_time < 0 else self.append_time

    async def kind(self, _topic: str) -> StreamKind:
        return self.kind_now

    @property
    def values(self) -> list[bytes | None]:
        return [row[1] for _, rows in self.batches for row in rows]


@pytest.fixture
def log() -> ListedBatches:
    return ListedBatches()


def session(log: ListedBatches, **wish: Any) -> WriterSession:
    calls = StreamCalls(cast(StreamLink, log), "s", "s")
    return run(open_session(calls, WriterWish(**wish)))


def write(writer: WriterSession, value: bytes) -> None:
    run(writer.write(value, None))


def test_a_named_writer_flushes_again_what_got_no_answer(log: ListedBatches) -> None:
    writer = session(log, name="w")
    write(writer, b"a")
    log.loses = 2
    for _ in range(2):
        with pytest.raises(DeadlineError):
            run(writer.flush())
    write(writer, b"b")
    receipt = run(writer.flush())
    assert receipt is not None
    assert receipt.offset == 1
    assert log.values == [b"a", b"b"]


def test_what_was_gathered_for_a_stream_with_other_transaction_ids_is_not_appended(log: ListedBatches) -> None:
    log.kind_now = StreamKind("none", "1")
    writer = session(log)
    write(writer, b"a")
    log.kind_now = StreamKind("application", "2")  # it was made again
    with pytest.raises(OtherTxidsError, match="txid='application'"):
        run(writer.write(b"b", 5))
    with pytest.raises(ClosedError):
        run(writer.flush())
    assert log.values == []


def test_a_writer_without_a_name_ends_where_its_batch_got_no_answer(log: ListedBatches) -> None:
    writer = session(log)
    write(writer, b"a")
    log.loses = 1
    with pytest.raises(DeadlineError):
        run(writer.flush())
    with pytest.raises(ClosedError):
        run(writer.flush())
    assert log.values == [b"a"]


def test_of_two_that_begin_one_epoch_the_second_is_fenced(log: ListedBatches) -> None:
    first, second = session(log, name="w"), session(log, name="w")
    assert first.turn == second.turn
    write(first, b"a")
    run(first.flush())
    write(second, b"b")
    with pytest.raises(WriterFencedError, match="begun epoch 0 at the same time"):
        run(second.flush())
    assert log.values == [b"a"]


def test_a_batch_whose_answer_was_lost_is_known_where_the_topic_stamps_its_time(log: ListedBatches) -> None:
    log.append_time = 7
    writer = session(log, name="w")
    write(writer, b"a")
    log.loses = 1
    with pytest.raises(DeadlineError):
        run(writer.flush())
    receipt = run(writer.flush())
    assert receipt is not None
    assert (receipt.offset, receipt.duplicate) == (0, True)
    other = session(log, name="w", epoch=0)
    other._is_new_epoch = True
    write(other, b"b")
    with pytest.raises(WriterFencedError):
        run(other.flush())


def test_two_that_begin_one_epoch_with_the_same_record_are_not_one_afterwards(log: ListedBatches) -> None:
    log.append_time = 7
    first, second = session(log, name="w"), session(log, name="w")
    for writer in (first, second):
        write(writer, b"hello")
        run(writer.flush())
    assert log.values == [b"hello"]
    write(second, b"of the second")
    receipt = run(second.flush())
    assert receipt is not None
    assert not receipt.duplicate
    assert second.turn is not None
    assert (second.turn.epoch, second.turn.sequence) == (1, 1)
    write(first, b"of the first")
    with pytest.raises(WriterFencedError):
        run(first.flush())
    assert log.values == [b"hello", b"of the second"]


@pytest.mark.parametrize(
    "wish",
    [
        {"name": ""},
        {"epoch": 1},
        {"name": "w", "sequence": 1},
        {"name": "w", "epoch": 1 << 15},
        {"exclusive": True, "expected_position": 0},
        {"exclusive": True, "epoch": 0},
        {"max_bytes": 0},
    ],
)
def test_a_writer_that_cannot_be_is_refused(log: ListedBatches, wish: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        session(log, **wish)
