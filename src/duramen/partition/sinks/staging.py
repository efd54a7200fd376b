"""Staged records: checked as produced ones are, stored in the staging log, and read back for the partition they go to.

Checks and reads run off the loop. A piece is stored as the batches it came in, without a producer; it gets the sink's
producer id and sequence when it is read for its target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from duramen.config import TopicConfig
from duramen.errors import CorruptLogError, ErrorCode, KafkaError
from duramen.machines.sink.pieces import Pieces, StagedRange
from duramen.machines.sink.state import PRODUCER_EPOCH
from duramen.partition.replica.batch_rules import claims_too_late, needs_rewriting, rewrite
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.partition.replica.staged_appends import append_staged
from duramen.ports import FileSpan
from duramen.storage import Pending
from duramen.wire import batch as batches
from duramen.wire.batch import MAX_SEQUENCE, TRANSACTIONAL, BatchHeader

CHUNK_BYTES: Final = 1 << 20
"""Staged bytes read in one job; one batch above that comes alone."""
CHUNK_PIECES: Final = 64
"""Pieces of one job: each is a look-up, and at least one append, in a turn of the loop."""


def check_staged(data: memoryview, config: TopicConfig, now_ms: int) -> list[memoryview]:
    """The batches in `data` as they are to be stored; off the loop. KafkaError for whatever Produce would refuse."""
    found: list[memoryview] = []
    position = 0
    while position < len(data) or not found:
        rest = data[position:]
        size = batches.parse_header(rest).size if len(rest) >= batches.HEADER_SIZE else len(rest)
        view = rest[:size]
        header = batches.check_produced(view, config.max_message_bytes)
        _check_plain(header, config, now_ms)
        found.append(memoryview(rewrite(bytearray(view), config, now_ms)) if needs_rewriting(config, header) else view)
        position += size
    return found


def _check_plain(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    if header.producer_id >= 0 or header.attributes & TRANSACTIONAL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "staged batches have no producer id: the sink gives them its own")
    after = header.max_timestamp - now_ms
    if after > 0 and claims_too_late(config, header, now_ms):
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, f"timestamp {header.max_timestamp} is {after} ms ahead of the broker"
        )


class Storing:
    """Appends a request's batches to the staging log; `done(None | KafkaError)` when all are committed there."""

    def __init__(self, staging: Partition, now_ms: int, done: Callable[[KafkaError | None], None]) -> None:
        self._staging = staging
        self._now_ms = now_ms
        self._done = done
        self._open = 1
        self._error: KafkaError | None = None

    def store(self, pieces: Sequence[memoryview]) -> StagedRange:
        """Append one piece. Its offsets hold once `done` was called without an error."""
        first = self._staging.log_end_offset
        for batch in pieces:
            self._open += 1
            append_staged(self._staging, batch, self._now_ms, self._settled)
        return StagedRange(first, self._staging.log_end_offset, sum(map(len, pieces)))

    def finish(self) -> None:
        """No piece follows."""
        self._settled(None)

    def _settled(self, result: Appended | KafkaError | None) -> None:
        if isinstance(result, KafkaError):
            self._error = result
        self._open -= 1
        if self._open == 0:
            self._done(self._error)


@dataclass(slots=True)
class Chunk:
    """A job: batches of one share, read, checked and stamped for their target; without a producer id, as they are.

    reads: the parts of each read, where it begins and where its piece ends; position, sequence: of the first record.
    After `run`, `out` holds the batches, `finished` counts the pieces that are read to their end, and `position` is how
    far the next one is.
    """

    tp: str
    producer_id: int | None
    position: int
    sequence: int
    reads: list[tuple[list[Any], int, int]] = field(default_factory=list)
    out: list[bytearray] = field(default_factory=list)
    finished: int = 0

    def run(self) -> Chunk:
        """Off the loop. CorruptLogError for damage or records that are not there, OSError."""
        for parts, start, end in self.reads:
            reached = self._read(memoryview(bytearray().join(map(_bytes_of, parts))), start, end)
            if reached < end:
                self.position = reached
                break
            self.finished += 1
        if not self.out:
            raise CorruptLogError(self.tp, 0, 0, "staged records are missing", self.position)
        return self

    def _read(self, data: memoryview, reached: int, end: int) -> int:
        for place, header in batches.batches(data):
            if header.base_offset >= end:
                break
            batch = bytearray(data[place : place + header.size])
            if header.base_offset != reached or not batches.check_crc(batch, header):
                raise CorruptLogError(self.tp, place, place + header.size, "not what was staged", reached)
            if self.producer_id is not None:
                batches.stamp_producer(batch, self.producer_id, PRODUCER_EPOCH, self.sequence)
            self.sequence = (self.sequence + header.count) & MAX_SEQUENCE
            self.out.append(batch)
            reached = header.next_offset
        return reached

    def complete(self) -> None:
        """On the loop."""
        for parts, _, _ in self.reads:
            for part in parts:
                if isinstance(part, Pending):
                    part.complete()


def _bytes_of(part: Any) -> Any:
    if isinstance(part, FileSpan):
        return part.file.pread(part.length, part.position)
    return part.run().data if isinstance(part, Pending) else part


class ShareReader:
    """Where one share's records are in the staging log, and how far they are read."""

    def __init__(self, staging: Partition, pieces: Pieces, producer_id: int | None, base_sequence: int) -> None:
        """producer_id: None to read them as they were staged."""
        self._staging = staging
        self._pieces = pieces
        self._producer_id = producer_id
        self._next = 0
        self._position = pieces[0].first_offset if pieces else 0
        self._sequence = base_sequence

    @property
    def is_over(self) -> bool:
        return self._next >= len(self._pieces)

    def skip(self, records: int) -> None:
        """Leave out the first `records`, which end with a batch."""
        self._sequence = (self._sequence + records) & MAX_SEQUENCE
        while records and not self.is_over:
            left = self._pieces[self._next].next_offset - self._position
            if records < left:
                self._position += records
                return
            records -= left
            self._go_to(self._next + 1)

    def _go_to(self, number: int) -> None:
        self._next = number
        if not self.is_over:
            self._position = self._pieces[number].first_offset

    def take(self) -> Chunk:
        """The job that reads the next chunk. KafkaError, CorruptLogError, OSError when the log cannot be read."""
        chunk = Chunk(str(self._staging.tp), self._producer_id, self._position, self._sequence)
        room = CHUNK_BYTES
        position = self._position
        for number in range(self._next, len(self._pieces)):
            piece = self._pieces[number]
            if chunk.reads:
                if piece.bytes > room or len(chunk.reads) >= CHUNK_PIECES:
                    break
                position = piece.first_offset
            read = self._staging.read(position, min(piece.bytes, CHUNK_BYTES), 0)
            chunk.reads.append((list(read.parts), position, piece.next_offset))
            room -= piece.bytes
        return chunk

    def took(self, chunk: Chunk) -> None:
        """The job has run: go on after what it read."""
        self._sequence = chunk.sequence
        if chunk.finished:
            self._go_to(self._next + chunk.finished)
        if chunk.finished < len(chunk.reads):
            self._position = chunk.position
