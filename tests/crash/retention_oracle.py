"""How far retention may move a log start, by the ledger: what was written and when, not what the engine knows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from tests.crash.promises import LogPromise

from duramen.storage.log.log import Log
from duramen.wire.batch import parse_header


def allowed_start(
    log: Log, promise: LogPromise, now_ms: int, stored_ms: Mapping[bytes, int], leased: Iterable[int] = ()
) -> int:
    """The highest start that the log may get now: its own, if nothing may go.

    A batch may go when `retention.bytes` are left behind it, or it is older than `retention.ms`. Without timestamps it
    is as old as `stored_ms` says, unless others in its segment have some: then they say it. leased: offsets in use.
    """
    start, config = log.start_offset, log.config
    expires = "delete" in config.cleanup_policy
    retention_ms, retention_bytes = (config.retention_ms, config.retention_bytes) if expires else (-1, -1)
    if promise.compacted or max(retention_ms, retention_bytes) < 0 or not log.is_whole:
        return start
    written = sorted(promise.history(start, log.end_offset).items())
    bases = [segment.base_offset for segment in log.segments]
    dated = {bisect_right(bases, base) for base, data in written if parse_header(data).max_timestamp >= 0}
    if bases[0] < start and start not in bases:
        # What was deleted, and is in the start's segment yet, counts there; the ledger need not know it any more.
        dated.add(bisect_right(bases, start))
    behind = sum(len(data) for _, data in written)
    allowed = start
    for base, data in written:
        header = parse_header(data)
        behind -= len(data)
        age_ms = now_ms - (header.max_timestamp if header.max_timestamp >= 0 else stored_ms.get(data, now_ms))
        expired = age_ms > retention_ms or (header.max_timestamp < 0 and bisect_right(bases, base) in dated)
        if not (0 <= retention_bytes <= behind or (expired and retention_ms >= 0)):
            break
        allowed = header.next_offset
    return max(start, min([allowed, log.durable_end, *leased]))
