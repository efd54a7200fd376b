"""Reads a machine's log back: every committed record, in order, checked, some hundreds at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from duramen.errors import ErrorCode, KafkaError, StorageError
from duramen.machines.contract import LogRecord, ProducerEpoch
from duramen.model import TopicPartition
from duramen.ports import FileSpan
from duramen.wire import batch as batches

CHUNK_BYTES: Final = 256 << 10
"""Read at a time."""
STEP_RECORDS: Final = 500
"""Applied in one step, in a few milliseconds; a sliced load lets the loop serve others between two steps."""
MAX_INFLATED_BYTES: Final = 64 << 20


class ReadableLog(Protocol):
    """What a replay needs of a partition."""

    tp: TopicPartition

    @property
    def high_watermark(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    def read(self, offset: int, max_bytes: int, isolation: int, *, at_least_one: bool = True) -> Any:
        """Whole batches below the high watermark from the one that holds `offset`, as `.parts`."""


class Replay:
    """One pass over a log, up to the end it had when the pass began."""

    def __init__(
        self,
        log: ReadableLog,
        machine: Applier,
        start: int | None = None,
        on_gap: Callable[[int, int], None] | None = None,
    ) -> None:
        """start: the first offset to apply, when the machine has what lies below from elsewhere.

        on_gap: of a log that is not compacted; hears the first and last offset of what is missing, before what follows
        is applied.
        """
        self._log = log
        self._machine = machine
        self._on_gap = on_gap
        self._position = log.log_start_offset if start is None else start
        self._target = log.log_end_offset
        self._work = self._apply_all()

    @property
    def is_committed(self) -> bool:
        """Whether everything up to the end is committed; nothing may be applied before."""
        return self._log.high_watermark >= self._target

    def step(self) -> bool:
        """Apply the next records, STEP_RECORDS at most; True when the end is reached.

        Raises CorruptLogError or KafkaError CORRUPT_MESSAGE for damage, StorageError when the disk fails.
        """
        return sum(1 for _ in islice(self._work, STEP_RECORDS)) < STEP_RECORDS

    def _apply_all(self) -> Iterator[None]:
        """Goes on with each record that was applied."""
        while self._position < self._target:
            first = self._position
            data = read_committed(self._log, first)
            if data is None:  # a repair dropped the log's end
                return
            for header, view, missing in checked_batches(self._log.tp, data, first):
                self._position = header.next_offset
                if self._on_gap is not None and missing is not None:
                    self._on_gap(*missing)
                yield from apply_batch(self._machine, view, header, first)
            if self._position <= first:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self._log.tp}: no whole batch at offset {first}")


class Applier(Protocol):
    """Takes the records of a log in order."""

    def apply(self, record: LogRecord, offset: int, timestamp: int, producer: ProducerEpoch | None = None) -> None: ...

    def apply_control(self, record: LogRecord, offset: int, producer: ProducerEpoch | None = None) -> None: ...


def read_committed(log: ReadableLog, offset: int) -> memoryview | None:
    """Whole batches from `offset` on, below the high watermark; None where no segment has any. StorageError."""
    try:
        # Again where compaction left nothing in a segment from here on, which a cold read has to find out.
        data = _read(log, offset) or _read(log, offset)
    except OSError as error:
        raise StorageError(f"{log.tp}: {error}") from error
    return data


def _read(log: ReadableLog, offset: int) -> memoryview | None:
    """Batches; empty where a cold read found none in its segment; None where no segment has any."""
    parts = log.read(offset, CHUNK_BYTES, 0).parts
    return memoryview(b"".join(map(bytes_of, parts))) if parts else None


def checked_batches(
    tp: TopicPartition, data: memoryview, first: int
) -> Iterator[tuple[batches.BatchHeader, memoryview, tuple[int, int] | None]]:
    """Each batch that is read from offset `first` on, and the first and last offset that are missing before it.

    KafkaError CORRUPT_MESSAGE when a checksum is wrong.
    """
    position = first
    for start, header in batches.batches(data):
        view = data[start : start + header.size]
        if not batches.check_crc(view, header):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{tp}: bad CRC at offset {header.base_offset}")
        following = header.base_offset if header.count else header.next_offset  # none: for a lost end
        yield header, view, (position, following - 1) if position < following else None
        position = header.next_offset


def apply_batch(machine: Applier, view: memoryview, header: batches.BatchHeader, first: int) -> Iterator[None]:
    """Hand over the batch's records from offset `first` on; goes on with each."""
    producer = ProducerEpoch(header.producer_id, header.producer_epoch) if header.is_transactional else None
    for record in batches.records(view, header, max_bytes=MAX_INFLATED_BYTES):
        if record.offset < first:
            continue
        if header.is_control:
            machine.apply_control(LogRecord(record.key, record.value), record.offset, producer)
        else:
            machine.apply(LogRecord(record.key, record.value), record.offset, record.timestamp, producer)
        yield


def bytes_of(part: Any) -> Any:
    """A part's bytes: in memory, in a file, or (cold) behind a checked read."""
    if isinstance(part, FileSpan):
        return part.file.pread(part.length, part.position)
    if isinstance(part, bytes | bytearray | memoryview):
        return part
    found = part.run().data
    part.complete()
    return found
