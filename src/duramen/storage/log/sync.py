"""The job that makes a log durable in its segments, and the logs of a directory with something to write."""

from __future__ import annotations

import errno
import posixpath
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar

from duramen.ports import Disk, File
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.disk_full import lacks_files, retriable_open, without_traceback
from duramen.storage.files.sync_history import FileSync
from duramen.storage.log.sidecars import Sidecars, write_sidecars
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS
from duramen.storage.segment.seal import SEALING, grow, sync_sides
from duramen.storage.segment.segment import Segment

L = TypeVar("L")


class FlushQueue(list[L]):
    """Logs of one directory with something to write, in the order in which they have to be written. Loop thread only.

    unwritten: bytes of batches that were queued since the last flush, at least. limit: of them; `relieve(size)` is
    called before a batch that would be above it.
    """

    __slots__ = ("limit", "relieve", "unwritten")

    def __init__(self, limit: int = sys.maxsize) -> None:
        super().__init__()
        self.unwritten = 0
        self.limit = limit
        self.relieve: Callable[[int], None] = lambda size: None

    def make_room(self, size: int) -> None:
        """A batch of `size` bytes is about to be queued: `relieve(size)` comes first where it would be too much."""
        if self.unwritten + size > self.limit:
            self.relieve(size)
        self.unwritten += size


class GrowingSegment(NamedTuple):
    """The active segment: its `.sealing` is to reach `size`. written: sums of blocks of it; see WrittenSums."""

    segment: Segment
    file: File
    size: int
    written: Mapping[int, int]


class SyncChain:
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


class SyncedLog(Protocol):
    """What a sync asks of its log on another thread: where its directory is by now."""

    path: str


@dataclass(slots=True, eq=False)
class SyncJob:
    """Brings everything a log held when this was taken to stable storage. `run` on any thread.

    `take_sync` makes it, `complete_sync` or `give_back_sync` accounts for it (`log/durability.py`). path: of the
    log, then. truncations: how often the log had been truncated. end_offset: all below is in synced segments
    afterwards; that end is at `position` of segment `segment_base`. segments: each with its sync and its size.
    growing: the active one, if its `.sealing` is to grow. indexes: paths of index files that were written earlier.
    aborted: segments whose `.txnindex` is to be synced; transactions: paths of those. full: side files are synced,
    too. stored: the segments were, though the job failed.
    """

    log: SyncedLog
    disk: Disk
    path: str
    chain: SyncChain
    truncations: int
    end_offset: int
    segment_base: int
    position: int
    segments: list[tuple[Segment, FileSync, int]]
    sidecars: Sidecars
    growing: list[GrowingSegment]
    indexes: list[str]
    aborted: list[Segment]
    transactions: list[str]
    names_changed: bool
    full: bool
    stored: bool = False

    def run(self) -> None:
        """Write the sidecars, sync the segments in order, then the names. OSError; NoRoomError: `give_back_sync`.

        Where too many files are open the segments are synced all the same, so that theirs can be closed.
        FileNotFoundError when the log was deleted meanwhile: its old name may be another topic's. Not before this
        returns: new logs are made on the same lane.
        """
        with self.chain.lock:
            failed = self.chain.failed
            if failed is not None:
                raise type(failed)(failed.errno, "an earlier sync of the log failed", self.path)
            try:
                with retriable_open():
                    self._run()
            except OSError as error:
                self.chain.failed = without_traceback(error)
                if lacks_files(error):
                    self._store()
                raise

    @property
    def failed(self) -> OSError | None:
        """With what it failed, or one of the log's before it."""
        return self.chain.failed

    def _store(self) -> None:
        try:
            for _, sync, _ in self.segments:
                sync.run()
        except OSError as error:
            self.chain.failed = without_traceback(error)
            raise
        self.stored = True

    def _run(self) -> None:
        write_sidecars(self.disk, self.sidecars, sync=self.full, still_there=self._still_there)
        self._still_there()
        sync_sides(self.disk, self.indexes)
        if self.sidecars.epochs is not None:
            path = posixpath.join(self.path, LEADER_EPOCHS)
            replace_file(self.disk, path, self.sidecars.epochs, durable_name=False)
        for path in self.transactions:
            self._still_there()
            try:
                index = self.disk.open(path, write=True)
            except FileNotFoundError:
                continue  # its segment went with retention
            try:
                index.sync()
            finally:
                index.close()
        for _, sync, _ in self.segments:
            sync.run()
        for segment, file, size, sums in self.growing:
            self._still_there()
            grow(self.disk, file, segment.path_of(SEALING), size, sums, sync=self.full)
        if self.names_changed or self.sidecars.epochs is not None or (self.full and self.growing):
            self.disk.sync_directory(self.path)

    def _still_there(self) -> None:
        if self.log.path != self.path:
            raise FileNotFoundError(errno.ENOENT, "the log was deleted", self.path)
