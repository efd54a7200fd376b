"""Reads of one log on the loop thread: which bytes of which segments, without waiting for the disk.

Consecutive reads find their place in a small table of positions where earlier reads and writes ended; any other
offset is found through the sparse index and a look at the headers behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.ports import Buffer, File, FileSpan
from duramen.storage.files.open_files import OpenFiles
from duramen.storage.files.read_buffers import SPAN_BYTES
from duramen.storage.read.read_plan import CHECKED_BYTES, ColdRead, LogRead, Pending, ReadPlan, extract
from duramen.storage.read.tail_cache import MOST_WRITES
from duramen.storage.read.verified_window import DroppedError, Recall, VerifiedWindow, WouldBlockError, headers, nowait
from duramen.storage.segment.index import OffsetIndex, StoredOffsetIndex
from duramen.storage.segment.seal import SEALING
from duramen.storage.segment.segment import INDEX, LOG, SEAL, Segment, dormant_sums
from duramen.wire.checksum import crc32c
from duramen.wire.seal import Seal

REMEMBERED_POSITIONS = 64
EXPECTED_BATCHES = 8
OPEN_CLOSED_SEGMENTS = 4
"""Files of closed segments that one log keeps open."""


class ReadPiece(NamedTuple):
    """What one segment gives to a read."""

    part: FileSpan | Buffer | Pending | None
    size: int
    next_offset: int


def segment_number(segments: Sequence[Segment], offset: int) -> int:
    """Number of the segment that holds `offset`, or of the first one when it lies before all of them."""
    found = bisect_right(segments, offset, key=lambda segment: segment.base_offset)
    return max(0, found - 1)


def aborted_between(segments: Sequence[Segment], first: int, last: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of rolled-back transactions with records in first..last (last excluded)."""
    found: list[tuple[int, int]] = []
    for number in range(segment_number(segments, first), len(segments)):
        for entry in segments[number].aborted():
            if entry.last_offset >= first and entry.first_offset < last:
                found.append((entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= last:
                return found
    return found


def _keep(known: dict[int, int], offset: int, value: int, most: int) -> None:
    """Know one more, and no longer the one that was learned first if there are more than `most`."""
    known[offset] = value
    if len(known) > most:
        del known[next(iter(known))]


def _index_sums(segment: Segment, seal: Seal | None) -> tuple[int, int] | None:
    """Bytes of the `.index` and their CRC-32C, when it was sealed or checkpointed."""
    sums = dormant_sums(segment)
    if sums is not None:
        return sums[:2]
    return None if seal is None or seal.sides is None else seal.sides[:2]


def _index_has(segment: Segment, size: int, crc: int) -> bool:
    """Whether the `.index` begins with bytes of this sum; WouldBlockError when it is not in memory."""
    if not size:
        return True
    try:
        return crc32c(nowait(segment.open_index_file())(0, size)) == crc
    except FileNotFoundError:
        return False


def _noticed(known: tuple[CorruptLogError, ...], damage: CorruptLogError) -> tuple[CorruptLogError, ...]:
    """With this one, unless its place is among them."""
    if any((each.path, each.start) == (damage.path, damage.start) for each in known):
        return known
    return (*known, damage)


class LogReader:
    """The reading side of one log."""

    __slots__ = ("_followed", "_hot", "_likely", "_opened", "_positions", "notices")

    def __init__(self, hot: VerifiedWindow) -> None:
        self._hot = hot
        self._followed = 0
        """So many writes to come are kept in memory as well: somebody read to the end, and may go on there."""
        self._positions: dict[int, int] = {}
        self._opened: tuple[Segment, ...] = ()
        self._likely: dict[int, int] | None = None
        """Where reads from the disk ended -> bytes of their last batch: the one behind it probably has as many."""
        self.notices: tuple[CorruptLogError, ...] = ()
        """Damage that a read met and got around; whoever tells of it empties this."""

    def remember(self, offset: int, position: int) -> None:
        """The batch that starts (or will start) with `offset` is at `position` of its segment."""
        _keep(self._positions, offset, position, REMEMBERED_POSITIONS)

    @property
    def files(self) -> OpenFiles:
        """See OpenFiles."""
        return self._hot.files

    def forget(self) -> None:
        """Positions no longer hold: the log was cut."""
        self._positions = {}
        self._likely = None

    def cutting(self, segments: Sequence[Segment], offset: int) -> None:
        """The log is about to be cut at `offset`: what is known of its last segments no longer holds."""
        self.forget()
        for segment in segments[segment_number(segments, offset) :]:
            self._hot.forget(segment, 0, segment.size)

    def wrote(self, segment: Segment, start: int, batches: Sequence[Buffer]) -> None:
        """These batches were written just now, from `start` to the segment's flushed end."""
        hot, flushed = self._hot, segment.flushed
        hot.wrote(segment, start, flushed)
        if self._followed:
            self._followed -= 1
            hot.latest.add(segment, flushed - start, batches)
        hot.files.used(segment, LOG)
        _keep(self._positions, segment.next_offset, flushed, REMEMBERED_POSITIONS)

    def read(
        self, segments: Sequence[Segment], offset: int, max_bytes: int, end: int, *, at_least_one: bool
    ) -> LogRead:
        """Whole batches from the one with `offset`, of at most `max_bytes`, none that starts at `end` or later.

        at_least_one: the first batch comes whatever its size (KIP-74). CorruptLogError, OSError.
        """
        result = LogRead(offset)
        cached, size = self._hot.latest.find(segments[-1], offset, end, max_bytes)
        if cached:
            result.parts += cached
            result.size, result.next_offset = size, end
            self._followed = MOST_WRITES
            return result
        for number in range(segment_number(segments, offset), len(segments)):
            segment = segments[number]
            first = at_least_one and not result.parts
            room = max_bytes - result.size
            if segment.base_offset >= end or (room <= 0 and not first):
                break
            wanted = max(result.next_offset, segment.base_offset)
            try:
                piece = self._piece(segment, wanted, room, end, first, active=number == len(segments) - 1)
            except (CorruptLogError, OSError):
                if not result.parts:
                    raise
                break  # who goes on there will be told
            if isinstance(piece.part, Pending):
                if not result.parts:
                    result.parts.append(piece.part)
                    result.size = piece.size
                    result.next_offset = piece.next_offset
                break
            if piece.part is not None and piece.size:
                result.parts.append(piece.part)
                result.size += piece.size
                if isinstance(piece.part, FileSpan):
                    self._found(result, segment, piece.part, piece.next_offset)
            result.next_offset = max(result.next_offset, piece.next_offset)
            if result.next_offset < segment.next_offset:
                break
        if result.next_offset >= end:
            self._followed = MOST_WRITES
        self.files.trim()
        return result

    def ahead(self, segments: Sequence[Segment], offset: int, size: int) -> Recall | None:
        """How to have in memory what a read of `size` bytes that goes on at `offset` needs; None where it is there.

        Only while the machine takes things out of memory. CorruptLogError, OSError.
        """
        hot = self._hot
        position = self._positions.get(offset) if hot.wary else None
        if position is None:
            return None
        hot.wary -= 1
        segment = segments[segment_number(segments, offset)]
        stop = min(position + size, segment.flushed)
        self.files.used(segment, LOG)
        file = segment.open_file()
        try:
            hot.assure(segment, file, position, stop)
        except DroppedError:
            pass
        except WouldBlockError:
            return None
        return hot.recall(segment, file, self._seal(segment), position, stop, offset)

    def _found(self, result: LogRead, segment: Segment, span: FileSpan, next_offset: int) -> None:
        if next_offset < segment.next_offset:
            self.remember(next_offset, span.position + span.length)
        if span.length >= SPAN_BYTES and not self._hot.was_written(segment, span.position):
            result.is_old = True

    def _piece(self, segment: Segment, offset: int, room: int, end: int, first: bool, *, active: bool) -> ReadPiece:
        if segment.flushed == 0 or offset >= segment.next_offset:
            return ReadPiece(None, 0, segment.next_offset)
        bound = min(end, segment.next_offset)
        self.files.used(segment, LOG)
        start: int | None = None
        try:
            start = self._locate(segment, offset)
            return self._span(segment, start, self._locate(segment, bound), offset, bound, room, first)
        except (WouldBlockError, CorruptLogError) as error:
            recent = isinstance(error, DroppedError)  # a verified read finds what is sound, and where damage begins
        piece = self._from_memory(segment, start, offset, room, bound, first, active, recent)
        if recent and start is not None and isinstance(piece.part, Pending):
            plan = piece.part.plan
            piece.part.recall = self._hot.recall(segment, plan.file, plan.seal, start, start + room, offset)
        return piece

    def _span(
        self, segment: Segment, start: int, stop: int, offset: int, bound: int, room: int, first: bool
    ) -> ReadPiece:
        """A span of hot bytes from start up to stop, cut behind the last batch that still fits into `room`.

        Raises WouldBlockError when some of them are not hot, or not in memory any more.
        """
        file = segment.open_file()
        self._hot.assure(segment, file, start, min(stop, start + room))
        if stop - start > room:
            stop, bound = self._fit(segment, start, start + room, offset, first)
            if stop > start + room:
                self._hot.assure(segment, file, start, stop)
        if stop <= start:
            return ReadPiece(None, 0, bound)
        return ReadPiece(FileSpan(file, start, stop - start), stop - start, bound)

    def _fit(self, segment: Segment, start: int, limit: int, offset: int, first: bool) -> tuple[int, int]:
        """(end position, next offset) of the batches from `start` that end at or before `limit`."""
        position = start
        with suppress(WouldBlockError):
            position = max(start, self._index(segment).boundary(limit))
        # Most of what was asked for is there: the few bytes to the last batch that fits are not worth looking for.
        enough = position > start and (limit - position) * 8 <= limit - start
        for at, header in headers(self._hot, segment, position):
            position = at
            if enough or position + header.size > limit:
                if position == start:
                    return (position + header.size, header.next_offset) if first else (start, offset)
                return position, header.base_offset
        return segment.flushed, segment.next_offset

    def _locate(self, segment: Segment, offset: int) -> int:
        """Position of the batch that holds `offset`, or of the first behind it.

        Raises WouldBlockError when that needs a verified read, or the index is not in memory.
        """
        if offset >= segment.next_offset:
            return segment.flushed
        if offset <= segment.base_offset:
            return 0
        position = self._positions.get(offset)
        if position is not None:
            return position
        position = self._index(segment).position_for(offset - segment.base_offset)
        if position >= segment.flushed:
            raise WouldBlockError  # no index is right that leads there
        for at, header in headers(self._hot, segment, position):
            if at == position and position and header.base_offset > offset:
                raise WouldBlockError  # the index leads too far: the verified read finds out why
            if header.next_offset > offset:
                self.remember(offset, at)
                return at
        return segment.flushed

    def _index(self, segment: Segment) -> OffsetIndex | StoredOffsetIndex:
        """WouldBlockError when it is not in memory."""
        if segment.index is not None:
            return segment.index
        if not segment.index_entries:
            return StoredOffsetIndex(lambda position, length: b"", 0)
        if not segment.index_checked:
            self._check_index(segment)
        return StoredOffsetIndex(nowait(segment.open_index_file()), segment.index_entries)

    def _check_index(self, segment: Segment) -> None:
        """Before its first use on the loop: is the `.index` the one that was sealed or checkpointed?

        A damaged one is told, and read around. WouldBlockError when it is not in memory: each use is then checked.
        """
        sums = _index_sums(segment, self._seal(segment))
        sound = sums is None or _index_has(segment, *sums)
        segment.index_checked = True
        if sums is not None and not sound:
            segment.index_entries = 0
            damage = CorruptLogError(segment.path_of(INDEX), 0, sums[0], "it differs from its checksum")
            self.notices = _noticed(self.notices, damage)
            raise WouldBlockError

    def _from_memory(
        self, segment: Segment, start: int | None, offset: int, room: int, bound: int, first: bool, active: bool,
        recent: bool,
    ) -> ReadPiece:  # fmt: skip
        """Bytes outside the verified window: verified here if they are few and in memory, else a Pending."""
        file = segment.open_file()
        if not active:
            self._opened_closed(segment)
        if start is not None:
            hint = start
        elif segment.index is not None:
            hint = segment.index.position_for(offset - segment.base_offset)
        else:
            hint = -1 if segment.index_entries else 0
        seal = self._seal(segment)
        index_file = segment.open_index_file() if segment.index is None and segment.index_entries else None
        likely = 0 if self._likely is None else self._likely.get(offset, 0)
        plan = ReadPlan(
            file, segment.path, segment.flushed, segment.base_offset, segment.next_offset, seal, index_file,
            segment.index_entries, hint, offset, bound, room, first, settled=segment.synced >= segment.size,
            likely=likely, live_index=segment.index, named=start is None and hint > 0,
        )  # fmt: skip
        checked_in = self._checked_in(segment, file, offset)
        pending = Pending(plan, self._hot.buffers, checked_in, recent=recent, follows=start is not None)
        if min(room, segment.flushed - max(hint, 0)) > SPAN_BYTES:
            return ReadPiece(pending, pending.size, bound)  # checking so much would hold the loop; so may a first batch
        try:
            found: ColdRead | None = extract(plan, nowait(file, CHECKED_BYTES), nowait(index_file or file))
        except (WouldBlockError, CorruptLogError):
            found = None
        if found is None or found.damage is not None:
            # Not in memory, or damaged, perhaps in the index alone: the cold pool can afford to find out.
            return ReadPiece(pending, pending.size, bound)
        size = len(found.data)
        if size:
            self._hot.add(segment, found.position, found.position + size)
            self.remember(found.next_offset, found.position + size)
        return ReadPiece(found.data, size, found.next_offset)

    def _checked_in(self, segment: Segment, file: File, offset: int) -> Callable[[ColdRead], bool]:
        """What to do on the loop with bytes of the segment that another thread has read and checked.

        It says whether they were in memory all along.
        """
        generation = self._hot.generation
        positions = self._positions

        def checked(found: ColdRead) -> bool:
            if found.damage is not None and self._hot.generation == generation:
                self.notices = _noticed(self.notices, found.damage)
            if not found.data:
                if found.position == segment.flushed and self._positions is positions:
                    self.remember(offset, found.position)  # nothing is left from here on: the next read goes on
                return False
            if self._hot.generation != generation:
                return False  # the log may have been cut meanwhile, and other bytes lie there by now
            if self._likely is None:
                self._likely = {}
            _keep(self._likely, found.next_offset, found.last_size, EXPECTED_BATCHES)
            end = found.position + len(found.data)
            if found.next_offset < segment.next_offset:
                self.remember(found.next_offset, end)
            if not file.resident(found.position, len(found.data)):
                return False
            self._hot.add(segment, found.position, end)
            return True

        return checked

    def _seal(self, segment: Segment) -> Seal | None:
        """The segment's seal; one that is damaged is told and made again, and the batches' own CRCs have to do."""
        try:
            return segment.load_seal()
        except CorruptLogError:
            raise
        except StorageError as error:
            path = segment.path_of(SEAL if segment.sealed else SEALING)
            segment.sealed = False
            self.notices = _noticed(self.notices, CorruptLogError(path, 0, 0, str(error)))
            return None

    def _opened_closed(self, segment: Segment) -> None:
        if segment not in self._opened:
            self._opened = (*self._opened, segment)
            if len(self._opened) > OPEN_CLOSED_SEGMENTS:
                self._opened[0].release_files()
                self._opened = self._opened[1:]

    def dropped(self, segment: Segment) -> None:
        """The segment is no longer part of the log."""
        self._hot.forget(segment, 0, segment.size)
        self._opened = tuple(opened for opened in self._opened if opened is not segment)
