"""Where a reader goes on: positions of every kind to offsets, and offsets to DLSNs, which name one record for ever.

A `PositionLookup` is a generator: it yields what the partition's leader has to be asked, is sent the answers, and
returns the place. Who runs it has the connections (`blocking/position_lookup.py`, `aio/async_position_lookup.py`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple, TypeVar

from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import EARLIEST, LATEST, ListedOffset
from duramen.dlsn import BEFORE_FIRST, FIRST, Dlsn, dlsn_at
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.wire.batch import BatchHeader, parse_header

_T = TypeVar("_T")
_ATTEMPTS: Final = 5
_OLD_LEADER_S: Final = 5.0
"""By then a leader that is none any more has heard so, or its session (3 s, decision 0020) has ended."""


class AtOffset(NamedTuple):
    """From an offset on; EARLIEST and LATEST (list_offsets) are its ends."""

    offset: int


class AtTime(NamedTuple):
    """From the first record with this timestamp or a later one: ms since 1970, or a transaction id."""

    timestamp: int


Position = Dlsn | AtOffset | AtTime


class LogPlace(NamedTuple):
    """Where to read on: at `offset`. dlsn: of what is there, or after the last record; FIRST where there was none.

    is_end: nothing has been written there yet. start, end: first offset, and the one after the last, when asked.
    """

    offset: int
    dlsn: Dlsn
    is_end: bool
    start: int
    end: int


class PositionError(DuramenError):
    """A position from which nobody can read on."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class BelowStartError(PositionError):
    """The position lies below the start of the log. first: the first place there is."""

    def __init__(self, position: Dlsn | int, first: LogPlace) -> None:
        super().__init__(f"{position} was truncated: the log begins at {first.dlsn} (offset {first.offset})")
        self.first = first


class DlsnDivergedError(PositionError):
    """The record that a DLSN names is not stored: another is in its place, or nothing any more."""

    def __init__(self, position: Dlsn, found: str) -> None:
        super().__init__(f"{position} is of another history: {found}")


def check_later_leader(error: KafkaError, wanted: Position, replicas: int, waited_s: float) -> None:
    """After a refusal by `find_place`: returns where it is to be tried again, with the leader that is known by then.

    UNKNOWN_LEADER_EPOCH says that the position is of a later leader than the one that was asked. DlsnDivergedError
    where that was no old leader: there is one replica alone, or an old one would know by now. Other errors are raised.
    """
    if error.code is not ErrorCode.UNKNOWN_LEADER_EPOCH or not isinstance(wanted, Dlsn):
        raise error
    if replicas <= 1 or waited_s >= _OLD_LEADER_S:
        raise DlsnDivergedError(wanted, "there was no such leader") from error


class OffsetQuestion(NamedTuple):
    """ListOffsets for a timestamp, EARLIEST or LATEST; the answer is a ListedOffset."""

    timestamp: int


class BatchQuestion(NamedTuple):
    """A Fetch of one batch, without waiting; the answer is FetchedBytes, None where the offset is out of range."""

    offset: int


Question = OffsetQuestion | BatchQuestion
PositionLookup = Generator[Question, ListedOffset | FetchedBytes | None, _T]


class _MovedError(Exception):
    """The log start has passed what was to be looked at."""


class _Log(NamedTuple):
    """How the log stood: its offsets, and the epoch in which it was led."""

    start: int
    end: int
    leader_epoch: int


def find_place(wanted: Position) -> PositionLookup[LogPlace]:
    """The place of a position. BelowStartError, DlsnDivergedError; KafkaError OFFSET_OUT_OF_RANGE for an offset
    above the end, UNKNOWN_LEADER_EPOCH (`check_later_leader`) where an older leader than the position's was asked;
    ValueError for a DLSN that is no position.

    DLSNs up to FIRST stand for the beginning: whatever is there, it is checked only that nothing was truncated. Where
    compaction has removed a record, the place is that of the next one, in the DLSN's epoch or a later one.
    """
    if isinstance(wanted, Dlsn) and wanted != BEFORE_FIRST and not wanted.is_record:
        raise ValueError(f"{tuple(wanted)} is no position")
    for _ in range(_ATTEMPTS):
        try:
            return (yield from _find(wanted))
        except _MovedError:
            continue
    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{wanted}: the log start moves faster than it can be found")


def _find(wanted: Position) -> PositionLookup[LogPlace]:
    start = (yield from _ask_offset(EARLIEST)).offset
    latest = yield from _ask_offset(LATEST)
    log = _Log(start, latest.offset, latest.leader_epoch)
    if isinstance(wanted, AtTime):
        found = (yield from _ask_offset(wanted.timestamp)).offset
        return (yield from _place(log.end if found < 0 else min(found, log.end), log))
    if isinstance(wanted, AtOffset):
        return (yield from _at_offset(wanted.offset, log))
    return (yield from _at_dlsn(wanted, log))


def _at_offset(offset: int, log: _Log) -> PositionLookup[LogPlace]:
    if offset in (EARLIEST, LATEST):
        return (yield from _place(log.start if offset == EARLIEST else log.end, log))
    if offset < log.start:
        raise BelowStartError(offset, (yield from _place(log.start, log)))
    if offset > log.end:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the end, {log.end}")
    return (yield from _place(offset, log))


def _at_dlsn(dlsn: Dlsn, log: _Log) -> PositionLookup[LogPlace]:
    offset = max(dlsn.offset, 0)
    if offset < log.start:
        raise BelowStartError(dlsn, (yield from _place(log.start, log)))
    if dlsn > FIRST:
        yield from _check(dlsn, log)
    return (yield from _place(offset, log))


def _check(dlsn: Dlsn, log: _Log) -> PositionLookup[None]:
    """DlsnDivergedError unless the log has the batch that the DLSN names, or had it in front of its start.

    KafkaError UNKNOWN_LEADER_EPOCH where a leader was asked that is none any more, and does not know it: it lacks what
    later ones have.

    A DLSN above slot 0 may be after the last record of its batch: so the record before it has to be of that batch.
    """
    offset = dlsn.offset
    if 0 <= log.leader_epoch < dlsn.leader_epoch:
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{dlsn} is of a later leader than the one that was asked")
    if offset > log.end or (offset == log.end and dlsn.slot == 0):
        raise DlsnDivergedError(dlsn, f"the log ends at offset {log.end}")
    probe = offset - 1 if dlsn.slot and offset > log.start else offset
    header = yield from _ask_batch(probe, log.end)
    if header is None:
        return  # after a batch that was truncated, and nothing has come since
    if header.base_offset == dlsn.entry and header.leader_epoch == dlsn.leader_epoch:
        return
    is_gone = header.base_offset > probe or (header.base_offset == offset == log.start and dlsn.slot > 0)
    if is_gone and header.leader_epoch >= dlsn.leader_epoch:
        return  # compacted away, or in front of the start
    found = dlsn_at(probe, header.base_offset, header.leader_epoch)
    raise DlsnDivergedError(dlsn, f"offset {probe} is {found}")


def _place(offset: int, log: _Log) -> PositionLookup[LogPlace]:
    if offset < log.end:
        header = yield from _ask_batch(offset, log.end)
        if header is not None:
            at = max(offset, header.base_offset)
            return LogPlace(at, dlsn_at(at, header.base_offset, header.leader_epoch), False, log.start, log.end)
    last = (yield from _ask_batch(log.end - 1, log.end)) if log.end > log.start else None
    if last is not None:
        following = dlsn_at(log.end, min(last.base_offset, log.end), last.leader_epoch)
    else:
        following = dlsn_at(log.end, log.end - 1, log.leader_epoch) if log.end else FIRST
    return LogPlace(log.end, following, True, log.start, log.end)


def _ask_offset(timestamp: int) -> PositionLookup[ListedOffset]:
    answer = yield OffsetQuestion(timestamp)
    assert isinstance(answer, ListedOffset)
    return answer


def _ask_batch(offset: int, end: int) -> PositionLookup[BatchHeader | None]:
    """The header of the batch that holds the offset, or of the first one after it; None where there is none."""
    if offset >= end:
        return None
    answer = yield BatchQuestion(offset)
    if answer is None:
        raise _MovedError
    assert isinstance(answer, FetchedBytes)
    return parse_header(answer.data) if answer.data else None
