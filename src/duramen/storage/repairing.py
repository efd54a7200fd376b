"""Repairing a partition's files while no node uses them: what is sound stays, at its offsets; the rest is put aside.

`survey` says what would be done and touches nothing; `Repair.apply` does it. A single flipped bit under a seal
is turned back. Other damage loses the batches it touches: their bytes go to a side file first, and a line in the list
of losses says which offsets they had; then the segment is replaced by one without them. The offsets stay a gap.
Indexes go before the segment changes, for they can be made again: after a crash at any point the same repair can be run
again.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from duramen.errors import StorageError
from duramen.ports import Disk, File
from duramen.storage.checkpoints import (
    CLEANER,
    LEADER_EPOCHS,
    parse_partition_name,
    read_checkpoint,
    read_epochs,
    read_file,
    read_offsets,
    remove_file,
    replace_file,
)
from duramen.storage.index import decode_offset_index, decode_time_index
from duramen.storage.producer_files import decode_kafka, decode_ours
from duramen.storage.salvage import Run, flipped_bit, runs
from duramen.storage.seal import SEALING, compute_seal
from duramen.storage.segment import (
    INDEX,
    LOG,
    PRODUCERS,
    SEAL,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    log_name,
    parse_base,
)
from duramen.storage.vouching import missing_segments
from duramen.wire.checksum import crc32c
from duramen.wire.seal import BLOCK_BYTES, Seal, decode_seal

LOST = "duramen-lost"
"""Directory, in the data directory, of what repairs took out; `losses` in it lists it, a JSON object a line."""
LOSSES = "losses"
DERIVED = (INDEX, TIME_INDEX, TXN_INDEX)
_COPY_BYTES = 1 << 20
_NO_END = 1 << 62

RESTORED, DROPPED, REMOVED = "restored", "dropped", "removed"


class Action(NamedTuple):
    """One thing to do to a file. Bytes start..end of it.

    kind: RESTORED (a flipped bit is turned back), DROPPED (bytes go to `side_file`; offsets first..last become a gap)
    or REMOVED (a file that the next start makes again).
    """

    kind: str
    path: str
    start: int
    end: int
    first_offset: int
    last_offset: int
    what: str
    side_file: str = ""


class Patched:
    """A file read with some bytes changed."""

    def __init__(self, file: File, patches: dict[int, int]) -> None:
        self.path = file.path
        self._file = file
        self.patches = patches
        """New value by position."""

    def size(self) -> int:
        return self._file.size()

    def pread(self, length: int, offset: int) -> bytes:
        """As File.pread."""
        data = self._file.pread(length, offset)
        inside = [at for at in self.patches if offset <= at < offset + len(data)]
        if inside:
            changed = bytearray(data)
            for at in inside:
                changed[at - offset] = self.patches[at]
            data = bytes(changed)
        return data


@dataclass(slots=True)
class SegmentRepair:
    """What one segment needs. kept: its sound runs, when some bytes have to go; next_offset: behind the last one."""

    base_offset: int
    size: int
    patches: dict[int, int] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    kept: list[Run] | None = None
    next_offset: int = 0
    is_last: bool = False


@dataclass(slots=True)
class Repair:
    """What one partition needs. end_offset: of the log, by the checkpoint of the last clean stop; None unknown."""

    disk: Disk
    directory: str
    name: str
    end_offset: int | None
    segments: list[SegmentRepair] = field(default_factory=list)
    removals: list[Action] = field(default_factory=list)

    @property
    def actions(self) -> list[Action]:
        """Everything there is to do, in the order of the files."""
        return [action for segment in self.segments for action in segment.actions] + self.removals

    @property
    def path(self) -> str:
        return posixpath.join(self.directory, self.name)

    def apply(self) -> None:
        """Do it, durably at every step. OSError."""
        for segment in self.segments:
            if segment.kept is not None:
                self._put_aside(segment)
                self._replace(segment, segment.kept)
                continue
            if segment.patches:
                self._restore(segment)
            if any(action.kind == DROPPED for action in segment.actions):
                self._put_aside(segment)  # nothing to move, but offsets to remember
        for action in self.removals:
            remove_file(self.disk, action.path)
        if self.removals:
            self.disk.sync_directory(self.path)

    # -- one segment

    def _file(self, segment: SegmentRepair, suffix: str) -> str:
        return posixpath.join(self.path, file_name(segment.base_offset, suffix))

    def _restore(self, segment: SegmentRepair) -> None:
        """Turn bits back in place: every byte is right or as it was at any time."""
        file = self.disk.open(self._file(segment, LOG), write=True)
        try:
            for position, value in sorted(segment.patches.items()):
                file.pwritev([bytes([value])], position)
            file.sync()
        finally:
            file.close()

    def _put_aside(self, segment: SegmentRepair) -> None:
        """Copy what is dropped to side files and list it."""
        dropped = [action for action in segment.actions if action.kind == DROPPED]
        lost = posixpath.join(self.directory, LOST)
        folder = posixpath.join(lost, self.name)
        self.disk.make_directories(folder)
        source = self.disk.open(self._file(segment, LOG))
        try:
            for action in dropped:
                if action.side_file:
                    self._copy(source, [(action.start, action.end)], action.side_file, {})
        finally:
            source.close()
        self.disk.sync_directory(folder)
        self.disk.sync_directory(lost)
        path = posixpath.join(lost, LOSSES)
        known = read_file(self.disk, path) or b""
        lines = b"".join(json.dumps(_as_json(self.name, action)).encode() + b"\n" for action in dropped)
        if lines not in known:
            replace_file(self.disk, path, known + lines)
        self.disk.sync_directory(self.directory)

    def _replace(self, segment: SegmentRepair, kept: list[Run]) -> None:
        """The segment without what is dropped. A log's last one is followed by an empty one where its end was."""
        end = self.end_offset
        if segment.is_last and end is not None and segment.next_offset < end:
            following = self.disk.open(posixpath.join(self.path, log_name(end)), create=True, write=True)
            following.sync()
            following.close()
        for suffix in DERIVED:
            remove_file(self.disk, self._file(segment, suffix))
        self.disk.sync_directory(self.path)
        path = self._file(segment, LOG)
        source = self.disk.open(path)
        try:
            ranges = [(run.start, run.end) for run in kept]
            self._copy(source, ranges, path, segment.patches)
        finally:
            source.close()
        self.disk.sync_directory(self.path)
        # Last: while the old one is there, a repair that was cut short can see what the old one saw.
        if not segment.is_last or (end is not None and segment.next_offset < end):
            file = self.disk.open(path)
            try:
                seal = compute_seal(file, file.size(), segment.next_offset - 1)
            finally:
                file.close()
            replace_file(self.disk, self._file(segment, SEAL), seal.encode())
        else:
            remove_file(self.disk, self._file(segment, SEAL))
        remove_file(self.disk, self._file(segment, SEALING))
        self.disk.sync_directory(self.path)

    def _copy(self, source: File, ranges: list[tuple[int, int]], path: str, patches: dict[int, int]) -> None:
        """Make `path` of ranges of a file, all or nothing; the caller syncs its name."""
        target = self.disk.open(path + ".tmp", create=True, write=True)
        patched = Patched(source, patches)
        try:
            target.truncate(0)
            position = 0
            for start, end in ranges:
                for at in range(start, end, _COPY_BYTES):
                    position += target.pwritev([patched.pread(min(_COPY_BYTES, end - at), at)], position)
            target.sync()
        finally:
            target.close()
        self.disk.rename(path + ".tmp", path)


def _as_json(partition: str, action: Action) -> dict[str, Any]:
    return {"partition": partition, **action._asdict()}


def losses(disk: Disk, directory: str) -> list[dict[str, Any]]:
    """What repairs took out of a data directory, oldest first; unreadable lines are passed over."""
    content = read_file(disk, posixpath.join(directory, LOST, LOSSES)) or b""
    found = []
    for line in content.splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict):
            found.append(told)
    return found


# ---- surveying


def gap_behind(disk: Disk, directory: str, name: str, end: int, following: int) -> tuple[int, int] | None:
    """First and last offset missing between a segment that ends at `end` and the following one; None when none is.

    Kafka's compaction may take a segment's last batches, and a repair what was damaged: those are no gaps. Below the
    log start, deletion may have been interrupted.
    """
    tp = parse_partition_name(name)
    if end >= following or tp in read_offsets(disk, posixpath.join(directory, CLEANER)):
        return None
    checkpoint = read_checkpoint(disk, directory)
    logs = () if checkpoint is None else checkpoint.logs.values()
    if any(point.tp == tp and following <= point.start_offset for point in logs):
        return None
    for loss in losses(disk, directory):
        if loss.get("partition") == name and loss["first_offset"] <= end and following - 1 <= loss["last_offset"]:
            return None
    return end, following - 1


def survey(disk: Disk, directory: str, name: str, end_offset: int | None) -> Repair:
    """What the partition `name` of a data directory needs; reads all of it. OSError."""
    repair = Repair(disk, directory, name, end_offset)
    names = disk.list_directory(repair.path)
    bases = sorted(base for base in map(parse_base, names) if base is not None)
    for number, base in enumerate(bases):
        is_last = number == len(bases) - 1
        below = end_offset if is_last else bases[number + 1]
        found = _Survey(repair, base, _NO_END if below is None else below, is_last=is_last).run()
        repair.segments.append(found)
        gap = (
            None
            if is_last or found.actions
            else gap_behind(disk, directory, name, found.next_offset, bases[number + 1])
        )
        if gap is not None:
            what = "no segment holds these offsets: a file is missing"
            path = posixpath.join(repair.path, log_name(base))
            found.actions.append(Action(DROPPED, path, found.size, found.size, *gap, what))
    _note_missing(repair, bases)
    repair.removals += _unreadable(disk, repair.path, names, repair.segments)
    return repair


def _note_missing(repair: Repair, bases: list[int]) -> None:
    """Segments that the directory's own list has: of a compacted log, or before the first one that is there."""
    tp = parse_partition_name(repair.name)
    if tp is None or not repair.segments:
        return
    told = [action for segment in repair.segments for action in segment.actions if action.kind == DROPPED]
    for first, last in missing_segments(repair.disk, repair.directory, tp, bases):
        if any(action.first_offset <= first and last <= action.last_offset for action in told):
            continue
        before = [segment for segment in repair.segments if segment.base_offset < first]
        beside = before[-1] if before else repair.segments[0]
        what = "the segment that held these offsets is missing"
        path = posixpath.join(repair.path, log_name(beside.base_offset))
        beside.actions.append(Action(DROPPED, path, beside.size, beside.size, first, last, what))


class _Survey:
    """Looks at one segment."""

    def __init__(self, repair: Repair, base: int, below: int, *, is_last: bool) -> None:
        self._repair = repair
        self._below = below
        self._path = posixpath.join(repair.path, log_name(base))
        self._found = SegmentRepair(base, 0, is_last=is_last, next_offset=base)

    def run(self) -> SegmentRepair:
        disk, found = self._repair.disk, self._found
        source = disk.open(self._path)
        try:
            found.size = source.size()
            file = Patched(source, found.patches)
            stem = self._path[: -len(LOG)]
            growing = None
            seal = _readable_seal(disk, stem + SEAL, found.size)
            if seal is None:
                seal = growing = _readable_seal(disk, stem + SEALING, found.size)
            bad = [] if seal is None else list(self._mend(file, seal))
            pieces = list(runs(file, 0, found.size, from_offset=found.base_offset, below=self._below))  # type: ignore[arg-type]
        finally:
            source.close()
        if bad:
            pieces = _doubted(pieces, bad, found.base_offset, self._below)
        damaged = [run for run in pieces if not run.headers]
        sound = [run for run in pieces if run.headers]
        if sound:
            found.next_offset = sound[-1].headers[-1][1].next_offset
        if damaged:
            found.kept = sound
            for run in damaged:
                self._drop(run, pieces)
        elif found.is_last and self._below != _NO_END and found.next_offset < self._below:
            self._short()
        if growing is not None and bad and found.kept is None:
            what = "the batches are sound, it speaks of others"  # a repair was cut short
            self._repair.removals.append(Action(REMOVED, stem + SEALING, 0, 0, -1, -1, what))
        return found

    def _mend(self, file: Patched, seal: Seal) -> Iterator[tuple[int, int]]:
        """Find single flipped bits; yields the blocks in which something else is wrong."""
        found = self._found
        for number, wanted in enumerate(seal.checksums):
            start = number * BLOCK_BYTES
            block = file.pread(min(BLOCK_BYTES, seal.length - start), start)
            if crc32c(block) == wanted:
                continue
            flipped = flipped_bit(block, wanted)
            if flipped is None:
                yield start, start + len(block)
                continue
            at, mask = flipped
            found.patches[start + at] = block[at] ^ mask
            what = f"bit {mask.bit_length() - 1} of byte {start + at} was flipped; the seal says how it was"
            found.actions.append(Action(RESTORED, self._path, start + at, start + at + 1, -1, -1, what))

    def _drop(self, run: Run, pieces: list[Run]) -> None:
        before = [piece for piece in pieces if piece.headers and piece.end <= run.start]
        behind = [piece for piece in pieces if piece.headers and piece.start >= run.end]
        first = before[-1].headers[-1][1].next_offset if before else self._found.base_offset
        last = (behind[0].headers[0][1].base_offset if behind else self._below) - 1
        name = f"{posixpath.basename(self._path)}.dropped-{run.start}"
        side = posixpath.join(self._repair.directory, LOST, self._repair.name, name)
        last = -1 if last >= _NO_END - 1 else last
        what = "no sound batch is here"
        self._found.actions.append(Action(DROPPED, self._path, run.start, run.end, first, last, what, side))

    def _short(self) -> None:
        """The file ends before the log did: nothing can be put aside, but the offsets must not be used again."""
        found = self._found
        found.kept = [Run(0, found.size, [])] if found.size else []
        what = f"the log went up to offset {self._below}; the end of this file is missing"
        place = (found.size, found.size, found.next_offset, self._below - 1)
        found.actions.append(Action(DROPPED, self._path, *place, what))


def _doubted(pieces: list[Run], bad: list[tuple[int, int]], base: int, below: int) -> list[Run]:
    """Take out batches in damaged blocks whose offsets or epoch their neighbours do not confirm.

    A batch's CRC leaves out its first 21 bytes. A wrong offset would be that of neither neighbour's end, a wrong epoch
    neither one's epoch.
    """
    headers = [each for run in pieces for each in run.headers]
    doubtful: set[int] = set()
    for number, (at, header) in enumerate(headers):
        if not any(start < at + header.size and at < end for start, end in bad):
            continue
        before = headers[number - 1][1] if number else None
        behind = headers[number + 1][1] if number + 1 < len(headers) else None
        follows = header.base_offset == (base if before is None else before.next_offset)
        leads = header.next_offset == (below if behind is None else behind.base_offset)
        epochs = [each.leader_epoch for each in (before, behind) if each is not None]
        if not (follows or leads) or (epochs and header.leader_epoch not in epochs):
            doubtful.add(at)
    result: list[Run] = []
    for run in pieces:
        if not run.headers:
            result.append(run)
            continue
        for at, header in run.headers:
            kept = at not in doubtful
            end = at + header.size
            if result and result[-1].end == at and bool(result[-1].headers) == kept:
                last = result.pop()
                result.append(Run(last.start, end, [*last.headers, (at, header)] if kept else []))
            else:
                result.append(Run(at, end, [(at, header)] if kept else []))
    return result


def _readable_seal(disk: Disk, path: str, size: int) -> Seal | None:
    """The seal of a segment, or of an active one's first part; None when it is damaged or of another size."""
    content = read_file(disk, path)
    if content is None:
        return None
    try:
        seal = decode_seal(content, path)
    except StorageError:
        return None
    return seal if seal.length == size or (path.endswith(SEALING) and seal.length < size) else None


def _unreadable(disk: Disk, path: str, names: list[str], segments: list[SegmentRepair]) -> list[Action]:
    """Side files that cannot be what they should be: the next start makes them again."""
    found: list[Action] = []
    sizes = {segment.base_offset: segment for segment in segments}
    for name in names:
        inside = posixpath.join(path, name)
        content = b"" if name.endswith(LOG) else read_file(disk, inside) or b""
        stem, _, suffix = name.partition(".")
        segment = sizes.get(int(stem)) if stem.isdecimal() else None
        sound = True
        if name == LEADER_EPOCHS:
            sound = read_epochs(disk, inside) is not None
        elif name.endswith(PRODUCERS):
            sound = decode_ours(content) is not None
        elif name.endswith(SNAPSHOT):
            sound = decode_kafka(content) is not None
        elif name.endswith((SEAL, SEALING)):
            sound = segment is not None and _readable_seal(disk, inside, segment.size) is not None
        elif segment is not None and suffix == INDEX[1:]:
            sound = decode_offset_index(content, segment.size, 2**31) is not None
        elif segment is not None and suffix == TIME_INDEX[1:]:
            sound = decode_time_index(content, 2**31) is not None
        if not sound:
            what = "it is damaged; the next start makes it again"
            found.append(Action(REMOVED, inside, 0, len(content), -1, -1, what))
    return found
