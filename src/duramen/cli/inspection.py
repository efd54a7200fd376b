"""Checks a data directory that nobody uses: every batch, seal and index of every segment, and the journal.

Three kinds of findings. `damage`: stored records differ from what was written. `index`: a side file does not fit its
segment; the next start rebuilds it. `tail`: bytes above the recovery point that are no whole batch, after an unclean
stop: the next start replaces them from the journal or, when they were never acknowledged, cuts them.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.errors import CorruptLogError, DuramenError, StorageError
from duramen.model import TopicPartition
from duramen.ports import DirectoryLock, Disk, File
from duramen.storage.checkpoints import (
    CHECKPOINT,
    CLEAN_SHUTDOWN,
    CLEANED,
    FORGONE,
    LEADER_EPOCHS,
    LOCK,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT,
    decode_cleaned,
    decode_partition_metadata,
    parse_partition_name,
    read_checkpoint,
    read_epochs,
    read_file,
    read_offsets,
)
from duramen.storage.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, decode_offset_index, decode_time_index
from duramen.storage.journal_reader import JournalContents, read_journal
from duramen.storage.losses import gap_behind
from duramen.storage.producer_files import decode_kafka, decode_ours
from duramen.storage.salvage import next_batch
from duramen.storage.scan import scan
from duramen.storage.scrub_progress import Progress, read_progress
from duramen.storage.seal import SEALING, read_growing, read_sides
from duramen.storage.segment import (
    INDEX,
    PRODUCERS,
    SEAL,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    log_name,
    parse_base,
    parse_name,
)
from duramen.storage.snapshot_files import parse_snapshot_name, read_snapshot
from duramen.storage.vouching import MISSING, compare_identity, is_outdated, missing_segments, synced_ends
from duramen.wire.batch import HEADER_SIZE, BatchHeader, parse_header, records
from duramen.wire.seal import BLOCK_BYTES, Seal, decode_seal

DECODED_BYTES_MAX = 1 << 30
"""A batch that inflates to more than this counts as damaged."""
_SEAL_READ_BYTES = 16 * BLOCK_BYTES
_SIDES = (INDEX, TIME_INDEX, TXN_INDEX)
_NO_OFFSET = 1 << 62
"""Above every offset."""

Tick = Callable[[int], None]
"""Told the bytes read since the last call, for progress."""


class Finding(NamedTuple):
    """Something wrong: its kind (module docstring), file, bytes start..end, offsets concerned (-1 unknown)."""

    kind: str
    path: str
    start: int
    end: int
    offset: int
    what: str
    last_offset: int = -1


@dataclass(slots=True)
class SegmentReport:
    """What one segment holds; next_offset is behind its last sound batch."""

    base_offset: int
    size: int
    batches: int = 0
    records: int = 0
    next_offset: int = 0
    max_timestamp: int = -1
    sealed: bool = False


@dataclass(slots=True)
class PartitionReport:
    """What one partition's directory holds."""

    name: str
    topic_id: str | None
    segments: list[SegmentReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def readable(self) -> list[tuple[int, int]]:
        """First and last offsets of what damage leaves, when there is some."""
        gaps = sorted(
            (finding.offset, finding.last_offset)
            for finding in self.findings
            if finding.kind == "damage" and finding.offset >= 0
        )
        position = self.segments[0].base_offset if self.segments else 0
        end = self.segments[-1].next_offset if self.segments else 0
        kept = []
        for first, last in gaps:
            if first > position:
                kept.append((position, first - 1))
            position = max(position, end if last < 0 else last + 1)
        if position < end:
            kept.append((position, end - 1))
        return kept


@dataclass(slots=True)
class DirectoryReport:
    """What a data directory holds; journal_entries is None where there is no journal, as in Kafka's directories.

    scrub: how far the node's scrubber was, and what it knew to be damaged.
    """

    path: str
    cluster_id: str
    node_id: int
    clean: bool
    journal_entries: int | None = None
    partitions: list[PartitionReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    scrub: Progress | None = None

    def all_findings(self) -> Iterator[Finding]:
        """The directory's own and those of its partitions."""
        yield from self.findings
        for partition in self.partitions:
            yield from partition.findings


def verify_directory(
    disk: Disk, path: str, tick: Tick, *, decode: bool = False, only: str | None = None
) -> DirectoryReport:
    """Check a data directory. It is locked meanwhile: DirectoryLockedError when a process uses it.

    only: the name of the one partition directory to look at. decode: open every record, not only check the batches'
    checksums. StorageError when it is no data directory.
    """
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
        report.scrub = read_progress(disk, path)
        journal = _verify_journal(disk, report)
        points = recovery_points(disk, path)
        if disk.exists(posixpath.join(path, CHECKPOINT)) and read_checkpoint(disk, path) is None:
            what = "it cannot be read"
            report.findings.append(Finding("index", posixpath.join(path, CHECKPOINT), 0, 0, -1, what))
        cleaned = read_file(disk, posixpath.join(path, CLEANED))
        if cleaned is not None and decode_cleaned(cleaned) is None:
            report.findings.append(Finding("index", posixpath.join(path, CLEANED), 0, 0, -1, "it cannot be read"))
        for name in disk.list_directory(path):
            tp = parse_partition_name(name)
            if tp is not None and only in (None, name):
                inside = posixpath.join(path, name)
                try:
                    disk.list_directory(inside)
                except NotADirectoryError:
                    continue  # a file of such a name, which no start looks at either
                synced = None if clean else points.get(tp, 0)
                report.partitions.append(verify_partition(disk, inside, tick, synced=synced, decode=decode))
        if clean:
            ends, known = (
                read_offsets(disk, posixpath.join(path, RECOVERY_POINT)),
                "it went up to {} at the last clean stop",
            )
        else:
            ends, known = synced_ends(disk, path, journal), "it was synced up to {}"
        _verify_ends(report, ends, known, only)
        return report
    finally:
        if lock is not None:
            lock.release()


def _lock(disk: Disk, path: str) -> DirectoryLock | None:
    """None on a file system that is read-only, as after an error or of a copy: nobody writes there."""
    try:
        return disk.lock(posixpath.join(path, LOCK))
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return None


def _verify_ends(report: DirectoryReport, points: dict[TopicPartition, int], known: str, only: str | None) -> None:
    """Every log reaches as far as is known of it; what is gone is damage."""
    ends = {partition.name: partition.segments[-1].next_offset for partition in report.partitions if partition.segments}
    damaged = {finding.path for finding in report.all_findings() if finding.kind == "damage"}
    for tp, offset in sorted(points.items()):
        name = f"{tp.topic}-{tp.partition}"
        inside = posixpath.join(report.path, name)
        if only not in (None, name) or any(posixpath.dirname(path) == inside for path in damaged):
            continue
        end = ends.get(name, 0)
        if end < offset:
            what = f"{known.format(f'offset {offset}')} and now ends at {end}"
            report.findings.append(Finding("damage", inside, 0, 0, end, what))


def recovery_points(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """The offset of each partition below which everything is on stable storage, from our checkpoint or Kafka's."""
    checkpoint = read_checkpoint(disk, path)
    if checkpoint is not None:
        return {point.tp: point.recovery_point for point in checkpoint.logs.values()}
    return read_offsets(disk, posixpath.join(path, RECOVERY_POINT))


def _verify_journal(disk: Disk, report: DirectoryReport) -> JournalContents:
    if disk.exists(posixpath.join(report.path, FORGONE)):
        what = "a repair without the journal was interrupted: `duramen log repair --journal` finishes it"
        report.findings.append(Finding("damage", posixpath.join(report.path, FORGONE), 0, 0, -1, what))
    journal = read_journal(disk, report.path)
    try:
        if journal.generation >= 0:
            report.journal_entries = len(journal.entries)
        checkpoint = read_checkpoint(disk, report.path)
        if checkpoint is not None and is_outdated(disk, report.path, checkpoint, journal):
            what = "it is older than the last one that was written"
            report.findings.append(Finding("index", posixpath.join(report.path, CHECKPOINT), 0, 0, -1, what))
        if journal.damage is not None:
            report.findings.append(_damage(journal.damage))
        if journal.torn_entries:
            what = f"{journal.torn_entries} journal entries behind a gap were never acknowledged"
            report.findings.append(Finding("tail", report.path, 0, 0, -1, what))
    finally:
        journal.close()
    return journal


def _damage(error: CorruptLogError) -> Finding:
    return Finding("damage", error.path, error.start, error.end, error.offset, error.reason)


def _verify_snapshots(disk: Disk, path: str, findings: list[Finding]) -> None:
    """Snapshots of a metadata log: where the log was cut they are all that is left of what came before."""
    for snapshot in filter(None, map(parse_snapshot_name, disk.list_directory(path))):
        try:
            for _ in read_snapshot(disk, path, snapshot):
                pass
        except CorruptLogError as error:
            findings.append(_damage(error))


def segments_of(disk: Disk, path: str) -> list[int]:
    """Base offsets of the segments in a partition's directory, ascending."""
    return [base for base in map(parse_base, disk.list_directory(path)) if base is not None]


def verify_partition(
    disk: Disk, path: str, tick: Tick, *, synced: int | None = None, decode: bool = False
) -> PartitionReport:
    """Check one partition's directory.

    synced: offset below which no tail is expected, because it was on stable storage; None when that is everything.
    """
    content = read_file(disk, posixpath.join(path, PARTITION_METADATA))
    topic_id = None if content is None else decode_partition_metadata(content)
    report = PartitionReport(posixpath.basename(path), topic_id)
    if content is not None and topic_id is None:
        what = "it holds no topic id"
        report.findings.append(Finding("damage", posixpath.join(path, PARTITION_METADATA), 0, len(content), -1, what))
    _verify_side_files(disk, path, report.findings, synced)
    _verify_snapshots(disk, path, report.findings)
    bases = segments_of(disk, path)
    if not bases:
        report.findings.append(Finding("tail" if synced == 0 else "damage", path, 0, 0, -1, "it has no segment"))
    expected = -1
    for base, following in zip(bases, [*bases[1:], _NO_OFFSET][: len(bases)], strict=True):
        check = _SegmentCheck(disk, path, base, following, report.findings, tick, decode=decode)
        segment = check.run(synced=synced, expected=expected)
        report.segments.append(segment)
        expected = segment.next_offset
        gap = None
        if not check.damaged and following != _NO_OFFSET:
            gap = gap_behind(disk, posixpath.dirname(path), report.name, segment.next_offset, following)
        if gap is not None:
            what = "no segment holds these offsets: a file is missing"
            report.findings.append(Finding("damage", path, 0, 0, gap[0], what, gap[1]))
    _verify_list(disk, path, bases, report)
    return report


def _verify_list(disk: Disk, path: str, bases: list[int], report: PartitionReport) -> None:
    """Segments that the directory's own list has: of a compacted log, or before the first one that is there."""
    tp = parse_partition_name(report.name)
    missing = [] if tp is None else missing_segments(disk, posixpath.dirname(path), tp, bases)
    told = [(each.offset, each.last_offset) for each in report.findings if each.kind == "damage"]
    for first, last in missing:
        if not any(start <= first and last <= end for start, end in told):
            what = "the segment that held these offsets is missing"
            report.findings.append(Finding("damage", path, 0, 0, first, what, last))


def _verify_side_files(disk: Disk, path: str, findings: list[Finding], synced: int | None) -> None:
    """Producer snapshots and leader epochs: copies of what the batches say.

    A checkpoint writes a snapshot before it moves the recovery point there: beyond `synced` a crash may have cut it.
    """
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
        if not sound:
            findings.append(Finding(kind, inside, 0, 0, -1, "it cannot be read"))


def _written(content: bytes, entry_size: int) -> bytes:
    """An index file's whole entries without the megabytes of zeros that Kafka reserves behind them."""
    if any(content[-entry_size:]):
        return content
    used = len(content.rstrip(b"\0"))
    return content[: -(-used // entry_size) * entry_size]


class _SegmentCheck:
    """Checks one segment: its batches front to back, then its seal and its indexes against them."""

    def __init__(
        self, disk: Disk, directory: str, base: int, below: int, findings: list[Finding], tick: Tick, *, decode: bool
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.base = base
        self.below = below
        """Where the next segment begins."""
        self.path = posixpath.join(directory, log_name(base))
        self.findings = findings
        self.tick = tick
        self.decode = decode
        self.damaged = False
        self.starts: dict[int, int] = {}
        """Base offset of the batch at each position."""
        self.youngest: list[tuple[int, int]] = []
        """(last offset, greatest timestamp so far) after each batch."""

    def run(self, *, synced: int | None, expected: int) -> SegmentReport:
        file = self.disk.open(self.path)
        try:
            report = SegmentReport(self.base, file.size(), next_offset=self.base)
            if self.base < expected:
                self._find(
                    "damage",
                    self.path,
                    0,
                    0,
                    self.base,
                    f"it starts below offset {expected}, where the segment before ends",
                )
            seal = self._seal()
            report.sealed = seal is not None
            end = self._walk(file, report, None if seal is not None else synced)
            if seal is not None:
                self._check_seal(file, seal, report)
            else:
                self._check_growing(file, report, synced)
        finally:
            file.close()
        if not self.damaged:
            # Entries can only be judged by the batches they lead to.
            self._check_offset_index(end, report)
            self._check_time_index(report)
        return report

    def _find(self, kind: str, path: str, start: int, end: int, offset: int, what: str) -> None:
        self.findings.append(Finding(kind, path, start, end, offset, what))

    def _walk(self, file: File, report: SegmentReport, synced: int | None) -> int:
        """Every batch, past damaged ones where another follows; returns where the last sound one ends."""
        start: int | None = 0
        end = 0
        while start is not None:
            start, end = self._walk_sound(file, report, start, synced)
        return end

    def _walk_sound(self, file: File, report: SegmentReport, start: int, synced: int | None) -> tuple[int | None, int]:
        """The batches from `start` up to one that is not sound; where to go on behind it (None: nowhere), and it."""
        for position, header, ok in scan(file, start, report.size, expect_offset=report.next_offset):
            if not ok or header is None:
                if self._only_zeros(file, position, report.size):
                    return None, position
                what = (
                    "no whole batch is here"
                    if header is None
                    else f"the batch at offset {header.base_offset} is damaged"
                )
                kind = "damage" if synced is None or report.next_offset < synced else "tail"
                # Behind a tail there may be sound batches too, which a power cut let through; the next start decides.
                self.damaged = True
                if kind == "tail":
                    self._find(kind, self.path, position, report.size, report.next_offset, what)
                    return None, position
                behind, last = self._behind(file, position, report)
                found = Finding(kind, self.path, position, behind, report.next_offset, what, last)
                self.findings.append(found)
                return (behind if behind < report.size else None), position
            self.tick(header.size)
            self.starts[position] = header.base_offset
            report.batches += 1
            report.records += header.count
            report.next_offset = header.next_offset
            if header.count:  # what compaction has emptied counts for no look-up by time
                report.max_timestamp = max(report.max_timestamp, header.max_timestamp)
            self.youngest.append((header.last_offset, report.max_timestamp))
            if self.decode:
                self._decode(file, position, header)
        return None, report.size

    def _behind(self, file: File, position: int, report: SegmentReport) -> tuple[int, int]:
        """Where the next sound batch starts, the file's end if there is none, and the last offset before it."""
        behind = next_batch(file, position, report.size, from_offset=report.next_offset, below=self.below)
        if behind < report.size:
            return behind, parse_header(file.pread(HEADER_SIZE, behind)).base_offset - 1
        return report.size, -1 if self.below == _NO_OFFSET else self.below - 1

    def _only_zeros(self, file: File, start: int, end: int) -> bool:
        """Whether the rest is space that was reserved and never written (`preallocate`)."""
        while start < end:
            piece = file.pread(min(_SEAL_READ_BYTES, end - start), start)
            if not piece or any(piece):
                return False
            start += len(piece)
        return True

    def _decode(self, file: File, position: int, header: BatchHeader) -> None:
        """Open the records; what the batch's CRC cannot show is a producer's own mistake."""
        try:
            found = sum(1 for _ in records(file.pread(header.size, position), header, max_bytes=DECODED_BYTES_MAX))
        except DuramenError as error:
            end = position + header.size
            self._find("damage", self.path, position, end, header.base_offset, f"its records cannot be read: {error}")
            return
        if found != header.count:
            what = f"it holds {found} records instead of {header.count}"
            self._find("damage", self.path, position, position + header.size, header.base_offset, what)

    def _seal(self) -> Seal | None:
        path = posixpath.join(self.directory, file_name(self.base, SEAL))
        content = read_file(self.disk, path)
        if content is None:
            return None
        try:
            return decode_seal(content, path)
        except StorageError as error:
            self._find("index", path, 0, len(content), self.base, str(error))
            return None

    def _check_seal(self, file: File, seal: Seal, report: SegmentReport) -> None:
        if seal.length != report.size:
            what = f"it has {report.size} bytes, {seal.length} were sealed"
            self._find("damage", self.path, min(seal.length, report.size), report.size, report.next_offset, what)
        self._check_blocks(file, seal, report.size)
        if not self.damaged and not report.next_offset - 1 <= seal.last_offset < self.below:
            what = f"it says that the segment ends with offset {seal.last_offset} instead of {report.next_offset - 1}"
            self._find("index", posixpath.join(self.directory, file_name(self.base, SEAL)), 0, 0, self.base, what)
        elif not self.damaged and seal.max_timestamp != report.max_timestamp:
            what = f"its greatest timestamp is {seal.max_timestamp} instead of {report.max_timestamp}"
            self._find("index", posixpath.join(self.directory, file_name(self.base, SEAL)), 0, 0, self.base, what)

        self._check_sides(seal)

    def _check_growing(self, file: File, report: SegmentReport, synced: int | None) -> None:
        """What an active segment was sealed up to. After a crash only what was synced is sure to be as it was."""
        path = posixpath.join(self.directory, file_name(self.base, SEALING))
        try:
            seal = read_growing(self.disk, path, _NO_OFFSET)
        except StorageError as error:
            self._find("index", path, 0, 0, self.base, str(error))
            return
        if seal is None:
            return
        if synced is None and seal.length > report.size:
            what = f"it has {report.size} bytes, {seal.length} were sealed"
            self._find("damage", self.path, report.size, seal.length, report.next_offset, what)
        elif seal.length <= report.size and (synced is None or report.next_offset <= synced):
            self._check_blocks(file, seal, report.size)

    def _check_blocks(self, file: File, seal: Seal, size: int) -> None:
        for position in range(0, min(seal.length, size), _SEAL_READ_BYTES):
            length = min(_SEAL_READ_BYTES, seal.length - position)
            piece = memoryview(file.pread(length, position))
            for inside in range(0, len(piece), BLOCK_BYTES):
                start = position + inside
                try:
                    seal.check(piece[inside : inside + BLOCK_BYTES], start, self.path, self._offset_at(start))
                except CorruptLogError as error:
                    last = self._offset_at(error.end - 1, last=True)
                    self.findings.append(_damage(error)._replace(last_offset=last))

    def _check_sides(self, seal: Seal) -> None:
        """The seal's sums of the index files: what is no entry of another place may still be another entry."""
        if seal.sides is None:
            return
        paths = [posixpath.join(self.directory, file_name(self.base, suffix)) for suffix in _SIDES]
        found = read_sides(self.disk, paths)
        for number, path in enumerate(paths):
            length, checksum = found[2 * number : 2 * number + 2]
            if (length, checksum) != tuple(seal.sides[2 * number : 2 * number + 2]):
                self._find("index", path, 0, length, self.base, "it differs from what was sealed")

    def _offset_at(self, position: int, *, last: bool = False) -> int:
        """The first offset of the sound batch at a position; with `last`, the last one before the batch behind it."""
        if not last:
            return max((offset for start, offset in self.starts.items() if start <= position), default=self.base)
        behind = min((offset for start, offset in self.starts.items() if start > position), default=self.below)
        return -1 if behind == _NO_OFFSET else behind - 1

    def _check_offset_index(self, end: int, report: SegmentReport) -> None:
        path = posixpath.join(self.directory, file_name(self.base, INDEX))
        content = read_file(self.disk, path)
        if content is None:
            return
        index = decode_offset_index(_written(content, OFFSET_ENTRY_SIZE), end, report.next_offset - self.base)
        if index is None:
            self._find(
                "index", path, 0, len(content), self.base, "its entries do not ascend or lie outside of the segment"
            )
            return
        for relative, position in zip(index.offsets, index.positions, strict=True):
            start = self.starts.get(position)
            if start is None or start > self.base + relative:
                what = (
                    f"its entry for offset {self.base + relative} leads to byte {position}, where no such batch starts"
                )
                self._find("index", path, 0, len(content), self.base + relative, what)
                return

    def _check_time_index(self, report: SegmentReport) -> None:
        path = posixpath.join(self.directory, file_name(self.base, TIME_INDEX))
        content = read_file(self.disk, path)
        if content is None:
            return
        index = decode_time_index(_written(content, TIME_ENTRY_SIZE), report.next_offset - self.base)
        if index is None:
            self._find(
                "index", path, 0, len(content), self.base, "its entries do not ascend or lie outside of the segment"
            )
            return
        reached = iter(self.youngest)
        last_offset, youngest, older = -1, -1, -1
        for timestamp, relative in zip(index.timestamps, index.offsets, strict=True):
            while last_offset <= self.base + relative:
                older = youngest
                last_offset, youngest = next(reached, (2**63, youngest))
            if older > timestamp:
                what = f"a record up to offset {self.base + relative} is younger than its entry's time {timestamp}"
                self._find("index", path, 0, len(content), self.base + relative, what)
                return
