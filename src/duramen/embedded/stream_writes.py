"""Appends to an embedded topic under a condition, by a writer that is known again, and closing.

What a node does for OpenWriter and ConditionalAppend (docs/protocol.md), for the caller's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from duramen.dlsn import ANYWHERE, LogEnd
from duramen.embedded.append_queue import encode_row
from duramen.embedded.records import Record, check_records
from duramen.embedded.threads import ThreadResult, waiting_time
from duramen.embedded.world import Turn
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.commands import AllocateProducerIds, ProducerIds
from duramen.model import NO_PRODUCER_ID, is_named, named_producer_id
from duramen.partition.replica.conditional_append import (
    ConditionalBatch,
    ConditionalResult,
    append_conditionally,
    end_epoch,
)
from duramen.partition.replica.exclusive_writer import Opened, WhenOpened, open_writer, release_writer
from duramen.partition.replica.partition import Partition
from duramen.wire.batch import MAX_SEQUENCE, build_batch

T = TypeVar("T")


class WrittenTopic(Protocol):
    """What is needed of a topic of an embedded log."""

    _log: Any
    _turn: Turn

    def _check_own(self) -> None: ...

    def _partition(self, partition: int) -> Partition: ...

    def _take(self, work: Callable[[], T]) -> T: ...


class Writer:
    """Who appends: `epoch` and the next `sequence` are sent along, so that an append that is repeated is stored once.

    `Writer("name")` is a named writer, which counts its appends: after a restart it goes on with the sequence that it
    kept, or with a greater epoch and 0. Of an exclusive topic `Topic.open_writer` gives one, which counts records.
    """

    __slots__ = ("epoch", "name", "producer_id", "sequence")

    def __init__(self, name: str, epoch: int = 0, sequence: int = 0, *, producer_id: int | None = None) -> None:
        self.name = name
        self.epoch = epoch
        self.sequence = sequence
        self.producer_id = named_producer_id(name) if producer_id is None else producer_id

    def __repr__(self) -> str:
        return f"<duramen.Writer {self.name!r}, epoch {self.epoch}, next sequence {self.sequence}>"

    def advance(self, records: int) -> None:
        """An append of so many records is stored."""
        self.sequence = (self.sequence + (1 if is_named(self.producer_id) else records)) & MAX_SEQUENCE


def append_batch(
    topic: WrittenTopic,
    records: Iterable[Record],
    partition: int,
    expected: LogEnd | int | None,
    writer: Writer | None,
    timeout: float | None,
) -> list[int]:
    """All as one batch; the records' offsets, -1 for those of a batch that was stored long ago. See `Topic.append`."""
    rows = check_records(records)
    if not rows:
        return []
    now = topic._turn.wall_ms()
    id, epoch, sequence = (-1, -1, -1) if writer is None else (writer.producer_id, writer.epoch, writer.sequence)
    told = [encode_row(row, now) for row in rows]
    batch = build_batch(told, producer_id=id, producer_epoch=epoch, base_sequence=sequence)
    end = _end(expected)
    wanted = ConditionalBatch(memoryview(batch), end.offset, expected_epoch=end.epoch)
    result = _appended(topic, partition, wanted, timeout)
    if writer is not None:
        writer.advance(len(rows))
    base = result.base_offset
    return [base + number if base >= 0 else -1 for number in range(len(rows))]


def close_stream(topic: WrittenTopic, partition: int, expected: LogEnd | int | None, writer: Writer | None) -> int:
    """See `Topic.close_stream`."""
    end, closer = _end(expected), NO_PRODUCER_ID if writer is None else writer.producer_id
    wanted = ConditionalBatch(None, end.offset, True, closer, end.epoch)
    return _appended(topic, partition, wanted, None).end_offset


def log_end(topic: WrittenTopic, partition: int) -> LogEnd:
    """See `Topic.log_end`."""

    def ask() -> LogEnd:
        found = topic._partition(partition)
        return LogEnd(found.log_end_offset, end_epoch(found))

    return topic._take(ask)


def _end(expected: LogEnd | int | None) -> LogEnd:
    if expected is None:
        return ANYWHERE
    return expected if isinstance(expected, LogEnd) else LogEnd(expected)


def open_exclusive(topic: WrittenTopic, partition: int, name: str) -> Writer:
    """See `Topic.open_writer`."""
    log = topic._log
    block = log._call(AllocateProducerIds(log._node_id, log._epoch))
    if not isinstance(block, ProducerIds):
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no producer id can be had: {block}")
    now = topic._turn.wall_ms()
    _opened(topic, partition, lambda found, done: open_writer(found, name, block.first, now, done))
    return Writer(name, producer_id=block.first)


def release_exclusive(topic: WrittenTopic, partition: int, writer: Writer) -> None:
    """See `Topic.release_writer`."""
    now, id = topic._turn.wall_ms(), writer.producer_id
    _opened(topic, partition, lambda found, done: release_writer(found, writer.name, id, now, done))


def _appended(
    topic: WrittenTopic, partition: int, wanted: ConditionalBatch, timeout: float | None
) -> ConditionalResult:
    now = topic._turn.wall_ms()
    answer: ThreadResult[ConditionalResult | KafkaError] = ThreadResult()
    _begin(topic, partition, lambda found: append_conditionally(found, wanted, now, answer.give))
    result = answer.wait(waiting_time(timeout))
    if isinstance(result, KafkaError):
        raise result
    return result


def _opened(topic: WrittenTopic, partition: int, ask: Callable[[Partition, WhenOpened], None]) -> None:
    answer: ThreadResult[Opened | KafkaError] = ThreadResult()
    _begin(topic, partition, lambda found: ask(found, answer.give))
    result = answer.wait()
    if isinstance(result, KafkaError):
        raise result


def _begin(topic: WrittenTopic, partition: int, work: Callable[[Partition], None]) -> None:
    """Have it done in a turn, and what it appended committed."""
    topic._check_own()

    def begin() -> None:
        work(topic._partition(partition))
        topic._log._store.commit_soon()

    topic._take(begin)
