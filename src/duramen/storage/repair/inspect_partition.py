"""Survey of a partition's files while no process uses them: what a repair would do. Nothing is changed.

`repair/rewrite_partition.py` does what is found.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from duramen.ports import Disk, File
from duramen.storage.checkpoint.loss_record import gap_behind, is_compacted, is_left
from duramen.storage.files.atomic import read_file
from duramen.storage.repair.quarantine import is_free_for, side_path
from duramen.storage.repair.rewrite_partition import (
    DERIVED,
    DROPPED,
    MADE,
    REMOVED,
    REPAIRED,
    RESTORED,
    WITH_IT,
    PartitionRepair,
    RepairAction,
    SegmentRepair,
)
from duramen.storage.repair.salvage import (
    BatchRun,
    DamagedSegment,
    Landmarks,
    PatchedFile,
    flipped_bit,
    runs,
    without_doubtful,
    without_impostors,
)
from duramen.storage.segment.index import decode_offset_index, decode_time_index
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, read_epochs
from duramen.storage.segment.producer_snapshot import decode_kafka, decode_ours
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.scan import NO_END, NO_LIMIT, Limit
from duramen.storage.segment.seal import SEALING, blocks_hold, read_sides, sound_seal
from duramen.storage.segment.segment import INDEX, LOG, PRODUCERS, SEAL, SNAPSHOT, TXN_INDEX, log_name, parse_base
from duramen.wire.batch import CRC_START
from duramen.wire.checksum import crc32c
from duramen.wire.seal import BLOCK_BYTES, Seal


def survey_partition(
    disk: Disk,
    directory: str,
    name: str,
    end_offset: int | None,
    point: LogPoint | None = None,
    least_end: int = 0,
    *,
    start: int = 0,
    limit: Callable[[int], Limit] = lambda base: NO_LIMIT,
    missing: Callable[[Sequence[str]], list[tuple[int, int]]],
) -> PartitionRepair:
    """What the partition `name` of a data directory needs; reads all of it. See `PartitionRepair`. OSError.

    start: the first offset that readers saw. limit: of the segment with that base offset. missing: first and last
    offset of each segment that is not among these names and must be, by what is kept elsewhere.
    """
    repair = PartitionRepair(disk, directory, name, end_offset, point, least_end)
    names = disk.list_directory(repair.path) if disk.exists(repair.path) else []
    bases = sorted(base for base in map(parse_base, names) if base is not None)
    for number, base in enumerate(bases):
        is_last = number == len(bases) - 1
        below = end_offset if is_last else bases[number + 1]
        survey = _Survey(repair, base, NO_END if below is None else below, is_last=is_last)
        found = survey.run(limit(base), max(base, start) if len(bases) == 1 else base)
        repair.segments.append(found)
        is_needed = not is_last and bases[number + 1] > start
        gap = gap_behind(disk, directory, name, found.next_offset, bases[number + 1]) if is_needed else None
        if gap is not None and not found.loses(*gap):
            what = "no segment holds these offsets: a file is missing"
            path = posixpath.join(repair.path, log_name(base))
            found.actions.append(RepairAction(DROPPED, path, found.size, found.size, *gap, what))
    if not bases and (end := end_offset or least_end):
        repair.segments.append(_all_missing(repair.path, start, end))
    if end_offset is None and repair.segments and repair.segments[-1].next_offset < least_end:
        repair.end_offset = least_end  # where it really ended nobody knows; no offset below is used again
    _note_missing(repair, missing(names))
    _reach_end(repair)
    repair.removals += _unreadable(disk, repair.path, names, repair.segments)
    return repair


def _all_missing(home: str, start: int, end: int) -> SegmentRepair:
    """No segment is there of a log that had the records from `start` up to `end`: it goes on with an empty one."""
    found = SegmentRepair(end, 0, next_offset=end, is_last=True, is_new=True)
    path, what = posixpath.join(home, log_name(end)), "none of the log's segments is there"
    if start < end:
        found.actions.append(RepairAction(DROPPED, path, 0, 0, start, end - 1, what))
    else:
        found.actions.append(RepairAction(MADE, path, 0, 0, -1, -1, f"{what}; its records had all been deleted"))
    return found


def _note_missing(repair: PartitionRepair, missing: list[tuple[int, int]]) -> None:
    """Segments that the directory's own list has, or that left their seals: of a compacted log, or before the first."""
    if not repair.segments:
        return
    for first, last in missing:
        if any(segment.loses(first, last) for segment in repair.segments):
            continue
        before = [segment for segment in repair.segments if segment.base_offset < first]
        beside = before[-1] if before else repair.segments[0]
        what = "the segment that held these offsets is missing"
        path = posixpath.join(repair.path, log_name(beside.base_offset))
        beside.actions.append(RepairAction(DROPPED, path, beside.size, beside.size, first, last, what))


def _reach_end(repair: PartitionRepair) -> None:
    """A sound segment after which the log's end is lost is replaced, too: see `PartitionRepair._replace`."""
    for segment in repair.segments:
        is_whole = segment.kept is None and not segment.is_new
        if is_whole and repair.lacks_end(segment) and segment.loses(segment.next_offset, (repair.end_offset or 0) - 1):
            segment.kept = [BatchRun(0, segment.size, [])]


class _Survey:
    """Looks at one segment."""

    def __init__(self, repair: PartitionRepair, base: int, below: int, *, is_last: bool) -> None:
        self._repair = repair
        self._below = below
        self._path = posixpath.join(repair.path, log_name(base))
        self._found = SegmentRepair(base, 0, is_last=is_last, next_offset=base)

    def run(self, limit: Limit, begun: int) -> SegmentRepair:
        """begun: where the log ends if nothing is in it."""
        disk, found = self._repair.disk, self._found
        source = disk.open(self._path)
        try:
            found.size = source.size()
            if not found.size:
                found.next_offset = begun
            file = PatchedFile(source, found.patches)
            known = None if self._was_replaced(source) else self._known(source)
            bad = [] if known is None else list(self._mend(file, known.seal))
            stop = found.size if known is None or known.is_growing else min(found.size, known.seal.length)
            bounds = {"from_offset": found.base_offset, "below": self._below}
            pieces = list(runs(file, 0, stop, **bounds, limit=limit))  # type: ignore[arg-type]
            if known is not None and not all(run.headers for run in pieces):
                bad += [(at, at + 1) for at in found.patches]  # damage, too, may look like one flipped bit
            if bad and known is not None:
                pieces = without_doubtful(pieces, self._segment(known, stop, bad))
            pieces = without_impostors(pieces, found.base_offset, {} if known is None else known.entries)
            if stop < found.size:
                start = pieces.pop().start if pieces and not pieces[-1].headers else stop
                pieces.append(BatchRun(start, found.size, []))
            self._judge(source, pieces, known)
            if bad:
                self._tell_gaps(pieces, known, bad)
            self._note_short(limit)
        finally:
            source.close()
        fits = known is not None and known.seal.length <= found.size  # else it goes as one that cannot be read
        if known is not None and bad and fits and found.kept is None:
            what = "the batches are sound, it speaks of others"
            path = self._beside(SEALING if known.is_growing else SEAL)
            self._repair.removals.append(RepairAction(REMOVED, path, 0, 0, -1, -1, what))
        return found

    def _segment(self, known: _Known, stop: int, bad: list[tuple[int, int]]) -> DamagedSegment:
        repair, base = self._repair, self._found.base_offset
        has_gaps = is_compacted(repair.disk, repair.directory, repair.name)
        ascending = tuple(sorted(bad))
        length = known.seal.length
        return DamagedSegment(base, self._below, stop, length, ascending, known.entries, has_gaps, known.landmarks)

    def _beside(self, suffix: str) -> str:
        return self._path[: -len(LOG)] + suffix

    def _was_replaced(self, source: File) -> bool:
        """Whether a repair was cut short between the new segment and its seal: the old seal speaks of the old one."""
        path = self._beside(REPAIRED)
        seal = sound_seal(self._repair.disk, path)
        if seal is None or seal.length != self._found.size or not all(blocks_hold(source, seal)):
            return False
        self._found.is_replaced = True
        what = "a repair was cut short behind this segment"
        self._found.actions.append(RepairAction(REMOVED, path, 0, 0, -1, -1, what))
        return True

    def _known(self, source: File) -> _Known | None:
        """What was sealed of the segment. A seal of another length counts where it is sure to be this segment's."""
        disk, found = self._repair.disk, self._found
        seal = sound_seal(disk, self._beside(SEAL))
        if seal is not None:
            sides = read_sides(disk, [self._beside(suffix) for suffix in DERIVED])
            is_ours = seal.sides == sides or any(blocks_hold(source, seal))
            if seal.length == found.size or (is_ours and not found.is_last):
                entries = {} if seal.sides is None else self._entries(seal.sides[:2], seal.length)
                landmarks = Landmarks(seal.max_timestamp, seal.max_timestamp_offset) if is_ours else None
                return _Known(seal, entries, landmarks, is_growing=False)
        seal = sound_seal(disk, self._beside(SEALING))
        if seal is None:
            return None
        return _Known(seal, self._entries(None, seal.length), self._landmarks(), is_growing=True)

    def _landmarks(self) -> Landmarks | None:
        """What the checkpoint of a clean stop knows of the segment, if that was the active one."""
        point = self._repair.point
        if point is None or point.state is None or point.segment_base != self._found.base_offset:
            return None
        return Landmarks(point.state.max_timestamp, point.state.max_timestamp_offset, point.state.first_timestamp)

    def _entries(self, sealed_sides: tuple[int, int] | None, size: int) -> dict[int, int]:
        """Last offset by position, by the `.index` of a segment of `size` bytes, if its bytes and CRC are those."""
        content = read_file(self._repair.disk, self._beside(INDEX)) or b""
        index = decode_offset_index(content, size, 2**31)
        if index is None or (sealed_sides is not None and (len(content), crc32c(content)) != sealed_sides):
            return {}
        base = self._found.base_offset
        return {at: base + offset for offset, at in zip(index.offsets, index.positions, strict=True)}

    def _judge(self, source: File, pieces: list[BatchRun], known: _Known | None) -> None:
        """What is damaged goes, and what the end of the file should have had is reported."""
        found = self._found
        sound = [run for run in pieces if run.headers]
        if sound:
            last = sound[-1].headers[-1][1]
            found.next_offset, found.epoch = last.next_offset, last.leader_epoch
        if len(sound) < len(pieces):
            found.kept = sound
            for run in pieces:
                if not run.headers:
                    self._drop(source, run, pieces)
        if pieces and not pieces[-1].headers:
            return
        if found.is_last:
            end = self._repair.least_end if self._below == NO_END else self._below
            self._short(sound, end, f"the log went up to offset {end}; the end of this file is missing")
        elif known is not None and found.size < known.seal.length:
            self._short(sound, self._below, f"{known.seal.length} bytes were sealed; the end of this file is missing")

    def _tell_gaps(self, pieces: list[BatchRun], known: _Known | None, bad: list[tuple[int, int]]) -> None:
        """Of a file that is not what was sealed: what is missing between batches that follow each other is lost.

        Unless compaction may have taken it, here or where a follower had it from. What lies beside other damage is
        reported with that.
        """
        repair, found = self._repair, self._found
        sealed = 0 if known is None or known.is_growing else known.seal.length
        expected = found.base_offset
        for run in pieces:
            for at, header in run.headers:
                gap = None
                if 0 <= expected < header.base_offset and not (known is not None and known.vouches(at, bad)):
                    gap = gap_behind(repair.disk, repair.directory, repair.name, expected, header.base_offset)
                if gap is not None:
                    what = "the batches with these offsets are missing"
                    found.actions.append(RepairAction(DROPPED, self._path, at, at, *gap, what))
                expected = header.next_offset
            if not run.headers:
                expected = -1
        if found.size < sealed and not any(action.kind == DROPPED for action in found.actions):
            what = f"{sealed} bytes were sealed, it has {found.size}: batches are missing, nobody knows which"
            found.actions.append(RepairAction(DROPPED, self._path, found.size, found.size, -1, -1, what))

    def _note_short(self, limit: Limit) -> None:
        """The bytes in front of the limit were there: where fewer are, and no damage tells of others, some are gone."""
        found, repair = self._found, self._repair
        if not found.size < limit.position < NO_END or any(action.kind == DROPPED for action in found.actions):
            return
        if not is_left(repair.disk, self._path, found.size):
            what = f"it had {limit.position} bytes, it has {found.size}: batches are missing, nobody knows which"
            found.actions.append(RepairAction(DROPPED, self._path, found.size, found.size, -1, -1, what))

    def _mend(self, file: PatchedFile, seal: Seal) -> Iterator[tuple[int, int]]:
        """Find single flipped bits; yields the blocks in which something else is wrong."""
        found = self._found
        for number, wanted in enumerate(seal.checksums):
            start = number * BLOCK_BYTES
            length = min(BLOCK_BYTES, seal.length - start)
            block = file.pread(length, start)
            if len(block) < length:
                yield start, start + length
                return
            if crc32c(block) == wanted:
                continue
            flipped = flipped_bit(block, wanted)
            if flipped is None:
                yield start, start + len(block)
                continue
            at, mask = flipped
            found.patches[start + at] = block[at] ^ mask
            what = f"bit {mask.bit_length() - 1} of byte {start + at} was flipped; the seal says how it was"
            found.actions.append(RepairAction(RESTORED, self._path, start + at, start + at + 1, -1, -1, what))

    def _drop(self, source: File, run: BatchRun, pieces: list[BatchRun]) -> None:
        before = [piece for piece in pieces if piece.headers and piece.end <= run.start]
        behind = [piece for piece in pieces if piece.headers and piece.start >= run.end]
        first = before[-1].headers[-1][1].next_offset if before else self._found.base_offset
        last = (behind[0].headers[0][1].base_offset if behind else self._below) - 1
        last = -1 if last >= NO_END - 1 else last
        what = "no sound batch is here"
        side = self._side_file(source, run)
        self._found.actions.append(RepairAction(DROPPED, self._path, run.start, run.end, first, last, what, side))

    def _side_file(self, source: File, run: BatchRun) -> str:
        """A name that no other bytes have: what an earlier repair put aside stays."""
        name = f"{posixpath.basename(self._path)}.dropped-{run.start}"
        path = side_path(self._repair.directory, self._repair.name, name)
        number = 1
        disk, start, end = self._repair.disk, run.start, run.end
        while not is_free_for(disk, path if number == 1 else f"{path}-{number}", source, start, end):
            number += 1
        return path if number == 1 else f"{path}-{number}"

    def _short(self, sound: list[BatchRun], end: int, what: str) -> None:
        """The file ends too early: nothing can be put aside, but the offsets must not be used again."""
        found = self._found
        if found.next_offset < end:
            found.kept = sound
            place = (found.size, found.size, found.next_offset, end - 1)
            found.actions.append(RepairAction(DROPPED, self._path, *place, what))


class _Known(NamedTuple):
    """What a seal says of a segment. is_growing: it covers only the beginning. The rest: see `DamagedSegment`."""

    seal: Seal
    entries: dict[int, int]
    landmarks: Landmarks | None
    is_growing: bool

    def vouches(self, at: int, bad: Sequence[tuple[int, int]]) -> bool:
        """Whether the batch at byte `at` was sealed there, behind the byte in front; bad: see `DamagedSegment`."""
        start, end = at - 1, at + CRC_START
        return end <= self.seal.length and not any(first < end and start < last for first, last in bad)


def _readable_seal(disk: Disk, path: str, size: int) -> bool:
    seal = sound_seal(disk, path)
    return seal is not None and (seal.length == size or (path.endswith(SEALING) and seal.length < size))


def _is_as_sealed(disk: Disk, stem: str, suffix: str, content: bytes, size: int) -> bool:
    """Whether one of `DERIVED` can be its segment's, of `size` bytes, and is the one that was sealed."""
    seal = sound_seal(disk, stem + SEAL)
    if seal is not None and seal.sides is not None and seal.length == size:
        at = 2 * DERIVED.index(suffix)
        return (len(content), crc32c(content)) == seal.sides[at : at + 2]
    if suffix == TXN_INDEX:
        return True
    if suffix == INDEX:
        return decode_offset_index(content, size, 2**31) is not None
    return decode_time_index(content, 2**31) is not None


def _unreadable(disk: Disk, path: str, names: list[str], segments: list[SegmentRepair]) -> list[RepairAction]:
    """Side files that cannot be what they should be, and seals of segments that are not there."""
    found: list[RepairAction] = []
    sizes = {segment.base_offset: segment for segment in segments}
    for name in names:
        inside = posixpath.join(path, name)
        content = b"" if name.endswith(LOG) else read_file(disk, inside) or b""
        stem, _, suffix = name.partition(".")
        segment = sizes.get(int(stem)) if stem.isdecimal() else None
        if segment is not None and (segment.kept is not None or segment.is_replaced) and f".{suffix}" in WITH_IT:
            continue
        sound = True
        if name == LEADER_EPOCHS:
            sound = read_epochs(disk, inside) is not None
        elif name.endswith(PRODUCERS):
            sound = decode_ours(content) is not None
        elif name.endswith(SNAPSHOT):
            sound = decode_kafka(content) is not None
        elif name.endswith((SEAL, SEALING)):
            sound = segment is not None and _readable_seal(disk, inside, segment.size)
        elif segment is not None and f".{suffix}" in DERIVED:
            sound = _is_as_sealed(disk, posixpath.join(path, stem), f".{suffix}", content, segment.size)
        if not sound:
            what = "it is damaged; the next start makes it again"
            if segment is None and name.endswith((SEAL, SEALING)):
                what = "the segment that it speaks of is not there"
            found.append(RepairAction(REMOVED, inside, 0, len(content), -1, -1, what))
    return found
