"""Snapshots of the metadata log: when one is due, having it written, reading it at a start, cutting the log after it.

As long as the log is whole a snapshot is a checkpoint: without it the start takes longer. Once the log was cut it is
data, so the log is cut only where a snapshot that was synced or just read through holds everything before. What it
holds is committed, and what it no longer mentions (deleted topics) is gone from the disk before it gets its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, Final

from duramen.config import BrokerConfig
from duramen.errors import CorruptLogError, DuramenError, KafkaError, StorageError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata.committed_image import CommittedImage
from duramen.machines.metadata.image import MetadataImage
from duramen.machines.metadata.snapshot import Restoration, content
from duramen.partition.replica.partition import Partition
from duramen.partition.store.store import Store
from duramen.ports import Timer, World
from duramen.storage import (
    PendingRemoval,
    RemoveFilesJob,
    SnapshotId,
    WriteSnapshotJob,
    as_corruption,
    find_snapshots,
    last_timestamp,
    read_snapshot,
)
from duramen.wire.batch import build_batch
from duramen.wire.records.control import (
    ControlType,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    encode_key,
    encode_value,
)

BATCH_BYTES: Final = 256 << 10
"""Bytes of records in one batch of a snapshot, about."""
RETRY_SECONDS: Final = 1.0
"""After which one that is due, and could not be taken, is tried again."""

Report = Callable[..., None]


class Snapshots:
    """Snapshots of one metadata partition. Loop thread only.

    image: gives the committed image when a snapshot is taken. alive: whether the log takes writes,
    and no topic that is gone is still being made: a crash could leave directories of it, which the log must name.
    """

    def __init__(
        self,
        world: World,
        store: Store,
        partition: Partition,
        config: BrokerConfig,
        report: Report,
        image: Callable[[], MetadataImage],
        alive: Callable[[], bool],
    ) -> None:
        self._world = world
        self._store = store
        self._partition = partition
        self._report = report
        self._image = image
        self._alive = alive
        self._max_bytes = config.integer("metadata.log.max.record.bytes.between.snapshots")
        self._interval = config.integer("metadata.log.max.snapshot.interval.ms") / 1000
        self._retention_bytes = config.integer("metadata.max.retention.bytes")
        self._retention_ms = config.integer("metadata.max.retention.ms")
        self.kept = find_snapshots(world.disk, partition.log.path)
        """Oldest first."""
        self._sizes: dict[SnapshotId, int] = {}
        self._bytes = 0
        self._writing = False
        self.is_due = False
        """After a loss: until a snapshot is written only the list of losses lets a start pass over it."""
        self._timer: Timer | None = None

    # ---- at a start ------------------------------------------------------------------------------------------

    def load(self, committed: CommittedImage, *, forgiving: bool = False, may_be_ahead: bool = False) -> int:
        """Give the image what the newest sound snapshot holds; returns the offset its log is to be replayed from.

        StorageError when the log was cut and no snapshot holds what came before; not so where one is `forgiving`, for
        a repair has told that. may_be_ahead: the snapshot may be another node's; the log then has to begin anew at the
        offset that is returned.
        """
        log = self._partition.log
        damage: StorageError | None = None
        for snapshot in reversed(self.kept):
            if snapshot.offset < log.start_offset and not forgiving:
                break
            try:
                if snapshot.offset > log.end_offset and not may_be_ahead:
                    raise StorageError(f"{log.path} ends at offset {log.end_offset}, before its {snapshot.name}")
                image = self._read(snapshot)
                image.next_offset = max(snapshot.offset, log.start_offset)
                committed.restore(image)
            except StorageError as error:
                damage = damage or error
                continue
            self._loaded(snapshot.offset, damage)
            return max(snapshot.offset, log.start_offset)
        if log.start_offset > 0 and forgiving:
            committed.restore(Restoration().finish(log.start_offset))
        elif log.start_offset > 0:
            raise damage or StorageError(
                f"{log.path} begins at offset {log.start_offset}, and no snapshot beside it holds what came before; "
                "restore the newest .checkpoint file from a copy of the directory"
            )
        self._loaded(0, damage)
        return log.start_offset

    def _loaded(self, offset: int, damage: StorageError | None) -> None:
        if damage is not None:
            if not isinstance(damage, CorruptLogError):
                raise damage  # the log itself is short
            self._report("damage", what=str(damage))
            self.kept = [snapshot for snapshot in self.kept if snapshot.offset <= offset]
        segments = self._partition.log.segments
        self._bytes = sum(segment.size for segment in segments if segment.next_offset > offset)

    def _read(self, snapshot: SnapshotId) -> MetadataImage:
        restoration = Restoration()
        path = self._partition.log.path
        try:
            for is_control, record in read_snapshot(self._world.disk, path, snapshot):
                take = restoration.take_control if is_control else restoration.take
                take(LogRecord(record.key, record.value))
        except OSError as error:
            found = as_corruption(error, f"{path}/{snapshot.name}", 0, 0, -1)
            if isinstance(found, CorruptLogError):
                raise found from error
            raise StorageError(f"{path}/{snapshot.name}: {error}") from error
        return restoration.finish(snapshot.offset)

    def adopt(self, snapshot: SnapshotId) -> None:
        """One that the leader had is here by now; the log begins after it, and older ones are of no use."""
        gone = [each for each in self.kept if each != snapshot]
        self.kept = [snapshot]
        self._bytes = 0
        self._remove(gone, None)

    # ---- while running ---------------------------------------------------------------------------------------

    def applied(self, size: int) -> None:
        """So many bytes more of the log are in the image: a snapshot is due when enough has come, or by the clock."""
        self._bytes += size
        if self.is_due or self._bytes >= self._max_bytes:
            self._take()
        elif self._timer is None and self._interval > 0:
            self._timer = self._world.clock.call_later(self._interval, self._interval_over)
        if self.is_due and self._timer is None:  # nothing else may be committed for long
            self._timer = self._world.clock.call_later(RETRY_SECONDS, self._interval_over)

    def _interval_over(self) -> None:
        self._timer = None
        self._take()
        if self.is_due and self._timer is None:
            self._timer = self._world.clock.call_later(RETRY_SECONDS, self._interval_over)

    def _take(self) -> None:
        """Copy the image, have everything before it synced, write the copy off the loop."""
        directories = self._store.directories
        if self._writing or not self._alive() or any(each.journal.failed is not None for each in directories):
            return  # a directory that failed may still hold a deleted topic, which the log must go on naming
        log = self._partition.log
        image = self._image().copy()
        if self.kept and image.next_offset <= self.kept[-1].offset:
            return
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            if log.active.size:
                log.roll()  # so that whole segments lie before the snapshot
                self._partition.touched()
        except (OSError, DuramenError) as error:
            self._report("snapshot-failed", error=error)
            return
        self._writing = True
        snapshot = SnapshotId(image.next_offset, log.epochs.epoch_at(image.next_offset - 1))
        waiting = len(directories)

        def synced(error: KafkaError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if error is not None:
                self._writing = False
            elif waiting == 0 and self._writing:
                self._write(snapshot, image)

        for directory in directories:
            self._store.when_directory_synced(directory, synced)

    def _write(self, snapshot: SnapshotId, image: MetadataImage) -> None:
        batches = partial(encode, image, snapshot.epoch, self._world.clock.wall_ms())
        job = WriteSnapshotJob(self._world.disk, self._partition.log.path, snapshot, batches)

        def done(_: Any, error: BaseException | None) -> None:
            self._writing = False
            if error is not None:
                self._report("snapshot-failed", offset=snapshot.offset, error=error)
                return
            self._report("snapshot-written", offset=snapshot.offset, bytes=job.size)
            self.is_due = False
            if self.kept and snapshot.offset <= self.kept[-1].offset:
                # The leader's came meanwhile, and the log begins after that: it is the one to keep.
                self._remove([each for each in (snapshot,) if each not in self.kept], None)
                return
            self.kept.append(snapshot)
            self._sizes[snapshot] = job.size
            self._clean()

        self._store.submit("housekeeping", job.run, done)

    # ---- what need not be kept -------------------------------------------------------------------------------

    def _clean(self) -> None:
        """Cut the log at the oldest snapshot that may begin it, as Kafka does: by age, and by size of everything."""
        kept = self.kept
        first = 0
        try:
            while first + 1 < len(kept) and self._expendable(first):
                first += 1
        except OSError as error:  # the next snapshot tries again
            self._report("snapshot-failed", error=error)
            return
        if first == 0 or not self._alive():
            return
        gone, self.kept = kept[:first], kept[first:]
        log = self._partition.log
        try:
            log.advance_start(self.kept[0].offset)
        except DuramenError as error:  # the journal is full: the next snapshot tries again
            self._report("snapshot-failed", error=error)
            self.kept = kept
            return
        self._partition.touched()
        self._store.when_synced(self._partition.tp, partial(self._remove, gone))

    def _expendable(self, first: int) -> bool:
        """Whether the snapshot in this place may go, and with it the log before the next one."""
        kept = self.kept
        if self._retention_bytes >= 0:
            start = kept[first].offset
            size = sum(segment.size for segment in self._partition.log.segments if segment.next_offset > start)
            if size + sum(map(self._size, kept[first:])) > self._retention_bytes:
                return True
        return 0 <= self._retention_ms < self._world.clock.wall_ms() - self._timestamp(kept[first])

    def _size(self, snapshot: SnapshotId) -> int:
        size = self._sizes.get(snapshot)
        if size is None:
            with closing(self._world.disk.open(self._path(snapshot))) as file:
                size = self._sizes[snapshot] = file.size()
        return size

    def _timestamp(self, snapshot: SnapshotId) -> int:
        try:
            return last_timestamp(self._world.disk, self._partition.log.path, snapshot)
        except StorageError:
            return -1  # damaged: of no use, and a newer one is whole

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._partition.log.path}/{snapshot.name}"

    def _remove(self, gone: list[SnapshotId], error: KafkaError | None) -> None:
        if error is None:
            removal = PendingRemoval(-1, [self._path(snapshot) for snapshot in gone])
            job = RemoveFilesJob(self._world.disk, removal, lambda _: None)
            self._store.submit("housekeeping", job.run, lambda _, error: None)


def encode(image: MetadataImage, epoch: int, now_ms: int) -> Iterator[bytearray]:
    """The batches of a snapshot of this image; now_ms: not before the last record that it holds."""
    head = SnapshotHeaderRecord.new(version=0, last_contained_log_timestamp=now_ms)
    rows = [_row(control_record(ControlType.SNAPSHOT_HEADER, head), now_ms)]
    rows += [_row(record, now_ms) for _, record in sorted(image.quorum.items())]
    yield build_batch(rows, leader_epoch=epoch, control=True)
    offset = len(rows)
    rows, size = [], 0
    for record in content(image):
        rows.append(_row(record, now_ms))
        size += len(record.value or b"")
        if size >= BATCH_BYTES:
            yield build_batch(rows, base_offset=offset, leader_epoch=epoch)
            offset += len(rows)
            rows, size = [], 0
    if rows:
        yield build_batch(rows, base_offset=offset, leader_epoch=epoch)
        offset += len(rows)
    foot = control_record(ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord.new(version=0))
    yield build_batch([_row(foot, now_ms)], base_offset=offset, leader_epoch=epoch, control=True)


def control_record(kind: ControlType, message: Any) -> LogRecord:
    return LogRecord(encode_key(kind), encode_value(kind, message))


def _row(record: LogRecord, now_ms: int) -> tuple[bytes | None, bytes | None, tuple[()], int]:
    return record.key, record.value, (), now_ms
