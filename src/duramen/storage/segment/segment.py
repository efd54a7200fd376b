"""One segment of a log: its files, its ends and its indexes.

The last segment of a log is active: it grows, and keeps its index entries in memory. When it is rolled these go to
their files, and from then on the segment holds little more than its bounds; its file is opened when it is read.
"""

from __future__ import annotations

import posixpath
import struct
from typing import Final, cast

from duramen.errors import CorruptLogError, StorageError
from duramen.ports import Disk, File
from duramen.storage.files.atomic import read_file
from duramen.storage.files.disk_full import retriable_write
from duramen.storage.files.open_files import OpenFiles
from duramen.storage.files.sync_history import SyncHistory
from duramen.storage.segment.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, StoredOffsetIndex, TimeIndex
from duramen.storage.segment.producer_state import AbortedTransaction
from duramen.storage.segment.recovery_point import ActiveState
from duramen.storage.segment.scan import header_at
from duramen.storage.segment.seal import SEALING, CheckedFile, read_growing
from duramen.storage.segment.write_checksums import WrittenSums
from duramen.wire.batch import HEADER_SIZE, BatchHeader, parse_header
from duramen.wire.checksum import crc32c
from duramen.wire.seal import Seal, Sides, decode_seal

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
PRODUCERS: Final = ".producers"
SEAL: Final = ".seal"
DELETED: Final = ".deleted"
SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX, SEAL, SEALING)
"""Files of one segment (snapshots belong to the log)."""

MAX_RELATIVE: Final = 2**31 - 1
"""Greatest distance of an offset from its segment's base: index entries hold it in four bytes."""

_TXN_ENTRY = struct.Struct(">hqqqq")


def file_name(base_offset: int, suffix: str) -> str:
    """Kafka's name of a segment's file: twenty digits and what it holds."""
    return f"{base_offset:020d}{suffix}"


def log_name(base_offset: int) -> str:
    return file_name(base_offset, LOG)


def parse_name(name: str) -> tuple[int, str] | None:
    """(base offset, suffix) of a name as `file_name` makes it, else None."""
    digits, suffix = name[:20], name[20:]
    if len(digits) == 20 and digits.isascii() and digits.isdecimal() and suffix.startswith("."):
        return int(digits), suffix
    return None


def parse_base(name: str) -> int | None:
    """Base offset when this is the name of a `.log` file, else None."""
    parsed = parse_name(name)
    return parsed[0] if parsed is not None and parsed[1] == LOG else None


class Segment:
    """A run of batches in one file.

    base_offset: offset in the file names, at most that of its first record; next_offset: behind its last.
    size: bytes including those still queued; flushed: bytes in the file; synced: bytes known to be on stable storage.
    max_timestamp (ms, -1 none) belongs to the batch that ends at max_timestamp_offset. first_timestamp (ms, -1
    unknown): greatest of the first batch, or when it was stored if it has none; `segment.ms` counts from it. stored_ms:
    when the last record was stored if none has a timestamp (`latest_ms`), or timestamps are no times; -1 unknown.
    sealed: it has a `.seal`, read into `seal` on use. written_sums: of large writes since the last checkpoint.
    replaced: compaction took it out of its log, and another one takes its names. dormant: the active one as a
    checkpoint described it, until an append. staged: what follows the names of its files, but for those in `unstaged`.
    """

    __slots__ = (
        "__weakref__",
        "_aborted",
        "_file",
        "aborted_unsynced",
        "base_offset",
        "directory",
        "disk",
        "dormant",
        "files_open",
        "first_timestamp",
        "flushed",
        "index",
        "index_checked",
        "index_entries",
        "index_file",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "replaced",
        "seal",
        "sealed",
        "size",
        "staged",
        "stored_ms",
        "synced",
        "syncs",
        "time_entries",
        "times",
        "unindexed",
        "unstaged",
        "written_sums",
    )

    def __init__(self, disk: Disk, directory: str, base_offset: int, files: OpenFiles | None = None) -> None:
        self.disk = disk
        self.files_open = files
        self.directory = directory
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.flushed = 0
        self.synced = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.first_timestamp = self.stored_ms = -1
        self.unindexed = 0
        self.index: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.index_entries = 0
        self.index_checked = False
        self.time_entries = 0
        self.staged, self.replaced = "", False
        self.unstaged: tuple[str, ...] = ()
        self.sealed = False
        self.seal: Seal | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self.aborted_unsynced = False
        self._file: File | None = None
        self.syncs: SyncHistory | None = None
        self.index_file: File | None = None
        self.dormant: ActiveState | None = None
        self.written_sums: WrittenSums | None = None

    @property
    def path(self) -> str:
        """Path of the `.log` file."""
        return self.path_of(LOG)

    def path_of(self, suffix: str, directory: str = "") -> str:
        """Path of one of its files; directory: where its log is by now, if it may have let go of the segment."""
        staged = "" if suffix in self.unstaged else self.staged
        return posixpath.join(directory or self.directory, file_name(self.base_offset, suffix) + staged)

    @property
    def is_open(self) -> bool:
        """Whether its `.log` is."""
        return self._file is not None

    def open_file(self, *, create: bool = False) -> File:
        """The `.log` file, opened at first use and kept. create: its name is to be synced. NoRoomError, OSError."""
        file = self._file
        if file is None:
            with retriable_write():
                file = self._file = self.disk.open(self.path, create=create, write=True)
            if self.files_open is not None:
                self.files_open.opened(self, LOG)
        return file

    def open_index_file(self) -> File:
        """The `.index` of a closed segment; OSError."""
        file = self.index_file
        if file is None:
            file = self.index_file = self.disk.open(self.path_of(INDEX))
            if self.files_open is not None:
                self.files_open.opened(self, INDEX)
        return file

    def position_before(self, offset: int) -> int:
        """The start of a batch at or before the one that holds `offset`, by whichever index there is."""
        if offset <= self.base_offset:
            return 0
        if self.index is not None:
            return self.index.position_for(offset - self.base_offset)
        if not self.index_entries:
            return 0
        file = self.open_index_file()
        index = StoredOffsetIndex(lambda position, length: file.pread(length, position), self.index_entries)
        position = index.position_for(offset - self.base_offset)
        header = header_at(self.open_file(), position, self.size)
        return position if header is not None and header.base_offset <= offset else 0

    def files(self) -> list[str]:
        """Paths of this segment's files that exist."""
        return [path for path in map(self.path_of, SUFFIXES) if self.disk.exists(path)]

    def activate(self) -> None:
        """Get ready to grow: an empty index in memory."""
        self.index = OffsetIndex()
        self.times = TimeIndex()
        self.dormant = None

    def note(self, header: BatchHeader, position: int, interval: int) -> None:
        """Account for a batch at `position`: bounds, timestamps and, every `interval` bytes, an index entry.

        `Log.append` has this code inline; opening a log comes through here.
        """
        end = header.base_offset + header.last_offset_delta + 1
        if self.size == 0:
            self.first_timestamp = header.max_timestamp
        self.size = position + header.size
        self.next_offset = end
        if header.max_timestamp > self.max_timestamp and header.count:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = end - 1
        if self.unindexed > interval:
            self.add_index_entry(end - 1, position)
        self.unindexed += header.size

    def add_index_entry(self, last_offset: int, position: int) -> None:
        """Index the batch at `position`, which ends with `last_offset`."""
        if self.index is not None and self.times is not None:
            self.index.add(last_offset - self.base_offset, position)
            self.times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.unindexed = 0

    def pending_index_writes(self, *, final: bool) -> list[tuple[str, int, bytes]]:
        """(path, position, bytes) by which the index files fall behind memory.

        final: the segment takes no more batches, so its greatest timestamp gets its closing entry.
        """
        writes: list[tuple[str, int, bytes]] = []
        index, times = self.index, self.times
        if index is None or times is None:
            return writes
        if final and self.max_timestamp >= 0:
            times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        for suffix, entries, width in ((INDEX, index, OFFSET_ENTRY_SIZE), (TIME_INDEX, times, TIME_ENTRY_SIZE)):
            if len(entries) > entries.written or entries.written == 0:
                writes.append((self.path_of(suffix), entries.written * width, entries.encode(entries.written)))
        return writes

    def close_indexes(self) -> None:
        """Let go of the entries in memory, which the files hold by now."""
        if self.index is not None and self.times is not None:
            self.index_entries = len(self.index)
            self.time_entries = len(self.times)
        self.index = None
        self.times = None
        self.dormant = None
        self.written_sums = None

    @property
    def latest_ms(self) -> int:
        """Greatest timestamp of its records, or where none has one when the last was stored; -1 unknown."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.stored_ms

    def last_stored_ms(self, now_ms: int) -> int:
        """When its last record was stored, whatever timestamps the records have; -1 without records. OSError."""
        if self.stored_ms < 0 and self.size:
            self.stored_ms = min(now_ms, self.disk.modified_ms(self.path))
        return self.stored_ms

    def date_by_storing(self) -> None:
        """Its first timestamp may be no time: it counts as stored with the last write, if not before. OSError."""
        if self.flushed:
            self.first_timestamp = min(self.first_timestamp, self.disk.modified_ms(self.path))

    def first_batch_ms(self, now_ms: int) -> int:
        """Greatest timestamp of the first batch; -1 of a segment without one. OSError.

        A batch that has none is as old as the last write to the file, but never from the future.
        """
        if self.first_timestamp < 0 and self.size >= HEADER_SIZE:
            self.first_timestamp = parse_header(self.open_file().pread(HEADER_SIZE, 0)).max_timestamp
            self.release_files()
            if self.first_timestamp < 0:
                self.first_timestamp = min(now_ms, self.disk.modified_ms(self.path))
        return self.first_timestamp

    def clock_set(self, now_ms: int, by_ms: int) -> None:
        """The wall clock was set ahead, or back (negative), to `now_ms`: records without timestamps get no older."""
        if self.max_timestamp < 0:
            self.first_timestamp = min(self.first_timestamp, now_ms)
        if by_ms < 0 or 0 <= self.stored_ms <= now_ms - by_ms:  # else it was written when the clock was right
            self.stored_ms = min(self.stored_ms + max(0, by_ms), now_ms)

    def sleep(self, state: ActiveState) -> None:
        """The active one stays as a checkpoint describes it until it is to grow; its indexes are not loaded."""
        self.dormant = state
        self.index_entries, self.time_entries = state.index_entries, state.time_entries
        self.first_timestamp = state.first_timestamp
        self.max_timestamp, self.max_timestamp_offset = state.max_timestamp, state.max_timestamp_offset

    def take_bounds_from_seal(self) -> bool:
        """Take over bounds and index sizes from the seal; False when it is missing, old or damaged. OSError."""
        sides = sealed_sides(self)
        if sides is None or self.seal is None or not sides.time_bytes:
            return False
        self.max_timestamp, self.max_timestamp_offset = self.seal.max_timestamp, self.seal.max_timestamp_offset
        self.index_entries = sides.index_bytes // OFFSET_ENTRY_SIZE
        self.time_entries = sides.time_bytes // TIME_ENTRY_SIZE
        return True

    # ---- aborted transactions --------------------------------------------------------------------------------

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """Append to `.txnindex`. OSError."""
        known = self.aborted()
        file = self.disk.open(self.path_of(TXN_INDEX), create=True, write=True)
        try:
            file.pwritev([_TXN_ENTRY.pack(0, *entry)], len(known) * _TXN_ENTRY.size)
        finally:
            file.close()
        known.append(entry)
        self.aborted_unsynced = True

    @property
    def has_aborted(self) -> bool:
        """Whether a rolled-back transaction ends here, as far as `.txnindex` was looked into (opening a log does)."""
        return bool(self._aborted)

    def aborted(self) -> list[AbortedTransaction]:
        """Entries of `.txnindex`, in the order of their markers, read once; CorruptLogError."""
        if self._aborted is None:
            self._aborted = self._read_aborted()
        return self._aborted

    def _read_aborted(self) -> list[AbortedTransaction]:
        path = self.path_of(TXN_INDEX)
        data = read_file(self.disk, path)
        if data is None:
            return []
        if len(data) % _TXN_ENTRY.size:
            raise CorruptLogError(path, 0, len(data), "a partial entry", self.base_offset)
        sides = sealed_sides(self)
        if sides is not None and sides.txn_bytes and (len(data), crc32c(data)) != sides[4:]:
            raise CorruptLogError(path, 0, len(data), "it differs from its checksum in the seal", self.base_offset)
        entries = []
        for version, *fields in _TXN_ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != 0 or entry.last_offset <= entry.first_offset or entry.last_offset < self.base_offset:
                # Also what a power cut leaves of one whose length alone got to the disk: a marker lies behind its data.
                raise CorruptLogError(path, 0, len(data), f"an impossible entry {entry}", self.base_offset)
            entries.append(entry)
        return entries

    @staticmethod
    def encode_aborted(entries: list[AbortedTransaction]) -> bytes:
        """A `.txnindex` of these entries."""
        return b"".join(_TXN_ENTRY.pack(0, *entry) for entry in entries)

    def take_aborted(self, entries: list[AbortedTransaction]) -> None:
        """The entries of a `.txnindex` that was written and synced elsewhere."""
        self._aborted = entries
        self.aborted_unsynced = False

    def rewrite_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Replace `.txnindex`; no file when there is nothing to say. OSError."""
        self._aborted = entries
        self.aborted_unsynced = False
        path = self.path_of(TXN_INDEX)
        if not entries:
            if self.disk.exists(path):
                self.disk.remove(path)
            return
        file = self.disk.open(path, create=True, write=True)
        try:
            file.truncate(0)
            file.pwritev([self.encode_aborted(entries)], 0)
        finally:
            file.close()
        self.aborted_unsynced = True

    # ---- files -----------------------------------------------------------------------------------------------

    def load_seal(self) -> Seal | None:
        """The seal, read when first asked for; None when the segment has none. StorageError when it is damaged."""
        if self.seal is None and self.sealed:
            path = self.path_of(SEAL)
            data = read_file(self.disk, path)
            self.sealed = data is not None
            if data is not None:
                seal = decode_seal(data, path)
                if seal.length != self.size:
                    raise CorruptLogError(
                        self.path, 0, self.size, f"its seal speaks of {seal.length} bytes", self.base_offset
                    )
                if not self.base_offset - 1 <= seal.last_offset < self.next_offset:
                    raise StorageError(f"{path} speaks of offset {seal.last_offset}, which the segment cannot have")
                self.seal = seal
        elif self.seal is None:
            self.seal = read_growing(self.disk, self.path_of(SEALING), self.flushed)
        return self.seal

    def drop_seal(self) -> None:
        """The file is about to change: what was sealed no longer holds."""
        self.seal = None
        self.written_sums = None
        self.sealed = False
        for path in (self.path_of(SEAL), self.path_of(SEALING)):
            if self.disk.exists(path):
                self.disk.remove(path)

    def release_files(self) -> None:
        """Let go of descriptors; a reply that still sends from the file keeps it open for itself.

        Never before the file is synced: an error of the write-back would be lost with the last descriptor.
        """
        if self.synced >= self.flushed:
            self._file = None
            self._closed(LOG)
        self.index_file = None
        self._closed(INDEX)
        self.index_checked = False
        self.seal = None

    def let_go_of_index(self) -> None:
        """Its index files are about to change: what is known of them no longer holds."""
        self.index_file = None
        self._closed(INDEX)
        self.index_checked = False
        self.index_entries = self.time_entries = 0

    def forget(self) -> None:
        """The segment is gone: its files close when nobody reads, syncs or sends from them any more."""
        self._file = None
        self.index_file = None
        self._closed(LOG)
        self._closed(INDEX)

    def _closed(self, suffix: str) -> None:
        if self.files_open is not None:
            self.files_open.closed(self, suffix)

    def close(self) -> None:
        """Close the files for good."""
        for file in (self._file, self.index_file):
            if file is not None:
                file.close()
        self.forget()

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}..{self.next_offset}, {self.size} bytes)"


def sealed_sides(segment: Segment) -> Sides | None:
    """What the seal knows of the index files; None when it is missing, old or damaged. OSError."""
    try:
        seal = segment.load_seal()
    except StorageError:
        return None
    return None if seal is None else seal.sides


def dormant_sums(segment: Segment) -> tuple[int, int, int, int] | None:
    """Bytes and CRCs of the index files, by the checkpoint, of an active segment that did not load them."""
    state = segment.dormant
    if state is None:
        return None
    index, times = state.index_entries * OFFSET_ENTRY_SIZE, state.time_entries * TIME_ENTRY_SIZE
    return index, state.index_crc, times, state.time_crc


def checked_file(segment: Segment) -> File:
    """The `.log` for `scan`, held against what was sealed of it. OSError."""
    try:
        seal = segment.load_seal()
    except StorageError:
        seal = None
    file = segment.open_file()
    return file if seal is None else cast(File, CheckedFile(file, seal, segment.base_offset))
