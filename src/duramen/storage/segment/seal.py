"""The `.seal` beside a finished segment: checksums of all its bytes, in blocks so small that one read needs few.

A batch's own CRC leaves out its first 21 bytes; the seal covers everything. It is made after the roll, from synced
bytes whose batch CRCs are checked in the same pass, and is what cold reads, the scrubber and replica repair trust.

Its format is in `wire/seal.py`, for those who read segments without a storage.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from duramen.errors import CorruptLogError, StorageError
from duramen.ports import Disk, File
from duramen.storage.files.atomic import read_file, replace_file
from duramen.storage.files.disk_full import retriable_open
from duramen.storage.segment.corruption import as_corruption
from duramen.storage.segment.scan import CHUNK_BYTES, scan
from duramen.wire.batch import HEADER_SIZE
from duramen.wire.checksum import crc32c
from duramen.wire.seal import BLOCK_BYTES, Seal, Sides, decode_seal

_READ_BYTES = CHUNK_BYTES
"""Read at once: what stays in a processor's own cache until it is summed up."""
SEALING = ".sealing"
"""Suffix of the seal of an active segment, which covers its beginning."""
GROW_BYTES = 64 << 20
"""Most bytes by which one checkpoint extends such a seal."""


def compute_seal(file: File, length: int, base_offset: int, last_offset: int) -> Seal:
    """Read a finished segment of these offsets once and checksum it.

    CorruptLogError when a batch in it is damaged, or the disk cannot read it; OSError.
    """
    passage = _Passage(file, length)
    timestamp = -1
    youngest = -1
    reached = base_offset - 1
    try:
        for position, header, ok in scan(passage, 0, length):
            if not ok or header is None:
                end = length if header is None else position + header.size
                raise CorruptLogError(file.path, position, end, "a batch's CRC or header is wrong", reached + 1)
            reached = header.last_offset
            if header.max_timestamp > timestamp and header.count:
                timestamp, youngest = header.max_timestamp, reached
    except OSError as error:
        end = min(length, passage.reached + _READ_BYTES)
        raise as_corruption(error, file.path, passage.reached, end, reached + 1) from error
    checksums = passage.checksums
    # It may end early: Kafka's compaction removes the last batches of a segment, too.
    if reached > last_offset or len(checksums) != -(-length // BLOCK_BYTES):
        what = f"it ends at offset {reached} instead of {last_offset}"
        raise CorruptLogError(file.path, 0, length, what, base_offset)
    return Seal(length, last_offset, timestamp, checksums, youngest)


class _Passage:
    """A file that is read once, from front to back, and its blocks summed on the way, for a `scan` beside it.

    A scan never goes back by more than it reads at once. It may be given less than it asks for.
    """

    __slots__ = ("_before", "_file", "_last", "_length", "checksums", "path", "reached")

    def __init__(self, file: File, length: int) -> None:
        self.path = file.path
        self.checksums = array("I")
        self._file = file
        self._length = length
        self.reached = 0
        """Bytes read so far; the last of them are in `_last`, those before in `_before`."""
        self._last = self._before = memoryview(b"")

    def pread(self, length: int, offset: int) -> memoryview:
        """Some of these bytes, the first HEADER_SIZE at least; fewer at the end only."""
        while offset >= self.reached and self._advance():
            pass
        start = self.reached - len(self._last)
        piece, begins = (self._last, start) if offset >= start else (self._before, start - len(self._before))
        found = piece[offset - begins :][:length]
        if len(found) >= min(length, HEADER_SIZE):
            return found  # as far as this piece goes
        if piece is self._last and not self._advance():
            return found
        return memoryview(bytes(found) + bytes(self._last[: length - len(found)]))

    def _advance(self) -> bool:
        """Read on; False at the end."""
        piece = memoryview(self._file.pread(min(_READ_BYTES, self._length - self.reached), self.reached))
        if not piece:
            return False
        for inside in range(0, len(piece), BLOCK_BYTES):
            self.checksums.append(crc32c(piece[inside : inside + BLOCK_BYTES]))
        self.reached += len(piece)
        self._before, self._last = self._last, piece
        return True


def read_growing(disk: Disk, path: str, size: int) -> Seal | None:
    """What an active segment of `size` bytes is sealed up to, by its `.sealing`; None without one that fits.

    StorageError when it is damaged.
    """
    content = read_file(disk, path)
    seal = None if content is None else decode_seal(content, path)
    return seal if seal is not None and seal.length <= size else None


def grow(disk: Disk, file: File, path: str, length: int, written: Mapping[int, int], *, sync: bool) -> None:
    """Seal an active segment up to `length` (at most GROW_BYTES more at once). OSError.

    written: sums of whole blocks by number, taken when they were written; other blocks are read. What was sealed before
    is not read again: it may have been damaged since, and would be vouched for. Not synced unless something is going
    to rely on it, then also where it has its length: one that a power cut tore is no seal.
    """
    try:
        known = read_growing(disk, path, length)
    except StorageError:
        known = None
    seal = Seal(0, -1, -1, array("I")) if known is None else known
    if known is not None and known.length == length and not sync:
        return
    length = min(length, seal.length + GROW_BYTES)
    sums = seal.checksums
    position = seal.length
    while position < length:
        number, begun = divmod(position, BLOCK_BYTES)
        end = min(length, (number + 1) * BLOCK_BYTES)
        total = written.get(number) if end % BLOCK_BYTES == 0 else None
        before = sums.pop() if begun else 0
        if total is not None:
            sums.append(total)
        else:
            while not begun and end < min(length, position + _READ_BYTES) and end // BLOCK_BYTES not in written:
                end = min(length, end + BLOCK_BYTES)
            piece = memoryview(file.pread(end - position, position))
            if len(piece) < end - position:
                return  # somebody cut the file: whoever reads it finds that out
            for inside in range(0, len(piece), BLOCK_BYTES):
                sums.append(crc32c(piece[inside : inside + BLOCK_BYTES], before))
        position = end
    seal.length = length
    replace_file(disk, path, seal.encode(), sync=sync, durable_name=False)


def trim_growing(disk: Disk, path: str, length: int) -> bool:
    """Bytes from `length` on are about to be written anew: a `.sealing` file speaks of them no more. OSError.

    Returns whether it did; its name is to be synced then.
    """
    try:
        known = read_growing(disk, path, 1 << 62)
    except StorageError:
        known = Seal(1 << 62, -1, -1, array("I"))
    if known is None or known.length <= length:
        return False
    if known.checksums and length >= BLOCK_BYTES:
        replace_file(disk, path, known.cut(length).encode(), durable_name=False)
    else:
        disk.remove(path)
    return True


def drop_torn(disk: Disk, path: str) -> bool:
    """Remove a `.sealing` file that is none; whether it did. OSError. For a start after a crash: nobody synced it."""
    try:
        read_growing(disk, path, 1 << 62)
    except StorageError:
        disk.remove(path)
        return True
    return False


def blocks_hold(source: File, seal: Seal) -> Iterator[bool]:
    """Of each block whether it is what was sealed."""
    for number, wanted in enumerate(seal.checksums):
        start = number * BLOCK_BYTES
        yield crc32c(source.pread(min(BLOCK_BYTES, seal.length - start), start)) == wanted


def sound_seal(disk: Disk, path: str) -> Seal | None:
    """The seal of a segment, or of an active one's first part; None when there is none, or it is damaged."""
    content = read_file(disk, path)
    try:
        return None if content is None else decode_seal(content, path)
    except StorageError:
        return None


def sync_sides(disk: Disk, paths: Sequence[str]) -> None:
    """What a seal or a checkpoint is about to vouch for survives a power cut. OSError."""
    for path in paths:
        try:
            file = disk.open(path, write=True)
        except FileNotFoundError:
            continue
        try:
            file.sync()
        finally:
            file.close()


def read_sides(disk: Disk, paths: Sequence[str]) -> Sides:
    """Sums of a segment's `.index`, `.timeindex` and `.txnindex`, as they are now. OSError."""
    sums: list[int] = []
    for path in paths:
        content = read_file(disk, path) or b""
        sums += (len(content), crc32c(content))
    return Sides(*sums)


class CheckedFile:
    """A file whose every read is held against a seal, as far as that reaches."""

    __slots__ = ("_file", "_offset", "_seal", "path")

    def __init__(self, file: File, seal: Seal, offset: int) -> None:
        self.path = file.path
        self._file = file
        self._seal = seal
        self._offset = offset

    def pread(self, length: int, offset: int) -> bytes:
        """As File.pread; CorruptLogError."""
        end = min(offset + length, self._seal.length)
        if end <= offset:
            return self._file.pread(length, offset)
        start, stop = self._seal.block_range(offset, end)
        data = memoryview(self._file.pread(stop - start, start))
        if len(data) != stop - start:
            raise CorruptLogError(self.path, start + len(data), stop, "the file is too short", self._offset)
        self._seal.check(data, start, self.path, self._offset)
        found = bytes(data[offset - start : end - start])
        return found if end == offset + length else found + self._file.pread(offset + length - end, end)


class SealedSegment(Protocol):
    """What a seal needs of its segment."""

    base_offset: int

    def path_of(self, suffix: str, directory: str = "") -> str: ...


class SealedLog(Protocol):
    """What a seal needs of its segment's log."""

    disk: Disk
    path: str
    truncations: int
    writers: dict[object, None]


class SealJob:
    """Seals one segment: `run` on any thread, then `complete_seal` of `log/seals.py` on the owner's."""

    __slots__ = ("_file", "_last_offset", "_length", "_log", "_segment", "_truncations", "base_offset", "result")

    def __init__(self, log: SealedLog, segment: SealedSegment, file: File, length: int, last_offset: int) -> None:
        self._log = log
        self._truncations = log.truncations
        self._segment = segment
        self._file = file
        self._length = length
        self._last_offset = last_offset
        self.base_offset = segment.base_offset
        self.result: Seal | None = None

    def is_of(self, segment: SealedSegment) -> bool:
        """Whether this very segment was sealed: after a truncation it may go on, or another one begin at its offset."""
        return segment is self._segment and not self.overtaken

    @property
    def overtaken(self) -> bool:
        """Whether the log was cut meanwhile: the segment may end elsewhere."""
        return self._log.truncations != self._truncations

    @property
    def path(self) -> str:
        """Where the sidecar goes now: a deletion may move the log, and its old name may be another topic's.

        The log is asked: what it has let go of meanwhile does not know of the move.
        """
        return self._path_of(".seal")

    def _path_of(self, suffix: str) -> str:
        return self._segment.path_of(suffix, self._log.path)

    def run(self) -> None:
        """Checksum the segment and make the sidecar durable. NoRoomError, OSError, CorruptLogError.

        Nothing where it was overtaken: the segment may be cut behind this.
        """
        self._log.writers[self] = None  # first: what cuts the files looks for this behind the count of cuts
        if not self.overtaken:
            with retriable_open():
                self.result = self._seal()

    def _seal(self) -> Seal:
        seal = compute_seal(self._file, self._length, self.base_offset, self._last_offset)
        growing = self._path_of(SEALING)
        disk = self._log.disk
        self._hold(seal, growing)
        paths = [self._path_of(suffix) for suffix in (".index", ".timeindex", ".txnindex")]
        sync_sides(disk, paths)
        seal.sides = read_sides(disk, paths)
        replace_file(disk, self.path, seal.encode())
        if disk.exists(growing):
            disk.remove(growing)
        return seal

    def _hold(self, seal: Seal, growing: str) -> None:
        """What was sealed while the segment grew is what is there now."""
        try:
            known = read_growing(self._log.disk, growing, self._length)
        except StorageError:
            return
        if known is None:
            return
        whole, begun = divmod(known.length, BLOCK_BYTES)
        sums = seal.checksums[:whole]
        if begun:
            sums.append(crc32c(self._file.pread(begun, whole * BLOCK_BYTES)))
        for number, (now, then) in enumerate(zip(sums, known.checksums, strict=True)):
            if now != then:
                start = number * BLOCK_BYTES
                end = min(start + BLOCK_BYTES, known.length)
                what = "the bytes differ from what was sealed"
                raise CorruptLogError(self._file.path, start, end, what, self.base_offset)
