"""Finding records by time: through the time indexes to one batch, which is then decoded.

A look-up reads from disk and may have to decompress, so it is a job that carries all it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.model import NO_TIMESTAMP
from duramen.ports import Disk, File
from duramen.storage.files.atomic import read_file
from duramen.storage.segment.corruption import indexed_positions, located
from duramen.storage.segment.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, StoredOffsetIndex, StoredTimeIndex
from duramen.storage.segment.scan import scan
from duramen.storage.segment.seal import SEALING, CheckedFile, read_growing
from duramen.storage.segment.segment import INDEX, SEAL, TIME_INDEX, Segment, dormant_sums
from duramen.wire.batch import HEADER_SIZE, BatchHeader, Record, check_crc, records
from duramen.wire.checksum import crc32c
from duramen.wire.seal import BLOCK_BYTES, Seal

DECODED_BYTES = 256 << 20
"""Most bytes that the records of one batch may inflate to in a look-up."""
SEGMENTS_AT_ONCE = 2
"""A look-up's segments, all of whose files it has open: the first that may hold such a record nearly always does."""
_LAST = 2**63 - 1


class Timestamped(NamedTuple):
    """A record found by time; leader_epoch: of the batch it is in."""

    offset: int
    timestamp: int
    leader_epoch: int


class LookupTarget(NamedTuple):
    """A segment to look into. hint: where to start, -1: ask its index files.

    seal_path: of its seal, "" for none; sums: bytes and CRCs of its `.index` and `.timeindex`, where the seal does not
    know them.
    """

    segment: Segment
    disk: Disk
    file: File
    path: str
    size: int
    base_offset: int
    hint: int
    index_path: str
    time_index_path: str
    seal_path: str
    sums: tuple[int, int, int, int] | None


class TimeLookup:
    """Looks through `targets` in turn for the first record at or above `timestamp`; `run` on any thread.

    youngest: look for the greatest timestamp instead. rest: when nothing is found, the offset from which to look on, in
    segments that were not opened for this; -1 when there are none.
    """

    __slots__ = ("_end", "_start", "_targets", "_timestamp", "_youngest", "rest")

    def __init__(
        self,
        targets: list[LookupTarget],
        timestamp: int,
        start: int,
        end: int,
        *,
        youngest: bool = False,
        rest: int = -1,
    ) -> None:
        self.rest = rest
        self._targets = targets
        self._timestamp = timestamp
        self._start = start
        self._end = end
        self._youngest = youngest

    def run(self) -> Timestamped | None:
        """The record, None when there is none. OSError, CorruptLogError, KafkaError (records that cannot be read)."""
        try:
            return self._find_surely()
        except CorruptLogError as error:
            raise self._located(error) from None

    def _located(self, error: CorruptLogError) -> CorruptLogError:
        for target in self._targets:
            if target.path == error.path:
                bounds = (target.base_offset, target.segment.next_offset)
                positions = partial(indexed_positions, target.disk, target.index_path, bounds, target.size)
                return located(error, target.file, positions, bounds, target.size)
        return error

    def _find_surely(self) -> Timestamped | None:
        try:
            found = self._find()
        except (CorruptLogError, FileNotFoundError):
            if not self._were_replaced():
                raise
        else:
            if not self._were_replaced():
                return found
        return self._find()

    def _were_replaced(self) -> bool:
        """Whether compaction took segments out meanwhile. What has their names now is not theirs, the open file is:

        the next look goes through that alone.
        """
        alone = [
            target._replace(hint=0, seal_path="") if target.segment.replaced and target.seal_path else target
            for target in self._targets
        ]
        changed = alone != self._targets
        self._targets = alone
        return changed

    def _find(self) -> Timestamped | None:
        if self._youngest:
            return self._find_youngest()
        for target in self._targets:
            seal = _seal(target)
            hint = target.hint if target.hint >= 0 else _time_hint(target, self._timestamp, seal)
            for position, header in _headers(target, hint, seal):
                if header.base_offset >= self._end:
                    return None
                if header.is_control and header.producer_id < 0:
                    continue  # one of ours, which no reader is shown
                if header.max_timestamp >= self._timestamp and header.next_offset > self._start:
                    found = self._first_in(target, position, header, self._timestamp)
                    if found is not None:
                        return found
        return None

    def _find_youngest(self) -> Timestamped | None:
        best: tuple[int, LookupTarget, int, BatchHeader] | None = None
        for target in self._targets:
            seal = _seal(target)
            hint = target.hint if target.hint >= 0 else _time_hint(target, self._timestamp, seal)
            for position, header in _headers(target, hint, seal):
                if header.base_offset >= self._end:
                    break
                if header.next_offset <= self._start or not header.count:
                    continue
                if best is None or header.max_timestamp > best[0]:
                    youngest = header.max_timestamp
                    if header.base_offset < self._start:  # its youngest record may be among those that are deleted
                        inside = self._inside(target, position, header)
                        youngest = max((record.timestamp for record in inside), default=NO_TIMESTAMP - 1)
                    if youngest >= NO_TIMESTAMP and (best is None or youngest > best[0]):
                        best = youngest, target, position, header
        if best is None:
            return None
        youngest, target, position, header = best
        return self._first_in(target, position, header, youngest)

    def _first_in(self, target: LookupTarget, position: int, header: BatchHeader, timestamp: int) -> Timestamped | None:
        for record in self._inside(target, position, header):
            if record.timestamp >= timestamp:
                return Timestamped(record.offset, record.timestamp, header.leader_epoch)
        return None

    def _inside(self, target: LookupTarget, position: int, header: BatchHeader) -> Iterator[Record]:
        """The records of a batch that lie in start..end."""
        data = target.file.pread(header.size, position)
        if len(data) != header.size or not check_crc(data, header):
            raise CorruptLogError(target.path, position, position + header.size, "the CRC differs", header.base_offset)
        for record in records(data, header, max_bytes=DECODED_BYTES):
            if self._start <= record.offset < self._end:
                yield record


def _seal(target: LookupTarget) -> Seal | None:
    """The segment's seal, None when it has none that can be read: its batches' CRCs have to do then."""
    if not target.seal_path:
        return None
    try:
        return read_growing(target.disk, target.seal_path, target.size)
    except StorageError:
        return None


class _InFrontOfDamage:
    """What of a file is as it was sealed, up to where it is not: one bad block hides none of those before it."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read

    def pread(self, length: int, offset: int) -> bytes:
        """See scan.Readable. CorruptLogError, OSError."""
        try:
            return self._read(length, offset)
        except CorruptLogError as error:
            stop = error.start - error.start % BLOCK_BYTES
            if stop < offset + HEADER_SIZE:
                raise
        return self._read(stop - offset, offset)


def _headers(target: LookupTarget, start: int, seal: Seal | None) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of a segment's batches from a position on; CorruptLogError at one that cannot be."""
    file = target.file if seal is None else _InFrontOfDamage(CheckedFile(target.file, seal, target.base_offset).pread)
    for position, header, ok in scan(file, start, target.size, crc=seal is None or seal.length < target.size):
        if not ok or header is None:
            end = min(position + (HEADER_SIZE if header is None else header.size), target.size)
            raise CorruptLogError(target.path, position, end, "no batch starts here", target.base_offset)
        yield position, header


def _time_hint(target: LookupTarget, timestamp: int, seal: Seal | None) -> int:
    """Position in a segment from which to look, out of its index files; 0 when they are missing or damaged."""
    times, index = read_file(target.disk, target.time_index_path), read_file(target.disk, target.index_path)
    if times is None or index is None:
        return 0
    sums = target.sums if seal is None or seal.sides is None else seal.sides[:4]
    if sums is not None:
        index, times = index[: sums[0]], times[: sums[2]]
        if (len(index), crc32c(index), len(times), crc32c(times)) != sums:
            return 0
    relative = StoredTimeIndex(_reader(times), len(times) // TIME_ENTRY_SIZE).offset_before(timestamp)
    return StoredOffsetIndex(_reader(index), len(index) // OFFSET_ENTRY_SIZE).position_for(relative)


def _reader(content: bytes) -> Callable[[int, int], bytes]:
    return lambda position, length: content[position : position + length]


def _target(segment: Segment, hint: int) -> LookupTarget:
    if segment.files_open is not None:
        segment.files_open.trim()  # the look-up keeps what it has open all the same
    return LookupTarget(
        segment, segment.disk, segment.open_file(), segment.path, segment.flushed, segment.base_offset, hint,
        segment.path_of(INDEX), segment.path_of(TIME_INDEX), segment.path_of(SEAL if segment.sealed else SEALING),
        dormant_sums(segment),
    )  # fmt: skip


def search_by_timestamp(look_up: Callable[[int], TimeLookup]) -> Timestamped | None:
    """What a look-up finds, or those that go on with it, on this thread. look_up: makes one, by its `start`."""
    job = look_up(-1)
    while (found := job.run()) is None and job.rest >= 0:
        job = look_up(job.rest)
    return found


def timestamp_lookup(segments: Sequence[Segment], timestamp: int, start: int, end: int) -> TimeLookup:
    """The look-up of the first record in start..end (end excluded) with this timestamp or a later one.

    It may have to be gone on with, from `rest` on.
    """
    targets: list[LookupTarget] = []
    for segment in segments:
        if segment.base_offset >= end:
            break
        if segment.max_timestamp < timestamp or segment.next_offset <= start:
            continue
        if len(targets) == SEGMENTS_AT_ONCE:
            return TimeLookup(targets, timestamp, start, end, rest=segment.base_offset)
        hint = -1
        if segment.index is not None and segment.times is not None:
            hint = segment.index.position_for(segment.times.offset_before(timestamp))
        targets.append(_target(segment, hint))
    return TimeLookup(targets, timestamp, start, end)


def max_timestamp_lookup(segments: Sequence[Segment], start: int, end: int) -> TimeLookup:
    """The look-up of the youngest record in start..end (end excluded).

    A segment whose youngest batch lies in that range names it; any other that overlaps the range is looked through. One
    that begins before the range may have its youngest record before it, in a batch that overlaps the range.
    """
    best: Segment | None = None
    chosen: list[tuple[Segment, int]] = []
    for segment in segments:
        if segment.base_offset >= end or segment.size == 0 or segment.next_offset <= start:
            continue
        if segment.next_offset > end:
            chosen.append((segment, _before(segment, end)))
        elif segment.max_timestamp_offset < start:
            chosen.append((segment, 0))
        elif segment.base_offset < start:
            chosen.append((segment, _youngest(segment)))
        elif best is None or segment.max_timestamp > best.max_timestamp:
            best = segment
    if best is not None:
        chosen.append((best, _youngest(best)))
    chosen.sort(key=lambda pair: pair[0].base_offset)
    return TimeLookup([_target(segment, hint) for segment, hint in chosen], _LAST, start, end, youngest=True)


def _youngest(segment: Segment) -> int:
    """Position at or before the segment's youngest batch; -1: ask its index files."""
    index = segment.index
    return -1 if index is None else index.position_for(segment.max_timestamp_offset - segment.base_offset)


def _before(segment: Segment, end: int) -> int:
    """Position of the youngest batch that the time index names below `end`: no earlier one is younger."""
    if segment.index is None or segment.times is None:
        return 0
    return segment.index.position_for(segment.times.last_before(end - segment.base_offset))
