"""Checks one segment of a partition: its batches front to back, then its seal and its indexes against them."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from duramen.errors import CorruptLogError, DuramenError, StorageError
from duramen.ports import Disk, File
from duramen.storage.checkpoint.loss_record import is_left
from duramen.storage.files.atomic import read_file
from duramen.storage.repair.report import Finding, SegmentReport, damage_finding
from duramen.storage.repair.salvage import next_batch
from duramen.storage.segment.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, decode_offset_index, decode_time_index
from duramen.storage.segment.scan import NO_END, NO_LIMIT, scan
from duramen.storage.segment.seal import SEALING, read_growing, read_sides
from duramen.storage.segment.segment import INDEX, SEAL, TIME_INDEX, TXN_INDEX, file_name, log_name
from duramen.wire.batch import HEADER_SIZE, BatchHeader, parse_header, records
from duramen.wire.seal import BLOCK_BYTES, Seal, decode_seal

DECODED_BYTES_MAX = 1 << 30
"""A batch that inflates to more than this counts as damaged."""
NO_OFFSET = 1 << 62
"""Above every offset."""
_SEAL_READ_BYTES = 16 * BLOCK_BYTES
_SIDES = (INDEX, TIME_INDEX, TXN_INDEX)

Tick = Callable[[int], None]
"""Gets the number of bytes read since the last call, for progress."""
Replaced = Callable[[int, int], bool]
"""(byte of a segment, offset there) -> whether the next start writes that anew or cuts it off."""


def _written(content: bytes, entry_size: int) -> bytes:
    """An index file's whole entries without the megabytes of zeros that Kafka reserves behind them."""
    if any(content[-entry_size:]):
        return content
    used = len(content.rstrip(b"\0"))
    return content[: -(-used // entry_size) * entry_size]


def only_zeros(file: File, start: int, end: int) -> bool:
    """Whether bytes start..end of a file, which must be there, are all zero."""
    while start < end:
        piece = file.pread(min(_SEAL_READ_BYTES, end - start), start)
        if not piece or any(piece):
            return False
        start += len(piece)
    return True


class SegmentCheck:
    """What is found goes to `findings`; what the segment holds is the report that `run` returns."""

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
        self.limit = NO_LIMIT
        self.log_start = 0
        """Records below are deleted."""
        self.may_be_reserved = True
        """Whether zeros at the end may be space that Kafka reserved and never wrote (`preallocate`)."""
        self.is_dropped = False
        """Whether nothing of it is kept, for the log begins anew: what a seal says of it is of no use."""
        self.damaged = False
        self.starts: dict[int, int] = {}
        """Base offset of the batch at each position."""
        self.youngest: list[tuple[int, int]] = []
        """(last offset, greatest timestamp so far) after each batch."""

    def run(self, *, replaced: Replaced | None, expected: int) -> SegmentReport:
        """replaced: None after a clean stop, when nothing is. expected: behind the segment before. OSError."""
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
            seal = None if self.is_dropped else self._seal()
            report.sealed = seal is not None
            end = self._walk(file, report, None if seal is not None else replaced)
            if seal is not None:
                self._check_seal(file, seal, report)
            else:
                self._check_growing(file, report, replaced)
            self._check_length(report, None if seal is not None else replaced)
        finally:
            file.close()
        if not self.damaged:
            # Entries can only be judged by the batches they lead to.
            self._check_offset_index(end, report)
            self._check_time_index(report)
        return report

    def _find(self, kind: str, path: str, start: int, end: int, offset: int, what: str) -> None:
        self.findings.append(Finding(kind, path, start, end, offset, what))

    def _walk(self, file: File, report: SegmentReport, replaced: Replaced | None) -> int:
        """Every batch, past damaged ones where another follows; returns where the last sound one ends."""
        start: int | None = 0
        end = 0
        while start is not None:
            start, end = self._walk_sound(file, report, start, replaced)
        return end

    def _walk_sound(
        self, file: File, report: SegmentReport, start: int, replaced: Replaced | None
    ) -> tuple[int | None, int]:
        """The batches from `start` up to one that is not sound; where to go on behind it (None: nowhere), and it."""
        for position, header, ok in scan(file, start, report.size, expect_offset=report.next_offset):
            if not ok or header is None or self.limit.is_broken(position, header):
                if self.may_be_reserved and only_zeros(file, position, report.size):
                    return None, position
                what = (
                    "no whole batch is here"
                    if header is None
                    else f"the batch at offset {header.base_offset} is damaged"
                )
                kind = "tail" if replaced is not None and replaced(position, report.next_offset) else "damage"
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
            report.deleted += max(0, header.count - max(0, header.next_offset - self.log_start))
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
        return report.size, -1 if self.below == NO_OFFSET else self.below - 1

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
            what = f"it says that the segment ends with offset {seal.last_offset}"
            if seal.last_offset < report.next_offset - 1:
                what += f" instead of {report.next_offset - 1}"
            else:
                what += f", the next one begins at {self.below}"
            self._find("index", posixpath.join(self.directory, file_name(self.base, SEAL)), 0, 0, self.base, what)
        elif not self.damaged and seal.max_timestamp != report.max_timestamp:
            what = f"its greatest timestamp is {seal.max_timestamp} instead of {report.max_timestamp}"
            self._find("index", posixpath.join(self.directory, file_name(self.base, SEAL)), 0, 0, self.base, what)

        self._check_sides(seal)

    def _check_length(self, report: SegmentReport, replaced: Replaced | None) -> None:
        """The bytes in front of the limit were there. Where the log ends too early, that is reported elsewhere."""
        if report.next_offset < self.limit.offset:
            return
        size, wanted = report.size, self.limit.position
        if not size < wanted < NO_END or self.damaged or (replaced is not None and replaced(size, report.next_offset)):
            return
        is_reported = any(finding.kind == "damage" and finding.path == self.path for finding in self.findings)
        if not (is_reported or is_left(self.disk, self.path, size)):
            what = f"it had {wanted} bytes, it has {size}: batches are missing"
            self._find("damage", self.path, size, wanted, -1, what)

    def _check_growing(self, file: File, report: SegmentReport, replaced: Replaced | None) -> None:
        """What an active segment was sealed up to. After a crash only what was synced is sure to be as it was."""
        path = posixpath.join(self.directory, file_name(self.base, SEALING))
        try:
            seal = read_growing(self.disk, path, NO_OFFSET)
        except StorageError as error:
            self._find("index", path, 0, 0, self.base, str(error))
            return
        if seal is None:
            return
        if replaced is None and seal.length > report.size:
            what = f"it has {report.size} bytes, {seal.length} were sealed"
            self._find("damage", self.path, report.size, seal.length, report.next_offset, what)
        elif seal.length <= report.size:
            last = report.next_offset - 1
            self._check_blocks(file, seal, report.size, None if replaced is None else lambda at: replaced(at, last))

    def _check_blocks(self, file: File, seal: Seal, size: int, replaced: Callable[[int], bool] | None = None) -> None:
        for position in range(0, min(seal.length, size), _SEAL_READ_BYTES):
            length = min(_SEAL_READ_BYTES, seal.length - position)
            piece = memoryview(file.pread(length, position))
            for inside in range(0, len(piece), BLOCK_BYTES):
                start = position + inside
                if replaced is not None and replaced(min(start + BLOCK_BYTES, seal.length) - 1):
                    continue
                try:
                    seal.check(piece[inside : inside + BLOCK_BYTES], start, self.path, self._offset_at(start))
                except CorruptLogError as error:
                    last = self._offset_at(error.end - 1, last=True)
                    self.findings.append(damage_finding(error)._replace(last_offset=last))

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
        return -1 if behind == NO_OFFSET else behind - 1

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
