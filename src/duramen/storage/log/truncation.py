"""Truncation of one log: first memory and the journal, then, when the journal's entry is durable, the files.

What is known of producers is read again beside that, by a job. `directory/truncations.py` has what is under way in a
directory. A crash before the entry is durable finds the log as it was. The files are synced before anything journaled
after the truncation, so bytes that were cut off are never taken for those that came later.
"""

from __future__ import annotations

from duramen.errors import check
from duramen.model import NO_EPOCH
from duramen.storage.journal.format import EntryKind
from duramen.storage.log.log import Log
from duramen.storage.log.producer_rebuild import ProducerRebuild
from duramen.storage.log.segment_cut import PendingTruncation, SegmentCut, find_cut
from duramen.storage.segment.producer_state import AbortedTransaction
from duramen.storage.segment.segment import Segment


def truncate_log(log: Log, offset: int) -> None:
    """Remove everything from `offset` on (to the start of the batch that holds it); journaled.

    Files change when the entry is durable (`complete_truncation`), and what is known of producers is read again
    off the loop (`take_rebuild`). Until both is done appends are refused: KafkaError, retriable. CorruptLogError
    where the place cannot be found, OSError. At the end or above it only epochs go that have no record yet.
    """
    if offset >= log.end_offset:
        if log.epochs.latest_start >= log.end_offset:  # whoever led here then appended nothing: nobody knows it
            log.journal.admit(0)
            log.epochs.truncate_from_end(log.end_offset)
            log.journal_entry(EntryKind.EPOCH, log.end_offset, epoch=NO_EPOCH)
        return
    check(offset >= log.segments[0].base_offset, "a truncation stays inside the log")
    log.check_whole()
    log.journal.admit(0)
    log.flush()
    keep = len(log.segments)
    while keep > 1 and log.segments[keep - 1].base_offset >= offset:
        keep -= 1
    cut = find_cut(log.segments[keep - 1], offset, log.config.index_interval_bytes)
    aborted = cut.segment.aborted()
    log.reader.cutting(log.segments, offset)
    log.end_mark()
    log.pending_truncation = _truncate_memory(log, cut, aborted, log.segments[keep:])
    log.is_whole = False
    log.set_roll_time()
    log.journal_entry(EntryKind.TRUNCATE, log.end_offset)


def _truncate_memory(
    log: Log, cut: SegmentCut, aborted: list[AbortedTransaction], removed: list[Segment]
) -> PendingTruncation:
    """Forget the batches behind the cut; the files stay as they are. aborted: the cut segment's, until now."""
    active, end = cut.segment, cut.next_offset
    cut.apply()
    del log.segments[len(log.segments) - len(removed) :]
    log.active, log.end_offset = active, end
    kept = [entry for entry in aborted if entry.last_offset < end]
    gone = [*aborted, *(entry for segment in removed if segment.has_aborted for entry in segment.aborted())]
    is_unsynced = active.aborted_unsynced
    active.take_aborted(kept)
    active.aborted_unsynced = is_unsynced
    log.epochs.truncate_from_end(end)
    log.producers.cut(end, [entry.first_offset for entry in gone if entry.last_offset >= end])
    snapshots = log.snapshots
    # One that a start believed counts, too, though it is to be written again.
    log.rebuild_from = tuple(each for each in sorted({*snapshots.offsets, *snapshots.kept}) if each <= end)
    snapshots.kept = tuple(each for each in snapshots.kept if each <= end)
    log.truncations += 1
    log.durable_end = min(log.durable_end, end)
    if end <= log.recovery_point:
        log.recovery_point, log.recovery_position = end, cut.position
    log.start_offset = min(log.start_offset, end)
    return PendingTruncation(removed, active, cut.position, kept if len(kept) != len(aborted) else None)


def begin_anew(log: Log, offset: int, segment_base: int | None = None) -> None:
    """Drop everything, producers and epochs too: an empty log that starts and ends at `offset`; journaled. OSError.

    As with a truncation files change when that is durable, and appends are refused until then. segment_base: where
    the batch may begin that holds `offset`; None: nowhere in front of it.
    """
    log.check_cut()
    log.journal.admit(0)
    log.flush()  # an extent in the journal's group may speak of it
    base = offset if segment_base is None else min(offset, segment_base)
    removed, segment = log.segments, Segment(log.disk, log.path, base, log.open_files)
    for gone in removed:
        log.reader.dropped(gone)
    log.reader.forget()
    segment.activate()
    segment.next_offset = offset
    log.segments, log.active, log.marked = [segment], segment, False
    log.start_offset = log.end_offset = log.durable_end = log.recovery_point = offset
    log.recovery_position = log.unsnapshotted = 0
    log.epochs.truncate_from_end(0)
    log.epochs.changed = True
    log.producers.clear()
    log.snapshots.offsets = log.snapshots.kept = ()
    log.truncations += 1
    log.pending_truncation = PendingTruncation(removed, segment, 0, None, anew=True)
    log.is_whole, log.rebuild_from = False, None  # a rebuild under way is overtaken: there is nobody to know
    log.set_roll_time()
    log.journal_entry(EntryKind.BEGIN, offset)


def complete_truncation(log: Log) -> None:
    """The truncation's entry is durable: truncate the files. No appends before they are synced. OSError.

    Not while there are `writers`: what they know from before would appear after the truncation.
    """
    truncation = log.pending_truncation
    if truncation is None:
        return
    check(not log.writers, "a truncation waits for whoever writes beside the log")
    truncation.cut_files()
    log.snapshots.find_again()
    log.snapshots.drop_beyond(-1 if truncation.anew else log.end_offset)
    log.names_changed = True
    log.pending_truncation = None
    log.is_whole = log.rebuild_from is None


def take_rebuild(log: Log) -> ProducerRebuild | None:
    """The job that reads what is known of producers after a truncation; None when they are known."""
    return None if log.rebuild_from is None else ProducerRebuild(log, log.rebuild_from)


def complete_rebuild(log: Log, job: ProducerRebuild) -> bool:
    """The job has run; False where it was overtaken, and another one is wanted."""
    if job.overtaken:
        return False
    log.producers.take_over(job.found)
    log.rebuild_from = None
    log.is_whole = log.pending_truncation is None
    return True
