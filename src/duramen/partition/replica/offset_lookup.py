"""Positions in a partition: offsets by time and by name, the ends of leader epochs, and raising the log start."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from duramen.errors import ErrorCode, FencedDirectoryError, KafkaError
from duramen.model import NO_EPOCH, NO_TIMESTAMP
from duramen.partition.replica.partition import Partition
from duramen.storage import TimeLookup, search_by_timestamp

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6


class OffsetAnswer(NamedTuple):
    """A position found by time: offset and leader epoch -1 when there is none."""

    offset: int
    timestamp: int
    leader_epoch: int


def list_offset(partition: Partition, timestamp: int, isolation: int | None) -> OffsetAnswer:
    """ListOffsets for one timestamp, special values included (-1 latest … -6, KIP-79, KIP-734, KIP-405).

    isolation None asks for a replica's view. (-1, -1, -1) when no record is that young. KafkaError
    OFFSET_NOT_AVAILABLE for the latest one behind a change of leader.
    """
    log = partition.log
    if is_lookup(timestamp):
        best = search_by_timestamp(partial(lookup, partition, timestamp, isolation))
        return OffsetAnswer(-1, NO_TIMESTAMP, NO_EPOCH) if best is None else OffsetAnswer(*best)
    if timestamp == LATEST:
        check_end_known(partition)
        return OffsetAnswer(partition.bound(isolation or 0), NO_TIMESTAMP, partition.replication.epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return OffsetAnswer(log.start_offset, NO_TIMESTAMP, _epoch_at(partition, log.start_offset))
    return OffsetAnswer(-1, NO_TIMESTAMP, NO_EPOCH)  # LATEST_TIERED, EARLIEST_PENDING_UPLOAD: nothing is tiered


def check_end_known(partition: Partition) -> None:
    """KafkaError OFFSET_NOT_AVAILABLE while a new leader does not know how far the one before had got (KIP-207)."""
    if partition.replication.may_be_behind:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{partition.tp}: what is committed is not all known yet")


def is_at_end(partition: Partition, offset: int, isolation: int) -> bool:
    """Whether a reader at `offset` has had all that it may see, and nothing else is to be told of that place."""
    return not partition.closed and offset == partition.bound(isolation) and offset >= partition.log.start_offset


def is_lookup(timestamp: int) -> bool:
    """Whether `list_offset` has to look into a batch for this timestamp."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def lookup(partition: Partition, timestamp: int, isolation: int | None, start: int = -1) -> TimeLookup:
    """The job behind `list_offset` for a timestamp that `is_lookup`; it reads and decodes, so run it off the loop.

    One that finds nothing may have a `rest`: then another is to be made with that as `start`.
    """
    bound = partition.bound(isolation or 0)
    if timestamp == MAX_TIMESTAMP:
        return partition.log.max_timestamp_lookup(bound)
    return partition.log.time_lookup(timestamp, bound, start)


def _epoch_at(partition: Partition, offset: int) -> int:
    """Leader epoch of the record at `offset`; where none is yet, the epoch it would be written in, as Kafka says."""
    if offset >= partition.log.end_offset:
        return partition.replication.epoch
    return partition.log.epochs.epoch_at(offset)


def epoch_end(partition: Partition, epoch: int) -> tuple[int, int]:
    """(largest epoch ≤ `epoch`, its end offset); (-1, -1) when it is none that was led yet (KIP-101, KIP-279).

    Nothing may have been written in an epoch that readers have positions of: the log knows epochs of records only.
    """
    current, known, end = partition.replication.epoch, partition.log.epochs.latest, partition.log.end_offset
    if not known < epoch < current:
        return (epoch, end) if epoch == current else partition.log.epochs.end_offset_for(epoch, end)
    return (epoch if known == NO_EPOCH else known), end


def divergence(partition: Partition, epoch: int, end: int) -> tuple[int, int] | None:
    """Where the history of a replica parts from this one, as (epoch, end offset) here; None: it is a part of this one.

    The replica's log ends at `end`, and its last record was written in `epoch` (-1: it has none). (-1, log start): it
    was written before anything that this log still knows of, so that nobody can tell, also where the replica ends just
    where this log starts. Raises KafkaError UNKNOWN_LEADER_EPOCH for an epoch that is not begun here.
    """
    if epoch == NO_EPOCH:
        return None
    if epoch > partition.replication.epoch:
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{partition.tp}: a replica has records of epoch {epoch}")
    if epoch < partition.log.epochs.first or partition.log.epochs.first == NO_EPOCH:
        return NO_EPOCH, partition.log.start_offset
    found, found_end = epoch_end(partition, epoch)
    return None if found == epoch and end <= found_end else (found, found_end)


def delete_records(partition: Partition, offset: int) -> int:
    """Raise the log start to `offset` (-1: the high watermark); returns the new log start (KIP-107).

    In a closed log not beyond the record that closed it, and with transaction ids not beyond the last record: a replica
    that begins with the log start is to find them.
    Durable with the journal's next group; the caller replies after that. Raises OFFSET_OUT_OF_RANGE, and
    OFFSET_NOT_AVAILABLE as `list_offset`.
    """
    high = partition.replication.high_watermark
    target = high if offset == -1 else offset
    if target < 0 or target > high:
        if target > high:
            check_end_known(partition)
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.tp}: cannot delete before {target}, the high watermark is {high}",
        )
    closed_at = partition.log.producers.closed_at
    if closed_at is not None:
        target = min(target, closed_at)
    elif partition.last_txid is not None:
        target = min(target, high - 1)
    try:
        if target > partition.log.start_offset:
            partition.log.advance_start(target)
            partition.touched()
    except FencedDirectoryError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    return partition.log.start_offset
