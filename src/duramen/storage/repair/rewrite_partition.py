"""Repair of a partition's files while no process uses them: sound batches keep their offsets, the rest is quarantined.

`repair/inspect_partition.py` says what would be done and touches nothing; `PartitionRepair.apply` does it. A single
flipped bit under a seal is turned back. Other damage loses the batches it touches: their bytes go to a side file first,
and a line in the list of losses says which offsets they had; then the segment is replaced by one without them. The
offsets stay a gap; at the end of the log a batch without records has them, or readers would wait in front of it.
Indexes go before the segment changes, for they can be made again: after a crash at any point the same repair can be run
again. The new segment's seal waits under a name of its own (`REPAIRED`) until the segment is in place: where it fits,
the old seal speaks of what was there before.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from duramen.ports import Disk, File
from duramen.storage.checkpoint.loss_record import LOST_FOLDER, is_loss_recorded, loss_owner, record_loss
from duramen.storage.files.atomic import remove_file, replace_file
from duramen.storage.repair.interrupted_replacement import InterruptedReplacement, place_replacement
from duramen.storage.repair.quarantine import quarantine_file
from duramen.storage.repair.salvage import BatchRun, PatchedFile
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, read_epochs
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.seal import SEALING, compute_seal
from duramen.storage.segment.segment import INDEX, LOG, SEAL, TIME_INDEX, TXN_INDEX, file_name, log_name
from duramen.wire.batch_filter import lost_batch

DERIVED = (INDEX, TIME_INDEX, TXN_INDEX)
REPAIRED = ".seal.repaired"
"""Suffix of the seal of a segment that is about to be replaced."""
WITH_IT = (*DERIVED, SEAL, SEALING)
"""What goes, or is made anew, when a segment is replaced."""
_COPY_BYTES = 1 << 20
_MOST_OFFSETS = 1 << 31
"""Of one segment: indexes have four bytes for them."""

RESTORED, DROPPED, REMOVED, MOVED, MADE, PLACED = "restored", "dropped", "removed", "moved", "made", "placed"


class RepairAction(NamedTuple):
    """One thing to do to a file. Bytes start..end of it.

    kind: RESTORED (a flipped bit is turned back), DROPPED (bytes go to `side_file`; offsets first..last become a gap),
    REMOVED (a file that the next start makes again, or that speaks of a segment that is not there), MOVED (a file that
    is none of the log's becomes `side_file`), PLACED (a compacted segment becomes `side_file`) or MADE (an empty
    segment of a log that had no records).
    """

    kind: str
    path: str
    start: int
    end: int
    first_offset: int
    last_offset: int
    what: str
    side_file: str = ""


@dataclass(slots=True)
class SegmentRepair:
    """What one segment needs. kept: its sound runs, when it is to be replaced; next_offset: behind the last one.

    epoch: of the last sound batch, -1 without one.
    is_replaced: a repair was cut short when this segment had just been put in place. is_new: it is to be made, empty.
    """

    base_offset: int
    size: int
    patches: dict[int, int] = field(default_factory=dict)
    actions: list[RepairAction] = field(default_factory=list)
    kept: list[BatchRun] | None = None
    next_offset: int = 0
    epoch: int = -1
    is_last: bool = False
    is_replaced: bool = False
    is_new: bool = False

    def loses(self, first: int, last: int) -> bool:
        """Whether an action reports these offsets as lost."""
        return any(
            action.kind == DROPPED and action.first_offset <= first and last <= action.last_offset
            for action in self.actions
        )


@dataclass(slots=True)
class PartitionRepair:
    """What one partition needs. end_offset: of the log, by the checkpoint of the last clean stop; None unknown.

    name: of its directory; empty where it is the data directory itself that needs it, which has only `removals`.
    point: what that checkpoint says of it. least_end: where the end is unknown, what the log must reach all the same.
    swaps: damaged compacted segments that come into their places first.
    """

    disk: Disk
    directory: str
    name: str
    end_offset: int | None
    point: LogPoint | None = None
    least_end: int = 0
    segments: list[SegmentRepair] = field(default_factory=list)
    removals: list[RepairAction] = field(default_factory=list)
    swaps: list[InterruptedReplacement] = field(default_factory=list)

    @property
    def actions(self) -> list[RepairAction]:
        """Everything there is to do, in the order of the files."""
        return [action for segment in self.segments for action in segment.actions] + self.removals

    @property
    def path(self) -> str:
        return posixpath.join(self.directory, self.name) if self.name else self.directory

    def lacks_end(self, segment: SegmentRepair) -> bool:
        """Whether the known end of the log is lost, and no batch behind this segment leads readers there."""
        end = self.end_offset
        if end is None or segment.next_offset >= end:
            return False
        return not any(segment.base_offset < other.base_offset < end for other in self.segments)

    def move(self) -> None:
        """Before all else: what is none of the log's goes out of its way, what is comes into its place. OSError."""
        for action in self.removals:
            if action.kind == MOVED and self.disk.exists(action.path) and not self.disk.exists(action.side_file):
                quarantine_file(self.disk, action.path, action.side_file)
        for swap in self.swaps:
            place_replacement(self.disk, swap)

    def apply(self) -> None:
        """Do the rest, durably at every step. OSError."""
        for segment in self.segments:
            if segment.kept is not None:
                lost = self._lost_end(segment)
                self._quarantine(segment, sum(run.end - run.start for run in segment.kept) + len(lost))
                self._replace(segment, segment.kept, lost)
                continue
            if segment.is_replaced:
                self._take_seal(segment, sealed=not segment.is_last)
            if segment.patches:
                self._restore(segment)
            if any(action.kind == DROPPED for action in segment.actions):
                self._quarantine(segment, segment.size)  # nothing to move, but offsets to remember
            if segment.is_new:
                self._make_empty(segment.base_offset)
                self.disk.sync_directory(self.path)
        for action in self.removals:
            if action.kind == REMOVED:
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

    def _quarantine(self, segment: SegmentRepair, left: int) -> None:
        """Copy what is dropped to side files and list it, once: a repair cut short may have had another reason.

        left: bytes of the segment behind that; where the checkpoint has not followed yet, the list tells of them.
        """
        dropped = [action for action in segment.actions if action.kind == DROPPED]
        lost = posixpath.join(self.directory, LOST_FOLDER)
        folder = posixpath.join(lost, self.name)
        self.disk.make_directories(folder)
        for action in dropped:
            if action.side_file:
                source = self.disk.open(self._file(segment, LOG))
                try:
                    self._copy(source, [(action.start, action.end)], action.side_file + ".tmp", {})
                finally:
                    source.close()
                self.disk.rename(action.side_file + ".tmp", action.side_file)
        self.disk.sync_directory(folder)
        self.disk.sync_directory(lost)
        listed = partial(is_loss_recorded, self.disk, self.directory, self.name)
        new = [each for each in dropped if each.side_file or not listed(each.first_offset, each.last_offset)]
        whose = loss_owner(self.disk, self.directory, self.name)
        record_loss(self.disk, self.directory, [{**whose, **action._asdict(), "left": left} for action in new])
        self.disk.sync_directory(self.directory)

    def _reached(self, segment: SegmentRepair) -> int:
        """The offset behind the segment once a lost end of the log is in it."""
        if self.end_offset is None or not self.lacks_end(segment):
            return segment.next_offset
        return min(self.end_offset, segment.base_offset + _MOST_OFFSETS)

    def _lost_end(self, segment: SegmentRepair) -> bytes:
        """A batch without records for an end of the log that is lost; nothing where none is."""
        first, reached = segment.next_offset, self._reached(segment)
        return bytes(lost_batch(first, reached - 1, self._epoch_of(segment))) if reached > first else b""

    def _replace(self, segment: SegmentRepair, kept: list[BatchRun], lost: bytes) -> None:
        """The segment without what is dropped, and with `lost` behind it."""
        end, reached = self.end_offset, self._reached(segment)
        goes_on = segment.is_last and end is not None and reached < end
        if goes_on and end is not None:
            self._make_empty(end)
        for suffix in DERIVED:
            remove_file(self.disk, self._file(segment, suffix))
        self.disk.sync_directory(self.path)
        path = self._file(segment, LOG)
        source = self.disk.open(path)
        try:
            self._copy(source, [(run.start, run.end) for run in kept], path + ".tmp", segment.patches, lost)
        finally:
            source.close()
        file = self.disk.open(path + ".tmp")
        try:
            seal = compute_seal(file, file.size(), segment.base_offset, reached - 1)
        finally:
            file.close()
        replace_file(self.disk, self._file(segment, REPAIRED), seal.encode())
        self.disk.rename(path + ".tmp", path)
        self.disk.sync_directory(self.path)
        self._take_seal(segment, sealed=not segment.is_last or goes_on)

    def _epoch_of(self, segment: SegmentRepair) -> int:
        """The leader epoch of the last batch that is left up to there, or the latest that is known without any."""
        left = [each.epoch for each in self.segments if each.base_offset <= segment.base_offset and each.epoch >= 0]
        epochs = read_epochs(self.disk, posixpath.join(self.path, LEADER_EPOCHS))
        return left[-1] if left else max((epoch for epoch, _ in epochs or ()), default=0)

    def _make_empty(self, base_offset: int) -> None:
        """A segment for what is appended from now on; the caller syncs its name."""
        file = self.disk.open(posixpath.join(self.path, log_name(base_offset)), create=True, write=True)
        try:
            file.sync()
        finally:
            file.close()

    def _take_seal(self, segment: SegmentRepair, *, sealed: bool) -> None:
        """The segment was replaced: the seals of what it was go. Until then they say what was damaged."""
        if sealed:
            self.disk.rename(self._file(segment, REPAIRED), self._file(segment, SEAL))
        else:
            remove_file(self.disk, self._file(segment, SEAL))
        remove_file(self.disk, self._file(segment, SEALING))
        self.disk.sync_directory(self.path)
        if not sealed:
            remove_file(self.disk, self._file(segment, REPAIRED))
            self.disk.sync_directory(self.path)

    def _copy(
        self, source: File, ranges: list[tuple[int, int]], path: str, patches: dict[int, int], behind: bytes = b""
    ) -> None:
        """Make `path` of ranges of a file, with something behind them, and sync it; the caller gives it its name."""
        target = self.disk.open(path, create=True, write=True)
        patched = PatchedFile(source, patches)
        try:
            target.truncate(0)
            position = 0
            for start, end in ranges:
                for at in range(start, end, _COPY_BYTES):
                    position += target.pwritev([patched.pread(min(_COPY_BYTES, end - at), at)], position)
            if behind:
                target.pwritev([behind], position)
            target.sync()
        finally:
            target.close()
