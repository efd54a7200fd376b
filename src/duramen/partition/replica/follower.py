"""What a replica that does not lead does to its log: it takes what its leader sends, and cuts what its leader lacks.

When, is decided by `machines/replication/follower.py`; offsets and epochs of batches stay as they are in them.
"""

from __future__ import annotations

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.partition import Partition
from duramen.storage import LogDirectory, NoRoomError, append_as_follower, starts_before
from duramen.wire.batch import CRC_START, BatchHeader, parse_header
from duramen.wire.checksum import crc32c


class FollowerLog:
    """A partition's log as the machine reads it."""

    __slots__ = ("_log", "_partition")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._log = partition.log

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def latest_epoch(self) -> int:
        return self._log.epochs.latest

    @property
    def latest_epoch_start(self) -> int:
        return self._log.epochs.latest_start

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """See FollowedLog."""
        return self._log.epochs.end_offset_for(epoch, self._log.end_offset)


def append_batches(
    partition: Partition, directory: LogDirectory, records: memoryview, epoch: int, now_ms: int, most: int
) -> tuple[int, int]:
    """Append whole batches of an answer of the leader of `epoch`, so many at most; returns their bytes, and how many.

    Fewer bytes than all: there were more batches, or the log is not whole. KafkaError CORRUPT_MESSAGE with its place
    for one that is damaged, INVALID_RECORD for what cannot follow; what comes before it is appended. KafkaError,
    retriable, OSError: as `Log.append`. `records` must not change until they are written.
    """
    log = partition.log
    position, end, count = 0, len(records), 0
    try:
        while position < end and count < most:
            header = _parsed(partition, records, position)
            batch = records[position : position + header.size]
            if crc32c(batch[CRC_START:]) != header.crc:
                raise _damaged(partition, header.base_offset, "its CRC does not match its bytes")
            if header.leader_epoch > epoch:
                reason = f"a batch at {header.base_offset} of epoch {header.leader_epoch}, and the leader's is {epoch}"
                raise KafkaError(ErrorCode.INVALID_RECORD, f"{partition.tp}: {reason}")
            if starts_before(log, header):
                # DeleteRecords moved the leader's start into it; the answer that has it comes once more.
                partition.begin_anew(directory, log.start_offset, header.base_offset)
                break
            append_as_follower(log, batch, header, now_ms)
            position += header.size
            count += 1
    finally:
        if count:
            partition.touched()
    return position, count


def _parsed(partition: Partition, records: memoryview, position: int) -> BatchHeader:
    try:
        header = parse_header(records, position)
    except KafkaError as error:
        raise _damaged(partition, partition.log_end_offset, str(error)) from error
    if header.size > len(records) - position:
        cut_off = f"it is {header.size} bytes long, of which {len(records) - position} came"
        raise _damaged(partition, header.base_offset, cut_off)
    return header


def _damaged(partition: Partition, offset: int, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{partition.tp}: the batch at {offset} came damaged: {reason}")


def cut(partition: Partition, directory: LogDirectory, offset: int) -> None:
    """Remove everything from `offset` on, the watermark with it where that is above; see `truncate_log`.

    KafkaError, retriable, CorruptLogError, NoRoomError: nothing has changed. Any other OSError: the directory is
    fenced.
    """
    committed = partition.high_watermark
    if offset < partition.log.segments[0].base_offset:
        partition.begin_anew(directory, offset)  # all that is here lies after the place where they part
        return
    try:
        partition.truncate_to(offset)
    except OSError as error:
        if not isinstance(error, NoRoomError):
            directory.journal.fail(None, error)
        raise
    end = partition.log_end_offset
    if end < committed:
        partition.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.tp} was cut at {end}"))


def follow_start(partition: Partition, leader_start: int) -> bool:
    """The log start follows the leader's, up to the watermark; whether it moved. KafkaError, retriable, OSError."""
    offset = min(leader_start, partition.high_watermark)
    if offset <= partition.log_start_offset:
        return False
    partition.log.advance_start(offset)
    partition.touched()
    return True
