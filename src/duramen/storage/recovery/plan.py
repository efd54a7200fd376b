"""What the journal says a partition must look like: entries in LSN order folded into one plan per partition.

Folding before touching a file is what makes recovery repeatable. A plan knows the final end of the log, which bytes
before it come from the journal, and where trust in the files ends, whatever was truncated, rolled or deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from duramen.model import LogKey
from duramen.storage.journal.format import STRAY, EntryKind
from duramen.storage.journal.point import Point
from duramen.storage.journal.reader import JournalEntry
from duramen.storage.segment.recovery_point import LogPoint


class PlannedWrite(NamedTuple):
    """Bytes a segment must hold: from the journal (`part`, `data_position`), or there already (`extent`).

    crc: of an extent's bytes; None when a truncation left only part of it, which nothing can check as a whole.
    """

    position: int
    length: int
    offset: int
    part: int
    data_position: int
    extent: bool
    crc: int | None


class PlannedMarker(NamedTuple):
    """A transaction marker of a log whose batches are not journaled: where it was, and where the journal has it."""

    offset: int
    epoch: int
    place: tuple[int, int]
    part: int
    data_position: int
    length: int


@dataclass(slots=True)
class RecoveryPlan:
    """One partition's recovery.

    trusted: all before it was synced (None: unknown). end: where the log ends by the journal (None: unknown).
    accept_from: page-cache topics: from here on intact batches are accepted though unsynced; accept_to: and to here.
    epochs: (epoch, start) to add, or (-1, offset) to cut from. entries: how many were folded. cut: least offset of a
    truncation; merged: (base, end offset) of compacted groups of segments. begun: where the log was begun anew, None
    when it was not; no segment with a lesser base is its own any more. is_least: see `LogPoint`.
    stray: of one that is deleted: its directory is kept, under another name.
    gaps: offset of each batch, by place, that does not begin where the one before ends, and is not journaled. markers:
    in the order of their offsets, of batches that are not journaled.
    new_cut: as cut, or -1 of a new beginning, but of what came since the checkpoint of that LSN.
    """

    key: LogKey
    start: int = 0
    trusted: Point | None = None
    end: Point | None = None
    writes: dict[int, list[PlannedWrite]] = field(default_factory=dict)
    accept_from: Point | None = None
    accept_to: Point | None = None
    epochs: list[tuple[int, int]] = field(default_factory=list)
    created: bool = False
    deleted: bool = False
    stray: bool = False
    truncated: bool = False
    cut: int = 1 << 62
    merged: list[tuple[int, int]] = field(default_factory=list)
    begun: int | None = None
    gaps: dict[tuple[int, int], int] = field(default_factory=dict)
    markers: list[PlannedMarker] = field(default_factory=list)
    entries: int = 0
    is_least: bool = False
    checkpoint_lsn: int = 0
    new_cut: int = 1 << 62

    def fold(self, entries: Sequence[JournalEntry]) -> None:
        """Fold all entries of the partition, in LSN order."""
        self.entries += len(entries)
        number, batch = 0, EntryKind.BATCH
        while number < len(entries):
            if entries[number].kind == batch:
                number = self._fold_batches(entries, number)
            else:
                self._apply(entries[number])
                number += 1

    def remakes(self, base: int) -> bool:
        """Whether the segment can be made again from what the journal has, all of it.

        Also below the log start: it may never have got its name, and then nobody has kept what it says of producers.
        """
        writes = self.writes.get(base, [])
        return bool(writes) and writes[0].position == 0 and not any(write.extent for write in writes)

    def is_dropped(self, base: int) -> bool:
        """Whether a segment is one of those in front of a new beginning."""
        return self.begun is not None and base < self.begun

    @property
    def kept_to(self) -> Point | None:
        """The end of what recovery leaves unless it writes it anew; behind that batches may be accepted. None: all."""
        accepted = self.accept_from
        if accepted is None or self.trusted is None:
            return accepted or self.end
        return max(accepted, self.trusted, key=lambda each: each.place)

    def replaces(self, base: int, position: int) -> bool:
        """Whether recovery writes that byte of a segment anew or cuts it off, whatever is there now."""
        if self.is_dropped(base):
            return True
        end = None if self.is_least else self.kept_to  # that is where the file ends now: what is missing there is lost
        if end is not None and (base, position) >= end.place:
            return True
        writes = self.writes.get(base, [])
        last_extent = max((number for number, write in enumerate(writes) if write.extent), default=-1)
        fresh = writes[last_extent + 1 :]
        return bool(fresh and fresh[0].position <= position) or any(
            not write.extent and write.position <= position < write.position + write.length for write in writes
        )

    def note_replaced(self, entries: Sequence[JournalEntry]) -> None:
        """What files may be missing by these entries, from before a checkpoint that has all else they say."""
        swap, truncate = EntryKind.SWAP, EntryKind.TRUNCATE
        for entry in entries:
            if entry.kind == swap:
                self.merged.append((entry.segment_base, entry.offset))
            elif entry.kind == truncate:
                self.cut = min(self.cut, entry.offset)

    def accept_untold(self) -> None:
        """Without a checkpoint the journal alone tells the log's end, and of page-cache records it may do so later."""
        if self.end is not None and not (self.writes or self.truncated or self.accept_from is not None):
            self.accept_from, self.accept_to = self.end, None

    def _apply(self, entry: JournalEntry) -> None:
        kind = entry.kind
        if kind == EntryKind.EXTENT:
            self._fold_extent(entry)
            return
        point = Point(entry.offset, entry.segment_base, entry.position)
        if kind == EntryKind.ROLL:
            self._advance(point)
        elif kind == EntryKind.TRUNCATE:
            self._truncate(point)
            self._note_cut(entry.lsn, point.offset)
        elif kind == EntryKind.BEGIN:
            self._begin(point)
            self._note_cut(entry.lsn, -1)
        elif kind == EntryKind.LOG_START:
            self.start = max(self.start, entry.offset)
        elif kind == EntryKind.EPOCH:
            if not self._stale(entry.offset):  # else it would cut off what the checkpoint knows of later ones
                self.epochs.append((entry.epoch, entry.offset))
        elif kind == EntryKind.DURABILITY:
            self._durability(point, entry.stable)
        elif kind == EntryKind.GAP:
            self.gaps[point.place] = point.offset
        elif kind == EntryKind.MARKER:
            self.markers.append(
                PlannedMarker(point.offset, entry.epoch, point.place, entry.part, entry.data_position, entry.size)
            )
        elif kind == EntryKind.SWAP:
            self._swap(entry.segment_base, Point(entry.offset, entry.offset, 0))
        elif kind == EntryKind.DELETE:
            self.deleted, self.stray = True, entry.position == STRAY
        elif kind == EntryKind.CREATE:
            self.created = True
            if self.trusted is None:
                self.trusted = self.end = point

    def _stale(self, offset: int) -> bool:
        """Whether the recovery point, taken later than the entry, covers it (a truncation makes all count again)."""
        return not self.truncated and self.trusted is not None and offset < self.trusted.offset

    def _advance(self, point: Point) -> None:
        if self.truncated or self.trusted is None or point.place >= self.trusted.place:
            self.end = point  # by place: the recovery point may lie in a segment that was begun at the same offset

    def _fold_batches(self, entries: Sequence[JournalEntry], number: int) -> int:
        """Fold the batches of one segment that follow each other from `number` on; returns where their run ends.

        A full journal has very many of these: no method is called for each.
        """
        segment = entries[number].segment_base
        writes: list[PlannedWrite] = []
        append, make, batch = writes.append, tuple.__new__, EntryKind.BATCH
        covered = -2 if self.truncated or self.trusted is None else self.trusted.offset
        latest = self.epochs[-1][0] if self.epochs else -1
        for entry in islice(entries, number, None):
            _, kind, _, _, epoch, offset, base, position, part, data_position, length, next_offset, _, _ = entry
            if kind != batch or base != segment:
                break
            number += 1
            if next_offset <= covered:
                continue
            if epoch > latest:
                self.epochs.append((epoch, offset))
                latest = epoch
            append(make(PlannedWrite, (position, length, offset, part, data_position, False, None)))
            end = next_offset
        if writes:
            if self.trusted is None:
                self.trusted = Point(writes[0].offset, segment, writes[0].position)
            self.writes.setdefault(segment, []).extend(writes)
            self.end = Point(end, segment, writes[-1].position + writes[-1].length)
        return number

    def _fold_extent(self, entry: JournalEntry) -> None:
        extent = entry.extent
        if extent is None or self._stale(entry.next_offset - 1):
            return
        offset, base, position = entry.offset, entry.segment_base, entry.position
        if self.trusted is None:
            self.trusted = Point(offset, base, position)
        write = PlannedWrite(position, extent.length, offset, entry.part, entry.data_position, True, extent.crc)
        self.writes.setdefault(base, []).append(write)
        self.end = Point(entry.next_offset, base, position + extent.length)
        if entry.epoch >= 0 and (not self.epochs or self.epochs[-1][0] < entry.epoch):
            self.epochs.append((entry.epoch, offset))

    def _truncate(self, point: Point) -> None:
        for base in [base for base in self.writes if base > point.segment_base]:
            del self.writes[base]
        kept = []
        for write in self.writes.get(point.segment_base, ()):
            if write.position + write.length <= point.position:
                kept.append(write)
            elif write.position < point.position:
                kept.append(write._replace(length=point.position - write.position, crc=None))
        self.writes[point.segment_base] = kept
        self.gaps = {place: offset for place, offset in self.gaps.items() if place < point.place}
        self.markers = [marker for marker in self.markers if marker.place < point.place]
        # At the same place the log may have begun anew, at an offset that the batch held which went.
        if self.trusted is None or self.trusted.place >= point.place:
            self.trusted = point
        if self.accept_from is not None:
            self.accept_from = min(point, self.accept_from, key=lambda each: each.place)
            self.accept_to = point
        self.end = point
        self.start = min(self.start, point.offset)  # it lay in the batch that went: the next one is to be read
        self.truncated = True
        self.cut = min(self.cut, point.offset)
        self.epochs.append((-1, point.offset))

    def _note_cut(self, lsn: int, offset: int) -> None:
        if lsn >= self.checkpoint_lsn:
            self.new_cut = min(self.new_cut, offset)

    def _begin(self, point: Point) -> None:
        """Whatever there was is gone; only what follows counts."""
        self.writes.clear()
        self.merged.clear()
        self.gaps.clear()
        self.markers.clear()
        self.trusted = self.end = point
        if self.accept_from is not None:
            self.accept_from = self.accept_to = point
        self.start, self.begun = point.offset, point.segment_base
        self.truncated, self.cut = True, -1
        self.epochs = [(-1, 0)]

    def _swap(self, first_base: int, end: Point) -> None:
        """The segments from `first_base` up to `end` were synced, and other bytes may be in their place by now."""
        self.merged.append((first_base, end.offset))
        for base in [base for base in self.writes if first_base <= base < end.segment_base]:
            del self.writes[base]
        if self.trusted is None or self.trusted.place < end.place:
            self.trusted = end
        if self.accept_from is not None and self.accept_from.place < end.place:
            self.accept_from = end
        if self.end is not None and self.end.place < end.place:
            self.end = end

    def _durability(self, point: Point, stable: bool) -> None:
        if stable:
            # The log was synced before the topic became stable again: everything so far is trusted.
            # Batches journaled before are among it. Writing them again would cut off the page-cache ones behind them.
            self.accept_from = self.accept_to = None
            self.markers.clear()
            if self.trusted is None or self.trusted.offset < point.offset:
                self.trusted = point
                self.writes.clear()
        else:
            if self.accept_from is None:
                self.accept_from = point
            self.accept_to = None
            if self.trusted is None:
                self.trusted = point
        if self.end is None or self.end.offset <= point.offset:
            self._advance(point)


def make_plans(
    entries: Iterable[JournalEntry], points: Mapping[LogKey, LogPoint], checkpoint_lsn: int = 0
) -> dict[LogKey, RecoveryPlan]:
    """A plan for every log that the checkpoint or the journal knows, in a fixed order.

    points: of the checkpoint of that LSN; there may be entries from before it.
    """
    plans: dict[LogKey, RecoveryPlan] = {}
    for key, known in points.items():
        trusted = Point(known.recovery_point, known.segment_base, known.position)
        plans[key] = RecoveryPlan(
            key, known.start_offset, trusted, trusted, is_least=known.is_least, checkpoint_lsn=checkpoint_lsn
        )
    told: dict[LogKey, list[JournalEntry]] = {}
    begin = EntryKind.BEGIN
    for entry in entries:
        key = entry[2], entry[3]  # by number: there may be very many
        if entry[1] == begin and entry[0] < checkpoint_lsn and key in points:
            # A round begins when the files of the old log are gone: that checkpoint is one of the new log.
            told[key] = []
        elif key in told:
            told[key].append(entry)
        else:
            told[key] = [entry]
    for key, known in points.items():
        if known.unjournaled:
            # What came before is in the segments; the entry which said that appends are not journaled may have no more
            # become durable, so batches would seem to go on where they do not.
            plans[key].accept_from = plans[key].trusted
            theirs = told.get(key, [])
            older = [entry for entry in theirs if entry.lsn < checkpoint_lsn]
            plans[key].note_replaced(older)
            told[key] = theirs[len(older) :]
    for key, theirs in told.items():
        plans.setdefault(key, RecoveryPlan(key)).fold(theirs)
    return plans
