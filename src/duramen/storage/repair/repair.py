"""Repair of a data directory that no process uses: what is damaged is taken out of it and quarantined."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from duramen.errors import CorruptLogError, StorageError
from duramen.model import TopicId, TopicPartition, topic_id_text
from duramen.ports import Disk, Entropy
from duramen.storage.checkpoint.kafka_files import CLEAN_SHUTDOWN, LOCK, DirectoryCheckpoint
from duramen.storage.checkpoint.loss_record import lacks_losses, losses_path, restore_losses
from duramen.storage.checkpoint.manifest import held_journal
from duramen.storage.checkpoint.metadata_snapshot import damaged_snapshots
from duramen.storage.checkpoint.shared_cluster import refuse_shared
from duramen.storage.files.atomic import replace_file
from duramen.storage.repair.inspect_partition import survey_partition
from duramen.storage.repair.interrupted_replacement import (
    DAMAGED,
    InterruptedReplacement,
    as_placed,
    damaged_replacements,
)
from duramen.storage.repair.journal_reset import (
    JournalReset,
    begin_reset,
    finish_reset,
    identity,
    point_of_files,
    read_reset,
    recover_and_stop,
    write_points,
)
from duramen.storage.repair.journal_salvage import JournalLoss, survey_journal
from duramen.storage.repair.known_logs import NO_SNAPSHOT, KnownLog, lost_beginning, repairable
from duramen.storage.repair.overlay_disk import as_readable, without_files
from duramen.storage.repair.quarantine import free_path, quarantine_file, side_path
from duramen.storage.repair.recovery_forecast import RecoveryForecast
from duramen.storage.repair.rewrite_partition import (
    DROPPED,
    MOVED,
    PLACED,
    RESTORED,
    PartitionRepair,
    RepairAction,
    SegmentRepair,
)
from duramen.storage.repair.unreadable_files import unusable_files
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, Epochs, encode_epochs
from duramen.storage.segment.partition_metadata import (
    PARTITION_METADATA,
    encode_partition_metadata,
    parse_partition_name,
    partition_names,
)
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.replacement import STRAY, strays
from duramen.storage.segment.segment import SUFFIXES, file_name, log_name, parse_base

OF_IT = "directory"
"""Where files of the data directory go that are no partition's."""
REPLACED = "a compacted segment takes its place"
NO_START = "it is damaged, and no start uses it"
LIST = "what can be read of it stays; the rest may have been of the metadata log, and is told as that"
OVERLAPPED = "it is none of the log's: a sealed segment holds its offsets"


@dataclass(slots=True)
class DirectoryRepair:
    """What a data directory needs. recovers: it was not stopped cleanly, so the journal comes first.

    checkpoint: of our clean stop, if that was the last one and is to be believed. readable: by partition's name.
    """

    path: str
    recovers: bool
    checkpoint: DirectoryCheckpoint | None = None
    repairs: list[PartitionRepair] = field(default_factory=list)
    readable: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    lacks_losses: bool = False
    """Whether some of the list of losses cannot be read."""
    is_applied: bool = False
    """Whether something had to be done, and is."""

    @property
    def actions(self) -> list[RepairAction]:
        """Everything there is to do."""
        return [action for repair in self.repairs for action in repair.actions]


class RepairDialogue(Protocol):
    """What `repair_directory` shows and asks. Each of these may raise: then nothing more is done."""

    def show(self, found: DirectoryRepair) -> None:
        """Before anything is changed, and once more where the recovery shows other damage."""

    def approve(self, found: DirectoryRepair) -> None:
        """Ask whether to do it."""

    def approve_more(self) -> None:
        """Ask whether to drop what only the recovery, which is done, has shown."""


def repair_directory(
    disk: Disk,
    path: str,
    entropy: Entropy,
    dialogue: RepairDialogue,
    *,
    only: TopicPartition | str | None = None,
    dry_run: bool = False,
) -> DirectoryRepair:
    """Look at a data directory and, unless it is a dry run, repair what is damaged; what was found.

    A directory that was not stopped cleanly is recovered first. only: a partition, or a topic's name.
    DirectoryLockedError when a process uses it, StorageError when it cannot be repaired, or records would be dropped
    that other nodes have, OSError.
    """
    lock = disk.lock(posixpath.join(path, LOCK))
    try:
        found = survey_directory(disk, path, only)
        dialogue.show(found)
        _refuse_drops(disk, found)
        if found.actions and not dry_run:
            dialogue.approve(found)
            if found.lacks_losses:
                restore_losses(disk, path)  # no start goes on without it
            if found.recovers:
                for repair in found.repairs:
                    repair.move()  # what is none of the log's would end its recovery
                lock.release()  # recovery takes it itself
                _recover(disk, path, entropy)
                lock = disk.lock(posixpath.join(path, LOCK))
                before, found = found.actions, survey_directory(disk, path, only)  # recovery has changed the files
                if found.actions != before:
                    dialogue.show(found)
                _refuse_drops(disk, found)
                if not all(_was_reported(action, before) for action in found.actions if action.kind == DROPPED):
                    dialogue.approve_more()
            apply_repair(disk, found)
            found.is_applied = True
    finally:
        lock.release()
    return found


def _refuse_drops(disk: Disk, found: DirectoryRepair) -> None:
    if any(action.kind == DROPPED for action in found.actions):
        refuse_shared(disk, found.path, "no records are dropped from one copy alone")


def survey_directory(disk: Disk, path: str, only: TopicPartition | str | None = None) -> DirectoryRepair:
    """What would be repaired; nothing is changed. The caller has the lock. only: a partition, or a topic's name.

    StorageError when it is no data directory, or when the journal itself is damaged.
    """
    unusable, lacking = _unusable_files(disk, path), lacks_losses(disk, path)
    real = as_readable(disk, {})
    disk = without_files(real, [action.path for action in unusable])
    known = repairable(disk, path)
    for home, why in known.refused.items():
        tp = parse_partition_name(posixpath.basename(home))
        if only is None or (tp is not None and only in (tp, tp.topic)):
            raise StorageError(f"{home}: {why}")
    found = DirectoryRepair(path, recovers=not known.clean, checkpoint=known.checkpoint)
    if only is None:
        of_it = PartitionRepair(real, path, "", None)
        of_it.removals += [action for action in unusable if posixpath.dirname(action.path) == path]
        found.lacks_losses = lacking
        of_it.removals += [RepairAction(RESTORED, losses_path(path), 0, 0, -1, -1, LIST)] if lacking else []
        found.repairs += [of_it] if of_it.removals else []
    for name in [*partition_names(disk, path, known.ids), *known.absent(disk, path)]:
        tp = parse_partition_name(name)
        if tp is None or (only is not None and only not in (tp, tp.topic)):
            continue
        try:
            disk.list_directory(posixpath.join(path, name))
        except NotADirectoryError:
            continue
        except FileNotFoundError:
            pass  # absent
        log = known.log(disk, path, name)
        repair = survey_log(disk, path, name, log)
        repair.disk = real
        repair.removals += [action for action in unusable if posixpath.dirname(action.path) == repair.path]
        found.repairs.append(repair)
        found.readable[name] = readable_ranges(repair, log)
    return found


def needed_replacements(disk: Disk, path: str, name: str, known: KnownLog) -> list[InterruptedReplacement]:
    """Damaged compacted segments of the partition `name` that are not to be had otherwise. OSError.

    What one of them replaces may still be there, all of it: then that is the log.
    """
    home = posixpath.join(path, name)
    found = damaged_replacements(disk, home, known.merged) if disk.exists(home) else []
    before = _survey(disk, path, name, known).segments if found else []
    return [swap for swap in found if not _is_whole(before, swap)]


def _is_whole(segments: list[SegmentRepair], swap: InterruptedReplacement) -> bool:
    reached = swap.base
    for segment in segments:
        if swap.base <= segment.base_offset < swap.end:
            is_sound = segment.kept is None and not any(action.kind == DROPPED for action in segment.actions)
            if segment.base_offset > reached or not is_sound:
                return False
            reached = segment.next_offset
    return reached >= swap.end


def _survey(disk: Disk, path: str, name: str, known: KnownLog) -> PartitionRepair:
    ends = known.end_offset, known.point, known.least_end
    return survey_partition(disk, path, name, *ends, start=known.start_offset, limit=known.limit, missing=known.missing)


def survey_log(disk: Disk, path: str, name: str, known: KnownLog) -> PartitionRepair:
    """What the partition `name` of a data directory needs behind its recovery; reads all of it. OSError.

    Its disk is one to read from.
    """
    home = posixpath.join(path, name)

    def aside(each: str, what: str) -> RepairAction:
        side = free_path(disk, side_path(path, name, posixpath.basename(each)))
        return RepairAction(MOVED, each, 0, 0, -1, -1, what, side)

    disk = known.after_start(disk, home)
    overlapped = [
        posixpath.join(home, file_name(base, suffix))
        for base in known.listed.overlapped(disk, home)
        for suffix in SUFFIXES
        if disk.exists(posixpath.join(home, file_name(base, suffix)))
    ]
    disk = without_files(disk, overlapped)
    swaps = needed_replacements(disk, path, name, known)
    disk = as_placed(disk, swaps)
    known = known.once(swaps, disk, home)
    repair = _survey(disk, path, name, known)
    repair.swaps = swaps
    if known.forecast is not None:
        _leave_to_recovery(repair, known.forecast)
    repair.removals += [aside(each, OVERLAPPED) for each in overlapped]
    for swap in swaps:
        repair.removals += [aside(each, REPLACED) for each in swap.replaced_logs]
        repair.removals.append(RepairAction(PLACED, swap.path, 0, 0, -1, -1, DAMAGED, swap.target))
    if disk.exists(home):
        clean = disk.exists(posixpath.join(path, CLEAN_SHUTDOWN))
        left = strays(disk, home, known.merged, clean=clean)
        repair.removals += [aside(posixpath.join(home, each), STRAY) for each in left]
        repair.removals += [aside(error.path, NO_START) for error in damaged_snapshots(disk, home)]
    if repair.segments:
        first, end = repair.segments[0], repair.segments[-1].next_offset
        begin = max(known.start_offset, first.base_offset)
        if not first.loses(0, begin - 1) and lost_beginning(disk, path, name, begin, end):
            place = posixpath.join(repair.path, log_name(first.base_offset))
            first.actions.append(RepairAction(DROPPED, place, 0, 0, 0, begin - 1, NO_SNAPSHOT))
    return repair


def readable_ranges(repair: PartitionRepair, known: KnownLog) -> list[tuple[int, int]]:
    """First and last offsets of what the repair, and the start behind it, leave of the log."""
    gaps = sorted((a.first_offset, a.last_offset) for a in repair.actions if a.kind == DROPPED and a.first_offset >= 0)
    position = max(known.start_offset, repair.segments[0].base_offset if repair.segments else 0)
    end = known.end(max((segment.next_offset for segment in repair.segments), default=0))
    kept = []
    for first, last in gaps:
        if 0 <= last < first:
            continue
        if position < min(first, end):
            kept.append((position, min(first, end) - 1))
        position = max(position, known.next_written(first, end) if last < 0 else last + 1)
    if position < end:
        kept.append((position, end - 1))
    return kept


def _leave_to_recovery(repair: PartitionRepair, forecast: RecoveryForecast) -> None:
    """What recovery puts right is no loss: the journal has it, or it was not acknowledged as stable."""
    bases = [segment.base_offset for segment in repair.segments if not segment.is_new]
    missing = forecast.missing(bases)
    for segment in repair.segments:
        base = segment.base_offset
        if segment.is_new:
            segment.actions = [] if forecast.remakes_all else segment.actions
            continue
        segment.actions = [
            action
            for action in segment.actions
            if action.kind != DROPPED
            or (action.first_offset, action.last_offset) in missing
            or not _comes_back(forecast, base, action, bases)
        ]
    for path, write in forecast.lost_extents(repair.disk, repair.path):
        end = write.position + write.length
        segment = next(each for each in repair.segments if posixpath.basename(path) == log_name(each.base_offset))
        if not any(action.kind == DROPPED for action in segment.actions):
            what = "it differs from what was synced, or is gone; the journal does not have it"
            segment.actions.append(RepairAction(DROPPED, path, write.position, end, write.offset, -1, what))


def _comes_back(forecast: RecoveryForecast, base: int, action: RepairAction, bases: list[int]) -> bool:
    """Whether recovery replaces what is to be dropped of a segment, or fills the gap that is told."""
    if action.start < action.end:
        return forecast.plan.replaces(base, action.start)
    return forecast.fills(base, action.start, action.first_offset, action.last_offset, bases)


def apply_repair(disk: Disk, found: DirectoryRepair) -> None:
    """Do what was found, in a directory that was stopped cleanly. OSError; again after a crash is fine."""
    changed: dict[TopicPartition, LogPoint] = {}
    checkpoint = found.checkpoint
    known = {} if checkpoint is None else {point.tp: (key, point) for key, point in checkpoint.logs.items()}
    for repair in found.repairs:
        repair.move()
    for repair in found.repairs:
        if not repair.actions:
            continue
        tp = parse_partition_name(repair.name)
        if tp in known and _is_bare(disk, repair.path):
            key = known[tp][0]
            epochs = () if checkpoint is None else checkpoint.epochs.get(key, ())
            _make_home(disk, repair.path, key[0], epochs)
        repair.apply()
        if tp in known:
            changed[tp] = point_of_files(disk, repair, known[tp][1])
    if checkpoint is not None and changed:
        write_points(disk, found.path, checkpoint, changed)


def _is_bare(disk: Disk, path: str) -> bool:
    """Whether a partition's directory is gone with what it says of the log, or a repair was cut short that made it."""
    names = disk.list_directory(path) if disk.exists(path) else []
    return PARTITION_METADATA not in names and all(parse_base(name) is None for name in names)


def _make_home(disk: Disk, path: str, topic_id: TopicId, epochs: Epochs) -> None:
    """The directory of a partition whose own is gone. OSError; again after a crash is fine."""
    disk.make_directories(path)
    replace_file(disk, posixpath.join(path, LEADER_EPOCHS), encode_epochs(epochs))
    replace_file(disk, posixpath.join(path, PARTITION_METADATA), encode_partition_metadata(topic_id_text(topic_id)))
    disk.sync_directory(posixpath.dirname(path))


def _was_reported(dropped: RepairAction, before: list[RepairAction]) -> bool:
    """Whether what was found in front of the recovery says that these offsets of the log go."""
    home, first, last = posixpath.dirname(dropped.path), dropped.first_offset, dropped.last_offset
    return any(
        action.kind == DROPPED
        and posixpath.dirname(action.path) == home
        and (action.first_offset <= first or first < 0)
        and (action.last_offset < 0 or last <= action.last_offset)
        for action in before
    )


class JournalResetSurvey(NamedTuple):
    """What a repair without the journal has to go on without; and what stands in the way of all else.

    found: the loss, or what an interrupted run of the same repair has begun.
    """

    found: JournalLoss | JournalReset
    in_the_way: list[RepairAction]


def survey_journal_reset(disk: Disk, path: str) -> JournalResetSurvey | None:
    """What `reset_journal` would do; None when the journal is sound. The lock is held meanwhile. OSError.

    StorageError where other nodes have what it held.
    """
    lock = disk.lock(posixpath.join(path, LOCK))
    try:
        in_the_way = _unusable_files(disk, path)
        found = _look_at_journal(without_files(disk, [action.path for action in in_the_way]), path)
        if found is not None:
            refuse_shared(disk, path, "its journal is not given up")
    finally:
        lock.release()
    return None if found is None else JournalResetSurvey(found, in_the_way)


def reset_journal(disk: Disk, path: str, survey: JournalResetSurvey, entropy: Entropy) -> list[dict[str, Any]]:
    """Do what was found; the losses, as they are listed. The caller does not hold the lock. OSError, StorageError."""
    lock = disk.lock(posixpath.join(path, LOCK))  # no process has started it since
    try:
        restore_losses(disk, path)
        for action in survey.in_the_way:
            quarantine_file(disk, action.path, action.side_file)
    finally:
        lock.release()  # the rest takes it itself
    if isinstance(survey.found, JournalReset):
        return finish_reset(disk, path, survey.found, entropy)
    return begin_reset(disk, path, survey.found, entropy)


def _unusable_files(disk: Disk, path: str) -> list[RepairAction]:
    """What stands in the way of all else in a data directory. OSError."""
    found = []
    for each, why in unusable_files(disk, path).items():
        home = posixpath.dirname(each)
        folder = OF_IT if home == path else posixpath.basename(home)
        side = free_path(disk, side_path(path, folder, posixpath.basename(each)))
        found.append(RepairAction(MOVED, each, 0, 0, -1, -1, why, side))
    return found


def _look_at_journal(disk: Disk, path: str) -> JournalLoss | JournalReset | None:
    """What to go on without: by a repair that was interrupted, or by the journal; None when that is sound."""
    identity(disk, path)
    reset = read_reset(disk, path)
    if reset is not None:
        return reset
    contents = held_journal(disk, path)
    contents.close()
    if contents.damage is None or disk.exists(posixpath.join(path, CLEAN_SHUTDOWN)):
        return None
    return survey_journal(disk, path, contents)


def _recover(disk: Disk, path: str, entropy: Entropy) -> None:
    try:
        recover_and_stop(disk, path, 0, entropy)
    except CorruptLogError as error:
        raise StorageError(f"the directory cannot be recovered before it is repaired: {error}") from error
