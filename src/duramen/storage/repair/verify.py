"""Checks a data directory that nobody uses: every batch, seal and index of every segment, and the journal."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress

from duramen.errors import StorageError
from duramen.model import NO_TOPIC_ID, TopicPartition
from duramen.ports import DirectoryLock, Disk
from duramen.storage.checkpoint.identity import MISSING, compare_identity
from duramen.storage.checkpoint.kafka_files import (
    CHECKPOINT,
    CLEAN_SHUTDOWN,
    CLEANED,
    JOURNAL_RESET,
    LOCK,
    META_PROPERTIES,
    RECOVERY_POINT,
    decode_cleaned,
    read_checkpoint,
    read_offsets,
)
from duramen.storage.checkpoint.loss_record import LOSS_RECORD, LOST_FOLDER, gap_behind, unreadable_losses
from duramen.storage.checkpoint.manifest import held_journal, is_outdated, to_restore
from duramen.storage.checkpoint.metadata_snapshot import damaged_snapshots
from duramen.storage.checkpoint.scrub_progress import read_progress
from duramen.storage.files.atomic import read_file
from duramen.storage.files.bad_sectors import UNREADABLE, merged
from duramen.storage.journal.reader import JournalContents
from duramen.storage.recovery.startup import refuse_earlier_stop
from duramen.storage.repair.interrupted_replacement import DAMAGED, InterruptedReplacement, as_placed
from duramen.storage.repair.known_logs import (
    NO_SNAPSHOT,
    KnownLog,
    KnownLogs,
    believed_checkpoint,
    known_logs,
    lost_beginning,
)
from duramen.storage.repair.overlay_disk import Gaps, as_readable, without_files
from duramen.storage.repair.recovery_forecast import RecoveryForecast
from duramen.storage.repair.repair import needed_replacements, readable_ranges, survey_log
from duramen.storage.repair.report import DirectoryReport, Finding, PartitionReport, damage_finding
from duramen.storage.repair.unreadable_files import unusable_files
from duramen.storage.repair.verify_segment import NO_OFFSET, Replaced, SegmentCheck, Tick
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, read_epochs
from duramen.storage.segment.partition_metadata import (
    PARTITION_METADATA,
    decode_partition_metadata,
    parse_partition_name,
    partition_names,
    read_topic_id,
)
from duramen.storage.segment.producer_snapshot import decode_kafka, decode_ours
from duramen.storage.segment.replacement import STRAY, strays
from duramen.storage.segment.segment import PRODUCERS, SNAPSHOT, parse_base, parse_name

_UNKNOWN = KnownLog()


def verify_path(disk: Disk, path: str, tick: Tick, *, decode: bool = False) -> DirectoryReport:
    """Check a data directory, or the one partition in it whose directory this is. See `verify_directory`."""
    only = None
    if not disk.exists(posixpath.join(path, META_PROPERTIES)) and segments_of(disk, path):
        path, only = posixpath.split(posixpath.abspath(path))
    return verify_directory(disk, path, tick, decode=decode, only=only)


def verify_directory(
    disk: Disk, path: str, tick: Tick, *, decode: bool = False, only: str | None = None
) -> DirectoryReport:
    """Check a data directory. It is locked meanwhile: DirectoryLockedError when a process uses it.

    only: the name of the one partition directory to look at. decode: open every record, not only check the batches'
    checksums. StorageError when it is no data directory.
    """
    in_the_way = unusable_files(disk, path)
    gaps: Gaps = {}
    disk = without_files(as_readable(disk, gaps), in_the_way)
    meta, wrong = compare_identity(disk, path)
    if meta is None and any(what == MISSING for _, _, what in wrong):
        raise StorageError(f"{path} is no data directory: it has no {META_PROPERTIES}")
    lock = _lock(disk, path)
    try:
        clean = disk.exists(posixpath.join(path, CLEAN_SHUTDOWN))
        report = DirectoryReport(
            path, "?" if meta is None else meta.cluster_id, -1 if meta is None else meta.node_id, clean
        )
        for name, made_again, what in wrong:
            report.findings.append(Finding("index" if made_again else "damage", name, 0, 0, -1, what))
        reported = [each for each in in_the_way if only in (None, posixpath.basename(posixpath.dirname(each)))]
        report.findings += [Finding("damage", each, 0, 0, -1, in_the_way[each]) for each in reported]
        if unread := unreadable_losses(disk, path):
            what = f"{unread} of its lines cannot be read: what they say of losses is not known to a start"
            report.findings.append(Finding("damage", posixpath.join(path, LOST_FOLDER, LOSS_RECORD), 0, 0, -1, what))
        report.scrub = read_progress(disk, path)
        with closing(held_journal(disk, path)) as journal:
            _verify_journal(disk, journal, report)
            known = known_logs(disk, path, journal)
            restored = _restored(disk, path, journal, known)
            points = recovery_points(disk, path, journal)
        report.findings += [_made_again(each) for each in restored if posixpath.dirname(each) == path]
        report.findings += _of_no_use(disk, path)
        for name in partition_names(disk, path, known.ids):
            tp = parse_partition_name(name)
            if tp is not None and only in (None, name):
                inside = posixpath.join(path, name)
                try:
                    disk.list_directory(inside)
                except NotADirectoryError:
                    continue  # a file of such a name, which no start looks at either
                synced = None if clean else points.get(tp, 0)
                log = known.log(disk, path, name)
                view = log.after_start(disk, inside)
                swaps = needed_replacements(view, path, name, log)
                view = as_placed(view, swaps)
                log = log.once(swaps, view, inside)
                partition = verify_partition(
                    view, inside, tick, synced=synced, known=log, decode=decode, restored=restored
                )
                partition.findings = _with_swaps(partition.findings, swaps)
                if inside in known.refused:
                    partition.findings.append(Finding("damage", inside, 0, 0, -1, known.refused[inside]))
                report.partitions.append(partition)
        if clean:
            _verify_ends(report, known, known.ends, "it went up to {} at the last clean stop", only)
        _verify_ends(report, known, known.least_ends, "it was synced up to {}", only)
        for partition in report.partitions:
            partition.readable = _readable(disk, path, partition, known.log(disk, path, partition.name))
        report.findings += _gaps(gaps)
        return report
    finally:
        if lock is not None:
            lock.release()


def _restored(disk: Disk, path: str, journal: JournalContents, known: KnownLogs) -> list[str]:
    """Kafka's text files that are not as they were, and which the next start makes again from ours."""
    clean = disk.exists(posixpath.join(path, CLEAN_SHUTDOWN))
    files = to_restore(disk, path, believed_checkpoint(disk, path, journal), journal.entries, clean=clean)
    reported = [file.path for file in files if file.is_told]
    for tp in known.ids:
        home = posixpath.join(path, str(tp))
        name = posixpath.join(home, PARTITION_METADATA)
        with suppress(NotADirectoryError):
            if name not in reported and disk.exists(home) and read_topic_id(disk, home) == NO_TOPIC_ID:
                reported.append(name)
    return reported


def _with_swaps(findings: list[Finding], swaps: Sequence[InterruptedReplacement]) -> list[Finding]:
    """What was found as if these were in place, and they themselves."""
    real = {swap.target: swap.path for swap in swaps}
    reported = [Finding("damage", swap.path, 0, 0, -1, DAMAGED) for swap in swaps]
    return reported + [each._replace(path=real.get(each.path, each.path)) for each in findings]


def _made_again(path: str) -> Finding:
    return Finding("index", path, 0, 0, -1, "it is missing or damaged")


def _readable(disk: Disk, path: str, report: PartitionReport, known: KnownLog) -> list[tuple[int, int]]:
    """First and last offsets of what a start leaves of a log, and a repair where it needs one."""
    if report.is_damaged:
        return readable_ranges(survey_log(disk, path, report.name, known), known)
    end = known.end(report.segments[-1].next_offset if report.segments else 0)
    return [(report.start_offset, end - 1)] if report.start_offset < end else []


def _lock(disk: Disk, path: str) -> DirectoryLock | None:
    """None on a file system that is read-only, as after an error or of a copy: nobody writes there."""
    try:
        return disk.lock(posixpath.join(path, LOCK))
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return None


def _verify_ends(
    report: DirectoryReport, known: KnownLogs, points: Mapping[TopicPartition, int], message: str, only: str | None
) -> None:
    """Every log reaches as far as is known of it; what is gone is damage."""
    found = {partition.name: partition for partition in report.partitions}
    damaged = {finding.path for finding in report.all_findings() if finding.kind == "damage"}
    for tp, offset in sorted(points.items()):
        name = f"{tp.topic}-{tp.partition}"
        inside = posixpath.join(report.path, name)
        if only not in (None, name) or any(inside in (path, posixpath.dirname(path)) for path in damaged):
            continue
        partition = found.get(name)
        end = partition.segments[-1].next_offset if partition is not None and partition.segments else 0
        if end < offset:
            ends = "is missing" if partition is None else f"ends at {end}"
            what = f"{message.format(f'offset {offset}')} and now {ends}"
            first = max(end, known.starts.get(tp, 0))
            findings = report.findings if partition is None else partition.findings
            findings.append(Finding("damage", inside, 0, 0, first if first < offset else -1, what))


def recovery_points(disk: Disk, path: str, journal: JournalContents) -> dict[TopicPartition, int]:
    """The offset of each partition below which everything is on stable storage, from our checkpoint or Kafka's."""
    checkpoint = believed_checkpoint(disk, path, journal)
    if checkpoint is not None:
        return {point.tp: point.recovery_point for point in checkpoint.logs.values()}
    return read_offsets(disk, posixpath.join(path, RECOVERY_POINT))


def _verify_journal(disk: Disk, journal: JournalContents, report: DirectoryReport) -> None:
    try:
        refuse_earlier_stop(disk, report.path, journal)
    except StorageError as error:
        report.findings.append(Finding("damage", posixpath.join(report.path, CLEAN_SHUTDOWN), 0, 0, -1, str(error)))
    if disk.exists(posixpath.join(report.path, JOURNAL_RESET)):
        what = "a repair without the journal was interrupted: `duramen log repair --journal` finishes it"
        report.findings.append(Finding("damage", posixpath.join(report.path, JOURNAL_RESET), 0, 0, -1, what))
        report.needs_journal = True
    checkpoint = read_checkpoint(disk, report.path)
    if journal.generation >= 0:
        report.journal_entries = len(journal.entries)
    if checkpoint is not None and is_outdated(disk, report.path, checkpoint, journal):
        what = "it is older than the last one that was written"
        report.findings.append(Finding("index", posixpath.join(report.path, CHECKPOINT), 0, 0, -1, what))
    if journal.damage is not None:
        made_again = report.clean and not journal.entries  # nothing was in it
        found = damage_finding(journal.damage)
        report.findings.append(found._replace(kind="index") if made_again else found)
        report.needs_journal |= not report.clean
    if journal.torn_entries:
        what = f"{journal.torn_entries} journal entries behind a gap were never acknowledged"
        report.findings.append(Finding("tail", report.path, 0, 0, -1, what))


def _of_no_use(disk: Disk, path: str) -> Iterator[Finding]:
    """Files of ours that say nothing any more, and that a start makes again."""
    cleaned = read_file(disk, posixpath.join(path, CLEANED))
    lost = [CHECKPOINT] if disk.exists(posixpath.join(path, CHECKPOINT)) and read_checkpoint(disk, path) is None else []
    lost += [CLEANED] if cleaned is not None and decode_cleaned(cleaned) is None else []
    for name in lost:
        yield Finding("index", posixpath.join(path, name), 0, 0, -1, "it cannot be read")


def _gaps(gaps: Gaps) -> Iterator[Finding]:
    for name, places in gaps.items():
        for place in merged(places):
            yield Finding("damage", name, *place, -1, UNREADABLE)


def segments_of(disk: Disk, path: str) -> list[int]:
    """Base offsets of the segments in a partition's directory, ascending."""
    return [base for base in map(parse_base, disk.list_directory(path)) if base is not None]


def verify_partition(
    disk: Disk,
    path: str,
    tick: Tick,
    *,
    synced: int | None = None,
    known: KnownLog = _UNKNOWN,
    decode: bool = False,
    restored: Sequence[str] = (),
) -> PartitionReport:
    """Check one partition's directory.

    synced: offset below which no tail is expected, because it was on stable storage; None when that is everything.
    known: what the directory says of the log. restored: files that the next start makes again.
    """
    forecast = known.forecast
    metadata = posixpath.join(path, PARTITION_METADATA)
    content = read_file(disk, metadata)
    topic_id = None if content is None else decode_partition_metadata(content)
    report = PartitionReport(posixpath.basename(path), topic_id)
    report.findings += [_made_again(each) for each in restored if posixpath.dirname(each) == path]
    if content is not None and topic_id is None and metadata not in restored:
        report.findings.append(Finding("damage", metadata, 0, len(content), -1, "it holds no topic id"))
    _verify_side_files(disk, path, report.findings, synced, restored, known.merged)
    # Where a metadata log was cut they are all that is left of what came before.
    report.findings += map(damage_finding, damaged_snapshots(disk, path))
    bases = segments_of(disk, path)
    report.start_offset = max([known.start_offset, *bases[:1]])
    if not bases:
        made = (synced is not None and content is None and _is_vacant(disk, path)) or synced == 0
        if forecast is not None:
            made = forecast.remakes_all
        report.findings.append(Finding("tail" if made else "damage", path, 0, 0, -1, "it has no segment"))
    expected = -1
    for base, following in zip(bases, [*bases[1:], NO_OFFSET][: len(bases)], strict=True):
        replaced = _replaced(base, synced, forecast)
        check = SegmentCheck(disk, path, base, following, report.findings, tick, decode=decode)
        check.log_start = known.start_offset
        check.is_dropped = forecast is not None and forecast.plan.begun is not None and forecast.plan.replaces(base, 0)
        check.limit = known.limit(base)
        check.may_be_reserved = known.point is None and following == NO_OFFSET
        segment = check.run(replaced=replaced, expected=expected)
        report.segments.append(segment)
        expected = -1 if forecast is not None and forecast.plan.is_dropped(base) else segment.next_offset
        gap = None
        if not check.damaged and known.start_offset < following != NO_OFFSET:
            gap = gap_behind(disk, posixpath.dirname(path), report.name, segment.next_offset, following)
        if gap is not None:
            what = "no segment holds these offsets: a file is missing"
            filled = replaced is not None and replaced(segment.size, gap[0])  # the journal has them
            if forecast is not None:
                filled = forecast.fills(base, segment.size, *gap, bases)
            report.findings.append(Finding("tail" if filled else "damage", path, 0, 0, gap[0], what, gap[1]))
    if len(bases) == 1 and not report.segments[0].size:  # begun anew; the batch that holds its start may come in front
        report.segments[0].next_offset = max(bases[0], known.start_offset)
    _verify_list(path, known.missing(disk.list_directory(path)), report)
    if bases and lost_beginning(disk, posixpath.dirname(path), report.name, report.start_offset, expected):
        report.findings.append(Finding("damage", path, 0, 0, 0, NO_SNAPSHOT, report.start_offset - 1))
    if forecast is not None:
        _verify_extents(disk, path, forecast, report)
    return report


def _verify_extents(disk: Disk, path: str, forecast: RecoveryForecast, report: PartitionReport) -> None:
    """What bypassed the journal is in its segment, also behind what recovery is going to write anew."""
    for name, write in forecast.lost_extents(disk, path):
        end = write.position + write.length
        if not any(
            each.kind == "damage" and each.path == name and each.start < end and write.position < each.end
            for each in report.findings
        ):
            what = "it differs from what was synced, or is gone; the journal does not have it"
            report.findings.append(Finding("damage", name, write.position, end, write.offset, what))


def _is_vacant(disk: Disk, path: str) -> bool:
    """Whether a partition was only just being made: nothing in it has its name yet."""
    return all(name.endswith(".tmp") for name in disk.list_directory(path))


def _replaced(base: int, synced: int | None, forecast: RecoveryForecast | None) -> Replaced | None:
    """What the next start replaces of a segment."""
    if forecast is not None:
        plan = forecast.plan
        return lambda position, offset: plan.replaces(base, position)
    return None if synced is None else lambda position, offset: offset >= synced


def _verify_list(path: str, missing: list[tuple[int, int]], report: PartitionReport) -> None:
    """Segments that are missing by the directory's own list, or by the seals that they left."""
    reported = [(each.offset, each.last_offset) for each in report.findings if each.kind == "damage"]
    for first, last in missing:
        if not any(start <= first and last <= end for start, end in reported):
            what = "the segment that held these offsets is missing"
            report.findings.append(Finding("damage", path, 0, 0, first, what, last))


def _verify_side_files(
    disk: Disk,
    path: str,
    findings: list[Finding],
    synced: int | None,
    restored: Sequence[str],
    merged: Sequence[tuple[int, int]],
) -> None:
    """Producer snapshots and leader epochs: copies of what the batches say.

    A checkpoint writes a snapshot before it moves the recovery point there: beyond `synced` a crash may have cut it.
    """
    for name in strays(disk, path, merged, clean=synced is None):
        findings.append(Finding("damage", posixpath.join(path, name), 0, 0, -1, STRAY))
    for name in disk.list_directory(path):
        inside = posixpath.join(path, name)
        sound, kind = True, "index"
        if name == LEADER_EPOCHS:
            sound = read_epochs(disk, inside) is not None
        elif name.endswith((SNAPSHOT, PRODUCERS)):
            content = read_file(disk, inside) or b""
            decode = decode_kafka if name.endswith(SNAPSHOT) else decode_ours
            sound = decode(content) is not None
            parsed = parse_name(name)
            if parsed is not None and synced is not None and parsed[0] > synced:
                kind = "tail"
        if not sound and inside not in restored:
            findings.append(Finding(kind, inside, 0, 0, -1, "it cannot be read"))
