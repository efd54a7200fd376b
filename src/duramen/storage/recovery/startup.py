"""Opens a log directory: whose it is, whether it stopped cleanly, and what has to be recovered before it is served.

What is found decides. A clean-shutdown file: nothing is replayed, the directory may come from Kafka. Our journal:
recovery by it; of a bare one, which has nothing to replay, only where no log goes on behind the end that our stop gave
it. Our checkpoint alone: every log is read from its recovery point on. None of these: a Kafka directory that was not
stopped cleanly, which only Kafka can recover.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.model import LogKey, TopicPartition, topic_id_text
from duramen.ports import Disk, Entropy
from duramen.storage.checkpoint.clean_shutdown import last_stop
from duramen.storage.checkpoint.expected_segments import NOTHING_EXPECTED, ExpectedSegments
from duramen.storage.checkpoint.identity import check_identity
from duramen.storage.checkpoint.kafka_files import (
    CHECKPOINT,
    CLEAN_SHUTDOWN,
    CLEANED,
    CLEANER,
    FORMATTING,
    HIGH_WATERMARK,
    JOURNAL_RESET,
    LOG_START,
    META_PROPERTIES,
    RECOVERY_POINT,
    DirectoryCheckpoint,
    MetaProperties,
    decode_meta,
    decode_offsets,
    encode_meta,
    read_checkpoint,
    read_offsets,
)
from duramen.storage.checkpoint.manifest import (
    DELETE_SUFFIX,
    LONGEST_NAME,
    STRAY_SUFFIX,
    deleted_here,
    held_journal,
    is_outdated,
    journaled_ids,
    kept_ids,
    named_segment,
    restore,
)
from duramen.storage.checkpoint.partition_ids import (
    PartitionDirectory,
    bases_in,
    find_partitions,
    identified,
    refuse_foreign,
    size_of,
)
from duramen.storage.checkpoint.scrub_progress import PROGRESS as SCRUB_PROGRESS
from duramen.storage.checkpoint.shared_cluster import SHARED_CLUSTER
from duramen.storage.files.atomic import read_file, replace_file
from duramen.storage.files.parallel import Together
from duramen.storage.journal.format import EntryKind
from duramen.storage.journal.point import Point
from duramen.storage.journal.reader import HELD_BYTES, JournalContents
from duramen.storage.recovery.plan import RecoveryPlan, make_plans
from duramen.storage.recovery.replay import PartitionRecovery, RecoveryReport
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, encode_epochs
from duramen.storage.segment.partition_metadata import (
    PARTITION_METADATA,
    encode_partition_metadata,
    parse_partition_name,
)
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.segment import log_name

_TEMPORARIES = frozenset(
    f"{name}.tmp"
    for name in (
        RECOVERY_POINT,
        LOG_START,
        HIGH_WATERMARK,
        CLEANER,
        CLEANED,
        CHECKPOINT,
        META_PROPERTIES,
        CLEAN_SHUTDOWN,
        JOURNAL_RESET,
        SCRUB_PROGRESS,
        SHARED_CLUSTER,
    )
)
"""What a crash leaves of a file that was being replaced. Not all of them are written again by every start."""


@dataclass(slots=True)
class PartitionStartup:
    """A partition whose files may be opened once `recovery`, if there is one, has run.

    sound_below: indexes of segments below this offset may be believed. known: what the checkpoint knows of the log and
    what recovery leaves as it was, if that still holds. wanted: segments whose absence is damage.
    """

    found: PartitionDirectory
    start_offset: int
    sound_below: int
    known: LogPoint | None = None
    recovery: PartitionRecovery | None = None
    wanted: ExpectedSegments = NOTHING_EXPECTED


class MissingLog(NamedTuple):
    """A log that the checkpoint knows, and whose directory is gone. segments: base offsets it should have."""

    point: LogPoint
    segments: tuple[int, ...]


@dataclass(slots=True)
class Startup:
    """What a start found in a directory and made of it. absent: logs whose directories are gone.

    strays: directories that had been moved aside, and have their names again.

    watermarks: the high watermarks that were known at the last checkpoint, of the logs that it speaks of. cuts: where
    logs were cut since, -1 where they were begun anew, by the journal.
    """

    meta: MetaProperties
    clean: bool
    contents: JournalContents
    report: RecoveryReport
    ready: list[PartitionStartup] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    absent: dict[LogKey, MissingLog] = field(default_factory=dict)
    watermarks: dict[LogKey, int] = field(default_factory=dict)
    cuts: dict[LogKey, int] = field(default_factory=dict)


def prepare(
    disk: Disk,
    path: str,
    node_id: int,
    cluster_id: str | None,
    entropy: Entropy,
    together: Together,
    *,
    forgo: bool = False,
) -> Startup:
    """Identify the directory and say what has to be done to open its partitions; nothing in it may be open.

    The journal in the result stays open for the recoveries: close it. StorageError when the directory belongs to
    another cluster or node, or cannot be recovered safely; CorruptLogError when the journal is damaged, unless the
    caller forgoes what lies behind the damage: then intact batches that the segments have there are accepted.
    """
    damage: list[str] = []
    if not forgo:
        refuse_half_done(disk, path)
    check_identity(disk, path, damage)
    meta = _identify(disk, path, node_id, cluster_id, entropy)
    contents = held_journal(disk, path, min(HELD_BYTES, disk.cache_bytes()))
    try:
        clean = disk.exists(posixpath.join(path, CLEAN_SHUTDOWN))
        contents.check_readable()
        forgo = forgo and contents.damage is not None and not clean
        if not forgo:
            _refuse_damage(path, contents, damage, clean=clean)
        refuse_earlier_stop(disk, path, contents)
        contents.make_durable(disk)
        checkpoint = _read_checkpoint(disk, path, contents, damage)
        if contents.empty and checkpoint is not None and not (clean or forgo):
            _refuse_unknown_writes(disk, path, checkpoint)
        if forgo:
            pass  # a directory may be a newer topic's than the checkpoint knows: nothing of it is put right
        elif not restore(disk, path, checkpoint, contents.entries, damage, clean=clean):
            checkpoint = None
        ids = {} if forgo and checkpoint is None else kept_ids(disk, path, checkpoint, contents)
        found = find_partitions(disk, path, ids, together, damage)
        fresh = not found and contents.generation < 0
        report = RecoveryReport(clean=clean or fresh, torn_entries=contents.torn_entries, damage=damage)
        state = Startup(meta, clean or fresh, contents, report)
        _refuse(path, clean, contents, checkpoint, found)
        found = identified(disk, path, found, contents, state.leftovers, damage, checkpoint, clean=state.clean)
        if not forgo:
            refuse_foreign(disk, path, found, contents, ids, checkpoint)
        _check_names(disk, path, checkpoint, found, contents)
        deleted = _leftovers(disk, path, state.leftovers)
        delete = EntryKind.DELETE
        gone = deleted | {(each.topic_id, each.partition) for each in contents.entries if each.kind == delete}
        if not (forgo or state.clean):
            found += _made_anew(disk, path, checkpoint, found, gone, state)
        if checkpoint is None and found and clean:
            state.report.adopted = True
            for partition in found:
                _check_magic(disk, partition)
        if state.clean:
            state.ready = _clean(disk, path, checkpoint, found, state.report)
        else:
            state.ready = _recover(disk, path, checkpoint, found, deleted, state, forgo=forgo)
        if not forgo:
            _want_segments(checkpoint, state)
            if checkpoint is not None:
                gone |= {partition.key for partition in found}
                state.absent = _absent(disk, path, checkpoint, gone)
        state.watermarks = _watermarks(disk, path, checkpoint, state)
    except BaseException:
        contents.close()
        raise
    return state


def _refuse_damage(path: str, contents: JournalContents, damage: list[str], *, clean: bool) -> None:
    """CorruptLogError for a journal that is damaged, unless a clean stop has left nothing in it.

    Before anything is put right: what the damaged entries said of creations and deletions is not known.
    """
    broken = contents.damage
    if broken is not None and not clean:
        way_out = f"{broken.reason}; look for a copy of it, else `duramen log repair {path} --journal`"
        raise CorruptLogError(broken.path, broken.start, broken.end, way_out)
    if broken is not None:
        damage.append(f"{broken}; nothing was in it, and it is made again")


def _read_checkpoint(disk: Disk, path: str, contents: JournalContents, damage: list[str]) -> DirectoryCheckpoint | None:
    """Our checkpoint. An outdated one goes: once this start has written beside it, nothing would tell it any more."""
    checkpoint = read_checkpoint(disk, path)
    if checkpoint is None or not is_outdated(disk, path, checkpoint, contents):
        return checkpoint
    name = posixpath.join(path, CHECKPOINT)
    disk.remove(name)
    disk.sync_directory(path)
    damage.append(f"{name}: it is older than the last one that was written; it is made again")
    return None


def refuse_half_done(disk: Disk, path: str) -> None:
    """StorageError when a repair without the journal was interrupted: only it knows which offsets are used up.

    Also when formatting was: of a directory that has no voters yet a start would make a cluster of its own.
    """
    if disk.exists(posixpath.join(path, FORMATTING)):
        raise StorageError(
            f"{path}: `duramen cluster init` was interrupted here; run it again with the same options to finish it"
        )
    if disk.exists(posixpath.join(path, JOURNAL_RESET)):
        raise StorageError(
            f"{path}: `duramen log repair --journal` was interrupted here; run `duramen log repair {path} --journal` "
            "again to finish it"
        )


def refuse_earlier_stop(disk: Disk, path: str, contents: JournalContents) -> None:
    """StorageError when the file of a clean stop is one of ours from before what the journal, which is open, has."""
    name = posixpath.join(path, CLEAN_SHUTDOWN)
    stop = last_stop(disk, path) if contents.entries else None
    if stop is not None and stop.ours:
        raise StorageError(
            f"{name} is that of an earlier stop of ours: the journal has {len(contents.entries)} entries that are "
            "younger; remove that file, and try again"
        )


def _identify(disk: Disk, path: str, node_id: int, cluster_id: str | None, entropy: Entropy) -> MetaProperties:
    name = posixpath.join(path, META_PROPERTIES)
    content = read_file(disk, name)
    if content is None:
        meta = MetaProperties(cluster_id or _random_id(entropy), node_id, _random_id(entropy))
    else:
        meta = decode_meta(content, name)
        if cluster_id is not None and meta.cluster_id != cluster_id:
            raise StorageError(
                f"{path} belongs to cluster {meta.cluster_id}, not to {cluster_id}: use another directory"
            )
        if meta.node_id != node_id:
            raise StorageError(
                f"{path} belongs to node {meta.node_id}, not to {node_id}: set node.id or another log.dirs"
            )
        if meta.directory_id:
            return meta
        meta = meta._replace(directory_id=_random_id(entropy))
    replace_file(disk, name, encode_meta(meta))
    return meta


def _random_id(entropy: Entropy) -> str:
    return topic_id_text(entropy.random_bytes(16))


def _refuse_unknown_writes(disk: Disk, path: str, checkpoint: DirectoryCheckpoint) -> None:
    """StorageError where logs go on behind our stop, before anything of theirs is touched.

    A bare journal and no clean-shutdown file are what a crash in the last step of our stop leaves, when all logs were
    synced and closed, and what Kafka leaves that began after our stop and died: only then is there more than we knew.
    But for what was too damaged to be served: it is not known how far that went.
    """
    for point in checkpoint.logs.values():
        home = posixpath.join(path, str(point.tp))
        if point.state is None or not disk.exists(home):
            continue
        for base in bases_in(disk, home):
            if base > point.segment_base or (base == point.segment_base and size_of(disk, home, base) > point.position):
                raise StorageError(
                    f"{home} goes on behind our last stop: the directory was left by a Kafka broker that did not stop "
                    "cleanly; start Kafka on it once, stop it, and try again"
                )


def _refuse(
    path: str,
    clean: bool,
    contents: JournalContents,
    checkpoint: DirectoryCheckpoint | None,
    found: list[PartitionDirectory],
) -> None:
    if clean and contents.entries:
        raise StorageError(
            f"{path}: a Kafka broker stopped cleanly here after an unclean stop of ours, so the journal is older than "
            f"the logs; to keep what Kafka left, remove {', '.join(contents.names)}"
        )
    if not clean and found and contents.generation < 0 and checkpoint is None:
        raise StorageError(
            f"{path} was left by a Kafka broker that did not stop cleanly; "
            "start Kafka on it once, stop it, and try again"
        )


def _made_anew(
    disk: Disk,
    path: str,
    checkpoint: DirectoryCheckpoint | None,
    found: list[PartitionDirectory],
    gone: set[LogKey],
    state: Startup,
) -> list[PartitionDirectory]:
    """Directories for logs of which the journal has something, and which have none: recovery writes it there.

    Nothing else would have it when the journal goes. gone: what was deleted.
    """
    there = {partition.key for partition in found} | gone
    wanted = sorted({(entry[2], entry[3]) for entry in state.contents.entries} - there)  # by number: may be very many
    if not wanted:
        return []
    names = {(topic_id, tp.partition): tp for tp, topic_id in journaled_ids(disk, path, state.contents).items()}
    if checkpoint is not None:
        names |= {key: point.tp for key, point in checkpoint.logs.items()}
    made = []
    for key in wanted:
        home = home_of(path, names[key]) if key in names else path
        if disk.exists(home):
            continue  # nobody knows its name, or that is another log's
        disk.make_directories(home)
        metadata = encode_partition_metadata(topic_id_text(key[0]))
        replace_file(disk, posixpath.join(home, PARTITION_METADATA), metadata)
        if checkpoint is not None and key in checkpoint.epochs:  # as `restore` does where the directory is there
            replace_file(disk, posixpath.join(home, LEADER_EPOCHS), encode_epochs(checkpoint.epochs[key]))
        state.report.damage.append(f"{home}: it is missing; what the journal has of it is written into a new one")
        made.append(PartitionDirectory(names[key], key[0], home))
    disk.sync_directory(path)
    return made


def _absent(disk: Disk, path: str, checkpoint: DirectoryCheckpoint, there: set[LogKey]) -> dict[LogKey, MissingLog]:
    """Logs whose first offsets are given out, by the checkpoint, and that are not `there`: in use, or deleted."""
    return {
        key: MissingLog(point, checkpoint.segments.get(key, ()))
        for key, point in checkpoint.logs.items()
        if key not in there and point.recovery_point > 0 and not disk.exists(home_of(path, point.tp))
    }


def home_of(path: str, tp: TopicPartition) -> str:
    """The directory of a partition in a log directory."""
    return posixpath.join(path, str(tp))


def _check_names(
    disk: Disk,
    path: str,
    checkpoint: DirectoryCheckpoint | None,
    found: list[PartitionDirectory],
    contents: JournalContents,
) -> None:
    """StorageError for two directories of one partition, as a copy makes them, or one that has not its name."""
    names = {key: point.tp for key, point in checkpoint.logs.items()} if checkpoint is not None else {}
    if any(partition.key not in names for partition in found):
        names |= {(topic_id, tp.partition): tp for tp, topic_id in journaled_ids(disk, path, contents).items()}
    homes: dict[LogKey, PartitionDirectory] = {}
    for partition in found:
        other = homes.setdefault(partition.key, partition)
        if other is not partition:
            raise StorageError(
                f"{other.path} and {partition.path} are the same partition of the topic with id "
                f"{topic_id_text(partition.topic_id)}: move the one that is not to be served out of {path}"
            )
    for partition in found:
        name = names.get(partition.key, partition.tp)
        if name != partition.tp:
            raise StorageError(
                f"{partition.path} is partition {name} by its topic id: give it its name back, or move it out of {path}"
            )


def _leftovers(disk: Disk, path: str, leftovers: list[str]) -> set[LogKey]:
    """Collect what deletions left behind; returns the identities of deleted partitions whose files still exist.

    Half-written checkpoint files are removed at once, what was moved aside is not.
    """
    for name in disk.list_directory(path):
        if name.endswith(DELETE_SUFFIX):
            leftovers.append(posixpath.join(path, name))
        elif name in _TEMPORARIES:
            disk.remove(posixpath.join(path, name))
    return set(deleted_here(disk, path))


def _check_magic(disk: Disk, partition: PartitionDirectory) -> None:
    for base in bases_in(disk, partition.path):
        name = posixpath.join(partition.path, log_name(base))
        file = disk.open(name)
        try:
            head = file.pread(17, 0)
        finally:
            file.close()
        if len(head) == 17 and head[16] < 2:
            raise StorageError(
                f"{name} holds messages of the old format (magic {head[16]}), which only Kafka before 4.0 can convert"
            )


def _clean(
    disk: Disk,
    path: str,
    checkpoint: DirectoryCheckpoint | None,
    found: list[PartitionDirectory],
    report: RecoveryReport,
) -> list[PartitionStartup]:
    starts = read_offsets(disk, posixpath.join(path, LOG_START))
    points = read_offsets(disk, posixpath.join(path, RECOVERY_POINT))
    ready = []
    for partition in found:
        start = starts.get(partition.tp, 0)
        known = checkpoint.logs.get(partition.key) if checkpoint is not None else None
        point = points.get(partition.tp, 0)
        if known is not None:
            start = max(start, known.start_offset)
        # Where the two differ another broker was here since: ours is old.
        fits = known is not None and known.recovery_point == point
        ready.append(PartitionStartup(partition, start, point, known if fits else None))
    present = {partition.tp for partition in found}
    if checkpoint is not None:  # they are told as absent
        present |= {point.tp for point in checkpoint.logs.values()}
    for tp, offset in sorted(points.items()):
        if offset > 0 and tp not in present:
            directory = posixpath.join(path, f"{tp.topic}-{tp.partition}")
            report.damage.append(f"{directory}: it is missing; it went up to offset {offset} at the last clean stop")
    return ready


def _watermarks(disk: Disk, path: str, checkpoint: DirectoryCheckpoint | None, state: Startup) -> dict[LogKey, int]:
    """By the file that names partitions: a topic since the last checkpoint may have the name of one before.

    Our checkpoint, written behind that file, says which those are; after a clean stop none are. What was cut off since
    was below no watermark that holds now.
    """
    named = read_offsets(disk, posixpath.join(path, HIGH_WATERMARK))
    known = {ready.found.key: named[ready.found.tp] for ready in state.ready if ready.found.tp in named}
    if state.clean:
        return known
    logs = {} if checkpoint is None else checkpoint.logs
    return {key: min(offset, state.cuts.get(key, offset)) for key, offset in known.items() if key in logs}


def _want_segments(checkpoint: DirectoryCheckpoint | None, state: Startup) -> None:
    """The checkpoint's own list says which segment files each log must have, and its point which is the last one.

    Alone it is where a log had no other; that one may have had nothing in it yet.
    """
    for ready in state.ready:
        known = ready.known
        bases = () if checkpoint is None else checkpoint.segments.get(ready.found.key, ())
        ready.wanted = ready.wanted._replace(bases=bases or named_segment(known))


def _recover(
    disk: Disk,
    path: str,
    checkpoint: DirectoryCheckpoint | None,
    found: list[PartitionDirectory],
    deleted: set[LogKey],
    state: Startup,
    *,
    forgo: bool = False,
) -> list[PartitionStartup]:
    contents, report = state.contents, state.report
    trusted = {} if checkpoint is None or contents.gone else checkpoint.logs
    plans = make_plans(contents.entries, trusted, 0 if checkpoint is None else checkpoint.checkpoint_lsn)
    report.entries_replayed = len(contents.entries)
    kept = read_file(disk, posixpath.join(path, RECOVERY_POINT))
    points = None if kept is None else decode_offsets(kept)
    starts = read_offsets(disk, posixpath.join(path, LOG_START))
    present = {partition.key for partition in found}
    for key, plan in plans.items():
        if plan.entries and not plan.deleted and key not in present and key not in deleted:
            whose = f"the journal has {plan.entries} entries of topic id {topic_id_text(key[0])}, partition {key[1]}"
            if forgo:  # its deletion may be what the lost entries said
                report.damage.append(f"{path}: {whose}; its directory is missing")
                continue
            raise StorageError(f"{path}: {whose}, but its directory is missing: put it back from a copy")
    ready = []
    for partition in found:
        plan = plans.get(partition.key) or RecoveryPlan(partition.key)
        if plan.deleted:
            (state.strays if plan.stray else state.leftovers).append(partition.path)
            report.partitions_deleted += not plan.stray
            continue
        if partition.key not in trusted and not plan.created:
            # Kafka's files are keyed by name: only when our own checkpoint does not know better.
            if checkpoint is None:
                # It tells the start before what the journal has: a cut below it came later.
                plan.start = max(plan.start, min(starts.get(partition.tp, 0), plan.cut))
            elif partition.key in checkpoint.logs:
                plan.start = max(plan.start, checkpoint.logs[partition.key].start_offset)
            if plan.end is None and checkpoint is not None and partition.key not in checkpoint.logs:
                plan.trusted = Point(0, 0, 0)  # a topic since then, whatever had its name before
            elif plan.end is None and points is not None:
                plan.trusted = Point(points.get(partition.tp, 0), 0, 0)
        if forgo and plan.end is not None:
            plan.accept_from, plan.accept_to = plan.accept_from or plan.end, None
        elif checkpoint is None:
            plan.accept_untold()
        state.cuts[partition.key] = plan.new_cut
        known = trusted.get(partition.key)
        if known is not None and (forgo or plan.created or plan.truncated):
            known = None
        recovery = PartitionRecovery(disk, partition.path, plan, contents.parts, known, journaled=not forgo)
        ready.append(
            PartitionStartup(
                partition, plan.start, 0, known, recovery, ExpectedSegments((), plan.cut, tuple(plan.merged))
            )
        )
    return ready


def drop_leftover_directories(disk: Disk, path: str, state: Startup, entropy: Entropy) -> None:
    """Give directories whose deletion was journaled, but not carried out, their `-delete` or `-stray` names."""
    moved = []
    for directory in [*state.strays, *state.leftovers]:
        tp = parse_partition_name(posixpath.basename(directory))
        is_stray = directory in state.strays
        target = directory
        if tp is not None and posixpath.dirname(directory) == path:
            target = posixpath.join(path, (stray_name if is_stray else deleted_name)(tp, entropy))
            disk.rename(directory, target)
        if not is_stray:
            moved.append(target)
    state.leftovers[:] = moved


def deleted_name(tp: TopicPartition, entropy: Entropy) -> str:
    """Kafka's name for the directory of a deleted partition."""
    return _another_name(tp, entropy, DELETE_SUFFIX)


def stray_name(tp: TopicPartition, entropy: Entropy) -> str:
    """Kafka's name for the directory of a partition that is moved aside."""
    return _another_name(tp, entropy, STRAY_SUFFIX)


def _another_name(tp: TopicPartition, entropy: Entropy, suffix: str) -> str:
    suffix = f"-{tp.partition}.{entropy.random_bytes(16).hex()}{suffix}"
    return tp.topic[: LONGEST_NAME - len(suffix)] + suffix
