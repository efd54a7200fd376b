"""The log of one partition: appends, rolls and reads over its segments.

Synchronous and owned by one thread. An append only queues: `flush` writes what was queued with one call, and the
journal makes it durable (ENGINE.md §1). What else is done to a log stands beside this: `open`, `durability`, `seals`,
`truncation`, `retention`. Long work comes as jobs (`take_sync`, `take_seals`, a read's Pending) that run elsewhere and
are completed here.
"""

from __future__ import annotations

from duramen.errors import CorruptLogError, ErrorCode, KafkaError, check
from duramen.model import INTERNAL_TOPICS, TopicId, TopicPartition
from duramen.ports import Buffer, Disk
from duramen.storage.files import disk_full
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.files.open_files import OpenFiles
from duramen.storage.journal.format import EntryKind
from duramen.storage.journal.journal import LogJournal
from duramen.storage.log.config import LogConfig, dated_from
from duramen.storage.log.leases import UNBOUNDED, Lease, Leases
from duramen.storage.log.open_segment import SegmentLoader, Walk
from duramen.storage.log.segment_cut import PendingTruncation
from duramen.storage.log.sidecars import save_sidecars
from duramen.storage.log.snapshot_files import ProducerSnapshots
from duramen.storage.log.sync import FlushQueue, SyncChain
from duramen.storage.read.log_reader import LogReader, aborted_between, segment_number
from duramen.storage.read.read_plan import LogRead
from duramen.storage.read.timestamp_lookup import (
    TimeLookup,
    max_timestamp_lookup,
    timestamp_lookup,
)
from duramen.storage.read.verified_window import Recall, VerifiedWindow
from duramen.storage.segment.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from duramen.storage.segment.leader_epochs import EpochCache
from duramen.storage.segment.producer_state import ProducerStates
from duramen.storage.segment.rollbacks import track_producer
from duramen.storage.segment.segment import MAX_RELATIVE, Segment
from duramen.storage.segment.write_checksums import SUMMED_BYTES, WrittenSums
from duramen.wire.batch import CONTROL, BatchHeader
from duramen.wire.checksum import crc32c

COPIED_BYTES = 16 * 1024
"""Batches up to this size are copied when queued, so that a receive buffer is not held for a few bytes."""
_BATCH, _DURABILITY, _GAP = EntryKind.BATCH, EntryKind.DURABILITY, EntryKind.GAP


class Log:
    """One partition's records on disk.

    start_offset: first offset readers may ask for; end_offset: the next to be assigned; durable_end: all below is on
    stable storage; recovery_point: all below is in synced segments; recovery_position: the byte where the segment that
    held it was synced to. truncations: how often the log was truncated; pending_truncation: what the last one has still
    to do to the files, when there are no writers: jobs that write beside the segments, until accounted for.
    rebuild_from: offsets of the snapshots from which its producers are still to be rebuilt behind it; None: they are
    known. is_whole: neither is left to do, and appends are taken. stable: appends are journaled; marked: journal or
    checkpoint say from where on they are not (page-cache). names_changed: file names are to be synced; unsnapshotted:
    bytes since the last producer snapshot; syncs: see SyncChain.
    """

    active: Segment

    __slots__ = (
        "_dated_from",
        "_leases",
        "_queue",
        "_roll_after_ms",
        "_rolls_at_entries",
        "active",
        "config",
        "dirty",
        "disk",
        "durable_end",
        "end_offset",
        "epochs",
        "flush_queue",
        "is_whole",
        "journal",
        "marked",
        "names_changed",
        "path",
        "pending_truncation",
        "producers",
        "reader",
        "rebuild_from",
        "recovery_point",
        "recovery_position",
        "segments",
        "snapshots",
        "stable",
        "start_offset",
        "syncs",
        "topic_id",
        "tp",
        "truncations",
        "unsnapshotted",
        "writers",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        tp: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        journal: LogJournal,
        flush_queue: FlushQueue[Log] | None = None,
        hot: VerifiedWindow | None = None,
    ) -> None:
        """An object without segments: use `create_log` or `open_log`."""
        self.disk = disk
        self.path = path
        self.tp = tp
        self.topic_id = topic_id
        self.journal = journal
        self.flush_queue: FlushQueue[Log] = FlushQueue() if flush_queue is None else flush_queue
        self.dirty = False
        self.names_changed = False
        self.start_offset = self.end_offset = self.durable_end = 0
        self.recovery_point = self.recovery_position = 0
        self.epochs = EpochCache()
        self.producers = ProducerStates()
        self.segments: list[Segment] = []
        self.snapshots = ProducerSnapshots(disk, path, topic_id, tp.partition)
        self.writers: dict[object, None] = {}
        self.truncations = 0
        self.pending_truncation: PendingTruncation | None = None
        self.rebuild_from: tuple[int, ...] | None = None
        self.is_whole = True
        self.stable = True
        self.marked = False
        self.syncs: SyncChain | None = None
        self._queue: list[Buffer] = []
        self.reader = LogReader(VerifiedWindow() if hot is None else hot)
        self._leases: Leases | None = None
        self.unsnapshotted = self._dated_from = 0
        self.take_over(config)

    def take_over(self, config: LogConfig) -> None:
        """Its configuration. Of a log in use `configure_log` does, which makes a change of durability hold."""
        self.config = config
        self.stable = config.durability == "stable" or self.tp.topic in INTERNAL_TOPICS
        before, self._dated_from = self._dated_from, dated_from(config)
        if self.segments and self._dated_from > before:
            self.active.date_by_storing()
        times = config.segment_index_bytes // TIME_ENTRY_SIZE - 1
        self._rolls_at_entries = min(config.segment_index_bytes // OFFSET_ENTRY_SIZE, times)
        self.set_roll_time()

    def set_roll_time(self) -> None:
        """`segment.ms` less a jitter that differs between partitions, so that they do not all roll at once.

        A dormant segment's first append takes the way of a roll, where it is woken.
        """
        jitter = self.config.segment_jitter_ms
        if jitter and self.segments:
            jitter = crc32c(f"{self.tp}@{self.active.base_offset}".encode()) % (jitter + 1)
        longest = self.config.segment_ms
        if "compact" in self.config.cleanup_policy:
            # What has to be compacted by then may not stay in the active segment.
            longest = min(longest, self.config.max_compaction_lag_ms)
        dormant = bool(self.segments) and self.active.dormant is not None
        self._roll_after_ms = -(1 << 64) if dormant else longest - min(jitter, longest)

    # ---- appends ------------------------------------------------------------------------------------------------

    def append(self, data: Buffer, header: BatchHeader, now_ms: int) -> int:
        """Queue a batch that is stamped with `end_offset` and its leader epoch; returns its journal LSN.

        `data` must not change until it is flushed and journaled. LSN 0: nothing to wait for (page-cache topics).
        Raises FencedDirectoryError or KafkaError when the journal takes no more; then nothing has changed. OSError.
        """
        size = header.size
        self.flush_queue.make_room(size)
        self.journal.admit(size)
        if not self.is_whole:
            self.check_whole()
        segment, offset, end = self.active, header.base_offset, self.end_offset
        last = offset + header.last_offset_delta
        timestamp = header.max_timestamp
        stamp = timestamp if timestamp >= self._dated_from else now_ms
        position = segment.size
        if position and (
            position + size > self.config.segment_bytes
            or last - segment.base_offset > MAX_RELATIVE
            or stamp - segment.first_timestamp > self._roll_after_ms
            or len(segment.index.offsets) >= self._rolls_at_entries  # type: ignore[union-attr]
        ):
            if segment.dormant is not None:
                SegmentLoader(segment, self.config.index_interval_bytes, Walk()).wake()
                self.set_roll_time()
                return self.append(data, header, now_ms)
            segment = self.roll()
            position = 0
        if not position:
            segment.first_timestamp = stamp
        has_producer = header.producer_id >= 0
        if header.attributes & CONTROL:
            track_producer(
                self.producers, segment, data, header
            )  # first: `.txnindex` may find no room for what it rolls back
            has_producer = False
        if size <= COPIED_BYTES and type(data) is not bytes:
            data = bytes(data)
        self._queue.append(data)
        segment.size = position + size
        segment.next_offset = self.end_offset = last + 1
        if timestamp > segment.max_timestamp:
            segment.max_timestamp = timestamp
            segment.max_timestamp_offset = last
        if stamp is not timestamp:
            segment.stored_ms = now_ms
        if segment.unindexed > self.config.index_interval_bytes:
            segment.add_index_entry(last, position)
        segment.unindexed += size
        epoch = header.leader_epoch
        if epoch != self.epochs.latest:
            self.epochs.assign(epoch, offset)
        if has_producer:
            track_producer(self.producers, segment, data, header)
        if not self.dirty:
            self.dirty = True
            self.flush_queue.append(self)
        if self.stable:
            return self.journal.append(_BATCH, self, offset, epoch, segment.base_offset, position, data)
        lsn = 0
        if not self.marked:
            self.marked = True
            lsn = self.journal.append(_DURABILITY, self, end, epoch, segment.base_offset, position)
        if offset != end:
            lsn = self.journal.append(_GAP, self, offset, epoch, segment.base_offset, position)
        return lsn

    def assign_epoch(self, epoch: int) -> None:
        """A leader epoch starts at the end of the log; journaled. Nothing happens when it is the latest."""
        if epoch > self.epochs.latest:
            self.epochs.assign(epoch, self.end_offset)
            self.journal_entry(EntryKind.EPOCH, self.end_offset)

    def journal_entry(self, kind: int, offset: int, data: bytes | None = None, epoch: int | None = None) -> int:
        """Journal a change of the log, which has been made in memory, in its place among the appends; returns its LSN.

        epoch: the latest without one.
        """
        if not self.dirty:
            self.dirty = True
            self.flush_queue.append(self)
        active, epoch = self.active, self.epochs.latest if epoch is None else epoch
        return self.journal.append(kind, self, offset, epoch, active.base_offset, active.size, data)

    def flush(self) -> None:
        """Write everything queued with one call. NoRoomError: it stays queued, the next call writes all of it again.

        Any other OSError: nothing is forgotten, but the directory must be fenced.
        """
        queue = self._queue
        if queue:
            segment = self.active
            start = segment.flushed
            file = segment.open_file()
            try:
                file.pwritev(queue, start)
            except OSError as error:
                raise disk_full.as_disk_full(error) from error
            self._queue = []
            segment.flushed = segment.size
            if segment.size - start >= SUMMED_BYTES:
                if segment.written_sums is None:
                    segment.written_sums = WrittenSums()
                segment.written_sums.add(queue, start)
            self.unsnapshotted += segment.size - start
            self.reader.wrote(segment, start, queue)
        self.dirty = False

    def abandon(self) -> None:
        """The log is deleted, and no start looks into its files: what could not be written needs no room any more."""
        self._queue = []
        self.dirty = False

    # ---- segments -----------------------------------------------------------------------------------------------

    def roll(self) -> Segment:
        """Close the active segment and start a new one at the end; journaled. NoRoomError, OSError, KafkaError."""
        self.check_whole()
        check(self.active.size > 0, "an empty segment is never rolled")
        self.journal.admit(0)
        try:
            self.flush()
            save_sidecars(self)
            old, segment = self.active, self.add_segment(self.end_offset)
        except NoRoomError:
            if self.journal.make_way():
                return self.roll()
            raise
        old.close_indexes()  # last: a roll that failed leaves a segment that can still grow
        self.end_mark()
        self.set_roll_time()
        self.journal_entry(EntryKind.ROLL, segment.base_offset)
        return segment

    def add_segment(self, base_offset: int) -> Segment:
        """A new, empty active segment; its name is synced with the next `take_sync`. NoRoomError, OSError."""
        segment = Segment(self.disk, self.path, base_offset, self.reader.files)
        segment.open_file(create=True)
        segment.activate()
        self.segments.append(segment)
        self.active = segment
        self.names_changed = True
        return segment

    def move(self, path: str) -> None:
        """The directory is about to get another name: jobs under way go there, or find out that they come too late."""
        self.path = self.snapshots.directory = path
        for segment in self.segments:
            segment.directory = path
            self.reader.dropped(segment)

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Compaction: `new` holds what is left of `old`, which are neighbours and never the active one.

        Reads under way keep the files they have opened.
        """
        first = self.segments.index(old[0])
        self.segments[first : first + len(old)] = [new]
        new.stored_ms = max(segment.latest_ms for segment in old)
        for segment in old:
            segment.replaced = True
            self.reader.dropped(segment)
            segment.forget()
        self.reader.forget()

    def detach_before(self, offset: int) -> list[Segment]:
        """Take out the segments wholly below `offset`, never the active one; the caller removes their files.

        Only what is synced: no checkpoint knows of them any more, and should they come back they are to be whole.
        """
        keep = 0
        for segment in self.segments[:-1]:
            if segment.next_offset > offset or segment.synced < segment.size:
                break
            keep += 1
        gone = self.segments[:keep]
        del self.segments[:keep]
        for segment in gone:
            self.reader.dropped(segment)
        if gone:
            self.reader.forget()
        return gone

    def advance_start(self, offset: int) -> None:
        """Records below `offset` are gone; journaled, files stay until `detach_before`. Raises as `append` does."""
        if offset <= self.start_offset:
            return
        if offset > self.end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.tp}: {offset} is above the end {self.end_offset}")
        self.journal.admit(0)
        self.start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.journal_entry(EntryKind.LOG_START, offset)

    # ---- truncation ---------------------------------------------------------------------------------------------

    def end_mark(self) -> None:
        """The journal is about to speak of a place in a page-cache log: without the checkpoint all before it would pass
        for synced. The next append makes a mark after that.
        """
        if self.marked:
            self.marked = False
            if self.recovery_point < self.end_offset:
                point = self.recovery_point
                base = self.segments[segment_number(self.segments, point)].base_offset
                position = 0 if base == point else self.recovery_position  # the sync may have been of the one before
                self.journal.append(EntryKind.DURABILITY, self, point, self.epochs.latest, base, position)

    @property
    def producer_count(self) -> int:
        """How many are known; until they are rebuilt one, so that no start takes it that there are none."""
        return len(self.producers) if self.rebuild_from is None else 1

    def check_cut(self) -> None:
        """KafkaError, retriable, while the files have still more than the log."""
        if self.pending_truncation is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp}: a truncation is not durable yet")

    def check_whole(self) -> None:
        """KafkaError, retriable, while a truncation is under way."""
        self.check_cut()
        if self.rebuild_from is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp}: behind a truncation its producers are read")

    # ---- durability ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is queued and the sidecars, and close the files. It syncs nothing: `take_sync` does. OSError."""
        self.flush()
        if self.pending_truncation is None:
            save_sidecars(self)
        for segment in self.segments:
            segment.close()

    def mark_durable(self, offset: int) -> None:
        """Everything below `offset` is on stable storage; never moves back, never beyond the end."""
        self.durable_end = max(self.durable_end, min(offset, self.end_offset))

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that are not yet known to be on stable storage in their segments."""
        total = 0
        for segment in reversed(self.segments):
            if segment.size and segment.synced >= segment.size:
                break  # not at one that was just rolled and is empty: those before it may still wait
            total += segment.size - segment.synced
        return total

    @property
    def open_files(self) -> OpenFiles:
        """The open files of all logs of the process."""
        return self.reader.files

    # ---- reads --------------------------------------------------------------------------------------------------

    @property
    def written_end(self) -> int:
        """Behind the last record that is written: a read up to here writes nothing itself."""
        return int.from_bytes(self._queue[0][:8], "big") if self._queue else self.end_offset

    def _flush_below(self, end: int) -> None:
        """Write what a read up to `end` needs. One that needs nothing goes on where no write does any more."""
        if self._queue and end > self.written_end:
            self.flush()

    def read(self, offset: int, max_bytes: int, end: int, *, at_least_one: bool) -> LogRead:
        """Whole batches from the one that contains `offset`; none that starts at `end` (a batch boundary) or later.

        Raises KafkaError OFFSET_OUT_OF_RANGE below the log start or above the log end; CorruptLogError; OSError.
        """
        if offset < self.start_offset or offset > self.end_offset:
            outside = f"{self.tp}: offset {offset} is outside {self.start_offset}..{self.end_offset}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, outside)
        self._flush_below(end)
        return self.reader.read(self.segments, offset, max_bytes, min(end, self.end_offset), at_least_one=at_least_one)

    def read_ahead(self, offset: int, size: int) -> Recall | None:
        """See LogReader.ahead."""
        return self.reader.ahead(self.segments, offset, size)

    def take_notices(self) -> tuple[CorruptLogError, ...]:
        """Damage that reads met and got around since the last call."""
        notices, self.reader.notices = self.reader.notices, ()
        return notices

    def aborted(self, first: int, last: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of rolled-back transactions with records in first..last (last excluded)."""
        return aborted_between(self.segments, first, last)

    def time_lookup(self, timestamp: int, end: int, start: int = -1) -> TimeLookup:
        """The job that finds the first record below `end` that is at least this young (ms); for the cold pool.

        start: of a `rest`; see TimeLookup.
        """
        self._flush_below(end)
        return timestamp_lookup(self.segments, timestamp, max(start, self.start_offset), min(end, self.end_offset))

    def max_timestamp_lookup(self, end: int) -> TimeLookup:
        """The job that finds the (first) youngest record below `end` (KIP-734)."""
        self._flush_below(end)
        return max_timestamp_lookup(self.segments, self.start_offset, min(end, self.end_offset))

    def lease(self, from_offset: int, expires_ms: int, max_bytes: int = UNBOUNDED) -> Lease:
        """Keep everything from an offset on from being deleted until released, or until that wall-clock time.

        max_bytes: of segments that retention would delete; a lease that holds back more is broken.
        """
        if self._leases is None:
            self._leases = Leases()
        return self._leases.grant(from_offset, expires_ms, max_bytes)

    def break_greedy_leases(self, removable: int) -> None:
        """Segments below `removable` may go but for leases: break those that hold back more than they may."""
        if self._leases is not None:
            self._leases.break_greedy(
                lambda offset: sum(
                    segment.size
                    for segment in self.segments[segment_number(self.segments, offset) :]
                    if segment.next_offset <= removable
                )
            )

    def leased_from(self, now_ms: int) -> int | None:
        """Lowest offset under a lease; None without one. Leases that ran out are dropped."""
        return None if self._leases is None else self._leases.lowest(now_ms)
