"""Making a log durable in its segments: the job a checkpoint runs, and the sidecar files written on the way.

Index tails, the epoch checkpoint and producer snapshots can all be rebuilt from the segments, so they are written
first and synced only when a clean stop is going to rely on them.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from duramen.ports import Disk, File
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.disk_full import lacks_files, opening, to_keep, writing
from duramen.storage.files.sync_history import to_sync
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS
from duramen.storage.segment.producer_snapshot import Home, encode_kafka, encode_ours
from duramen.storage.segment.seal import SEALING, grow, sync_sides
from duramen.storage.segment.segment import INDEX, PRODUCERS, SNAPSHOT, TIME_INDEX, TXN_INDEX, Segment, file_name

if TYPE_CHECKING:
    from duramen.storage.log.log import Log


class Write(NamedTuple):
    """Bytes for a sidecar. whole: they replace the file; else they are added, which a roll may do at the same time."""

    path: str
    position: int
    data: bytes
    whole: bool = False


class Sidecars(NamedTuple):
    """What a log's sidecars need: writes, files that become superfluous, and how many index entries that covers.

    stay: offsets of the older producer snapshots that do not become so.
    """

    writes: list[Write]
    epochs: bytes | None
    removed: list[str]
    stay: frozenset[int]
    index_counts: list[tuple[Segment, int, int]]
    snapshot: int


def producer_files(log: Log) -> tuple[tuple[str, bytes], ...]:
    """What the log knows of producers now, as (suffix, content) of Kafka's file and of ours."""
    home = Home(log.topic_id, log.tp.partition, log.end_offset)
    ours = encode_ours(log.producers, home, [segment.base_offset for segment in log.segments if segment.has_aborted])
    return (SNAPSHOT, encode_kafka(log.producers)), (PRODUCERS, ours)


def collect(log: Log, *, final: bool, full: bool, synced: bool) -> Sidecars:
    """The sidecar bytes that are not on disk yet.

    final: close the active segment's time index too; full: with a producer snapshot at the log's end; synced: that is
    going to be synced, so no older one is needed any more.
    """
    writes: list[Write] = []
    counts: list[tuple[Segment, int, int]] = []
    active = log.active
    if active.index is not None and active.times is not None:
        writes += [Write(*write) for write in active.pending_index_writes(final=final)]
        counts.append((active, len(active.index), len(active.times)))
    removed: list[str] = []
    snapshot = -1
    stay = frozenset(segment.base_offset for segment in log.segments)
    if not synced:
        stay = stay.union(log.kept_snapshots)
    if full and log.end_offset not in (*log.snapshots[-1:], log.keeping):
        snapshot = log.end_offset
        for suffix, data in producer_files(log):
            writes.append(Write(posixpath.join(log.path, file_name(snapshot, suffix)), 0, data, True))
        for old in log.snapshots:
            if old not in stay:
                removed += [posixpath.join(log.path, file_name(old, suffix)) for suffix in (SNAPSHOT, PRODUCERS)]
    epochs = log.epochs.encode() if log.epochs.changed else None
    return Sidecars(writes, epochs, removed, stay, counts, snapshot)


def write(disk: Disk, sidecars: Sidecars, *, sync: bool, still_there: Callable[[], None] = lambda: None) -> None:
    """Write the collected bytes, but not the epochs; `still_there` is asked before each file. NoRoomError, OSError."""
    for path, position, data, whole in sidecars.writes:
        still_there()
        with writing():
            file = disk.open(path, create=True, write=True)
        try:
            with writing():
                if whole:
                    file.truncate(0)
                if data:
                    file.pwritev([data], position)
            if sync:
                file.sync()
        finally:
            file.close()
    for path in sidecars.removed:
        still_there()
        with suppress(FileNotFoundError):  # a roll and a checkpoint may be at it at the same time
            disk.remove(path)


def written(log: Log, sidecars: Sidecars) -> None:
    """Account for what `write` has written."""
    for segment, entries, time_entries in sidecars.index_counts:
        if segment.index is not None and segment.times is not None:
            segment.index.written = min(max(entries, segment.index.written), len(segment.index))
            segment.times.written = min(max(time_entries, segment.times.written), len(segment.times))
    if sidecars.snapshot >= 0:
        older = (old for old in log.snapshots if old in sidecars.stay and old != sidecars.snapshot)
        log.snapshots = (*older, sidecars.snapshot)


class Growing(NamedTuple):
    """The active segment: its `.sealing` is to reach `size`. written: sums of blocks of it; see WrittenSums."""

    segment: Segment
    file: File
    size: int
    written: Mapping[int, int]


class Chain:
    """Jobs of one log. Each leaves to those before it what they took upon themselves: none counts behind a failed one.

    failed: with what; set on the thread of the job, and for good. lock: they write files of the same names, and a topic
    that becomes stable is synced beside the lane of the others. snapshot: offset of the last producer snapshot that one
    of them was given to write.
    """

    __slots__ = ("failed", "lock", "snapshot")

    def __init__(self) -> None:
        self.failed: OSError | None = None
        self.snapshot = -1
        self.lock = Lock()


def writes_snapshot(log: Log) -> bool:
    """Whether a job that was taken writes a producer snapshot at the end the log has, or may still do so."""
    offset = -1 if log.syncs is None else log.syncs.snapshot
    return offset == log.end_offset and offset not in log.snapshots


class LogSync:
    """Brings everything a log held when this was taken to stable storage. `run` on any thread.

    end_offset: all below is in synced segments afterwards; that end is at `position` of segment `segment_base`.
    """

    __slots__ = (
        "_aborted",
        "_chain",
        "_cuts",
        "_disk",
        "_full",
        "_growing",
        "_names_changed",
        "_path",
        "_segments",
        "_sidecars",
        "_stored",
        "_transactions",
        "_written",
        "end_offset",
        "log",
        "position",
        "segment_base",
    )

    def __init__(self, log: Log, unsynced: list[Segment], sidecars: Sidecars, *, full: bool) -> None:
        self.log = log
        self.end_offset = log.end_offset
        self.segment_base = log.active.base_offset
        self.position = log.active.size
        if log.syncs is None:
            log.syncs = Chain()
        self._chain = log.syncs
        if sidecars.snapshot >= 0:
            self._chain.snapshot = sidecars.snapshot
        self._cuts = log.cuts
        self._disk = log.disk
        self._path = log.path
        self._segments = [(segment, to_sync(segment), segment.size) for segment in unsynced]
        self._sidecars = sidecars
        self._growing: list[Growing] = []
        active = log.active
        self._written: list[str] = []
        if full and active.index is not None:  # by a checkpoint or a start, which do not sync them
            writes = {each.path for each in sidecars.writes}
            self._written = [path for path in map(active.path_of, (INDEX, TIME_INDEX)) if path not in writes]
        if any(segment is active for segment in unsynced) or (full and active.size):
            written = {} if active.written_sums is None else active.written_sums.take()
            self._growing = [Growing(active, active.open_file(), active.size, written)]
        self._aborted = [segment for segment in log.segments if segment.aborted_unsynced]
        self._transactions = [segment.path_of(TXN_INDEX) for segment in self._aborted]
        for segment in self._aborted:
            segment.aborted_unsynced = False
        self._names_changed = log.names_changed or sidecars.snapshot >= 0 or bool(self._transactions)
        self._full = full
        self._stored = False
        log.names_changed = False
        log.epochs.changed = False
        log.writers[self] = None

    def run(self) -> None:
        """Write the sidecars, sync the segments in order, then the names. OSError; after a NoRoomError `give_back`.

        Where too many files are open the segments are synced all the same, so that theirs can be closed.
        FileNotFoundError when the log was deleted meanwhile: its old name may be another topic's. Not before this
        returns: new logs are made on the same lane.
        """
        with self._chain.lock:
            failed = self._chain.failed
            if failed is not None:
                raise type(failed)(failed.errno, "an earlier sync of the log failed", self._path)
            try:
                with opening():
                    self._run()
            except OSError as error:
                self._chain.failed = to_keep(error)
                if lacks_files(error):
                    self._store()
                raise

    @property
    def failed(self) -> OSError | None:
        """With what it failed, or one of the log's before it."""
        return self._chain.failed

    def _store(self) -> None:
        try:
            for _, sync, _ in self._segments:
                sync.run()
        except OSError as error:
            self._chain.failed = to_keep(error)
            raise
        self._stored = True

    def _run(self) -> None:
        write(self._disk, self._sidecars, sync=self._full, still_there=self._still_there)
        self._still_there()
        sync_sides(self._disk, self._written)
        if self._sidecars.epochs is not None:
            path = posixpath.join(self._path, LEADER_EPOCHS)
            replace_file(self._disk, path, self._sidecars.epochs, durable_name=False)
        for path in self._transactions:
            self._still_there()
            try:
                index = self._disk.open(path, write=True)
            except FileNotFoundError:
                continue  # its segment went with retention
            try:
                index.sync()
            finally:
                index.close()
        for _, sync, _ in self._segments:
            sync.run()
        for segment, file, size, sums in self._growing:
            self._still_there()
            grow(self._disk, file, segment.path_of(SEALING), size, sums, sync=self._full)
        if self._names_changed or self._sidecars.epochs is not None or (self._full and self._growing):
            self._disk.sync_directory(self._path)

    def _still_there(self) -> None:
        if self.log.path != self._path:
            raise FileNotFoundError(errno.ENOENT, "the log was deleted", self._path)

    def apply(self) -> bool:
        """Account for what has become durable: recovery starts behind it. False when the log was cut meanwhile.

        Its files are cut behind this, and what was written beside them of the old history goes with that.
        """
        self.log.writers.pop(self, None)
        if self._chain.snapshot == self._sidecars.snapshot:
            self._chain.snapshot = -1
        if self._cuts != self.log.cuts:
            return False
        for growing in self._growing:
            growing.segment.seal = None
        written(self.log, self._sidecars)
        epochs = self._sidecars.epochs
        if epochs is not None and epochs != self.log.epochs.encode():
            self.log.epochs.changed = True  # a job that was taken later may have written newer ones before
        for segment, _, size in self._segments:
            segment.synced = max(segment.synced, size)
        if self.end_offset >= self.log.recovery_point:
            self.log.recovery_point, self.log.recovery_position = self.end_offset, self.position
        return True

    def give_back(self) -> None:
        """A sidecar found no room, no sync has failed: the next job has everything to do that this one had."""
        self.log.writers.pop(self, None)
        self.log.syncs = None  # those that were taken before this fail, too, and give back what they have
        self.log.names_changed = self.log.names_changed or self._names_changed
        self.log.epochs.changed = self.log.epochs.changed or self._sidecars.epochs is not None
        for segment in self._aborted:
            segment.aborted_unsynced = True
        if self._stored and self._cuts == self.log.cuts:
            self.log.names_changed = True  # or there would be no next job
            for segment, _, size in self._segments:
                segment.synced = max(segment.synced, size)
