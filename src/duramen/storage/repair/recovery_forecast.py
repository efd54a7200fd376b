"""Forecast of a recovery: what the next start makes of a directory that was not stopped cleanly.

For `duramen log verify` and `repair`: what recovery writes anew or cuts off is no damage and no loss, however it looks.
Everything else is: what bypassed the journal is nowhere but in its segment.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from duramen.model import NO_TOPIC_ID, LogKey, TopicId, TopicPartition
from duramen.ports import Disk
from duramen.storage.checkpoint.expected_segments import ExpectedSegments
from duramen.storage.checkpoint.kafka_files import DirectoryCheckpoint, read_checkpoint
from duramen.storage.checkpoint.manifest import (
    deleted_here,
    is_outdated,
    journaled_ids,
    kept_ids,
    known_ids,
    named_segment,
)
from duramen.storage.journal.format import EntryKind
from duramen.storage.journal.point import Point
from duramen.storage.journal.reader import JournalContents
from duramen.storage.recovery.plan import PlannedWrite, RecoveryPlan, make_plans
from duramen.storage.segment.partition_metadata import is_damaged_id, parse_partition_name, read_topic_id
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.scan import crc_of
from duramen.storage.segment.segment import log_name


class RecoveryForecast(NamedTuple):
    """Of one log. plan: what recovery goes by; wanted: the segments that have to be there behind it."""

    plan: RecoveryPlan
    wanted: ExpectedSegments

    def missing(self, present: Iterable[int]) -> list[tuple[int, int]]:
        """First and last offset of each segment that is not there and that recovery does not make."""
        plan = self.plan
        there = {*present, *(base for base in plan.writes if plan.remakes(base))}
        # In front of the first batch that recovery writes everything has to be in a file.
        written = (write.offset for writes in plan.writes.values() for write in writes if not write.extent)
        synced = min(written, default=-1 if plan.end is None else plan.end.offset)
        found = self.wanted.missing(sorted(there), plan.start, synced)
        for base, writes in plan.writes.items():
            if writes and base not in there and base not in self.wanted.bases:
                end = plan.end.offset if plan.end is not None else base + 1
                following = min((each for each in (*there, *plan.writes) if each > base), default=end)
                if following > plan.start:
                    found.append((max(base, plan.start), following - 1))
        return sorted(found)

    def lost_extents(self, disk: Disk, directory: str) -> Iterator[tuple[str, PlannedWrite]]:
        """What bypassed the journal and is not in its segment any more: path of the segment, and its place. OSError."""
        for base, writes in self.plan.writes.items():
            path = posixpath.join(directory, log_name(base))
            extents = [write for write in writes if write.extent]
            if not extents or not disk.exists(path):
                continue
            file = disk.open(path)
            try:
                for write in extents:
                    found = crc_of(file, write.position, write.position + write.length)
                    if found < 0 or (write.crc is not None and found != write.crc):
                        yield path, write
            finally:
                file.close()

    def fills(self, base: int, size: int, first: int, last: int, present: Iterable[int]) -> bool:
        """Whether recovery fills the gap of offsets first..last in or behind the bytes of a segment, or cuts there.

        size: the byte from which these offsets are missing. present: the segments that are there, by base offset.
        """
        plan = self.plan
        between = [each for each, writes in plan.writes.items() if writes and first <= each <= last]
        if between:
            return all(map(plan.remakes, between))
        kept, following = plan.kept_to, last + 1
        is_dropped = following in present and kept is not None and first >= kept.offset
        return is_dropped or plan.replaces(base, size)

    @property
    def remakes_all(self) -> bool:
        """Whether recovery makes all of the log again where no segment is there."""
        return self.plan.replaces(0, 0) and all(map(self.plan.remakes, self.plan.writes))


def forecast_recovery(
    disk: Disk, path: str, journal: JournalContents, named: DirectoryOwners
) -> Mapping[LogKey, RecoveryForecast]:
    """By log, but for logs whose end is not known. named: see `directory_owners`. OSError."""
    if journal.generation < 0 or journal.damage is not None:
        return {}
    checkpoint = _believed(disk, path, journal)
    if checkpoint is None:
        plans = make_plans(journal.entries, {})
        for plan in plans.values():
            plan.accept_untold()
        return {
            key: RecoveryForecast(plan, ExpectedSegments())
            for key, plan in plans.items()
            if plan.created and not plan.deleted
        }
    found = {}
    for key, plan in make_plans(journal.entries, checkpoint.logs, checkpoint.checkpoint_lsn).items():
        listed = checkpoint.segments.get(key, ())
        if plan.end is not None and not plan.deleted:
            wanted = ExpectedSegments(listed or _only(plan, checkpoint.logs.get(key)), plan.cut, tuple(plan.merged))
            found[key] = RecoveryForecast(plan, wanted)
    for name in disk.list_directory(path):
        home = posixpath.join(path, name)
        there = owner_of(disk, home, named)
        if there is None:
            continue
        if there in found:
            plan, wanted = found[there]
            known = there in checkpoint.logs and not (plan.created or plan.truncated)
            found[there] = RecoveryForecast(plan, wanted.and_sealed(disk.list_directory(home), start_known=known))
        elif there not in checkpoint.logs:
            # It was only just being made: nothing in it was acknowledged.
            found[there] = RecoveryForecast(RecoveryPlan(there, end=Point(0, 0, 0)), ExpectedSegments())
    return found


def _only(plan: RecoveryPlan, point: LogPoint | None) -> tuple[int, ...]:
    """The segment of a log that had no other, by its checkpoint, where that still counts."""
    return () if plan.created or plan.truncated else named_segment(point)


def _believed(disk: Disk, path: str, journal: JournalContents) -> DirectoryCheckpoint | None:
    """The checkpoint that a recovery goes by."""
    checkpoint = read_checkpoint(disk, path)
    return None if checkpoint is None or is_outdated(disk, path, checkpoint, journal) else checkpoint


class DirectoryOwners(NamedTuple):
    """How a start tells whose a partition's directory is.

    restored: of these logs it writes the metadata file anew, whatever that says, unless it names one of `created`.
    by_name: of those without one that can be read, and of those of `created` where it names none that is `known`.
    """

    by_name: Mapping[TopicPartition, LogKey] = {}
    restored: Mapping[TopicPartition, LogKey] = {}
    created: frozenset[LogKey] = frozenset()
    known: frozenset[TopicId] = frozenset()


def directory_owners(disk: Disk, path: str, journal: JournalContents) -> DirectoryOwners:
    """Of a directory that was not stopped cleanly, whose journal this is, open. OSError."""
    if journal.damage is not None:
        return DirectoryOwners()
    checkpoint = _believed(disk, path, journal)
    created, deleted = (
        {(entry.topic_id, entry.partition) for entry in journal.entries if entry.kind == kind}
        for kind in (EntryKind.CREATE, EntryKind.DELETE)
    )
    gone = {*deleted_here(disk, path), *deleted}
    by_name = {tp: (topic_id, tp.partition) for tp, topic_id in journaled_ids(disk, path, journal).items()}
    by_name |= {tp: (topic_id, tp.partition) for tp, topic_id in kept_ids(disk, path, checkpoint, journal).items()}
    known = frozenset(known_ids(disk, path, checkpoint, journal.entries))
    restored = {}
    if checkpoint is not None:
        restored = {checkpoint.logs[key].tp: key for key in checkpoint.epochs if key not in gone}
    return DirectoryOwners(by_name, restored, frozenset(created), known)


def owner_of(disk: Disk, path: str, names: DirectoryOwners) -> LogKey | None:
    """Whose partition directory it is, by its metadata file, else its name; None where these do not tell. OSError."""
    tp = parse_partition_name(posixpath.basename(path))
    if tp is None:
        return None
    made, restored = names.by_name.get(tp), names.restored.get(tp)
    try:
        topic_id = read_topic_id(disk, path)
    except NotADirectoryError:
        return None
    found = made if topic_id == NO_TOPIC_ID else (topic_id, tp.partition)
    if restored is not None and found not in names.created and is_damaged_id(topic_id, restored[0], names.known):
        return restored
    return made if made in names.created and is_damaged_id(topic_id, made[0], names.known) else found


def synced_ends(disk: Disk, path: str, journal: JournalContents, named: DirectoryOwners) -> dict[TopicPartition, int]:
    """After a stop that was not clean: the offsets up to which logs must reach, since segments were synced so far.

    By the last checkpoint, and by what the journal says of batches that bypassed it, also of logs that are younger; of
    those that were cut since, up to there. Not those that were deleted, nor where a newer topic has the name by now.
    """
    checkpoint = _believed(disk, path, journal)
    known = {} if checkpoint is None else dict(checkpoint.logs)
    deleted: set[LogKey] = set()
    extents: dict[LogKey, int] = {}
    for entry in journal.entries:
        key = entry.topic_id, entry.partition
        if entry.kind == EntryKind.EXTENT:
            extents[key] = entry.next_offset
        elif entry.kind == EntryKind.DELETE:
            deleted.add(key)
        elif entry.kind == EntryKind.TRUNCATE:
            extents.pop(key, None)
            if key in known:
                reached = min(known[key].recovery_point, entry.offset)
                known[key] = known[key]._replace(recovery_point=reached)
        elif entry.kind == EntryKind.BEGIN and (checkpoint is None or entry.lsn >= checkpoint.checkpoint_lsn):
            extents.pop(key, None)
            if key in known:
                known[key] = known[key]._replace(recovery_point=0)
    ends = {}
    for name in disk.list_directory(path):
        tp = parse_partition_name(name)
        there = owner_of(disk, posixpath.join(path, name), named)
        if tp is None or there is None or there in deleted:
            continue
        point = known.get(there)
        if point is not None and point.tp == tp:
            ends[tp] = max(point.recovery_point, extents.get(there, -1))
        elif point is None and there in extents:
            ends[tp] = extents[there]
    gone = deleted | set(deleted_here(disk, path))
    told = {point.tp: (key, point.recovery_point) for key, point in known.items()}
    told |= {tp: (key, extents[key]) for tp, key in named.by_name.items() if key in extents}
    for tp, (key, end) in told.items():
        if key not in gone and end > 0 and not disk.exists(posixpath.join(path, str(tp))):
            ends[tp] = end
    return ends
