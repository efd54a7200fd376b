"""What a log holds, and its reading side: segments, ends, producers, epochs; reads and look-ups by time.

`storage/log/log.py` adds what changes it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from duramen.errors import CorruptLogError, ErrorCode, KafkaError
from duramen.model import TopicId, TopicPartition
from duramen.ports import Buffer, Disk
from duramen.storage.files import disk_full
from duramen.storage.files.open_files import OpenFiles
from duramen.storage.log.leases import UNBOUNDED, Lease, Leases
from duramen.storage.read.log_reader import Reader, aborted_between, segment_number
from duramen.storage.read.read_plan import LogRead
from duramen.storage.read.timestamp_lookup import (
    TimeLookup,
    Timestamped,
    look_through,
    max_timestamp_lookup,
    timestamp_lookup,
)
from duramen.storage.read.verified_window import HotWindow, Recall
from duramen.storage.segment.leader_epochs import EpochCache
from duramen.storage.segment.producer_state import ProducerStates
from duramen.storage.segment.seal import SealJob
from duramen.storage.segment.segment import Segment, latest_ms
from duramen.storage.segment.write_checksums import SUMMED_BYTES, WrittenSums

if TYPE_CHECKING:
    from duramen.storage.log.sync import Chain
    from duramen.storage.log.truncation import Cut


class LogJournal(Protocol):
    """What a log needs of its directory's journal."""

    def admit(self, length: int) -> None: ...

    def make_way(self) -> bool:
        """Whether there is room now that there was not, for what leads to more."""

    def append(
        self,
        kind: int,
        log: LogState,
        offset: int,
        epoch: int,
        segment_base: int,
        position: int,
        data: Buffer | None = None,
    ) -> int: ...


class LogState:
    """The state of one partition's log, and how it is read.

    start_offset: first offset readers may ask for; end_offset: the next to be assigned; durable_end: all below is on
    stable storage; recovery_point: all below is in synced segments; recovery_position: the byte where the segment that
    held it was synced to. snapshots: offsets of the producer snapshots, ascending; kept_snapshots: those that stay,
    because batches they speak of may be gone; cuts: how often the log was truncated; cut: what the last truncation has
    still to do to the files, when there are no writers: jobs that write beside the segments, until accounted for.
    stable: appends are journaled; names_changed: file names are to be synced; syncs: see Chain. keeping: offset of a
    snapshot that is being written to stay, -1 for none: nobody else writes files of its names, which are not synced by
    whoever does.
    """

    active: Segment

    __slots__ = (
        "_leases",
        "_queue",
        "_reader",
        "_unsnapshotted",
        "active",
        "cut",
        "cuts",
        "dirty",
        "disk",
        "durable_end",
        "end_offset",
        "epochs",
        "journal",
        "keeping",
        "kept_snapshots",
        "names_changed",
        "path",
        "producers",
        "recovery_point",
        "recovery_position",
        "segments",
        "snapshots",
        "stable",
        "start_offset",
        "syncs",
        "topic_id",
        "tp",
        "writers",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        tp: TopicPartition,
        topic_id: TopicId,
        journal: LogJournal,
        hot: HotWindow | None = None,
    ) -> None:
        self.disk = disk
        self.path = path
        self.tp = tp
        self.topic_id = topic_id
        self.journal = journal
        self.dirty = False
        self.names_changed = False
        self.start_offset = self.end_offset = self.durable_end = 0
        self.recovery_point = self.recovery_position = 0
        self.epochs = EpochCache()
        self.producers = ProducerStates()
        self.segments: list[Segment] = []
        self.snapshots: tuple[int, ...] = ()
        self.kept_snapshots: tuple[int, ...] = ()
        self.keeping = -1
        self.writers: dict[object, None] = {}
        self.cuts = 0
        self.cut: Cut | None = None
        self.stable = True
        self.syncs: Chain | None = None
        self._queue: list[Buffer] = []
        self._reader = Reader(HotWindow() if hot is None else hot)
        self._leases: Leases | None = None
        self._unsnapshotted = 0

    def add_segment(self, base_offset: int) -> Segment:
        """A new, empty active segment; its name is synced with the next `take_sync`. NoRoomError, OSError."""
        segment = Segment(self.disk, self.path, base_offset, self._reader.files)
        segment.open_file(create=True)
        segment.activate()
        self.segments.append(segment)
        self.active = segment
        self.names_changed = True
        return segment

    @property
    def open_files(self) -> OpenFiles:
        """The open files of all logs of the process."""
        return self._reader.files

    def move(self, path: str) -> None:
        """The directory is about to get another name: jobs under way go there, or find out that they come too late."""
        self.path = path
        for segment in self.segments:
            segment.directory = path
            self._reader.dropped(segment)

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Compaction: `new` holds what is left of `old`, which are neighbours and never the active one.

        Reads under way keep the files they have opened.
        """
        first = self.segments.index(old[0])
        self.segments[first : first + len(old)] = [new]
        new.stored_ms = max(map(latest_ms, old))
        for segment in old:
            segment.replaced = True
            self._reader.dropped(segment)
            segment.forget()
        self._reader.forget()

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
                raise disk_full.told(error) from error
            self._queue = []
            segment.flushed = segment.size
            if segment.size - start >= SUMMED_BYTES:
                if segment.written_sums is None:
                    segment.written_sums = WrittenSums()
                segment.written_sums.add(queue, start)
            self._unsnapshotted += segment.size - start
            self._reader.wrote(segment, start, queue)
        self.dirty = False

    def abandon(self) -> None:
        """The log is deleted, and no start looks into its files: what could not be written needs no room any more."""
        self._queue = []
        self.dirty = False

    def keep_snapshot(self, offset: int) -> None:
        """There is a synced producer snapshot at `offset`: it stays, and others need not once it is sure to be read."""
        self.snapshots = tuple(sorted({*self.snapshots, offset}))
        others = self.kept_snapshots if offset > self.durable_end else ()
        self.kept_snapshots = (*others, offset)

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
            self._reader.dropped(segment)
        if gone:
            self._reader.forget()
        return gone

    def _check_whole(self) -> None:
        if self.cut is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp}: a truncation is not durable yet")

    def take_notices(self) -> tuple[CorruptLogError, ...]:
        """Damage that reads met and got around since the last call."""
        notices, self._reader.notices = self._reader.notices, ()
        return notices

    def mark_durable(self, offset: int) -> None:
        """Everything below `offset` is on stable storage; never moves back, never beyond the end."""
        if offset > self.durable_end:
            self.durable_end = min(offset, self.end_offset)

    # ---- reads -----------------------------------------------------------------------------------------------

    def _flush_below(self, end: int) -> None:
        """Write what a read up to `end` needs. One that needs nothing goes on where no write does any more."""
        if self._queue and end > int.from_bytes(self._queue[0][:8], "big"):
            self.flush()

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
    def has_unsynced_aborted(self) -> bool:
        """Whether a `.txnindex` changed since the last sync."""
        return any(segment.aborted_unsynced for segment in self.segments)

    def read(self, offset: int, max_bytes: int, end: int, *, at_least_one: bool) -> LogRead:
        """Whole batches from the one that contains `offset`; none that starts at `end` (a batch boundary) or later.

        Raises KafkaError OFFSET_OUT_OF_RANGE below the log start or above the log end; CorruptLogError; OSError.
        """
        if offset < self.start_offset or offset > self.end_offset:
            outside = f"{self.tp}: offset {offset} is outside {self.start_offset}..{self.end_offset}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, outside)
        self._flush_below(end)
        return self._reader.read(self.segments, offset, max_bytes, min(end, self.end_offset), at_least_one=at_least_one)

    def read_ahead(self, offset: int, size: int) -> Recall | None:
        """See Reader.ahead."""
        return self._reader.ahead(self.segments, offset, size)

    def aborted(self, first: int, last: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of rolled-back transactions with records in first..last (last excluded)."""
        return aborted_between(self.segments, first, last)

    def time_lookup(self, timestamp: int, end: int, start: int = -1) -> TimeLookup:
        """The job behind `offset_for_timestamp`, for the cold pool; of a `rest` its `start` (see TimeLookup)."""
        self._flush_below(end)
        return timestamp_lookup(self.segments, timestamp, max(start, self.start_offset), min(end, self.end_offset))

    def offset_for_timestamp(self, timestamp: int, end: int) -> Timestamped | None:
        """First record below `end` that is at least this young (ms): (offset, timestamp, leader epoch).

        Reads and decodes one batch, waiting for the disk if need be. CorruptLogError, KafkaError, OSError.
        """
        return look_through(partial(self.time_lookup, timestamp, end))

    def max_timestamp_lookup(self, end: int) -> TimeLookup:
        """The job behind `max_timestamp_offset`."""
        self._flush_below(end)
        return max_timestamp_lookup(self.segments, self.start_offset, min(end, self.end_offset))

    def max_timestamp_offset(self, end: int) -> Timestamped | None:
        """The (first) youngest record below `end`; None when there is none (KIP-734). Errors as above."""
        return self.max_timestamp_lookup(end).run()

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

    # ---- seals -----------------------------------------------------------------------------------------------

    def take_seals(self) -> list[SealJob]:
        """Jobs that seal the segments which are rolled and synced but not sealed.

        Not those below the log start: they are about to go, and a crash may have left a hole behind one of them, which
        is no damage.
        """
        return [
            SealJob(self, segment, segment.open_file(), segment.size, segment.next_offset - 1)
            for segment in self.segments[:-1]
            if not segment.sealed
            and segment.synced == segment.size
            and self.start_offset < segment.next_offset <= self.recovery_point
        ]  # fmt: skip

    def complete_seal(self, job: SealJob) -> None:
        """The seal is on disk: reads of that segment check against it from now on."""
        self.writers.pop(job, None)
        for segment in self.segments:
            if job.is_of(segment):
                segment.sealed = True
                segment.seal = None
                segment.release_files()
            elif segment.base_offset == job.base_offset:
                segment.drop_seal()  # a truncation overtook the job
