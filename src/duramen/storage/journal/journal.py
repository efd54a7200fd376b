"""The journal of a log directory: what has to be durable before an acknowledgement, group by group (ENGINE.md §1).

The loop thread queues entries with `append`; `take_group` hands everything queued for one part to the sync thread as
one write and one sync; `complete` advances `durable_lsn` and every log's durable end. Position, lap and LSN of an entry
are fixed when it is queued. Only the mark that opens a group is made when the group is taken, because it records what
was durable at that moment.

A part may be used again once a mark on stable storage says that recovery needs nothing in it. Otherwise a power cut in
the first write of its new lap would leave a journal whose beginning is missing. The first entries in a part are
acknowledged only when a mark in the part in front says that they are durable: else a part that is gone, or an older
copy of itself, would pass for one that was not begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from duramen.errors import ErrorCode, FencedDirectoryError, KafkaError, check
from duramen.model import TopicPartition
from duramen.ports import Buffer, Disk
from duramen.storage.files.disk_full import retriable_open, what_lacks
from duramen.storage.files.sync_history import FileSync, Synced, to_sync
from duramen.storage.journal.format import (
    ENTRY_MAGIC,
    ENTRY_SIZE,
    EXTENT_SIZE,
    MARK_SIZE,
    EntryKind,
    Extent,
    Mark,
    aligned,
    encode_entry,
    encode_extent,
    encode_mark,
    pack_body,
    pack_lead,
)
from duramen.storage.journal.parts import Part, PartMaker, Place
from duramen.storage.journal.ring import JournalLimits, PartRing
from duramen.wire.checksum import crc32c

SLACK = 4 * ENTRY_SIZE
"""Bytes for entries that an append may bring besides its batch: a roll with a mark on either side of it, an epoch."""
_BATCH, _DURABILITY = EntryKind.BATCH, EntryKind.DURABILITY
_TRUNCATE, _BEGIN, _GAP = EntryKind.TRUNCATE, EntryKind.BEGIN, EntryKind.GAP
"""Looking a member up takes longer than a comparison, and `append` makes some."""
MAX_BUFFERS = 1000
"""Buffers per write; IOV_MAX is 1024 on Linux and macOS."""


class JournaledLog(Protocol):
    """What the journal needs of a log."""

    tp: TopicPartition
    topic_id: bytes
    path: str

    @property
    def stable(self) -> bool: ...

    @property
    def durable_end(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def active(self) -> Synced: ...

    def mark_durable(self, offset: int) -> None: ...

    def flush(self) -> None: ...


class LogJournal(Protocol):
    """What a log needs of its directory's journal."""

    def admit(self, length: int) -> None: ...

    def make_way(self) -> bool:
        """Whether there is room now that there was not, for what leads to more."""

    def append(
        self,
        kind: int,
        log: JournaledLog,
        offset: int,
        epoch: int,
        segment_base: int,
        position: int,
        data: Buffer | None = None,
    ) -> int: ...


class _OpenExtent:
    """An EXTENT entry that still grows: its bytes went to the segment only."""

    __slots__ = (
        "crc",
        "epoch",
        "index",
        "length",
        "log",
        "lsn",
        "next_offset",
        "offset",
        "position",
        "segment",
        "segment_base",
    )

    def __init__(
        self, log: JournaledLog, index: int, lsn: int, offset: int, epoch: int, base: int, position: int
    ) -> None:
        self.log = log
        self.index = index
        self.lsn = lsn
        self.offset = offset
        self.epoch = epoch
        self.segment = log.active
        self.segment_base = base
        self.position = position
        self.length = 0
        self.crc = 0
        self.next_offset = offset

    def extend(self, data: Buffer, next_offset: int) -> None:
        self.crc = crc32c(data, self.crc)
        self.length += len(data)
        self.next_offset = next_offset


class JournalGroup:
    """One group commit: built on the loop, run on the sync thread, completed on the loop."""

    __slots__ = (
        "_disk",
        "buffers",
        "checkpoint_lsn",
        "ends",
        "extents",
        "first_lsn",
        "last_lsn",
        "lead",
        "open",
        "part",
        "position",
        "size",
        "syncs",
        "weight",
    )

    def __init__(self, disk: Disk, part: Part, position: int, first_lsn: int) -> None:
        self._disk = disk
        self.part = part
        self.position = position
        self.checkpoint_lsn = 0
        self.first_lsn = first_lsn
        self.last_lsn = first_lsn - 1
        self.size = MARK_SIZE
        self.buffers: list[Buffer] = [b""]
        self.ends: dict[JournaledLog, int] = {}
        self.weight: dict[JournaledLog, int] = {}
        self.open: dict[JournaledLog, _OpenExtent] = {}
        self.extents: list[_OpenExtent] = []
        self.syncs: list[tuple[FileSync | None, str, JournaledLog | None]] = []
        self.lead: Callable[[], None] | None = None

    def seal(self, seed: int, durable_lsn: int, checkpoint_lsn: int) -> None:
        """Fix what was open: extents, the mark and the padding. On the loop, when the group is taken.

        NoRoomError: the file of an extent was closed, by a checkpoint that synced it, and too many are open; it can be
        sealed again. OSError.
        """
        self.checkpoint_lsn = checkpoint_lsn
        syncs: list[tuple[FileSync | None, str, JournaledLog | None]] = []
        for extent in self.extents:
            extent.log.flush()
            syncs.append((to_sync(extent.segment), extent.log.path, extent.log))
            data = encode_extent(Extent(extent.length, extent.crc, extent.next_offset))
            header = encode_entry(
                seed,
                EntryKind.EXTENT,
                self.part.lap,
                extent.lsn,
                extent.log.topic_id,
                extent.log.tp.partition,
                extent.epoch,
                extent.offset,
                extent.segment_base,
                extent.position,
                data,
            )
            self.buffers[extent.index] = header + data
        self.syncs = syncs
        mark = Mark(durable_lsn, checkpoint_lsn, self.last_lsn - self.first_lsn + 1, self.size)
        self.buffers[0] = encode_mark(seed, self.part.lap, self.first_lsn, mark)
        padding = aligned(self.size) - self.size
        if padding:
            self.buffers.append(bytes(padding))

    def run(self) -> None:
        """Make the group durable: segments of bypassed batches first, then one write and one sync. OSError fences.

        NoRoomError: too many files are open, and it can be run again.
        """
        for sync, directory, log in self.syncs:
            if sync is not None:
                sync.run()
            try:
                with retriable_open():
                    self._disk.sync_directory(directory)
            except FileNotFoundError:
                # The topic was deleted meanwhile, and its directory renamed, which a power cut may still take back.
                if log is not None:
                    with suppress(FileNotFoundError), retriable_open():
                        self._disk.sync_directory(log.path)
        file = self.part.file
        buffers: Sequence[Buffer] = self.buffers
        if len(buffers) <= MAX_BUFFERS:
            file.pwritev(buffers, self.position)
        else:
            position = self.position
            for start in range(0, len(buffers), MAX_BUFFERS):
                position += file.pwritev(buffers[start : start + MAX_BUFFERS], position)
        file.sync()
        if self.lead is not None:
            self.lead()


def _lead(place: Place, mark: bytes) -> None:
    """The part in front says that this one was in use, before anything in it is acknowledged: without that the journal
    would end there, for a recovery, where this one is gone or is an older copy of itself. OSError.
    """
    place.file.pwritev([mark, bytes(aligned(len(mark)) - len(mark))], place.position)
    place.file.sync()


class Journal(PartRing):
    """Queue, groups and parts of one directory's journal. Loop thread only, but for what `Group.run` does.

    durable_lsn: every entry up to it is on stable storage. checkpoint_lsn: recovery needs entries from it on.
    laps: how often a part was started. failed: the error that fenced the directory.
    """

    def __init__(self, disk: Disk, maker: PartMaker, limits: JournalLimits, next_lsn: int, laps: int) -> None:
        """A journal without parts: `start` gives it the first one."""
        super().__init__(maker, limits, next_lsn, laps)
        self.seed = maker.seed
        self._disk = disk
        self._marked_lsn = next_lsn - 1
        self._queue: deque[JournalGroup] = deque()
        self._open: JournalGroup | None = None
        self._inflight: JournalGroup | None = None
        self._marking: dict[JournaledLog, int] = {}
        self._before_next: list[tuple[FileSync | None, str, JournaledLog | None]] = []
        self.on_truncate: Callable[[JournaledLog, int, int, int], None] = lambda log, offset, base, position: None
        self.on_begin: Callable[[JournaledLog, int, int], None] = lambda log, offset, base: None

    # -- appending

    def append(
        self,
        kind: int,
        log: JournaledLog,
        offset: int,
        epoch: int,
        segment_base: int,
        position: int,
        data: Buffer | None = None,
    ) -> int:
        """Queue one entry and return its LSN; `data` is kept by reference until the group has run.

        For a BATCH, `log.end_offset` is already the offset behind it. A batch that brings its log above
        `limits.bypass` bytes in one group is queued as (part of) an EXTENT instead, without its bytes.
        Raises FencedDirectoryError after a failure, KafkaError when the journal is full (see `admit`).
        """
        if self.failed is not None:
            raise self._fenced()
        group = self._open
        if data is None:
            data = b""
        size = len(data)
        if kind == _BATCH and group is not None:
            extent = group.open.get(log)
            if extent is not None and extent.segment_base == segment_base:
                extent.extend(data, log.end_offset)
                group.ends[log] = log.end_offset
                return extent.lsn
        if kind == _BATCH and (size if group is None else group.weight.get(log, 0) + size) > self.limits.bypass:
            return self._open_extent(log, offset, epoch, segment_base, position, data)
        part = self._current
        if group is None or group.position + group.size + ENTRY_SIZE + size > part.limit:
            group = self._open_group(ENTRY_SIZE + size, droppable=kind == _BATCH)
            part = self._current
        lsn = self.next_lsn
        body = pack_body(
            ENTRY_SIZE + size,
            kind,
            part.lap,
            lsn,
            log.topic_id,
            log.tp.partition,
            epoch,
            offset,
            segment_base,
            position,
        )
        if size:
            group.buffers += (pack_lead(ENTRY_MAGIC, crc32c(data, crc32c(body, self.seed))) + body, data)
        else:
            group.buffers.append(pack_lead(ENTRY_MAGIC, crc32c(body, self.seed)) + body)
        group.size += ENTRY_SIZE + size
        group.last_lsn = part.last_lsn = lsn
        self.next_lsn = lsn + 1
        if kind == _BATCH:
            group.ends[log] = log.end_offset
            group.weight[log] = group.weight.get(log, 0) + size
        else:
            group.open.pop(log, None)
            if kind in (_DURABILITY, _GAP):
                group.ends.setdefault(log, 0)
                self._marking[log] = lsn
            elif kind == _TRUNCATE:
                self._forget_above(log, offset)
                self.on_truncate(log, offset, segment_base, position)
            elif kind == _BEGIN:
                self._forget_above(log, offset)
                self.on_begin(log, offset, segment_base)
        return lsn

    def admit(self, size: int) -> None:
        """Raise what `append` would raise for a batch of `size` bytes, before anything of it is done.

        FencedDirectoryError after a failure; KafkaError(KAFKA_STORAGE_ERROR, retriable) when the journal is at
        one of its bounds or the disk has no room, for another part or for anything.
        """
        if self.failed is not None:
            raise self._fenced()
        if self.no_room is not None and self.refuses:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.maker.directory} {what_lacks(self.no_room)}")
        if self.next_lsn - self.checkpoint_lsn >= self.limits.entries:
            raise self._full()
        need = EXTENT_SIZE if size > self.limits.bypass else ENTRY_SIZE + size
        group = self._open
        start, used = (self._current.position, MARK_SIZE) if group is None else (group.position, group.size)
        if start + used + need + SLACK > self._current.limit:
            self._ensure_next_part(droppable=True)

    def end_extents(self) -> int:
        """Let no extent grow any more; the next LSN, from which on a checkpoint leaves all to recovery.

        What came to an older extent would be in no segment that the checkpoint syncs, nor in an entry that is replayed.
        """
        if self._open is not None:
            self._open.open.clear()
        return self.next_lsn

    def _open_extent(self, log: JournaledLog, offset: int, epoch: int, base: int, position: int, data: Buffer) -> int:
        group = self._open
        if group is None or group.position + group.size + EXTENT_SIZE > self._current.limit:
            group = self._open_group(EXTENT_SIZE, droppable=True)
        lsn = self.next_lsn
        extent = _OpenExtent(log, len(group.buffers), lsn, offset, epoch, base, position)
        extent.extend(data, log.end_offset)
        group.extents.append(extent)
        group.open[log] = extent
        group.buffers.append(b"")
        group.size += EXTENT_SIZE
        group.weight[log] = self.limits.bypass
        group.ends[log] = log.end_offset
        group.last_lsn = self._current.last_lsn = lsn
        self.next_lsn = lsn + 1
        return lsn

    def _open_group(self, need: int, *, droppable: bool) -> JournalGroup:
        """A group with room for `need` bytes of entries: in the current part, else in the next one."""
        if self._open is not None:
            self._close_open()
        part = self._current
        if part.position + MARK_SIZE + need > part.limit:
            self._ensure_next_part(droppable=droppable)
            part = self._next_part()
        check(part.position + MARK_SIZE + need <= part.limit, "an entry is smaller than a journal part")
        self._open = JournalGroup(self._disk, part, part.position, self.next_lsn)
        return self._open

    def _close_open(self) -> None:
        group = self._open
        if group is not None:
            group.part.position = group.position + aligned(group.size)
            self._queue.append(group)
            self._open = None

    def _forget_above(self, log: JournaledLog, offset: int) -> None:
        """The log was cut: no group that is still under way may call a later offset durable."""
        for group in (*self._queue, self._open, self._inflight):
            if group is not None and group.ends.get(log, -1) > offset:
                group.ends[log] = offset

    def _fenced(self) -> FencedDirectoryError:
        return FencedDirectoryError(f"{self.maker.directory}: no writes since a failure of the disk: {self.failed}")

    # -- group commit

    @property
    def has_pending(self) -> bool:
        """Whether something is queued that no group in flight covers."""
        return self._open is not None or bool(self._queue)

    @property
    def in_flight(self) -> bool:
        """Whether a group was taken and neither completed nor failed."""
        return self._inflight is not None

    def take_group(self) -> JournalGroup | None:
        """What is queued for one part as a group to run; None when nothing is, when one is in flight, or when fenced.

        The logs must have been flushed before (LogDirectory.take_group does both). NoRoomError: it stays queued.
        """
        if self._inflight is not None or self.failed is not None:
            return None
        if not self._queue:
            self._close_open()
        if not self._queue:
            return None
        group = self._launch(self._queue[0])
        self._queue.popleft()  # not before: what is journaled behind it counts only with it
        return group

    def knows(self, log: JournaledLog) -> bool:
        """Whether recovery would find a page-cache log's records: no change of its durability waits for a group."""
        return log not in self._marking

    def take_idle_mark(self) -> JournalGroup | None:
        """A group of nothing but a mark, once per idle spell and checkpoint: it tells damage to the
        last group from a torn tail, and lets recycled parts be used."""
        if self._inflight is not None or self.failed is not None or self.has_pending:
            return None
        if self._marked_lsn == self.durable_lsn and self._recorded_lsn == self.checkpoint_lsn:
            return None
        part = self._current
        reserve = part.limit if self._recorded_lsn == self.checkpoint_lsn else part.idle_limit
        if part.position + MARK_SIZE > reserve:
            if not self._free:
                try:
                    self._free.append(self.maker.make(self.limits.first_part))
                except OSError as error:
                    self.growth_error = error
                    return None
            part = self._next_part()
        group = JournalGroup(self._disk, part, part.position, self.next_lsn)
        part.position += aligned(MARK_SIZE)
        return self._launch(group)

    def sync_before_next(self, sync: FileSync, directory: str) -> None:
        """The next group syncs this file and the names beside it before it is written."""
        self._before_next.append((sync, directory, None))

    def sync_names_before_next(self, directory: str) -> None:
        """The same for the names in a directory alone; once, however often it is asked for."""
        if (None, directory, None) not in self._before_next:
            self._before_next.append((None, directory, None))

    def _launch(self, group: JournalGroup) -> JournalGroup:
        group.seal(self.seed, self.durable_lsn, self.checkpoint_lsn)
        part = group.part
        if part.before is not None and group.last_lsn >= group.first_lsn:
            said = Mark(group.last_lsn, self.checkpoint_lsn, 0, MARK_SIZE)
            mark = encode_mark(self.seed, part.before.lap, part.first_lsn, said)
            group.lead, part.before = partial(_lead, part.before, mark), None
        group.syncs[:0], self._before_next = self._before_next, []
        self._marked_lsn = self.durable_lsn
        self._inflight = group
        return group

    def complete(self, group: JournalGroup) -> list[JournaledLog]:
        """The group has run: advance the durable LSN and the durable end of its logs; returns those it counts for.

        Not while a change of a log's durability waits for a later group: what came before that is synced, but only the
        change tells recovery so.
        """
        if self.failed is not None:
            # Fenced while the group ran: whoever waited was told that the outcome is unknown, a restart finds out.
            return []
        check(group is self._inflight, "groups complete in the order they were taken")
        self._inflight = None
        self.durable_lsn = max(self.durable_lsn, group.last_lsn)
        self._recorded_lsn = group.checkpoint_lsn
        while self._used and self._reusable(self._used[0]):
            self._free.append(self._used.popleft())
        for log, end in group.ends.items():
            log.mark_durable(end)
            if self._marking and self._marking.get(log, self.next_lsn) <= self.durable_lsn:
                del self._marking[log]
        return [log for log in group.ends if log not in self._marking]

    def fail(self, group: JournalGroup | None, error: BaseException) -> None:
        """The disk failed: fence the directory until a restart has recovered it. A failed sync is never retried."""
        first = self.failed is None
        if first:
            self.failed = error
        self._inflight = None
        self._open = None
        self._queue.clear()
        if first:
            self.on_failed()
