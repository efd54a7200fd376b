"""How a log becomes durable in its segments: what a sync takes along, and what is known when it has run.

The job itself is in `log/sync.py`. What makes a stable topic's appends durable before that is the journal.
"""

from __future__ import annotations

from duramen.storage.files.sync_history import to_sync
from duramen.storage.journal.format import EntryKind
from duramen.storage.log.config import LogConfig
from duramen.storage.log.log import Log
from duramen.storage.log.sidecars import account_sidecars, collect_sidecars
from duramen.storage.log.sync import GrowingSegment, SyncChain, SyncJob
from duramen.storage.segment.segment import INDEX, TIME_INDEX, TXN_INDEX

SNAPSHOT_BYTES = 16 << 20
"""Appended bytes after which a checkpoint writes the producers too, so that an open has little to replay."""


def configure_log(log: Log, config: LogConfig) -> None:
    """Take over a changed topic configuration. A change of durability is journaled.

    To stable: the segments are synced here first, because recovery trusts everything before that entry. To
    page-cache: batches still under way to the journal are acknowledged behind the mark that follows them. OSError.
    """
    log.check_whole()
    stable = log.stable
    log.take_over(config)
    if log.stable != stable:
        log.marked = not log.stable and log.durable_end < log.end_offset
        if log.stable:
            log.names_changed = True  # a job that waits for its lane may have taken them upon itself
            if (sync := take_sync(log)) is not None:
                sync.run()
                complete_sync(log, sync)
            log.mark_durable(log.end_offset)
            log.journal_entry(EntryKind.DURABILITY, log.end_offset, b"stable")
        elif log.marked:
            log.journal_entry(EntryKind.DURABILITY, log.end_offset)


def take_sync(log: Log, full: bool = False) -> SyncJob | None:
    """The job that makes everything appended so far durable in the segments; None when it is already."""
    if log.pending_truncation is not None:
        return None  # the files are about to change, and no checkpoint takes them for synced
    log.flush()
    unsynced = [segment for segment in log.segments if segment.synced < segment.size]
    aborted = [segment for segment in log.segments if segment.aborted_unsynced]
    if not (unsynced or full or log.names_changed or log.epochs.changed or aborted):
        return None
    snapshot = log.rebuild_from is None and (full or log.unsnapshotted > SNAPSHOT_BYTES)
    if snapshot:
        log.unsnapshotted = 0
    sidecars = collect_sidecars(log, final=full, full=snapshot, synced=full)
    if log.syncs is None:
        log.syncs = SyncChain()
    if sidecars.snapshot >= 0:
        log.syncs.snapshot = sidecars.snapshot
    active = log.active
    segments = [(segment, to_sync(segment), segment.size) for segment in unsynced]
    indexes: list[str] = []
    if full and active.index is not None:  # by a checkpoint or a start, which do not sync them
        writes = {each.path for each in sidecars.writes}
        indexes = [path for path in map(active.path_of, (INDEX, TIME_INDEX)) if path not in writes]
    growing: list[GrowingSegment] = []
    if any(segment is active for segment in unsynced) or (full and active.size):
        written = {} if active.written_sums is None else active.written_sums.take()
        growing = [GrowingSegment(active, active.open_file(), active.size, written)]
    for segment in aborted:
        segment.aborted_unsynced = False
    job = SyncJob(
        log, log.disk, log.path, log.syncs, log.truncations,
        end_offset=log.end_offset, segment_base=active.base_offset, position=active.size, segments=segments,
        sidecars=sidecars, growing=growing, indexes=indexes, aborted=aborted,
        transactions=[segment.path_of(TXN_INDEX) for segment in aborted],
        names_changed=log.names_changed or sidecars.snapshot >= 0 or bool(aborted), full=full,
    )  # fmt: skip
    log.names_changed = False
    log.epochs.changed = False
    log.writers[job] = None
    return job


def complete_sync(log: Log, job: SyncJob) -> None:
    """The job has run: recovery starts behind it, and a page-cache log is durable up to there. OSError.

    Not where the log was truncated meanwhile: its files are truncated after this, and what was written beside them
    of the old history goes with that.
    """
    log.writers.pop(job, None)
    if job.chain.snapshot == job.sidecars.snapshot:
        job.chain.snapshot = -1
    if job.truncations != log.truncations:
        return
    for growing in job.growing:
        growing.segment.seal = None
    account_sidecars(log, job.sidecars)
    epochs = job.sidecars.epochs
    if epochs is not None and epochs != log.epochs.encode():
        log.epochs.changed = True  # a job that was taken later may have written newer ones before
    for segment, _, size in job.segments:
        segment.synced = max(segment.synced, size)
    if job.end_offset >= log.recovery_point:
        log.recovery_point, log.recovery_position = job.end_offset, job.position
    if not log.stable:
        log.mark_durable(job.end_offset)


def give_back_sync(log: Log, job: SyncJob) -> None:
    """A side file found no room, no sync has failed: the next job has everything to do that this one had."""
    log.writers.pop(job, None)
    log.syncs = None  # those that were taken before this fail, too, and give back what they have
    log.names_changed = log.names_changed or job.names_changed
    log.epochs.changed = log.epochs.changed or job.sidecars.epochs is not None
    for segment in job.aborted:
        segment.aborted_unsynced = True
    if job.stored and job.truncations == log.truncations:
        log.names_changed = True  # or there would be no next job
        for segment, _, size in job.segments:
            segment.synced = max(segment.synced, size)


def writes_snapshot(log: Log) -> bool:
    """Whether a job that was taken writes a producer snapshot at the end the log has, or may still do so."""
    offset = -1 if log.syncs is None else log.syncs.snapshot
    return offset == log.end_offset and offset not in log.snapshots.offsets
