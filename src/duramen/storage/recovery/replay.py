"""Brings one partition's files to what the journal says, before they are opened (ENGINE.md §1).

Bytes behind the trusted point are written again from the journal, or cut off, and synced: after a failed sync the page
cache may show bytes the disk does not hold. Extents were synced before they were journaled; their CRC is checked.
Unsynced batches of page-cache topics are copied to a side file first, so that a crash in between loses nothing
that was accepted. Running it again after a crash at any point gives the same files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from duramen.errors import CorruptLogError
from duramen.ports import Buffer, Disk, File
from duramen.storage.files.atomic import replace_file
from duramen.storage.journal.point import Point
from duramen.storage.journal.reader import JournalPart
from duramen.storage.recovery.plan import PlannedWrite, RecoveryPlan
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, encode_epochs, read_epochs
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.replacement import finish_replacements
from duramen.storage.segment.scan import scan
from duramen.storage.segment.seal import SEALING, trim_growing
from duramen.storage.segment.segment import (
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
from duramen.wire.batch import stamp
from duramen.wire.checksum import crc32c

CHUNK_BYTES = 1 << 20
MAX_PIECES = 1000
"""Buffers per write; IOV_MAX is 1024 on Linux and macOS."""
TAIL_SUFFIX = ".tail"
CUT_SUFFIX = ".cut"
STALE_SUFFIXES = (TXN_INDEX, SEAL)
"""Side files that speak of bytes which are gone; offset and time indexes are made again when the log is opened."""
DROPPED_SUFFIXES = (INDEX, TIME_INDEX, TXN_INDEX, SEAL, SEALING)


@dataclass(slots=True)
class RecoveryReport:
    """What a start found. clean: nothing had to be recovered. Damage that does not stop the start is in `damage`.

    markers: of transactions in page-cache topics that had lost them, appended once more.
    """

    clean: bool = True
    adopted: bool = False
    entries_replayed: int = 0
    torn_entries: int = 0
    bytes_written: int = 0
    bytes_cut: int = 0
    partitions_changed: int = 0
    partitions_deleted: int = 0
    markers: int = 0
    damage: list[str] = field(default_factory=list)

    def add(self, part: RecoveryReport) -> None:
        """Count in what the recovery of one partition did."""
        self.bytes_written += part.bytes_written
        self.bytes_cut += part.bytes_cut
        self.partitions_changed += part.partitions_changed
        self.markers += part.markers


class TruncationMarks:
    """Empty files beside segments that are cut or removed, and for snapshots that are.

    A start that is killed behind that leaves the next one a file of the right length, or no file, and perhaps not on
    the disk: it has to sync it. A power cut takes mark and cut, or neither counts.
    """

    def __init__(self, disk: Disk, path: str, names: list[str]) -> None:
        self._disk = disk
        self._path = path
        stems = (name.removesuffix(CUT_SUFFIX) for name in names if name.endswith(CUT_SUFFIX))
        self._bases = dict.fromkeys(int(stem) for stem in stems if stem.isdecimal())

    def __contains__(self, base: int) -> bool:
        return base in self._bases

    def __len__(self) -> int:
        return len(self._bases)

    def mark(self, base: int) -> None:
        """The segment is about to be cut. OSError."""
        if base not in self._bases:
            self._disk.open(self._name(base), create=True).close()
            self._bases[base] = None

    def remove(self) -> None:
        """All of them are synced by now. OSError."""
        for base in self._bases:
            self._disk.remove(self._name(base))

    def _name(self, base: int) -> str:
        return posixpath.join(self._path, f"{base:020d}{CUT_SUFFIX}")


class PartitionRecovery:
    """Recovers one partition directory by its plan, on any thread. parts: the journal's parts, by number.

    known: from where on the log is going to be read when it is opened; side files that speak of what lies before stay.
    journaled: the journal is whole, so what was acknowledged and is not synced is in it.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        plan: RecoveryPlan,
        parts: Sequence[JournalPart],
        known: LogPoint | None = None,
        *,
        journaled: bool = True,
    ) -> None:
        self._journaled = journaled
        self._kept_base = known.segment_base if known is not None and known.state is not None else -1
        self._named_base = -1 if known is None else known.segment_base
        self._disk = disk
        self._path = path
        self._plan = plan
        self._parts = parts
        self._report = RecoveryReport()
        self._changed = False
        self._dirty_names = False
        self._cuts = TruncationMarks(disk, path, [])
        self._sound_below: int | None = None
        self._accepted = -1
        self._moved: list[tuple[int, int]] = []
        self._latest: dict[int, int] = {}
        self.synced = plan.trusted.offset if plan.trusted is not None else None
        """All below was synced, by the plan; None: that is not known."""
        self.is_least = plan.is_least  # see LogPoint
        self.damage: CorruptLogError | None = None
        """The first place where bytes that had been synced are missing or differ; the rest was recovered all the same,
        because the journal, which has it, is about to go."""

    @property
    def report(self) -> RecoveryReport:
        """What was done."""
        return self._report

    @property
    def sound_below(self) -> int | None:
        """Base offset of the first segment that `run` changed; None when it changed none."""
        return self._sound_below

    def run(self) -> Point:
        """Do it and return where the log ends; see `damage`. CorruptLogError when that end cannot be told."""
        plan = self._plan
        try:
            finish_replacements(self._disk, self._path, plan.merged)
        except CorruptLogError as damage:
            self._note(damage)  # of compacted segments: what the journal has lies behind them
        names = self._disk.list_directory(self._path)
        bases = sorted(filter_bases(names))
        tails = dict(tail for tail in map(_parse_tail, names) if tail is not None)
        self._cuts = TruncationMarks(self._disk, self._path, names)
        end = self._accept(bases, tails)
        for base in bases:
            if base > end.segment_base or plan.is_dropped(base):
                self._drop_segment(base)
        bases = [base for base in bases if not plan.is_dropped(base)]
        wanted = sorted({*(base for base in bases if base <= end.segment_base), *plan.writes, end.segment_base})
        for number, base in enumerate(wanted):
            following = wanted[number + 1] if number + 1 < len(wanted) else None
            writes = plan.writes.get(base, [])
            if base not in bases and following is not None and following <= plan.start and not plan.remakes(base):
                continue  # retention removed it: nothing of it is at or above the log start
            limit = end.position if base == end.segment_base else None
            if base <= end.segment_base:
                self._apply(base, writes, tails.get(base), limit, present=base in bases)
        self._side_files(end)
        is_new = end.segment_base != self._named_base
        if self._dirty_names or self._changed or self._cuts or is_new or plan.end is None:
            # Also where no name is new: a segment that was there after a kill may have been created and never named
            # durably, and the journal that could make it again is about to go; so may one that is still empty, and
            # which the next checkpoint takes for named. Or all of the log was just being made.
            self._disk.sync_directory(self._path)
        for base, position in tails.items():
            self._disk.remove(self._file(_tail_name(base, position)))
        if tails:
            self._disk.sync_directory(self._path)
        self._cuts.remove()
        self._report.partitions_changed = int(self._changed)
        return end

    def _file(self, name: str) -> str:
        return posixpath.join(self._path, name)

    # -- what was never journaled

    def _accept(self, bases: list[int], tails: dict[int, int]) -> Point:
        """The log's end; unsynced batches that are accepted are in synced side files when this returns."""
        plan = self._plan
        start = plan.accept_from
        strict = False
        if plan.end is None:
            # Neither the journal nor our checkpoint knows the log: read it all, as after that was deleted.
            base = bases[0] if bases else 0
            hint = base if self.synced is None else self.synced
            base = max((known for known in bases if known <= hint), default=base)
            start = Point(base, base, 0)
            strict = True
        elif start is None:
            return self._with_markers(plan.end, tails)
        elif plan.trusted is not None and plan.trusted.place > start.place:
            start = plan.trusted
        if bases and start.segment_base < bases[0] <= plan.start:
            start = Point(bases[0], bases[0], 0)  # retention took what was before
        end = start
        for base in (base for base in bases if base >= start.segment_base):
            if plan.accept_to is not None and (base, 0) > plan.accept_to.place:
                break
            if base > start.segment_base and base != end.offset:
                if strict and not (self._journaled and self.synced is not None):
                    what = f"nobody knows what offsets {end.offset}..{base - 1} were"
                    raise CorruptLogError(self._file(log_name(base)), 0, 0, what, end.offset)
                break
            position = start.position if base == start.segment_base else 0
            stop_at = plan.accept_to if plan.accept_to is not None and plan.accept_to.segment_base == base else None
            reached, size = self._accept_segment(base, position, end.offset, tails.get(base), stop_at, exact=not strict)
            if reached.position < size and strict and base != bases[-1] and self._is_synced(reached.offset):
                raise CorruptLogError(
                    self._file(log_name(base)), reached.position, size, "not a record batch", reached.offset
                )
            if reached.position > position and base not in tails:
                _save_tail(self._disk, self._path, base, position, reached.position)
                tails[base] = position
            end = reached
            if reached.position < size:
                break
        if strict and self.synced is not None and end.offset < self.synced:
            what = f"it ends at offset {end.offset}, {self.synced} was on stable storage"
            raise CorruptLogError(self._file(log_name(end.segment_base)), end.position, end.position, what, end.offset)
        return self._with_markers(end, tails)

    def _with_markers(self, end: Point, tails: dict[int, int]) -> Point:
        """The end behind the transaction markers that the journal has and the log lost: they are appended once more.

        Their transactions are over by the coordinator's log: one of which data are left would stay open for ever. A
        marker without data changes nothing, and what was lost with it lay behind all that is left, so that the order
        is that of before. They are no further back than they were, so one in front of the end is there, also behind an
        interrupted recovery. They go to the side file: like what was accepted they are not in the segment until it is.
        """
        self._accepted = end.offset
        lost = [marker for marker in self._plan.markers if marker.offset >= end.offset]
        if not lost:
            return end
        batches = []
        offset = end.offset
        for marker in lost:
            batch = bytearray(self._parts[marker.part].data(marker.data_position, marker.length))
            stamp(batch, offset, marker.epoch)
            batches.append(batch)
            self._moved.append((marker.epoch, offset))
            offset += 1
        if self._drop_snapshots():  # they speak of what was there, and a start that goes on here could not tell
            self._disk.sync_directory(self._path)
        base = end.segment_base
        source = None if base not in tails else _tail_name(base, tails[base])
        tail = tails.setdefault(base, end.position)
        _save_tail(self._disk, self._path, base, tail, end.position, source=source, behind=batches)
        self._report.markers += len(lost)
        return Point(offset, base, end.position + sum(map(len, batches)))

    def _is_synced(self, offset: int) -> bool:
        """Whether it may have been acknowledged; what was, behind the last checkpoint, is in a whole journal."""
        return self.synced is None or not self._journaled or offset < self.synced

    def _accept_segment(
        self, base: int, position: int, offset: int, tail: int | None, stop_at: Point | None, *, exact: bool
    ) -> tuple[Point, int]:
        """(where acceptance ends in this segment, the segment's size), reading an earlier recovery's side file.

        exact: none begins elsewhere than where the one before ends, but where the journal says so: a base offset is in
        no CRC, and a wrong one would pass for that of a batch behind a gap.
        """
        shift, position = (0, position) if tail is None else (tail, tail)
        file = self._disk.open(self._file(log_name(base) if tail is None else _tail_name(base, tail)))
        try:
            size = file.size() + shift
            limit = size if stop_at is None else min(size, stop_at.position)
            epoch = -1
            end = Point(offset, base, position)
            # Behind a group that was compacted a segment may begin with a gap, too.
            known = tail is None and (position > 0 or all(offset != merged for _, merged in self._plan.merged))
            # The first batch of a log that was begun anew may begin in front of the offset with which the log does.
            expected = -1 if tail is not None else base if not position else offset
            for at, header, ok in scan(file, position - shift, limit - shift, expect_offset=expected):
                if not ok or header is None or header.leader_epoch < epoch:
                    break
                told = self._plan.gaps.get((base, at + shift), end.offset)
                if exact and (known or end.position > position) and header.base_offset != told:
                    break
                epoch = header.leader_epoch
                self._latest[epoch] = header.base_offset
                end = Point(header.next_offset, base, at + shift + header.size)
            return end, size
        finally:
            file.close()

    # -- one segment

    def _apply(
        self, base: int, writes: list[PlannedWrite], tail: int | None, limit: int | None, *, present: bool
    ) -> None:
        path = self._file(log_name(base))
        file = self._disk.open(path, create=True, write=True)
        try:
            size = file.size()
            last_extent = max((n for n, write in enumerate(writes) if write.extent), default=-1)
            for write in writes[: last_extent + 1]:
                self._keep(file, size, write)
            fresh = writes[last_extent + 1 :]
            cuts = [cut for cut in (fresh[0].position if fresh else None, tail, limit) if cut is not None]
            cut = min(cuts, default=size)
            if cut > size:
                self._note(CorruptLogError(path, size, cut, "the file is shorter than what was synced of it", base))
                if not fresh and tail is None:
                    return
            # The file may have been cut already, by a truncation or an interrupted recovery, while its growing seal
            # still speaks of more: it would of what comes next.
            may_be_cut = cut == size and (self._plan.truncated or limit is not None)
            if may_be_cut and trim_growing(self._disk, self._file(file_name(base, SEALING)), cut):
                self._dirty_names = True
            changed = not present or cut < size or bool(fresh) or tail is not None or last_extent >= 0
            in_cache = base in self._cuts or (self._plan.truncated and limit is not None)
            if not (changed or in_cache):
                return
            trim_growing(self._disk, self._file(file_name(base, SEALING)), cut)
            if (stays := cut if tail is not None else _written_again_to(fresh, cut)) < size:
                self._cuts.mark(base)
                file.truncate(stays)
            end = self._write_fresh(file, fresh, cut)
            if tail is not None:
                end = self._append_tail(file, base, tail, end, limit)
            file.sync()
            self._report.bytes_written += end - cut
            self._report.bytes_cut += max(0, size - end)
            self._changed = True
            if self._sound_below is None:
                self._sound_below = base
            self._dirty_names = self._dirty_names or not present
        finally:
            file.close()
        self._drop_side_files(base, (SEAL,) if base == self._kept_base else STALE_SUFFIXES)

    def _write_fresh(self, file: File, writes: list[PlannedWrite], end: int) -> int:
        """Write journaled batches one behind the other from `end` on; returns where they end."""
        pieces: list[Buffer] = []
        start = end
        held = [part.held for part in self._parts]
        for position, length, offset, part, data_position, _, _ in writes:
            if position != end or end - start >= CHUNK_BYTES or len(pieces) >= MAX_PIECES:
                if pieces:
                    file.pwritev(pieces, start)
                    pieces = []
                if position != end:
                    reason = "the journal leaves a gap here"
                    self._note(CorruptLogError(file.path, end, position, reason, offset))
                start = end = position
            view = held[part]
            if view is not None:
                pieces.append(view[data_position : data_position + length])
            else:
                pieces.append(self._parts[part].data(data_position, length))
            end += length
        if pieces:
            file.pwritev(pieces, start)
        return end

    def _append_tail(self, file: File, base: int, tail: int, end: int, limit: int | None) -> int:
        source = self._disk.open(self._file(_tail_name(base, tail)))
        try:
            length = source.size() if limit is None else min(source.size(), limit - tail)
            if tail != end:
                self._note(CorruptLogError(file.path, end, tail, "the journal leaves a gap here", base))
            _copy(source, 0, file, tail, length)
        finally:
            source.close()
        return tail + max(0, length)

    def _keep(self, file: File, size: int, write: PlannedWrite) -> None:
        """Bytes that a later extent's sync made durable: check an extent, write a journaled batch where it is."""
        end = write.position + write.length
        if not write.extent:
            data = self._parts[write.part].data(write.data_position, write.length)
            file.pwritev([data], write.position)
            return
        if end > size:
            reason = "the file is shorter than what was synced of it"
            self._note(CorruptLogError(file.path, size, end, reason, write.offset))
        elif write.crc is not None and _crc(file, write.position, write.length) != write.crc:
            self._note(CorruptLogError(file.path, write.position, end, "CRC of a synced extent", write.offset))

    def _note(self, damage: CorruptLogError) -> None:
        self.damage = self.damage or damage

    # -- sidecars

    def _drop_segment(self, base: int) -> None:
        path = self._file(log_name(base))
        file = self._disk.open(path)
        try:
            self._report.bytes_cut += file.size()
        finally:
            file.close()
        self._cuts.mark(base)
        self._disk.remove(path)
        self._drop_side_files(base, DROPPED_SUFFIXES)
        self._changed = self._dirty_names = True

    def _drop_side_files(self, base: int, suffixes: tuple[str, ...]) -> None:
        for suffix in suffixes:
            path = self._file(file_name(base, suffix))
            if self._disk.exists(path):
                self._disk.remove(path)
                self._dirty_names = True

    def _side_files(self, end: Point) -> None:
        """Drop producer states beyond the end, or a truncation, and bring the leader epochs up to date."""
        if self._drop_snapshots():
            self._dirty_names = True
        path = self._file(LEADER_EPOCHS)
        before = read_epochs(self._disk, path)
        known = before if before is not None else _stored_epochs(self._disk, self._path, end)
        after = [each for each in fold_epochs(known, self._plan.epochs) if each[1] <= self._accepted]
        if self._plan.markers:  # behind an interrupted recovery these may be in the place of batches of that epoch
            after = [each for each in after if not self._contradicted(*each)]
        for epoch, offset in self._moved:
            if not after or epoch > after[-1][0]:
                after = fold_epochs(after, [(epoch, offset)])
        if after != before:
            replace_file(self._disk, path, encode_epochs(after), durable_name=False)
            self._dirty_names = True

    def _contradicted(self, epoch: int, start: int) -> bool:
        return any(each < epoch and offset >= start for each, offset in self._latest.items())

    def _drop_snapshots(self) -> bool:
        """Remove producer states beyond what was accepted, or a truncation; whether there were any."""
        sound_to = min(self._accepted, self._plan.cut)  # behind a cut nobody can tell which were removed and came back
        found = False
        for name in self._disk.list_directory(self._path):
            parsed = parse_name(name)
            beyond = parsed is not None and parsed[1] in (SNAPSHOT, PRODUCERS) and parsed[0] > sound_to
            if beyond or name.endswith(TAIL_SUFFIX + ".new"):
                if parsed is not None:
                    self._cuts.mark(parsed[0])
                self._disk.remove(self._file(name))
                found = True
        return found


def _save_tail(
    disk: Disk,
    directory: str,
    base: int,
    start: int,
    stop: int,
    *,
    source: str | None = None,
    behind: Sequence[Buffer] = (),
) -> None:
    """Copy a range of a segment to a side file that exists only when it is complete and synced.

    source: the side file that has the range by now; behind: what follows it.
    """
    path = posixpath.join(directory, _tail_name(base, start))
    target = disk.open(path + ".new", create=True, write=True)
    try:
        target.truncate(0)
        if stop > start:
            with closing(disk.open(posixpath.join(directory, source or log_name(base)))) as file:
                _copy(file, 0 if source else start, target, 0, stop - start)
        if behind:
            target.pwritev([b"".join(behind)], stop - start)
        target.sync()
    finally:
        target.close()
    disk.rename(path + ".new", path)
    disk.sync_directory(directory)


def _written_again_to(writes: list[PlannedWrite], start: int) -> int:
    """The byte up to which `writes` leave nothing of a file as it is from `start` on: so far it need not be cut."""
    end = start
    for position, length, *_ in writes:
        if position != end:
            return start
        end += length
    return end


def filter_bases(names: list[str]) -> list[int]:
    """Base offsets of the segments among a directory's names."""
    return [base for base in map(parse_base, names) if base is not None]


def _stored_epochs(disk: Disk, path: str, end: Point) -> list[tuple[int, int]]:
    """The leader epochs again, from the batches, after their checkpoint was lost."""
    epochs: list[tuple[int, int]] = []
    for base in sorted(filter_bases(disk.list_directory(path))):
        file = disk.open(posixpath.join(path, log_name(base)))
        try:
            for _, header, ok in scan(file, 0, file.size(), crc=False):
                if not ok or header is None or header.base_offset >= end.offset:
                    break
                if not epochs or header.leader_epoch > epochs[-1][0]:
                    epochs.append((header.leader_epoch, header.base_offset))
        finally:
            file.close()
    return epochs


def fold_epochs(epochs: list[tuple[int, int]], changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Leader epochs after journaled changes: (epoch, start) begins one, (-1, offset) cuts those from an offset on."""
    result = list(epochs)
    for epoch, start in changes:
        if epoch < 0:
            result = [each for each in result if each[1] < start]
        elif all(each[0] != epoch for each in result):
            result = [each for each in result if each[0] < epoch and each[1] < start]
            result.append((epoch, start))
    return result


def _copy(source: File, start: int, target: File, position: int, length: int) -> None:
    for done in range(0, length, CHUNK_BYTES):
        data = source.pread(min(CHUNK_BYTES, length - done), start + done)
        target.pwritev([data], position + done)


def _chunks(file: File, start: int, length: int) -> Iterator[bytes]:
    for done in range(0, length, CHUNK_BYTES):
        yield file.pread(min(CHUNK_BYTES, length - done), start + done)


def _crc(file: File, start: int, length: int) -> int:
    crc = 0
    for data in _chunks(file, start, length):
        crc = crc32c(data, crc)
    return crc


def _tail_name(base: int, position: int) -> str:
    return f"{base:020d}.{position}{TAIL_SUFFIX}"


def _parse_tail(name: str) -> tuple[int, int] | None:
    if not name.endswith(TAIL_SUFFIX):
        return None
    base, _, position = name[: -len(TAIL_SUFFIX)].partition(".")
    return (int(base), int(position)) if base.isdecimal() and position.isdecimal() else None
