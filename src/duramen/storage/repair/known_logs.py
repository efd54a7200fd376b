"""What a data directory says of its logs beside their segments: `log verify` and `log repair` judge by the same."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from duramen.errors import StorageError
from duramen.model import METADATA_TOPIC, LogKey, TopicId, TopicPartition
from duramen.ports import Disk
from duramen.storage.checkpoint.clean_shutdown import kafka_was_here
from duramen.storage.checkpoint.expected_segments import NOTHING_EXPECTED, ExpectedSegments, reach
from duramen.storage.checkpoint.kafka_files import (
    CLEAN_SHUTDOWN,
    LOG_START,
    RECOVERY_POINT,
    DirectoryCheckpoint,
    read_checkpoint,
    read_offsets,
)
from duramen.storage.checkpoint.loss_record import is_loss_recorded
from duramen.storage.checkpoint.manifest import (
    checkpoint_of_stop,
    held_journal,
    is_outdated,
    kept_ids,
    listed_segments,
    missing_segments,
)
from duramen.storage.checkpoint.metadata_snapshot import damaged_snapshots, parse_snapshot_name
from duramen.storage.checkpoint.partition_ids import refused_homes
from duramen.storage.journal.reader import JournalContents
from duramen.storage.recovery.startup import refuse_earlier_stop, refuse_half_done
from duramen.storage.repair.interrupted_replacement import InterruptedReplacement, as_finished
from duramen.storage.repair.journal_reset import identity
from duramen.storage.repair.overlay_disk import without_files
from duramen.storage.repair.recovery_forecast import (
    DirectoryOwners,
    RecoveryForecast,
    directory_owners,
    forecast_recovery,
    owner_of,
    synced_ends,
)
from duramen.storage.segment.partition_metadata import parse_partition_name
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.replacement import strays
from duramen.storage.segment.scan import NO_END, NO_LIMIT, Limit
from duramen.storage.segment.segment import parse_base

NO_SNAPSHOT = "no snapshot beside the log holds what came before it"


class KnownLog(NamedTuple):
    """Of one log. end_offset: by the last clean stop; least_end: what it must reach after another; None, 0: unknown.

    start_offset: the first that readers see. point: what the checkpoint of a clean stop of ours says; foretold: what
    the recovery that is still to come makes of it. wanted: the segments on that stop's list; None: see
    `listed_segments`. placed: base and end offsets of damaged compacted segments that are taken for the log's.
    """

    start_offset: int = 0
    end_offset: int | None = None
    least_end: int = 0
    point: LogPoint | None = None
    forecast: RecoveryForecast | None = None
    wanted: ExpectedSegments | None = NOTHING_EXPECTED
    placed: Sequence[tuple[int, int]] = ()

    def missing(self, names: Sequence[str]) -> list[tuple[int, int]]:
        """First and last offset of each segment that must be there and is not among its directory's names."""
        if self.forecast is None:
            gone = missing_segments(names, self.wanted, self.point)
        else:
            gone = self.forecast.missing(base for base in map(parse_base, names) if base is not None)
        return [each for each in gone if not any(base <= each[0] and each[1] < end for base, end in self.placed)]

    def limit(self, base: int) -> Limit:
        """For a segment, by base offset."""
        if self.forecast is None:
            is_active = self.point is not None and self.point.segment_base == base
            position = self.point.position if self.point is not None and is_active else NO_END
            return NO_LIMIT if self.end_offset is None else Limit(position, self.end_offset)
        plan = self.forecast.plan
        kept = plan.kept_to
        if kept is None or plan.is_least or plan.is_dropped(base) or base > kept.segment_base:
            return NO_LIMIT
        return Limit(NO_END if base < kept.segment_base else kept.position, kept.offset)

    @property
    def listed(self) -> ExpectedSegments:
        """The segments that must be there."""
        return (self.wanted or NOTHING_EXPECTED) if self.forecast is None else self.forecast.wanted

    @property
    def merged(self) -> Sequence[tuple[int, int]]:
        """(first base, end offset) of groups of segments, by the journal's SWAP entries."""
        return () if self.forecast is None else self.forecast.plan.merged

    def after_start(self, disk: Disk, home: str) -> Disk:
        """The disk, to be read from, with compactions at their end that a start finishes. OSError."""
        return disk if self.forecast is None else as_finished(disk, home, self.merged)

    def once(self, swaps: Sequence[InterruptedReplacement], disk: Disk, home: str) -> KnownLog:
        """The same with these in place, as `disk` shows the partition directory `home`. OSError."""
        forecast = self.forecast
        if forecast is not None and disk.exists(home):
            unplaced = [posixpath.join(home, name) for name in strays(disk, home, self.merged, clean=False)]
            wanted = forecast.wanted.and_unmerged(without_files(disk, unplaced), home, settled=False)
            forecast = forecast._replace(wanted=wanted)
        placed = [(swap.base, min(swap.end, reach(disk, home, swap.base))) for swap in swaps]
        return self._replace(placed=placed, forecast=forecast)

    def end(self, found: int) -> int:
        """The log's end behind the start, where its segments end with `found` now."""
        if self.forecast is None or self.forecast.plan.end is None:
            return found if self.end_offset is None else self.end_offset
        plan_end = self.forecast.plan.end.offset
        return plan_end if self.forecast.plan.accept_from is None else max(plan_end, found)

    def next_written(self, offset: int, end: int) -> int:
        """The first offset behind this one that the recovery writes into its segment; `end` without one."""
        plan = None if self.forecast is None else self.forecast.plan
        writes = () if plan is None else (write for each in plan.writes.values() for write in each)
        return min((write.offset for write in writes if write.offset > offset and not write.extent), default=end)


class KnownLogs(NamedTuple):
    """Of a directory. checkpoint: of our clean stop, if that was the last one and is to be believed; points: in it.

    ids: topic ids by name, by our last checkpoint. refused: partition directories for whose sake a start refuses.
    """

    clean: bool
    checkpoint: DirectoryCheckpoint | None
    points: Mapping[TopicPartition, LogPoint]
    listed: Mapping[TopicPartition, ExpectedSegments] | None
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    least_ends: Mapping[TopicPartition, int]
    forecast: Mapping[LogKey, RecoveryForecast]
    named: DirectoryOwners
    ids: Mapping[TopicPartition, TopicId]
    refused: Mapping[str, str]

    def log(self, disk: Disk, directory: str, name: str) -> KnownLog:
        """Of the log in a partition's directory of that name. OSError."""
        tp = parse_partition_name(name)
        if tp is None:
            return KnownLog()
        home = posixpath.join(directory, name)
        key = owner_of(disk, home, self.named)
        forecast = None if key is None else self.forecast.get(key)
        if forecast is not None and not forecast.plan.entries and not disk.exists(home):
            forecast = None  # a start makes it anew only where the journal has something of it
        start = self.starts.get(tp, 0) if forecast is None else forecast.plan.start
        wanted = None if self.listed is None else self.listed.get(tp, NOTHING_EXPECTED)
        ends = self.ends.get(tp), self.least_ends.get(tp, 0)
        return KnownLog(start, *ends, self.points.get(tp), forecast, wanted)

    def absent(self, disk: Disk, directory: str) -> list[str]:
        """Names of the partitions that must be there, and whose directories are gone. OSError."""
        ends = {**self.least_ends, **self.ends} if self.clean else self.least_ends
        known = set() if self.checkpoint is None else {point.tp for point in self.checkpoint.logs.values()}
        return [
            str(tp)
            for tp, end in sorted(ends.items())
            if end > 0 and (tp in known or not self.clean) and not disk.exists(posixpath.join(directory, str(tp)))
        ]


def repairable(disk: Disk, path: str) -> KnownLogs:
    """What a data directory says of its logs, before a repair. The caller has the lock. OSError.

    StorageError when it is none, when another repair has to be finished, or when the journal itself is damaged.
    """
    identity(disk, path)
    refuse_half_done(disk, path)
    with closing(held_journal(disk, path)) as journal:
        refuse_earlier_stop(disk, path, journal)
        known = known_logs(disk, path, journal)
    if not known.clean and journal.damage is not None:
        raise StorageError(
            f"{path}: the journal itself is damaged ({journal.damage}). Acknowledged records in it may exist "
            "nowhere else; look for a copy of the file. To go on with what the segments hold, use --journal: it "
            "puts the journal aside and says what may be missing"
        )
    return known


def lost_beginning(disk: Disk, directory: str, name: str, begin: int, end: int) -> bool:
    """Whether nothing holds what was below offset `begin` of the metadata log, and no repair has listed that. OSError.

    begin, end: of the log. A start refuses then. Not of other logs: of those nothing has to be kept.
    """
    home = posixpath.join(directory, name)
    if name != str(TopicPartition(METADATA_TOPIC, 0)) or begin <= 0:
        return False
    if is_loss_recorded(disk, directory, name, 0, begin - 1):
        return False
    if not disk.exists(home):
        return True
    damaged = {posixpath.basename(error.path) for error in damaged_snapshots(disk, home)}
    whole = map(parse_snapshot_name, set(disk.list_directory(home)) - damaged)
    return not any(snapshot is not None and begin <= snapshot.offset <= end for snapshot in whole)


def believed_checkpoint(disk: Disk, path: str, journal: JournalContents) -> DirectoryCheckpoint | None:
    """The checkpoint that the next start goes by; None where it is lost, or older than another stop. OSError."""
    checkpoint = read_checkpoint(disk, path)
    if checkpoint is None or is_outdated(disk, path, checkpoint, journal) or kafka_was_here(disk, path):
        return None
    return checkpoint


def known_logs(disk: Disk, path: str, journal: JournalContents) -> KnownLogs:
    """Reads the small files of a data directory, whose journal this is, open. OSError."""
    clean = disk.exists(posixpath.join(path, CLEAN_SHUTDOWN))
    checkpoint = checkpoint_of_stop(disk, path)
    points = {} if checkpoint is None else {point.tp: point for point in checkpoint.logs.values()}
    ends: Mapping[TopicPartition, int] = {}
    least_ends: Mapping[TopicPartition, int] = {}
    if checkpoint is not None:
        ends = {tp: point.recovery_point for tp, point in points.items() if not point.is_least}
        least_ends = {tp: point.recovery_point for tp, point in points.items() if point.is_least}
    elif clean:
        ends = read_offsets(disk, posixpath.join(path, RECOVERY_POINT))
    forecast: Mapping[LogKey, RecoveryForecast] = {}
    named = DirectoryOwners()
    if not clean:  # then only its recovery tells the ends
        named = directory_owners(disk, path, journal)
        least_ends = synced_ends(disk, path, journal, named)
        forecast = forecast_recovery(disk, path, journal, named)
    to_believe = believed_checkpoint(disk, path, journal)
    believed = checkpoint if clean else to_believe
    if believed is None:
        starts = read_offsets(disk, posixpath.join(path, LOG_START))
    else:
        starts = {point.tp: point.start_offset for point in believed.logs.values()}
    listed = listed_segments(disk, path, checkpoint)
    ids = kept_ids(disk, path, to_believe, journal)
    refused = refused_homes(disk, path, journal, to_believe)
    return KnownLogs(clean, checkpoint, points, listed, starts, ends, least_ends, forecast, named, ids, refused)
