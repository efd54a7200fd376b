"""The log of one partition: appends, rolls, reads and cuts over its segments.

Synchronous and owned by one thread. An append only queues: `flush` writes what was queued with one call, the journal
makes it durable (ENGINE.md §1), and long work comes as jobs (`take_sync`, `take_seals`, a read's Pending) that run
elsewhere and are completed here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from duramen.errors import ErrorCode, KafkaError, check
from duramen.model import INTERNAL_TOPICS, TopicId, TopicPartition, topic_id_text
from duramen.ports import Buffer, Disk
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.journal import kinds
from duramen.storage.log import open as loading
from duramen.storage.log import open_segment, truncation
from duramen.storage.log import sync as syncing
from duramen.storage.log.config import LogConfig
from duramen.storage.log.flush_queue import FlushQueue
from duramen.storage.log.log_state import LogJournal, LogState
from duramen.storage.log.sync import LogSync
from duramen.storage.read.verified_window import HotWindow
from duramen.storage.segment.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS
from duramen.storage.segment.partition_metadata import PARTITION_METADATA, encode_partition_metadata
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.segment import MAX_RELATIVE, Segment
from duramen.wire.batch import BatchHeader, read_marker
from duramen.wire.checksum import crc32c

COPIED_BYTES = 16 * 1024
"""Batches up to this size are copied when queued, so that a receive buffer is not held for a few bytes."""
SNAPSHOT_BYTES = 16 << 20
"""Appended bytes after which a checkpoint writes the producers too, so that an open has little to replay."""


class Log(LogState):
    """One partition's records on disk.

    marked: journal or checkpoint say from where on appends are not journaled (page-cache). See LogState for the rest.
    """

    __slots__ = ("_roll_after_ms", "_rolls_at_entries", "config", "flush_queue", "marked")

    def __init__(
        self,
        disk: Disk,
        path: str,
        tp: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        journal: LogJournal,
        flush_queue: FlushQueue | None = None,
        hot: HotWindow | None = None,
    ) -> None:
        """An object without segments: use `create` or `open`."""
        super().__init__(disk, path, tp, topic_id, journal, hot)
        self.flush_queue = FlushQueue() if flush_queue is None else flush_queue
        self.marked = False
        self._take_over(config)

    # ---- birth -----------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: str,
        tp: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        journal: LogJournal,
        *,
        flush_queue: FlushQueue | None = None,
        hot: HotWindow | None = None,
    ) -> Log:
        """A new, empty log in the new directory `path`: its files and the names in it are durable on return.

        The directory's own name is not: sync its parent. OSError.
        """
        log = cls(disk, path, tp, topic_id, config, journal, flush_queue, hot)
        disk.make_directories(path)
        replace_file(
            disk, posixpath.join(path, PARTITION_METADATA), encode_partition_metadata(topic_id_text(topic_id)),
            durable_name=False,
        )  # fmt: skip
        replace_file(disk, posixpath.join(path, LEADER_EPOCHS), log.epochs.encode(), durable_name=False)
        log.add_segment(0)
        log.active.open_file().sync()
        disk.sync_directory(path)
        log.names_changed = False
        return log

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        tp: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        journal: LogJournal,
        *,
        clean: bool,
        start_offset: int,
        recovery_point: int,
        known: LogPoint | None = None,
        listed: Sequence[int] = (),
        end_offset: int | None = None,
        flush_queue: FlushQueue | None = None,
        hot: HotWindow | None = None,
    ) -> Log:
        """The log in an existing directory, whose files end where recovery let them end: at `end_offset`.

        clean: the indexes are believed after a check; else what ends beyond `recovery_point` is read to make them anew,
        but for what the checkpoint's `known` has. listed: bases on the directory's list. OSError, CorruptLogError.
        """
        log = cls(disk, path, tp, topic_id, config, journal, flush_queue, hot)
        loading.load(log, start_offset, recovery_point, known, listed, end_offset, clean=clean)
        return log

    def configure(self, config: LogConfig) -> None:
        """Take over a changed topic configuration. A change of durability is journaled.

        To stable: the segments are synced here first, because recovery trusts everything before that entry. To
        page-cache: batches still under way to the journal are acknowledged behind the mark that follows them. OSError.
        """
        self._check_whole()
        stable = self.stable
        self._take_over(config)
        if self.stable != stable:
            self.marked = not self.stable and self.durable_end < self.end_offset
            if self.stable:
                self.names_changed = True  # a job that waits for its lane may have taken them upon itself
                if (sync := self.take_sync()) is not None:
                    sync.run()
                    self.complete_sync(sync)
                self.mark_durable(self.end_offset)
                self._journal(kinds.DURABILITY, self.end_offset, b"stable")
            elif self.marked:
                self._journal(kinds.DURABILITY, self.end_offset)

    def _take_over(self, config: LogConfig) -> None:
        self.config = config
        self.stable = config.durability == "stable" or self.tp.topic in INTERNAL_TOPICS
        times = config.segment_index_bytes // TIME_ENTRY_SIZE - 1
        self._rolls_at_entries = min(config.segment_index_bytes // OFFSET_ENTRY_SIZE, times)
        self._set_roll_time()

    def _set_roll_time(self) -> None:
        """`segment.ms` less a jitter that differs between partitions, so that they do not all roll at once.

        A dormant segment's first append takes the way of a roll, where it is woken.
        """
        jitter = self.config.segment_jitter_ms
        if jitter and self.segments:
            jitter = crc32c(f"{self.tp}@{self.active.base_offset}".encode()) % (jitter + 1)
        longest = self.config.segment_ms
        if "compact" in getattr(self.config, "cleanup_policy", ()):
            # What has to be compacted by then may not stay in the active segment.
            longest = min(longest, int(getattr(self.config, "max_compaction_lag_ms", longest)))
        dormant = bool(self.segments) and self.active.dormant is not None
        self._roll_after_ms = -(1 << 64) if dormant else longest - min(jitter, longest)

    # ---- appends ---------------------------------------------------------------------------------------------

    def append(self, data: Buffer, header: BatchHeader, now_ms: int) -> int:
        """Queue a batch that is stamped with `end_offset` and its leader epoch; returns its journal LSN.

        `data` must not change until it is flushed and journaled. LSN 0: nothing to wait for (page-cache topics).
        Raises FencedDirectoryError or KafkaError when the journal takes no more; then nothing has changed. OSError.
        """
        size = header.size
        self.flush_queue.take(size)
        self.journal.admit(size)
        if self.cut is not None:
            self._check_whole()
        segment, offset = self.active, header.base_offset
        last = offset + header.last_offset_delta
        timestamp = header.max_timestamp
        stamp = timestamp if timestamp >= 0 else now_ms
        position = segment.size
        if position and (
            position + size > self.config.segment_bytes
            or last - segment.base_offset > MAX_RELATIVE
            or stamp - segment.first_timestamp > self._roll_after_ms
            or len(segment.index.offsets) >= self._rolls_at_entries  # type: ignore[union-attr]
        ):
            if segment.dormant is not None:
                open_segment.wake(self)
                self._set_roll_time()
                return self.append(data, header, now_ms)
            segment = self.roll()
            position = 0
        if not position:
            segment.first_timestamp = stamp
        if size <= COPIED_BYTES and type(data) is not bytes:
            data = bytes(data)
        self._queue.append(data)
        segment.size = position + size
        segment.next_offset = self.end_offset = last + 1
        if timestamp > segment.max_timestamp:
            segment.max_timestamp = timestamp
            segment.max_timestamp_offset = last
        elif segment.max_timestamp < 0:
            segment.stored_ms = now_ms
        if segment.unindexed > self.config.index_interval_bytes:
            segment.add_index_entry(last, position)
        segment.unindexed += size
        epoch = header.leader_epoch
        if epoch != self.epochs.latest:
            self.epochs.assign(epoch, offset)
        if header.producer_id >= 0:
            self.track_producer(data, header, segment)
        if not self.dirty:
            self.dirty = True
            self.flush_queue.append(self)
        if self.stable:
            return self.journal.append(kinds.BATCH, self, offset, epoch, segment.base_offset, position, data)
        if self.marked:
            return 0
        self.marked = True
        return self.journal.append(kinds.DURABILITY, self, offset, epoch, segment.base_offset, position)

    def track_producer(self, data: Buffer, header: BatchHeader, segment: Segment) -> None:
        """Remember what a batch says of its producer; also how state is rebuilt when a log is opened."""
        if not header.is_control:
            self.producers.update(header)
            return
        marker = read_marker(data, header)
        if marker is not None:
            aborted = self.producers.end_transaction(header, marker)
            if aborted is not None and aborted not in segment.aborted():
                segment.add_aborted(aborted)

    def assign_epoch(self, epoch: int) -> None:
        """A leader epoch starts at the end of the log; journaled. Nothing happens when it is the latest."""
        if epoch > self.epochs.latest:
            self.epochs.assign(epoch, self.end_offset)
            self._journal(kinds.EPOCH, self.end_offset)

    def _journal(self, kind: int, offset: int, data: bytes | None = None) -> int:
        if not self.dirty:
            self.dirty = True
            self.flush_queue.append(self)
        active = self.active
        return self.journal.append(kind, self, offset, self.epochs.latest, active.base_offset, active.size, data)

    def roll(self) -> Segment:
        """Close the active segment and start a new one at the end; journaled. NoRoomError, OSError, KafkaError."""
        self._check_whole()
        check(self.active.size > 0, "an empty segment is never rolled")
        self.journal.admit(0)
        try:
            self.flush()
            self._write_sidecars()
            old, segment = self.active, self.add_segment(self.end_offset)
        except NoRoomError:
            if self.journal.make_way():
                return self.roll()
            raise
        old.close_indexes()  # last: a roll that failed leaves a segment that can still grow
        truncation.end_mark(self)
        self._set_roll_time()
        self._journal(kinds.ROLL, segment.base_offset)
        return segment

    # ---- cuts ------------------------------------------------------------------------------------------------

    def advance_start(self, offset: int) -> None:
        """Records below `offset` are gone; journaled, files stay until `detach_before`. Raises as `append` does."""
        if offset <= self.start_offset:
            return
        if offset > self.end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.tp}: {offset} is above the end {self.end_offset}")
        self.journal.admit(0)
        self.start_offset = offset
        self.epochs.truncate_from_start(offset)
        self._journal(kinds.LOG_START, offset)

    def truncate_to(self, offset: int) -> None:
        """Remove everything from `offset` on (to the start of the batch that holds it); journaled. OSError.

        Files change when the entry is durable (`complete_cut`). Until then appends are refused: KafkaError, retriable.
        """
        if offset >= self.end_offset:
            return
        check(offset >= self.segments[0].base_offset, "a truncation stays inside the log")
        self._check_whole()
        self.journal.admit(0)
        self.flush()
        self._reader.cutting(self.segments, offset)
        self.cut = truncation.cut_memory(self, offset)
        self._set_roll_time()
        self._journal(kinds.TRUNCATE, self.end_offset)

    def complete_cut(self) -> None:
        """The truncation's entry is durable: cut the files. Nothing may be appended before they are synced. OSError."""
        if self.cut is not None:
            truncation.cut_files(self, self.cut)
            self.cut = None

    # ---- durability ------------------------------------------------------------------------------------------

    def take_sync(self, full: bool = False) -> LogSync | None:
        """The job that makes everything appended so far durable in the segments; None when it is already."""
        if self.cut is not None:
            return None  # the files are about to change, and no checkpoint takes them for synced
        self.flush()
        unsynced = [segment for segment in self.segments if segment.synced < segment.size]
        if not (unsynced or full or self.names_changed or self.epochs.changed or self.has_unsynced_aborted):
            return None
        snapshot = full or self._unsnapshotted > SNAPSHOT_BYTES
        if snapshot:
            self._unsnapshotted = 0
        return LogSync(self, unsynced, syncing.collect(self, final=full, full=snapshot, synced=full), full=full)

    def complete_sync(self, job: LogSync) -> None:
        """The job has run: recovery starts behind it, and a page-cache log is durable up to there. OSError."""
        if job.apply() and not self.stable:
            self.mark_durable(job.end_offset)

    def close(self) -> None:
        """Write what is queued and the sidecars, and close the files. It syncs nothing: `take_sync` does. OSError."""
        self.flush()
        if self.cut is None:
            self._write_sidecars()
        for segment in self.segments:
            segment.close()

    def _write_sidecars(self) -> None:
        sidecars = syncing.collect(self, final=True, full=True, synced=False)
        syncing.write(self.disk, sidecars, sync=False)
        syncing.written(self, sidecars)
