"""What a follower does to its log: it appends what its leader has, as it is there."""

from __future__ import annotations

from duramen.errors import ErrorCode, KafkaError
from duramen.ports import Buffer
from duramen.storage.log.log import Log
from duramen.storage.segment.segment import MAX_RELATIVE
from duramen.wire.batch import BatchHeader


def append_as_follower(log: Log, data: Buffer, header: BatchHeader, now_ms: int) -> int:
    """Queue a batch as its leader has it, offsets and epoch as they are in it; returns and raises as `Log.append` does.

    Its length and CRC have been checked. Behind the log end offsets may be missing: compaction took what the leader had
    there. The first batch of an empty log may begin in front of the start that it holds, but not of the segment (see
    `starts_before`). KafkaError INVALID_RECORD for what can follow in no history, or in no index: it begins below the
    end, its epoch falls, it is too far away.
    """
    offset, epoch = header.base_offset, header.leader_epoch
    is_first = is_empty(log) and log.active.base_offset <= offset and header.next_offset > log.end_offset
    if (offset < log.end_offset and not is_first) or header.last_offset_delta < 0:
        reason = f"the log ends at {log.end_offset}"
    elif epoch < log.epochs.latest:
        reason = f"the log is in epoch {log.epochs.latest}"
    elif header.last_offset - (log.end_offset if log.active.size else log.active.base_offset) > MAX_RELATIVE:
        reason = f"no segment that begins at {log.end_offset} goes so far"
    else:
        return log.append(data, header, now_ms)
    what = f"{log.tp}: a batch at {offset} of epoch {epoch} cannot be appended as a follower: {reason}"
    raise KafkaError(ErrorCode.INVALID_RECORD, what)


def starts_before(log: Log, header: BatchHeader) -> bool:
    """Whether this batch holds the start of the empty log, and begins in front of the log's segment.

    DeleteRecords has moved the leader's start into it. `LogDirectory.begin_anew` at the same start, with the batch's
    base offset as `segment_base`, makes a place for it.
    """
    return is_empty(log) and header.base_offset < log.active.base_offset and header.next_offset > log.start_offset


def is_empty(log: Log) -> bool:
    """Whether there is no batch in it, and none below its start either."""
    return not log.active.size and len(log.segments) == 1
