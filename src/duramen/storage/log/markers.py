"""Transaction markers of logs whose batches are not journaled: they are all the same."""

from __future__ import annotations

from duramen.errors import check
from duramen.storage.journal.format import EntryKind
from duramen.storage.log.log import Log
from duramen.wire.batch import parse_header


def journal_marker(log: Log, data: bytes) -> int:
    """Journal the batch that was just appended, a marker: a start finds it there should a power cut take it from the
    segment. Returns its LSN. Not where the log has other copies: the start's would be at another offset than theirs.
    """
    check(not log.stable, "a stable log's batches are journaled")
    active, header = log.active, parse_header(data)
    position = active.size - len(data)
    return log.journal.append(
        EntryKind.MARKER, log, header.base_offset, header.leader_epoch, active.base_offset, position, data
    )
